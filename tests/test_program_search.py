"""The search over lookup programs finds what is known by hand; ignorance is worth chance."""

import numpy as np
import pytest

from analyses.program_search import ProgramSearch, _maximal


@pytest.mark.parametrize("schedule", ["FLF", "FFF"])
def test_the_known_constructions_are_found(schedule):
    assert ProgramSearch(2, 2).best_accuracy(schedule) == 1.0


def test_two_full_layers_with_one_head_are_not_enough_but_beat_chance():
    best = ProgramSearch(2, 2).best_accuracy("FF")
    assert 0.5 < best < 1.0


def test_late_linear_programs_that_carry_one_value_are_exact():
    """Full, full, linear by hand; the linear layer carries one fact from the start position."""
    for m, n in ((2, 2), (3, 2), (3, 3)):
        search = ProgramSearch(m, n)
        # Layer 1 fetches a candidate, layer 2 another with the neighbour that it has fetched.
        candidates = [search._z2_fact(search.w * m + i) for i in range(m)]
        carried = search._z1_fact(search.z0)
        assert search._accuracy(np.bitwise_or.reduce([search._w_fact(), *candidates, carried])) == 1
        assert search._accuracy(np.bitwise_or.reduce([search._w_fact(), *candidates])) < 1
    # Two query parts: one finished at the start position and carried, one by z_1's successors.
    search = ProgramSearch(4, 2)
    carried = search._z2_fact(search.i1)
    successor = search._z2_fact(search.m + search.i1)
    seen = search._z0_fact() | search._z1_fact(search.z0) | successor | search._w_fact()
    assert search._accuracy(seen | carried) == 1
    assert search._accuracy(seen) < 1


def test_knowing_the_needed_token_is_worth_everything_and_nothing_is_worth_chance():
    search = ProgramSearch(3, 2)
    needed = search._z2_fact(search.needed) | search._w_fact() | search._z1_fact(search.z0)
    assert search._accuracy(needed) == 1.0
    assert search._accuracy(np.zeros_like(search.z0)) == pytest.approx(1 / 6)


def test_only_the_knowing_are_kept():
    kept = _maximal([np.array([1, 1]), np.array([3, 1]), np.array([3, 1]), np.array([0, 2])])
    assert sorted(map(tuple, kept)) == [(0, 2), (3, 1)]
