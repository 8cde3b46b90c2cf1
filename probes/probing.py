"""Linear probes of many sites for many targets, with everything a reading must beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.controls import accuracy_interval, control_labels, shuffled
from probes.fitters import (
    ActivationReader,
    Chunks,
    Fitter,
    count_hits,
    groups_of,
    read_sites,
    ridge,
)
from probes.frames import tidy
from probes.linear import LinearProbes

if TYPE_CHECKING:
    import pandas as pd

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Relative to the mean variance of a feature; the best on validation prompts is taken."""


@dataclass(frozen=True)
class Target:
    """What is to be read, for every prompt.

    Attributes:
        labels: `[prompts]`, from `0 … classes - 1`.
        chance: accuracy of a blind guess; `1 / classes` if None.
        frequency_baseline: accuracy of a guess from frequencies alone, such as
            `CompositionTask.frequency_baseline`; if None that of the commonest training label.
        keys: `[prompts]`, what the labels of the control task hang on (`controls.control_labels`);
            no control task if None.
    """

    labels: Int[Tensor, " prompts"]
    classes: int
    chance: float | None = None
    frequency_baseline: float | None = None
    keys: Int[Tensor, " prompts"] | None = None


@dataclass(frozen=True)
class PromptSplit:
    """Which prompts are for what; three slices that do not overlap.

    Attributes:
        train: to fit on.
        validation: to choose penalties on.
        test: for the accuracies reported; nothing else depends on them.

    Raises:
        ValueError: a part without prompts or ends, with a step, or that overlaps another.
    """

    train: slice
    validation: slice
    test: slice

    def __post_init__(self) -> None:
        parts = sorted((self.train, self.validation, self.test), key=lambda part: part.start or 0)
        for part in parts:
            if None in (part.start, part.stop) or part.step not in (None, 1):
                raise ValueError(f"{part} is no range of prompts: use slice(begin, end)")
            if not 0 <= part.start < part.stop:
                raise ValueError(f"{part} holds no prompts: use slice(begin, end) with begin < end")
        for before, after in pairwise(parts):
            if before.stop > after.start:
                raise ValueError(
                    f"{before} and {after} share prompts, and would be tested on what was fitted: "
                    "use slices that do not overlap"
                )

    @staticmethod
    def of(prompts: int, *, validation: float = 0.15, test: float = 0.25) -> PromptSplit:
        """The last prompts for testing, those before them for validation, as shares of all."""
        last = prompts - round(prompts * test)
        middle = last - round(prompts * validation)
        return PromptSplit(slice(0, middle), slice(middle, last), slice(last, prompts))


@dataclass(frozen=True)
class FittedSites:
    """Probes of the sites that have equally many features."""

    sites: tuple[int, ...]
    probes: LinearProbes


@dataclass(frozen=True)
class ProbeTable:
    """Accuracies on test prompts, `[site, target]`, from 0 to 1.

    Attributes:
        targets: names, in the order of the last axis.
        accuracy, low, high: with Wilson's 95% interval.
        shuffled: after fitting on labels shuffled among the prompts.
        control: on the control task; nan where the target has no keys.
        untrained: what the same probes read from an untrained model; nan until `with_floor`.
        chance, frequency_baseline: `[target]`.
        penalty: the one chosen.
        fitted: the probes themselves.
    """

    targets: tuple[str, ...]
    accuracy: Float[Tensor, "site target"]
    low: Float[Tensor, "site target"]
    high: Float[Tensor, "site target"]
    shuffled: Float[Tensor, "site target"]
    control: Float[Tensor, "site target"]
    untrained: Float[Tensor, "site target"]
    chance: Float[Tensor, " target"]
    frequency_baseline: Float[Tensor, " target"]
    penalty: Float[Tensor, "site target"]
    fitted: tuple[FittedSites, ...]

    @property
    def selectivity(self) -> Float[Tensor, "site target"]:
        """Accuracy less that on the control task (arXiv 1909.03368)."""
        return self.accuracy - self.control

    def to_frame(self) -> pd.DataFrame:
        """A row for each site and target.

        Columns: `site` (its number in the reader's order), `target`, `accuracy`, `low`, `high`,
        `shuffled`, `control`, `untrained` (the last two missing where they were not measured),
        `chance`, `frequency_baseline`, `penalty`.
        """
        measured = ("accuracy", "low", "high", "shuffled", "control", "untrained")
        names = (*measured, "chance", "frequency_baseline", "penalty")
        axes = {"site": range(len(self.accuracy)), "target": self.targets}
        return tidy(axes, {name: getattr(self, name) for name in names})

    def with_floor(self, untrained: ProbeTable) -> ProbeTable:
        """This table with another's accuracies, those of an untrained model, as a floor.

        Raises:
            ValueError: the other has different targets or another number of sites.
        """
        if untrained.targets != self.targets or len(untrained.accuracy) != len(self.accuracy):
            raise ValueError(
                f"{len(untrained.accuracy)} sites and targets {untrained.targets} are no floor for "
                f"{len(self.accuracy)} sites and targets {self.targets}: probe the same ones"
            )
        return replace(self, untrained=untrained.accuracy)


def probe_sites(
    read: ActivationReader,
    targets: Mapping[str, Target],
    split: PromptSplit,
    *,
    fit: Fitter = ridge,
    penalties: Sequence[float] = PENALTIES,
    chunk: int = 1024,
    seed: int = 0,
) -> ProbeTable:
    """Fit a probe for every target at every site, and for the floors, and test them all.

    Means, Gram matrices and fits come from the training prompts, penalties from the validation
    prompts; test prompts give the accuracies and nothing else.

    Args:
        read: the sites' activations, for a range of prompts.
        fit: `ridge`, `discriminant` or `logistic` of `probes.fitters`.
        penalties: to choose from, for each site and target by itself.
        chunk: prompts read at a time, which bounds the memory.
        seed: of the shuffling and the control tasks.

    Raises:
        ValueError: no targets, labels that are not one a prompt, fewer training prompts than
            classes, or what the reader, the fit or the control task refuses.
    """
    _check_targets(targets, split)
    generator = torch.Generator().manual_seed(seed)
    real = list(targets.values())
    labels = [target.labels.cpu() for target in real]
    mixed = [_shuffled_within(label, split, generator) for label in labels]
    controlled = [index for index, target in enumerate(real) if target.keys is not None]
    control = [
        control_labels(target.keys.cpu(), target.classes, generator)
        for target in real
        if target.keys is not None
    ]
    classes = [target.classes for target in [*real, *real, *(real[i] for i in controlled)]]
    fitted_to = torch.stack([*labels, *mixed, *control])
    tested_on = torch.stack([*labels, *labels, *control])

    begin = split.train.start
    groups = groups_of(read_sites(read, slice(begin, begin + 1)))
    train = Chunks(read, fitted_to, split.train, groups, chunk)
    validation = Chunks(read, fitted_to, split.validation, groups, chunk)
    test = Chunks(read, tested_on, split.test, groups, chunk)
    found = fit(train, validation, classes, penalties)
    by_group = [hits[0] for hits in count_hits([[probes for probes, _ in found]], test)]
    hits = _in_site_order(by_group, groups)
    penalty = _in_site_order([chosen for _, chosen in found], groups)

    count, total = len(real), split.test.stop - split.test.start
    low, high = accuracy_interval(hits[:, :count], total)
    accuracy = hits.double() / total
    on_control = torch.full_like(low, float("nan"))
    on_control[:, controlled] = accuracy[:, 2 * count :]
    return ProbeTable(
        targets=tuple(targets),
        accuracy=accuracy[:, :count],
        low=low,
        high=high,
        shuffled=accuracy[:, count : 2 * count],
        control=on_control,
        untrained=torch.full_like(low, float("nan")),
        chance=torch.tensor([_chance(target) for target in real], dtype=torch.float64),
        frequency_baseline=torch.tensor(
            [_frequency_baseline(target, split) for target in real], dtype=torch.float64
        ),
        penalty=penalty[:, :count],
        fitted=tuple(
            FittedSites(group, probes.first(count))
            for group, (probes, _) in zip(groups, found, strict=True)
        ),
    )


def transfer(
    table: ProbeTable,
    read: ActivationReader,
    targets: Mapping[str, Target],
    split: PromptSplit,
    *,
    chunk: int = 1024,
) -> Float[Tensor, "fit_site test_site target"]:
    """Accuracy of every site's probes on every other site's test activations.

    High where two sites hold a value in the same code, low where each has its own; nan between
    sites that differ in their number of features. The diagonal is `table.accuracy`.

    Raises:
        ValueError: targets other than the table's, or sites other than those it was fitted at.
    """
    if tuple(targets) != table.targets:
        raise ValueError(f"targets {tuple(targets)} are not those of the table: {table.targets}")
    _check_targets(targets, split)
    groups = tuple(fitted.sites for fitted in table.fitted)
    labels = torch.stack([target.labels.cpu() for target in targets.values()])
    sites, total = len(table.accuracy), split.test.stop - split.test.start
    accuracy = torch.full((sites, sites, len(targets)), float("nan"), dtype=torch.float64)
    # The probes of one site for all sites of its group, one site of every group at a time.
    everywhere = [
        [fitted.probes.everywhere(min(turn, len(fitted.sites) - 1)) for fitted in table.fitted]
        for turn in range(max(map(len, groups)))
    ]
    hits = count_hits(everywhere, Chunks(read, labels, split.test, groups, chunk))
    for group, of_group in zip(groups, hits, strict=True):
        for turn, site in enumerate(group):
            accuracy[site, list(group)] = of_group[turn].cpu().double() / total
    return accuracy


def _check_targets(targets: Mapping[str, Target], split: PromptSplit) -> None:
    if not targets:
        raise ValueError("there are no targets: name at least one, such as {'i_1': Target(…)}")
    first = next(iter(targets.values())).labels.shape
    needed = max(split.train.stop, split.validation.stop, split.test.stop)
    count = split.train.stop - split.train.start
    for name, target in targets.items():
        shape = tuple(target.labels.shape)
        if len(shape) != 1 or shape != first or shape[0] < needed:
            raise ValueError(
                f"target {name!r} has labels of shape {shape}: one for each prompt is needed, the "
                f"same number for all targets, at least {needed} for this split"
            )
        if target.keys is not None and target.keys.shape != target.labels.shape:
            raise ValueError(
                f"target {name!r} has keys of shape {tuple(target.keys.shape)} for labels of shape "
                f"{shape}: one key a prompt is needed"
            )
        if count < target.classes:
            raise ValueError(
                f"{count} prompts to train on, but target {name!r} has {target.classes} classes; "
                f"use at least {target.classes}, better 100 times as many"
            )


def _shuffled_within(labels: Tensor, split: PromptSplit, generator: torch.Generator) -> Tensor:
    """Labels in random order among the training prompts, and among the validation prompts."""
    mixed = labels.clone()
    for part in (split.train, split.validation):
        mixed[part] = shuffled(labels[part], generator)
    return mixed


def _chance(target: Target) -> float:
    return 1 / target.classes if target.chance is None else target.chance


def _frequency_baseline(target: Target, split: PromptSplit) -> float:
    if target.frequency_baseline is not None:
        return target.frequency_baseline
    commonest = target.labels[split.train].bincount().argmax()
    return (target.labels[split.test] == commonest).double().mean().item()


def _in_site_order(by_group: Sequence[Tensor], groups: Sequence[Sequence[int]]) -> Tensor:
    """Rows of all groups, `[site, …]`, back in the reader's order."""
    order = torch.tensor([site for group in groups for site in group]).argsort()
    return torch.cat([rows.cpu() for rows in by_group])[order]
