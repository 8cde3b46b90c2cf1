"""Where is `i_l` now? Every position after every layer, by interchange.

At the start and the answer position any two prompts with the same query can be compared. An entry
of a function holds something for the answer only where the chain visits it, so entries are
exchanged between prompts that both visit the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from composition import CompositionTask
from composition.sampling import visited_position
from probes.activations import residual_sites
from probes.frames import tidy
from probes.interchange import (
    InterchangePairs,
    entry_pairs,
    interchange_at,
    interchange_pairs,
)
from probes.running import device_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class HopMap:
    """Which hop's value each position carries for the answer, after every layer.

    Attributes:
        task: whose positions they are.
        follows: `[hop, layer, position]`, share of pairs that go on from the donor's `i_hop` when
            the residual there is the donor's, from 0 to 1; layer 0 is the embedding. NaN where it
            was not measured: `i_l` before its own entry, or an entry that no pair visits.
        pairs: `[position]`, how many each share is of.
    """

    task: CompositionTask
    follows: Float[Tensor, "hop layer position"]
    pairs: Int[Tensor, " position"]

    def carried(self, layer: int, position: int, threshold: float = 0.5) -> int | None:
        """The hop that the position carries in more than this share of the pairs; None if none.

        Args:
            layer: 0 for the embedding.
        """
        shares = self.follows[:, layer, position].nan_to_num(0.0)
        return int(shares.argmax()) if shares.max() > threshold else None

    def to_frame(self) -> pd.DataFrame:
        """A row for each hop, layer and position.

        Columns: `hop`, `layer` (0 is the embedding), `position`, `follows` (missing where it was
        not measured), `pairs`.
        """
        hops, layers, positions = self.follows.shape
        axes = {"hop": range(hops), "layer": range(layers), "position": range(positions)}
        return tidy(axes, {"follows": self.follows, "pairs": self.pairs})

    def visited(self, hop: int) -> Float[Tensor, "hop layer"]:
        """`follows` at the visited entry of `z_hop`, all of its entries together.

        Raises:
            ValueError: hop outside `1 … L`.
        """
        if not 1 <= hop <= self.task.hops:
            raise ValueError(f"z_{hop} is not one of the functions: use 1 … {self.task.hops}")
        place = self.task.positions[f"z{hop}"]
        weights = self.pairs[place] / self.pairs[place].sum()
        return (self.follows[:, :, place].nan_to_num(0.0) * weights).sum(-1)


def hop_map(model: nn.Module, task: CompositionTask, *, pairs: int = 512, seed: int = 0) -> HopMap:
    """Interchange the residual at every position after every layer.

    Args:
        model: any with TransformerLens' residual-stream hooks.
        pairs: for the start and answer position each, and for the entries of each function
            together.
        seed: of the prompts.

    Raises:
        ValueError: a task too small to tell its hypotheses apart, or a model without
            residual-stream hooks.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = len(residual_sites(model, 0))
    follows = torch.full((task.hops + 1, layers, task.length), float("nan"), dtype=torch.float64)
    counts = torch.zeros(task.length, dtype=torch.int64)
    device = device_of(model)
    drawn = interchange_pairs(task, pairs, generator).to(device)
    for position in task.traced_positions.values():
        shares = interchange_at(model, drawn, residual_sites(model, position))
        follows[:, :, position] = shares[:, :-1].T.cpu()
        counts[position] = len(drawn)
    for hop in range(1, task.hops + 1):
        drawn = entry_pairs(task, hop, pairs, generator).to(device)
        for position, (shares, count) in at_visited_entries(model, task, drawn, hop).items():
            follows[hop:, :, position] = shares[:, :-1].T.cpu()
            counts[position] = count
    return HopMap(task, follows, counts)


def at_visited_entries(
    model: nn.Module, task: CompositionTask, drawn: InterchangePairs, hop: int
) -> dict[int, tuple[Float[Tensor, "layer hypothesis"], int]]:
    """Interchange at the entry of `z_hop` that both prompts of a pair visit.

    Returns:
        For every entry's position that some pair visits: the shares in the order of
        `drawn.predictions`, layer 0 the embedding, and how many pairs they are of.
    """
    place = task.positions[f"z{hop}"]
    visited = visited_position(task, drawn.base, hop)
    found = {}
    for position in range(place.start, place.stop):
        rows = (visited == position).nonzero()[:, 0]
        if len(rows):
            shares = interchange_at(model, drawn[rows], residual_sites(model, position))
            found[position] = shares, len(rows)
    return found
