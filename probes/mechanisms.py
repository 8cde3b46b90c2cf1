"""How a model makes its hops: tests that tell the mechanisms of docs/theory.md apart.

Where the first hop is made; what a function's own entries hold (their value alone, or already what
comes after it); whether a layer carries a value or looks one up; and what interchange measures
where nothing is carried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from composition import CompositionTask
from composition.sampling import (
    Prompts,
    apply_function,
    redraw_unvisited,
)
from probes.activations import residual_sites
from probes.frames import by_position, tidy
from probes.hop_map import at_visited_entries
from probes.interchange import (
    Interchange,
    InterchangePairs,
    entry_pairs,
    interchange,
    interchange_at,
    interchange_pairs,
    same_query,
    telling_pairs,
)
from probes.sites import Site, read

if TYPE_CHECKING:
    import pandas as pd

HALF = 0.5
"""A mechanism is named where it decides more than this share of the pairs."""


@dataclass(frozen=True)
class FirstHop:
    """Which position looks up `z_1`.

    Attributes:
        at_start: largest share, over layers, of pairs in which the start position carries `i_1`.
        at_answer: largest share in which the answer position carries `i_0`, to look up `z_1` with.
    """

    at_start: float
    at_answer: float

    @property
    def position(self) -> Literal["start", "answer"] | None:
        """The position that does it in more than half of the pairs; None if neither."""
        if max(self.at_start, self.at_answer) <= HALF:
            return None
        return "start" if self.at_start > self.at_answer else "answer"


def first_hop(swaps: Interchange) -> FirstHop:
    """Read off an interchange where the first hop is made."""
    return FirstHop(
        swaps.follows["start"][:, 1].max().item(), swaps.follows["answer"][1:, 0].max().item()
    )


@dataclass(frozen=True)
class EntryContents:
    """What the visited entry of a function holds for the answer, after every layer.

    A clean lookup finds `i_hop` there until it is read, and nothing afterwards. Where the entry
    has fetched its successors, a donor's entry brings the donor's later values with it: the
    small-branching shortcut, and pointer doubling where there is no query.

    Attributes:
        hop: of the function.
        follows: `[layer, L - hop + 1]`, share of pairs that go on from the donor's `i_hop`,
            `i_{hop+1}`, … `i_L`; layer 0 is the embedding.
        unchanged: `[layer]`.
    """

    hop: int
    follows: Float[Tensor, "layer later"]
    unchanged: Float[Tensor, " layer"]

    @property
    def fetched(self) -> float:
        """Largest share, over layers, in which the entry holds what comes after its own value."""
        later = self.follows[:, 1:]
        return later.sum(1).max().item() if later.shape[1] else 0.0

    def to_frame(self) -> pd.DataFrame:
        """A row for each layer and each value that the chain may go on from.

        Columns: `function` (k of `z_k`), `layer` (0 is the embedding), `hop` (of the value, k … L),
        `follows`; `unchanged`, the same for all hops.
        """
        layers, later = self.follows.shape
        axes = {
            "function": [self.hop],
            "layer": range(layers),
            "hop": range(self.hop, self.hop + later),
        }
        return tidy(axes, {"follows": self.follows, "unchanged": self.unchanged[:, None]})


def entry_contents(
    model: nn.Module, task: CompositionTask, hop: int, *, pairs: int = 512, seed: int = 0
) -> EntryContents:
    """Interchange the visited entry of `z_hop` between prompts that visit the same one.

    Raises:
        ValueError: hop outside `1 … L`, or a task too small to tell hypotheses apart.
    """
    drawn = entry_pairs(task, hop, pairs, torch.Generator().manual_seed(seed))
    found = at_visited_entries(model, task, drawn, hop).values()
    hits = torch.stack([shares * count for shares, count in found]).sum(0)
    shares = hits / len(drawn)
    return EntryContents(hop, shares[:, :-1], shares[:, -1])


@dataclass(frozen=True)
class CarryOrLookUp:
    """What a layer's values do for the answer: bring over what the start holds, or read tables.

    Attributes:
        layer: 0 for the first.
        carried: `[L + 1]`, share of pairs that go on from the donor's `i_l` when the layer's
            value vector at the start position is the donor's.
        looked_up: `[L]`, share of pairs that go on from the donor's `z_l` at the base's
            `i_{l-1}` when its values at all entries of `z_l` are the donor's.
    """

    layer: int
    carried: Float[Tensor, " hop"]
    looked_up: Float[Tensor, " function"]

    @property
    def carries(self) -> int | None:
        """The hop whose value the layer carries from the start in most pairs; None if none."""
        return int(self.carried.argmax()) if self.carried.max() > HALF else None

    @property
    def looks_up(self) -> int | None:
        """The function that it looks up in most pairs; None if none."""
        return int(self.looked_up.argmax()) + 1 if self.looked_up.max() > HALF else None

    def to_frame(self) -> pd.DataFrame:
        """A row for each hop whose value may be carried, then one for each function.

        Columns: `layer` (0 for the first), `does` ("carries" or "looks up"), `hop` (of the value
        that is carried, or k of the `z_k` that is looked up), `share`.
        """
        does = ["carries"] * len(self.carried) + ["looks up"] * len(self.looked_up)
        hops = [*range(len(self.carried)), *range(1, len(self.looked_up) + 1)]
        share = torch.cat([self.carried, self.looked_up])
        frame = tidy({"does": does}, {"share": share})
        frame.insert(0, "layer", self.layer)
        frame.insert(2, "hop", hops)
        return frame


def carry_or_look_up(
    model: nn.Module,
    task: CompositionTask,
    layer: int,
    *,
    component: str = "v",
    pairs: int = 512,
    seed: int = 0,
) -> CarryOrLookUp:
    """Exchange a layer's values at the start, then at the entries of each function.

    Args:
        layer: full or linear.
        component: "v", or which mixer's where two stand side by side ("linear_attn.hook_v").

    Raises:
        ValueError: a layer without values.
    """
    generator = torch.Generator().manual_seed(seed)
    moved = interchange_pairs(task, pairs, generator)
    start = Site(component, layer, task.start_position)
    carried = interchange_at(model, moved, [start])[0, :-1]
    looked_up = []
    for hop in range(1, task.hops + 1):
        place = task.positions[f"z{hop}"]
        table = Site(component, layer, tuple(range(place.start, place.stop)))
        drawn = _other_table(task, hop, pairs, generator)
        looked_up.append(interchange_at(model, drawn, [table])[0, 0])
    return CarryOrLookUp(layer, carried, torch.stack(looked_up))


@dataclass(frozen=True)
class InterchangeControls:
    """What interchange measures where nothing is carried: the floor for its accuracies.

    Attributes:
        random_direction: the residual moved as far as the donor's is, in a random direction.
        untrained: the same pairs on untrained weights.
        off_path: `{position: [layer]}`, share of prompts whose answer stays when the donor has
            the same chain and other entries everywhere else: 1 where only the chain matters.
    """

    random_direction: Interchange
    untrained: Interchange
    off_path: dict[str, Float[Tensor, " layer"]]

    def to_frame(self) -> pd.DataFrame:
        """A row for each control, position, layer and hop.

        Columns: `control` ("random direction", "untrained", "off path"), then those of
        `Interchange.to_frame`. Off the path there are no hops: `hop` and `follows` are missing,
        and `unchanged` is the share of prompts whose answer stays.
        """
        import pandas as pd

        off_path = by_position(self.off_path)
        axes = {"position": list(self.off_path), "layer": range(off_path.shape[1])}
        frames = {
            "random direction": self.random_direction.to_frame(),
            "untrained": self.untrained.to_frame(),
            "off path": tidy(axes, {"unchanged": off_path}).assign(
                pairs=self.random_direction.pairs
            ),
        }
        together = pd.concat(frames, names=["control", None]).reset_index(level=0)
        return together.reset_index(drop=True).astype({"hop": "Int64"})


def interchange_controls(
    model: nn.Module,
    untrained: nn.Module,
    task: CompositionTask,
    pairs: InterchangePairs,
    *,
    seed: int = 0,
) -> InterchangeControls:
    """The controls of `interchange(model, task, pairs)`.

    Args:
        untrained: the same stack with the weights it began with.
        seed: of directions and entries.
    """
    generator = torch.Generator().manual_seed(seed)
    follows, unchanged, off_path = {}, {}, {}
    same_chain = InterchangePairs(
        pairs.base,
        redraw_unvisited(task, pairs.base, generator),
        pairs.base.answer[:, None],
        len(pairs),
    )
    for name, position in task.traced_positions.items():
        sites = residual_sites(model, position)
        own, donated = (read(model, p.tokens, sites) for p in (pairs.base, pairs.donor))
        moved = [a + _as_far(b - a, generator) for a, b in zip(own, donated, strict=True)]
        shares = interchange_at(model, pairs, sites, moved)
        follows[name], unchanged[name] = shares[:, :-1], shares[:, -1]
        off_path[name] = interchange_at(model, same_chain, sites)[:, 0]
    return InterchangeControls(
        Interchange(follows, unchanged, len(pairs)), interchange(untrained, task, pairs), off_path
    )


def _as_far(step: Tensor, generator: torch.Generator) -> Tensor:
    """Random directions, each as long as its row of `step`."""
    direction = torch.randn(step.shape, generator=generator).to(step)
    return direction * (step.norm(dim=-1, keepdim=True) / direction.norm(dim=-1, keepdim=True))


def _other_table(
    task: CompositionTask, hop: int, count: int, generator: torch.Generator
) -> InterchangePairs:
    """Pairs for whose donor's `z_hop` the base's chain has another answer.

    The hypotheses: the donor's `z_hop` at the base's `i_{hop-1}`, or nothing changed.
    """

    def draw() -> tuple[Prompts, Prompts, Tensor]:
        base, donor = same_query(task, generator)
        value = apply_function(task, donor.tokens, hop, base.chain[:, hop - 1])
        changed = task.continue_chain(base, hop, value)
        return base, donor, torch.stack([changed, base.answer], dim=1)

    return telling_pairs(draw, count)
