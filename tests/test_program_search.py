"""The search over lookup programs finds what is known by hand, and no more than chance allows."""

import numpy as np
import pytest

from analyses.program_search import ProgramSearch, _maximal


@pytest.mark.parametrize("schedule", ["FLF", "FFF"])
def test_the_known_constructions_are_found(schedule):
    assert ProgramSearch(2, 2).best_accuracy(schedule) == 1.0


def test_two_full_layers_with_one_head_are_not_enough_but_beat_chance():
    best = ProgramSearch(2, 2).best_accuracy("FF")
    assert 0.5 < best < 1.0


def test_knowing_the_needed_token_is_worth_everything_and_nothing_is_worth_chance():
    search = ProgramSearch(3, 2)
    needed = search._z2_fact(search.needed) | search._w_fact() | search._z1_fact(search.z0)
    assert search._accuracy(needed) == 1.0
    assert search._accuracy(np.zeros_like(search.z0)) == pytest.approx(1 / 6)


def test_only_the_knowing_are_kept():
    kept = _maximal([np.array([1, 1]), np.array([3, 1]), np.array([3, 1]), np.array([0, 2])])
    assert sorted(map(tuple, kept)) == [(0, 2), (3, 1)]
