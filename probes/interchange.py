"""Interchange interventions: what a site causes, measured by giving it a donor's residual.

The donor prompt has other tables and the same query. If a site carries `i_l`, its residual put
into the base prompt makes the model answer what the *base's* functions make of the *donor's*
`i_l`. A site that only correlates with `i_l` does not (arXiv 2106.02997).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from composition import CompositionTask
from composition.sampling import Prompts, share_argument, share_query
from probes.activations import residual_sites
from probes.frames import by_position, tidy
from probes.metrics import correctness
from probes.patching import sweep_values
from probes.sites import Site, read

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class InterchangePairs:
    """Base and donor prompts on which every hypothesis predicts another answer.

    Attributes:
        base, donor: row by row the same query, other functions and start.
        predictions: `[pair, hops + 2]`; column l is the base's functions continued from the
            donor's `i_l` (for l = L: the donor's answer), the last is the base's own answer.
        drawn: pairs drawn to find these; the others had two hypotheses that agree.
    """

    base: Prompts
    donor: Prompts
    predictions: Int[Tensor, "pair hypothesis"]
    drawn: int

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: slice | Tensor) -> InterchangePairs:
        """The pairs at `rows` (a slice, a mask or indices)."""
        return replace(
            self,
            base=self.base[rows],
            donor=self.donor[rows],
            predictions=self.predictions[rows],
        )

    def to(self, device: torch.device | str) -> InterchangePairs:
        """The same pairs on another device."""
        return replace(
            self,
            base=self.base.to(device),
            donor=self.donor.to(device),
            predictions=self.predictions.to(device),
        )


def interchange_pairs(
    task: CompositionTask, count: int, generator: torch.Generator
) -> InterchangePairs:
    """Draw `count` pairs whose hypotheses all predict different answers.

    Raises:
        ValueError: count below 1, or a task with too few values to tell its hypotheses apart.
    """

    def draw() -> tuple[Prompts, Prompts, Tensor]:
        base, donor = same_query(task, generator)
        return base, donor, _predictions(task, base, donor, 0)

    return telling_pairs(draw, count)


def entry_pairs(
    task: CompositionTask, hop: int, count: int, generator: torch.Generator
) -> InterchangePairs:
    """Pairs whose chains visit the same entry of `z_hop`, for interchange at that entry.

    Hypotheses are the donor's `i_hop … i_L`, then the base's own answer.

    Raises:
        ValueError: hop outside `1 … L`, or as for `interchange_pairs`.
    """

    def draw() -> tuple[Prompts, Prompts, Tensor]:
        base, donor = same_query(task, generator)
        donor = share_argument(task, donor, base, hop)
        return base, donor, _predictions(task, base, donor, hop)

    return telling_pairs(draw, count)


def same_query(task: CompositionTask, generator: torch.Generator) -> tuple[Prompts, Prompts]:
    """Some bases and donors, row by row with the same query."""
    base = task.sample(2048, generator)
    return base, share_query(task, task.sample(2048, generator), base)


def _predictions(
    task: CompositionTask, base: Prompts, donor: Prompts, first: int
) -> Int[Tensor, "pair hypothesis"]:
    """The base's functions continued from the donor's `i_first … i_L`, then its own answer."""
    columns = [
        task.continue_chain(base, hop, donor.chain[:, hop]) for hop in range(first, task.hops + 1)
    ]
    return torch.stack([*columns, base.answer], dim=1)


def telling_pairs(
    draw: Callable[[], tuple[Prompts, Prompts, Tensor]], count: int
) -> InterchangePairs:
    """Draw until `count` pairs have different predictions from all hypotheses.

    Args:
        draw: bases, donors and predictions `[pair, hypothesis]` of some pairs.

    Raises:
        ValueError: count below 1, or hypotheses that next to no pair tells apart.
    """
    if count < 1:
        raise ValueError(f"count is {count}, but at least one pair must be drawn")
    bases: list[Prompts] = []
    donors: list[Prompts] = []
    kept: list[Tensor] = []
    found = drawn = 0
    while found < count:
        base, donor, predictions = draw()
        ordered = predictions.sort(1).values
        rows = (ordered[:, 1:] != ordered[:, :-1]).all(1).nonzero()[:, 0]
        bases.append(base[rows])
        donors.append(donor[rows])
        kept.append(predictions[rows])
        found, drawn = found + len(rows), drawn + len(base)
        if found * 10_000 < drawn:
            raise ValueError(
                f"only {found} of {drawn} pairs tell the {predictions.shape[1]} hypotheses apart: "
                "answers are too few; use a larger start_domain or branching"
            )
    return InterchangePairs(
        Prompts.concatenate(bases)[:count],
        Prompts.concatenate(donors)[:count],
        torch.cat(kept)[:count],
        drawn,
    )


@dataclass(frozen=True)
class Interchange:
    """How often the patched model answers as each hypothesis says, after every layer.

    All tensors are on a scale from 0 to 1; layer 0 is the embedding.

    Attributes:
        follows: by position, `[layer, hop]`: interchange accuracy of `i_hop`. Hop L is also
            "the donor's answer is copied".
        unchanged: by position, `[layer]`: the base's own answer, as if nothing was patched.
        pairs: how many pairs each share is of.
    """

    follows: dict[str, Float[Tensor, "layer hop"]]
    unchanged: dict[str, Float[Tensor, " layer"]]
    pairs: int

    def to_frame(self) -> pd.DataFrame:
        """A row for each position, layer and hop.

        Columns: `position` ("start", "answer"), `layer` (0 is the embedding), `hop`, `follows`;
        `unchanged`, the same for all hops; `pairs`.
        """
        follows = by_position(self.follows)
        _, layers, hops = follows.shape
        axes = {"position": list(self.follows), "layer": range(layers), "hop": range(hops)}
        unchanged = by_position({name: self.unchanged[name] for name in self.follows})
        frame = tidy(axes, {"follows": follows, "unchanged": unchanged[..., None]})
        return frame.assign(pairs=self.pairs)


def interchange(
    model: nn.Module,
    task: CompositionTask,
    pairs: InterchangePairs,
    *,
    batch: int = 1024,
) -> Interchange:
    """Patch the whole residual at the start and answer positions after every layer, one by one.

    Args:
        model: its logits `[batch, position, value]` are read at the task's answer position.
        batch: pairs a forward pass.

    Raises:
        ValueError: a model without residual-stream hooks.
    """
    follows, unchanged = {}, {}
    for name, position in task.traced_positions.items():
        sites = residual_sites(model, position)
        shares = interchange_at(model, pairs, sites, batch=batch)
        follows[name], unchanged[name] = shares[:, :-1], shares[:, -1]
    return Interchange(follows, unchanged, len(pairs))


def interchange_at(
    model: nn.Module,
    pairs: InterchangePairs,
    sites: Sequence[Site],
    values: Sequence[Tensor] | None = None,
    *,
    batch: int = 1024,
) -> Float[Tensor, "site hypothesis"]:
    """How often each hypothesis predicts the answer, when a site has the donor's activation.

    Args:
        sites: any: a residual, a head's output ("z" with a head), a recurrent state, several
            positions at once.
        values: for each site what is put there, `[pair, …]`, such as `exchanged` gives for a
            subspace; all that the donor has there if None.

    Returns:
        Shares from 0 to 1 in the order of `pairs.predictions`.
    """
    given = read(model, pairs.donor.tokens, sites, batch=batch) if values is None else values
    metric = correctness(pairs.base.answer)
    swept = sweep_values(model, pairs.base.tokens, sites, given, metric, batch=batch)
    agrees = swept.answers[:, :, None] == pairs.predictions
    return agrees.double().mean(1)
