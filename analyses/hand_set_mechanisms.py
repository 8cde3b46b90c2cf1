"""Hand-set mechanisms as data: their steps, and what follows from them at every site.

A construction is a list of steps, each in the layer where it stands. What is held where, what is
still used, and which way a change takes to the answer can be read off it, without running a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from architectures import HookedStack, hand_set_model
from architectures.hand_set import Construction
from composition import CompositionTask

TASKS = {
    2: CompositionTask(start_domain=4, branching=(8,)),
    3: CompositionTask(start_domain=3, branching=(3, 2)),
    4: CompositionTask(start_domain=3, branching=(2, 2, 2)),
}


@dataclass(frozen=True)
class Step:
    """One move of a construction: afterwards position `at` holds `i_hop`.

    Attributes:
        layer: that makes it.
        carries: from the start position; otherwise the layer looks up `z_hop`.
    """

    layer: int
    hop: int
    at: int
    carries: bool


@dataclass(frozen=True)
class Mechanism:
    """A construction with its layers in a certain order, and what follows from that.

    Attributes:
        layers: which of the construction's layers stand where, as for `hand_set_model`.
    """

    task: CompositionTask
    construction: Construction
    layers: tuple[int | None, ...]

    def model(self) -> HookedStack:
        """The hand-set model."""
        return hand_set_model(self.task, self.construction, layers=self.layers)

    @property
    def steps(self) -> list[Step]:
        """From the first hop to the last."""
        start, answer = self.task.start_position, self.task.answer_position
        at_start = self.construction in ("full-twin", "early-linear")
        made = [(1, start, False), (1, answer, True)] if at_start else [(0, answer, True)]
        made += [(hop, answer, False) for hop in range(2 if at_start else 1, self.task.hops + 1)]
        return [Step(self.layers.index(place), *step) for place, step in enumerate(made)]

    def flow(self, hop: int) -> Iterator[tuple[Step, int, range, bool]]:
        """How a change of the entry that gives `i_hop` goes on to the answer.

        Yields:
            Every step that it passes; the position where it waits for the step (-1 for the
            visited entry of `z_hop`); the layers whose input has it there; and whether the step
            takes it as a value (rather than looks with it).
        """
        place = self.task.start_position if hop == 0 else -1
        since = 0
        for step in self.steps:
            if step.hop < hop:
                continue
            yield step, place, range(since, step.layer + 1), step.carries or place == -1
            place, since = step.at, step.layer + 1

    def carried(self, position: int) -> list[int | None]:
        """The hop that each layer's input, and the last one's output, holds for what follows."""
        held: list[int | None] = [None] * (len(self.layers) + 1)
        hop = 0
        for step, place, layers, _ in self.flow(0):
            if place == position:
                held[layers.start : layers.stop] = [hop] * len(layers)
            hop = step.hop
        if position == self.task.answer_position:
            last = self.steps[-1].layer + 1
            held[last:] = [self.task.hops] * (len(held) - last)
        return held

    def readable(self, position: int) -> list[set[int]]:
        """All hops that stand there at each of those places, used any more or not."""
        return [
            {step.hop for step in self.steps if step.at == position and step.layer < place}
            | ({0} if position == self.task.start_position else set())
            for place in range(len(self.layers) + 1)
        ]


def models(task: CompositionTask) -> dict[str, Mechanism]:
    """The right constructions, and wrong ones: answers as exact, hops made in other layers."""
    plain = tuple(range(task.hops + 1))
    names: tuple[Construction, ...] = ("full", "full-twin", "early-linear", "linear-first")
    right: dict[str, Mechanism] = {name: Mechanism(task, name, plain) for name in names}
    late: tuple[int | None, ...] = (0, None, *plain[1:])
    early: tuple[int | None, ...] = (*plain, None)
    wrong = {
        f"{name}, {what}": Mechanism(task, name, layers)
        for name in ("full", "early-linear")
        for what, layers in (("a layer late", late), ("a layer to spare", early))
    }
    return {**right, **wrong}
