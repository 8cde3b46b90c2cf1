"""What can a stack do at L = 2 with one hard head a layer? A family of lookup programs is tried.

`python -m analyses.program_search` prints the table of docs/full_full_linear.md.

A program is what a trained layer would be if it were crisp. In a full layer the start and the
answer position look at one position each, addressed by role, query part and argument, where
the last two are constants or values that the looking position knows; it then knows all that
was known there. The answer position may run another program for every query. Entries of the
functions look up in layer 1, by the few rules of `_z1_entries` and `_z2_entries`. A linear
layer lets the answer position know *all* that the start position knows, a few values: more
than the smallest state could carry, so the table bounds such programs from above. A program
is worth the accuracy of the best guess from all that the answer position knows at the end.
Tokens of `z_2` stay symbols, since they say nothing about which entry is needed; all of `z_1`,
`z_0` and `w` are gone through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

import numpy as np

Knowledge = np.ndarray
"""`[world]` of int64: the facts that a position knows, one bit each."""


class ProgramSearch:
    """Programs for start domain m and branching n, with one head in every full layer.

    Facts are bits: `z_0 = v`, `w = v`, `z_1[i] = v`, and "the token of z_2[w, i] is known".
    """

    def __init__(self, m: int, n: int, only_w: int | None = None) -> None:
        self.m, self.n = m, n
        queries = range(n) if only_w is None else [only_w]
        worlds = np.array(
            [(*table, z0, w) for *table, z0, w in product(*[range(m)] * (m + 1), queries)]
        )
        self.z1, self.z0, self.w = worlds[:, :m], worlds[:, m], worlds[:, m + 1]
        self.i1 = self.z1[np.arange(len(worlds)), self.z0]
        self.needed = self.w * m + self.i1

    def best_accuracy(self, schedule: str) -> float:
        """Accuracy of the best program of "FF", "FFL", "FLF" or "FFF" (F full, L linear).

        The answer position knows `w`, so it may run another program for each; what the others
        do is the same for all.
        """
        queries = [ProgramSearch(self.m, self.n, w) for w in range(self.n)]
        here = [self.w == w for w in range(self.n)]
        best = 0.0
        for z1, z2 in product(self._z1_entries(), self._z2_entries()):
            for path in self._start_paths(schedule, z1, z2):
                total = 0.0
                for query, rows in zip(queries, here, strict=True):
                    visible = z1[:, rows], z2[:, rows], [start[rows] for start in path]
                    total += max(map(query._accuracy, query._answers(schedule, *visible)))
                best = max(best, total / self.n)
                if best == 1.0:
                    return best
        return best

    def _start_paths(self, schedule: str, z1: np.ndarray, z2: np.ndarray) -> list[list[Knowledge]]:
        """What the start position may know after every layer but the last."""
        bare = next(self._z1_entries()), next(self._z2_entries())
        paths = [[start] for start in _maximal(self._look(self._z0_fact(), *bare, []))]
        for kind in schedule[1:-1]:
            paths = [
                [*path, after]
                for path in paths
                for after in (
                    _maximal(self._look(path[-1], z1, z2, [])) if kind == "F" else path[-1:]
                )
            ]
        return paths

    # -- bits --------------------------------------------------------------------------------

    def _z0_fact(self) -> Knowledge:
        return 1 << self.z0

    def _w_fact(self) -> Knowledge:
        return 1 << (self.m + self.w)

    def _z1_fact(self, entry: np.ndarray) -> Knowledge:
        value = np.take_along_axis(self.z1, entry[:, None], 1)[:, 0]
        return 1 << (self.m + self.n + entry * self.m + value)

    def _z2_fact(self, entry: np.ndarray) -> Knowledge:
        return 1 << (self.m + self.n + self.m * self.m + entry)

    # -- layer 1 at the functions' entries ------------------------------------------------------

    def _z1_entries(self) -> Iterator[np.ndarray]:
        """`[entry, world]`: z_1's entries after layer 1. Each knows its token, and may look up.

        An entry holding v can fetch v's successor in one query part (the same for all entries,
        or one that goes round with the entry), or the entry before it.
        """
        entries = [np.full_like(self.z0, i) for i in range(self.m)]
        own = np.stack([self._z1_fact(entry) for entry in entries])
        yield own
        yield np.stack([own[i] | own[max(i - 1, 0)] for i in range(self.m)])
        parts = [[c] * self.m for c in range(self.n)] + [[i % self.n for i in range(self.m)]]
        for part in parts:
            successors = [part[i] * self.m + self.z1[:, i] for i in range(self.m)]
            yield np.stack([own[i] | self._z2_fact(e) for i, e in enumerate(successors)])

    def _z2_entries(self) -> Iterator[np.ndarray]:
        """`[entry, world]`: z_2's entries after layer 1; each may fetch a neighbour of its part."""
        entries = [np.full_like(self.z0, e) for e in range(self.n * self.m)]
        own = np.stack([self._z2_fact(entry) for entry in entries])
        yield own
        before = [e - 1 if e % self.m else e for e in range(self.n * self.m)]
        yield np.stack([own[e] | own[before[e]] for e in range(self.n * self.m)])

    # -- programs ------------------------------------------------------------------------------

    def _answers(
        self, schedule: str, z1: np.ndarray, z2: np.ndarray, starts: list[Knowledge]
    ) -> list[Knowledge]:
        """What the answer position can know at the end.

        Args:
            starts: what the start position knows after every layer but the last.
        """
        bare = next(self._z1_entries()), next(self._z2_entries())
        answer = _maximal(self._look(self._w_fact(), *bare, [self._z0_fact()]))
        for kind, before in zip(schedule[1:], starts, strict=True):
            if kind == "L":
                answer = [a | before for a in answer]
            else:
                answer = _maximal(x for a in answer for x in self._look(a, z1, z2, [before]))
        return answer

    def _look(
        self, knows: Knowledge, z1: np.ndarray, z2: np.ndarray, starts: list[Knowledge]
    ) -> Iterator[Knowledge]:
        """Everything a position can know after one head, from what it knows before.

        Args:
            starts: what the start position may know; empty where it cannot be seen.
        """
        yield knows
        for start in starts:
            yield knows | start
        worlds = np.arange(len(self.z0))
        addresses = [np.full_like(self.z0, i) for i in range(self.m)] + self._known_values(knows)
        for address in addresses:
            yield knows | z1[address, worlds]
        parts = [np.full_like(self.z0, c) for c in range(self.n)]
        for part, address in product(parts, addresses):
            yield knows | z2[part * self.m + address, worlds]

    def _known_values(self, knows: Knowledge) -> list[np.ndarray]:
        """Values that can serve as arguments: z_0, and i_1 or z_1's entry at a constant."""
        values = [self.z0] if _everywhere(knows, self._z0_fact()) else []
        if _everywhere(knows, self._z1_fact(self.z0)):
            values.append(self.i1)
        for i in range(self.m):
            if _everywhere(knows, self._z1_fact(np.full_like(self.z0, i))):
                values.append(self.z1[:, i])
        return values

    def _accuracy(self, knows: Knowledge) -> float:
        """Of the best guess: name the known token that is most likely the one needed."""
        _, group = np.unique(knows, return_inverse=True)
        entries = self.n * self.m
        needed = np.zeros((group.max() + 1, entries))
        np.add.at(needed, (group, self.needed), 1)
        known = np.zeros_like(needed, dtype=bool)
        known[group] = np.stack(
            [knows & self._z2_fact(np.full_like(self.z0, e)) != 0 for e in range(entries)], axis=1
        )
        right = np.where(known, needed, 0).max(1).sum() / len(knows)
        return right + (1 - right) / entries  # any other token is right by chance


def _everywhere(knows: Knowledge, fact: Knowledge) -> bool:
    return bool((knows & fact == fact).all())


def _maximal(candidates: Iterable[Knowledge]) -> list[Knowledge]:
    """Without repeats and without those that know nothing another does not know everywhere."""
    kept: list[Knowledge] = []
    distinct = {candidate.tobytes(): candidate for candidate in candidates}
    by_size = sorted(distinct.values(), key=lambda k: -int(np.bitwise_count(k).sum()))
    for candidate in by_size:
        if not any((candidate & other == candidate).all() for other in kept):
            kept.append(candidate)
    return kept


def main() -> None:
    """Print the table: best accuracy by sizes and schedule."""
    schedules = ("FF", "FFL", "FLF", "FFF")
    print("| m | n | " + " | ".join(schedules) + " |")
    print("|---|---|" + "---|" * len(schedules))
    for m, n in ((2, 2), (3, 2), (3, 3), (4, 2)):
        search = ProgramSearch(m, n)
        best = " | ".join(f"{search.best_accuracy(schedule):.3f}" for schedule in schedules)
        print(f"| {m} | {n} | {best} |", flush=True)


if __name__ == "__main__":
    main()
