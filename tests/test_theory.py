"""The predictions: every row of the theory's two tables, sliding and parallel layers, what a
bound may never do in any schedule, the size condition, and its errors."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composition import (
    FULL_KINDS,
    LINEAR_KINDS,
    WINDOWED_KINDS,
    can_look_up,
    check_schedule,
    counting_bound,
    parts,
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


KINDS = ("full", "linear", "short-conv", "sliding", "full+linear", "sliding+kda")
SCHEDULES = st.lists(st.sampled_from(KINDS), min_size=1, max_size=9)
OPTIONS = st.fixed_dictionaries(
    {"linear_lookup": st.booleans(), "window_reaches_table": st.booleans()}
)


def last(schedule, **options) -> tuple[int, int]:
    """Both bounds at the end of the stack, of a chain too long to cap them."""
    bound = predict_progress(schedule, 100, **options)[-1]
    return bound.lower, bound.upper


def never_lower(before: tuple[int, int], after: tuple[int, int]) -> bool:
    return after[0] >= before[0] and after[1] >= before[1]


@given(SCHEDULES, OPTIONS, st.integers(1, 10))
def test_bounds_never_cross_never_fall_and_stay_within_the_chain(schedule, options, hops):
    predicted = predict_progress(schedule, hops, **options)
    assert [bound.kind for bound in predicted] == schedule
    assert all(0 <= bound.lower <= bound.upper <= hops for bound in predicted)
    for bound, longer in itertools.pairwise(predicted):
        assert never_lower((bound.lower, bound.upper), (longer.lower, longer.upper))


@given(SCHEDULES, OPTIONS, st.sampled_from(KINDS), st.integers(0, 9))
def test_one_layer_more_never_lowers_a_bound(schedule, options, kind, place):
    longer = [*schedule[:place], kind, *schedule[place:]]
    assert never_lower(last(schedule, **options), last(longer, **options))


@given(SCHEDULES, OPTIONS, st.integers(0, 8))
def test_a_layer_that_can_do_more_never_lowers_a_bound(schedule, options, place):
    """Idle part, open window: what can imitate a layer is worth at least as much."""
    place %= len(schedule)
    stronger = {
        "full": ["full+linear"],
        "linear": ["full+linear", "sliding+kda"],
        "sliding": ["full", "sliding+kda"],
        "sliding+kda": ["full+linear"],
    }
    for kind in stronger.get(schedule[place], []):
        replaced = [*schedule[:place], kind, *schedule[place + 1 :]]
        assert never_lower(last(schedule, **options), last(replaced, **options))
    seen = dict(options, window_reaches_table=True)
    assert never_lower(last(schedule, **options), last(schedule, **seen))
    assert last(schedule, **seen)[0] == last(schedule, **options)[0]


@given(st.lists(st.sampled_from(("full", "linear", "sliding")), min_size=1, max_size=7))
def test_a_sliding_layer_is_the_tightest_of_what_it_is(schedule):
    """It is a linear layer and a restricted full one: every way to read the stack bounds it."""
    views = [("linear", "full") if kind == "sliding" else (kind,) for kind in schedule]
    upper = min(last(view)[1] for view in itertools.product(*views))
    lower = last(["linear" if kind == "sliding" else kind for kind in schedule])[0]
    assert last(schedule) == (lower, upper)


@pytest.mark.parametrize(
    ("schedule", "expected", "seen"),
    [
        # carries like a linear layer between full ones; bounded like a full one in front of all
        (("full", "sliding", "full"), (2, 2), (2, 2)),
        (("full", "full", "sliding"), (1, 1), (1, 2)),
        (("sliding", "full"), (1, 1), (1, 1)),
        (("linear", "sliding", "full"), (1, 2), (1, 3)),
        (("sliding",), (0, 0), (0, 0)),
        (("gla", "gla", "sliding") * 2, (0, 1), (0, 3)),
        # side by side: as full alone at least, as full then linear at most
        (("full+mamba2",) * 3, (2, 3), (2, 3)),
        (("full+mamba2",), (0, 1), (0, 1)),
        (("full+mamba2", "linear", "full"), (2, 2), (2, 2)),
        (("full", "full+mamba2"), (1, 1), (1, 1)),
        (("linear", "full+mamba2"), (1, 2), (1, 2)),
        (("sliding+gla", "full"), (1, 2), (1, 2)),
    ],
)
def test_sliding_and_parallel_layers(schedule, expected, seen):
    assert last(schedule) == expected
    assert last(schedule, window_reaches_table=True) == seen


def test_the_source_says_how_a_layer_was_counted():
    def source(*schedule: str, **options) -> str:
        return predict_progress(schedule, 3, **options)[-1].source

    assert "parallel parts count one behind the other at most" in source("full+kda", "full")
    assert "at least: [H] Table 1" in source("full+kda", "full")
    assert "sliding counts as linear" in source("full", "sliding")
    assert "as full at most, for its window reaches" in source(
        "full", "sliding", window_reaches_table=True
    )
    assert source("full", "kda") == "derived: early-linear construction; [H] Theorem 1.1"


def test_parts_of_a_kind():
    assert parts("full+mamba2") == ("full", "mamba2")
    assert parts("short-conv") == ("short-conv",)
    assert check_schedule(["full+mamba2", "sliding+short-conv"]) == (
        "full+mamba2",
        "sliding+short-conv",
    )


@pytest.mark.parametrize(
    "kind", ["full+full", "mamba2+full", "full+sliding", "gla+kda", "full+gla+kda"]
)
def test_a_parallel_layer_is_softmax_then_linear(kind):
    with pytest.raises(ValueError, match=r"parallel layer .* such as 'full\+mamba2'") as error:
        check_schedule((kind,))
    assert repr(kind) in str(error.value)


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


def test_a_long_exponent_is_printed_rounded():
    long = size_condition(44, heads=12, head_dimension=128, precision=32, length=38)
    assert "(Hdp)^(3.8e+53) = 10^(1.8e+54) tokens" in str(long)


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
    for kind in ("full+", "+full", "full+convolution", "full + mamba2"):
        with pytest.raises(ValueError, match=r"unknown layer .* use one of full, linear"):
            predict_progress((kind,), 2)
    kinds = FULL_KINDS + LINEAR_KINDS + WINDOWED_KINDS
    assert len(set(kinds)) == len(kinds)
