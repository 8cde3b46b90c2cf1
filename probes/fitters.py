"""How probes are fitted to activations that come in chunks, and their penalties chosen.

The closed forms read the training chunks once and keep none of them; the logistic holds as many
sites at a time as a budget allows, and reads once for each such lot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.linear import LinearProbes, RidgePath, RidgeStatistics
from probes.logistic import fit_logistic
from probes.rows import chunks

ActivationReader = Callable[[slice], list[Tensor]]
"""Given which prompts, `[prompts, features]` for every site: one row a prompt."""

BUDGET = 2**30
"""Bytes of activations that the logistic holds at a time, unless a single site takes more."""


@dataclass(frozen=True)
class Chunks:
    """Activations and labels of a range of prompts, chunk by chunk, as often as asked.

    Each chunk is `[site, rows, features]` for every group of sites with equally many features,
    and labels `[target, rows]`.

    Attributes:
        labels: of all prompts.
        groups: site numbers.
        size: prompts a chunk.

    Raises:
        ValueError: the reader's tensors are not one row a prompt, or change from chunk to chunk.
    """

    read: ActivationReader
    labels: Int[Tensor, "target prompts"]
    prompts: slice
    groups: tuple[tuple[int, ...], ...]
    size: int

    def __iter__(self) -> Iterator[tuple[list[Tensor], Tensor]]:
        for part in chunks(self.prompts.stop, self.size, self.prompts.start):
            found = read_sites(self.read, part)
            if groups_of(found) != self.groups:
                raise ValueError(
                    f"prompts {part.start} … {part.stop - 1} have sites of "
                    f"{[x.shape[1] for x in found]} features, unlike the first prompt: a reader "
                    "must return the same sites for all prompts"
                )
            stacked = [torch.stack([found[site] for site in group]) for group in self.groups]
            yield stacked, self.labels[:, part].to(stacked[0].device)


def read_sites(read: ActivationReader, prompts: slice) -> list[Float[Tensor, "rows features"]]:
    """What the reader returns, if it is one row a prompt.

    Raises:
        ValueError: it is not, or there are no sites.
    """
    found = read(prompts)
    count = prompts.stop - prompts.start
    shapes = [tuple(tensor.shape) for tensor in found]
    if not found or any(len(shape) != 2 or shape[0] != count for shape in shapes):
        raise ValueError(
            f"the reader returned shapes {shapes} for {count} prompts: [{count}, features] is "
            "needed for each of one or more sites; flatten what has more axes"
        )
    return found


def groups_of(found: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
    """The numbers of the sites that have equally many features, group by group."""
    by_width: dict[int, list[int]] = {}
    for site, tensor in enumerate(found):
        by_width.setdefault(tensor.shape[1], []).append(site)
    return tuple(tuple(group) for group in by_width.values())


Fitter = Callable[
    [Chunks, Chunks, Sequence[int], Sequence[float]], list[tuple[LinearProbes, Tensor]]
]
"""From chunks to train and to choose on, classes and penalties: for every group of sites its
probes and the penalties chosen, `[site, target]`."""


def ridge(
    train: Chunks, validation: Chunks, classes: Sequence[int], penalties: Sequence[float]
) -> list[tuple[LinearProbes, Tensor]]:
    """Ridge regression to one-hot labels (`RidgePath.ridge`)."""
    return _closed_form(RidgePath.ridge, train, validation, classes, penalties)


def discriminant(
    train: Chunks, validation: Chunks, classes: Sequence[int], penalties: Sequence[float]
) -> list[tuple[LinearProbes, Tensor]]:
    """The linear discriminant (`RidgePath.discriminant`)."""
    return _closed_form(RidgePath.discriminant, train, validation, classes, penalties)


def logistic(
    train: Chunks, validation: Chunks, classes: Sequence[int], penalties: Sequence[float]
) -> list[tuple[LinearProbes, Tensor]]:
    """Multinomial logistic regression (`fit_logistic`)."""
    candidates: list[list[LinearProbes]] = [[] for _ in penalties]
    for group in range(len(train.groups)):
        lots = [
            [_logistic(features, labels, classes, penalty) for penalty in penalties]
            for features, labels in _held(train, group)
        ]
        for candidate, parts in zip(candidates, zip(*lots, strict=True), strict=True):
            weight = torch.cat([part.weight for part in parts])
            bias = torch.cat([part.bias for part in parts])
            candidate.append(LinearProbes(weight, bias, tuple(classes)))
    return _best(candidates, validation, penalties)


def _logistic(
    features: Tensor, labels: Tensor, classes: Sequence[int], penalty: float
) -> LinearProbes:
    """One fit for all targets with equally many classes, put side by side in their order."""
    weights: dict[int, Tensor] = {}
    biases: dict[int, Tensor] = {}
    for count in set(classes):
        same = [target for target, other in enumerate(classes) if other == count]
        fitted = fit_logistic(features, labels[same], count, penalty=penalty).probes
        weights.update(zip(same, fitted.weight.split(count, dim=-1), strict=True))
        biases.update(zip(same, fitted.bias.split(count, dim=-1), strict=True))
    order = range(len(classes))
    return LinearProbes(
        torch.cat([weights[target] for target in order], dim=-1),
        torch.cat([biases[target] for target in order], dim=-1),
        tuple(classes),
    )


def _held(chunks: Chunks, group: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All rows of as many sites of a group as the budget allows, then of as many more."""
    sites = len(chunks.groups[group])
    begin, held = 0, 1  # how much one site takes is known when it has been read
    while begin < sites:
        end = min(begin + held, sites)
        parts = [(features[group][begin:end].clone(), labels) for features, labels in chunks]
        features = torch.cat([part[0] for part in parts], dim=1)
        labels = torch.cat([part[1] for part in parts], dim=1)
        held = max(1, BUDGET // (features[0].numel() * features.element_size()))
        begin = end
        yield features, labels


def _closed_form(
    solve: Callable[[RidgePath, float], LinearProbes],
    train: Chunks,
    validation: Chunks,
    classes: Sequence[int],
    penalties: Sequence[float],
) -> list[tuple[LinearProbes, Tensor]]:
    """What is solved from the statistics of one passage over the training chunks."""
    statistics = [RidgeStatistics(classes) for _ in train.groups]
    for features, labels in train:
        for one, group in zip(statistics, features, strict=True):
            one.add(group, labels)
    paths = [one.path() for one in statistics]
    candidates = [[solve(path, penalty) for path in paths] for penalty in penalties]
    return _best(candidates, validation, penalties)


def _best(
    candidates: list[list[LinearProbes]], validation: Chunks, penalties: Sequence[float]
) -> list[tuple[LinearProbes, Tensor]]:
    """For every site and target the candidate that hits most; the stronger penalty among equals.

    `candidates` are by penalty, then by group of sites.
    """
    by_strength = sorted(range(len(penalties)), key=lambda index: -penalties[index])
    hits = count_hits([candidates[index] for index in by_strength], validation)
    best = []
    for group, of_group in enumerate(hits):
        choice = of_group.argmax(0)  # the first of equals
        weight = torch.zeros_like(candidates[0][group].weight)
        bias = torch.zeros_like(candidates[0][group].bias)
        classes = candidates[0][group].classes
        by_score = choice.repeat_interleave(torch.tensor(classes, device=choice.device), dim=1)
        for rank, index in enumerate(by_strength):
            candidate = candidates[index][group]
            weight = candidate.weight.where((by_score == rank)[:, None], weight)
            bias = candidate.bias.where(by_score == rank, bias)
        ordered = torch.tensor([float(penalties[index]) for index in by_strength])
        best.append((LinearProbes(weight, bias, classes), ordered.double()[choice.cpu()]))
    return best


def count_hits(
    candidates: Sequence[Sequence[LinearProbes]], chunks: Chunks
) -> list[Int[Tensor, "candidate site target"]]:
    """For every group of sites how many labels each candidate predicts.

    Args:
        candidates: by candidate, then by group.
    """
    hits: list[Tensor] = []
    for features, labels in chunks:
        new = [
            torch.stack([probes[group].hits(X, labels) for probes in candidates])
            for group, X in enumerate(features)
        ]
        hits = [a + b for a, b in zip(hits, new, strict=True)] if hits else new
    return hits
