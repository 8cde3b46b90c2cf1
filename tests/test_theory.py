"""The predictions: every row of the theory's two tables, the size condition, and its errors."""

import math

import pytest

from composition import (
    FULL_KINDS,
    LINEAR_KINDS,
    can_look_up,
    counting_bound,
    predict_progress,
    size_condition,
)


def bounds(schedule: str, hops: int, **options) -> tuple[list[int], list[int]]:
    """F for full, L for linear; lower and upper bound after every layer."""
    kinds = [{"F": "full", "L": "linear"}[letter] for letter in schedule]
    predicted = predict_progress(kinds, hops, **options)
    return [bound.lower for bound in predicted], [bound.upper for bound in predicted]


@pytest.mark.parametrize(
    ("schedule", "hops", "lower", "upper"),
    [
        # a >= 1, c0 = 0, c1 = 0: a - 1
        ("FFF", 2, [0, 1, 2], [0, 1, 2]),
        ("FFFF", 3, [0, 1, 2, 3], [0, 1, 2, 3]),
        ("FFL", 2, [0, 1, 1], [0, 1, 1]),
        ("FFLLFL", 3, [0, 1, 1, 1, 2, 2], [0, 1, 1, 1, 2, 2]),
        # a >= 1, c0 = 0, c1 > 0: a
        ("FLF", 2, [0, 1, 2], [0, 1, 2]),
        ("FL", 2, [0, 1], [0, 1]),
        ("FLLFLF", 4, [0, 1, 1, 2, 2, 3], [0, 1, 1, 2, 2, 3]),
        # a >= 1, c0 > 0: between a and a + 1
        ("LF", 3, [0, 1], [1, 2]),
        ("LLFLF", 4, [0, 0, 1, 1, 2], [1, 1, 2, 2, 3]),
        # a = 0: one lookup unless counting forbids it
        ("LLL", 2, [0, 0, 0], [1, 1, 1]),
        # capped at L
        ("FFFFF", 2, [0, 1, 2, 2, 2], [0, 1, 2, 2, 2]),
        ("LFFF", 2, [0, 1, 2, 2], [1, 2, 2, 2]),
    ],
)
def test_rows_of_the_table(schedule, hops, lower, upper):
    assert bounds(schedule, hops) == (lower, upper)


def test_a_state_too_small_for_the_table_makes_no_hop():
    assert bounds("LLL", 2, linear_lookup=False) == ([0, 0, 0], [0, 0, 0])
    assert bounds("LLF", 3, linear_lookup=False) == ([0, 0, 1], [0, 0, 2])


@pytest.mark.parametrize("kind", LINEAR_KINDS)
def test_every_linear_kind_counts_the_same(kind):
    for schedule in (("full", kind, "full"), ("full", "full", kind), (kind, "full")):
        generic = tuple("linear" if layer == kind else layer for layer in schedule)
        found = [(b.lower, b.upper, b.source) for b in predict_progress(schedule, 2)]
        assert found == [(b.lower, b.upper, b.source) for b in predict_progress(generic, 2)]


def test_bounds_never_fall_and_never_cross():
    for code in range(2**7):
        schedule = "".join("FL"[code >> bit & 1] for bit in range(7))
        lower, upper = bounds(schedule, 4)
        assert lower == sorted(lower)
        assert upper == sorted(upper)
        assert all(low <= high <= 4 for low, high in zip(lower, upper, strict=True))


def test_table_of_what_is_proved():
    """L + 1 full layers suffice and L do not; L - 1 full with linear ones anywhere do not."""
    for hops in range(2, 6):
        assert bounds("F" * (hops + 1), hops)[0][-1] == hops
        assert bounds("F" * hops, hops)[1][-1] == hops - 1
        assert bounds("FLLL" * (hops - 1), hops)[1][-1] == hops - 1
        late = "FF" + "LLL" + "FLLL" * (hops - 2)  # L full, none between the first and second
        assert bounds(late, hops)[1][-1] == hops - 1
        assert bounds("FL" + "F" * (hops - 1), hops)[0][-1] == hops


@pytest.mark.parametrize(("hops", "exponent"), [(1, 64), (2, 1024), (3, 16384), (4, 262144)])
def test_size_condition_exponent(hops, exponent):
    condition = size_condition(hops, heads=4, head_dimension=16, precision=32, length=38)
    assert condition.exponent == exponent == 2 ** (4 * hops + 2)
    assert condition.log10_length_needed == pytest.approx(exponent * math.log10(4 * 16 * 32))
    assert not condition.holds
    assert f"{exponent}" in str(condition)


def test_size_condition_can_hold():
    assert size_condition(1, heads=1, head_dimension=1, precision=1, length=10).holds
    assert size_condition(1, heads=2, head_dimension=1, precision=1, length=2**64).holds
    assert not size_condition(1, heads=2, head_dimension=1, precision=1, length=2**63).holds


def test_counting_bound_and_heuristic():
    sizes = dict(heads=1, head_dimension=2, precision=1)
    assert counting_bound(1, **sizes, length=4)  # 6 bits of state, 8 bits of table
    assert not counting_bound(2, **sizes, length=4)
    assert can_look_up(4, heads=2, key_dimension=2)
    assert not can_look_up(5, heads=2, key_dimension=2)


def test_bad_questions_name_the_way_out():
    with pytest.raises(ValueError, match=r"unknown layer 'convolution'.*use one of full, linear"):
        predict_progress(("full", "convolution"), 2)
    with pytest.raises(ValueError, match="schedule is empty"):
        predict_progress((), 2)
    with pytest.raises(ValueError, match="hops is 0"):
        predict_progress(("full",), 0)
    with pytest.raises(ValueError, match="heads is 0"):
        size_condition(2, heads=0, head_dimension=1, precision=1, length=1)
    assert not set(FULL_KINDS) & set(LINEAR_KINDS)
