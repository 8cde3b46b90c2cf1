"""What the theory allows: hops known at the answer position after each layer of a stack.

[H] is arXiv 2602.01763 v1 (hybrid linear-full attention), [C] is arXiv 2412.02975
(multi-layer decoders). "Derived" marks what this project worked out; docs/theory.md has the
arguments. Everything here is arithmetic on names and sizes: it loads no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

FULL_KINDS = ("full",)
"""Layers that attend to every earlier position with a softmax."""

LINEAR_KINDS: tuple[str, ...] = (
    "linear",
    "retnet",
    "gla",
    "deltanet",
    "gated-deltanet",
    "kda",
    "mamba2",
    "rwkv7",
    "mlstm",
    "short-conv",
)
"""Layers that are a recurrence `h_i = g_i(x_i, h_{i-1})` of fixed state; [H] treats them alike.

The state of "short-conv", a gated short convolution, is its last few inputs.
"""

WINDOWED_KINDS = ("sliding",)
"""Softmax layers that attend to the last few positions only.

They are recurrences too, whose state is the inputs in the window, and restricted full layers.
"""

SOFTMAX_KINDS = FULL_KINDS + WINDOWED_KINDS
"""Layers that attend with a softmax, to everything or to a window."""


@dataclass(frozen=True)
class ProgressBound:
    """Hops at the answer position after a prefix of the stack that ends with this layer.

    Attributes:
        layer: number of layers in the prefix, from 1.
        kind: the prefix's last layer.
        lower: hops that a construction reaches, for every input.
        upper: hops that no such prefix exceeds while the size condition holds.
        source: where the two come from.
    """

    layer: int
    kind: str
    lower: int
    upper: int
    source: str


def parts(kind: str) -> tuple[str, ...]:
    """The layers side by side in a kind: `("full", "mamba2")` for "full+mamba2", else one."""
    return tuple(kind.split("+"))


def check_schedule(schedule: Sequence[str]) -> tuple[str, ...]:
    """The schedule as a tuple, if it has a layer and the theory knows every kind.

    Raises:
        ValueError: an empty schedule, an unknown kind, or a parallel layer that is not a full
            or sliding part and then a linear one.
    """
    if not schedule:
        raise ValueError("the schedule is empty: give at least one layer, such as 'full'")
    known = FULL_KINDS + LINEAR_KINDS + WINDOWED_KINDS
    for kind in schedule:
        side_by_side = parts(kind)
        for part in side_by_side:
            if part not in known:
                raise ValueError(
                    f"unknown layer {part!r} in the schedule; use one of {', '.join(known)}"
                )
        if len(side_by_side) > 1 and not (
            len(side_by_side) == 2
            and side_by_side[0] in SOFTMAX_KINDS
            and side_by_side[1] in LINEAR_KINDS
        ):
            raise ValueError(
                f"parallel layer {kind!r} in the schedule: it needs one of "
                f"{', '.join(SOFTMAX_KINDS)}, then one linear kind, such as 'full+mamba2'"
            )
    return tuple(schedule)


def predict_progress(
    schedule: Sequence[str],
    hops: int,
    *,
    linear_lookup: bool = True,
    window_reaches_table: bool = False,
) -> tuple[ProgressBound, ...]:
    """Lower and upper bound on the hops known at the answer position after every layer.

    Args:
        schedule: kinds of the layers, first to last.
        hops: L, the length of the chain; it caps every bound.
        linear_lookup: whether the state of the linear layers may hold even the smallest table,
            `z_1`'s; `counting_bound` rules that out rigorously, `can_look_up` by a heuristic.
            If it cannot, linear layers without a full one make no hop.
        window_reaches_table: whether the window of a sliding layer may hold `z_1`'s table. While
            it cannot, the window is a small state; if it may, only full attention bounds the layer
            from above. A window of two suffices for the lower bounds.

    Raises:
        ValueError: a schedule that `check_schedule` refuses, or fewer than one hop.
    """
    if hops < 1:
        raise ValueError(f"hops is {hops}, but a chain has at least 1")
    bounds: list[ProgressBound] = []
    lower = upper = 0
    kinds = check_schedule(schedule)
    for layer, kind in enumerate(kinds, start=1):
        prefix_lower, prefix_upper, source = _prefix_bound(
            kinds[:layer], linear_lookup, window_reaches_table
        )
        # A longer prefix is never worth less: the layer added can pass everything through.
        lower, upper = max(lower, prefix_lower), max(upper, prefix_upper)
        bounds.append(ProgressBound(layer, kind, min(lower, hops), min(upper, hops), source))
    return tuple(bounds)


def _prefix_bound(
    prefix: tuple[str, ...], linear_lookup: bool, window_reaches_table: bool
) -> tuple[int, int, str]:
    """Lower bound, upper bound and source for one prefix, before capping.

    Each bound is that of a plain stack of full and linear layers: one that the prefix can
    imitate for the lower bound, one that can imitate the prefix for the upper bound.
    """
    # The linear part of a parallel layer cannot carry what its other part looks up meanwhile,
    # so the softmax part alone is as good; and what a window is sure to do is carry.
    imitated = [parts(kind)[0] in FULL_KINDS for kind in prefix]
    # With a wider residual stream the parts of a parallel layer can stand one behind the other.
    as_full = SOFTMAX_KINDS if window_reaches_table else FULL_KINDS
    imitating = [part in as_full for kind in prefix for part in parts(kind)]
    lower, _, why_lower = _plain_bound(imitated, linear_lookup)
    _, upper, why_upper = _plain_bound(imitating, linear_lookup)
    if parts(prefix[0])[0] in WINDOWED_KINDS:
        # A sliding layer is a restricted full one whatever its window. Only in front of all
        # others is that the tighter view: there a full layer is worth less than a linear one.
        _, front_upper, why_front = _plain_bound([True, *imitating[1:]], linear_lookup)
        if front_upper < upper:
            upper, why_upper = front_upper, why_front
    same = lower == 0 or why_lower == why_upper  # 0 needs no construction
    why = why_upper if same else f"at least: {why_lower}; at most: {why_upper}"
    return lower, upper, "; ".join([why, *_remarks(prefix, window_reaches_table)])


def _plain_bound(stack: Sequence[bool], linear_lookup: bool) -> tuple[int, int, str]:
    """Lower bound, upper bound and source for a stack of full (True) and linear layers."""
    full = [index for index, is_full in enumerate(stack) if is_full]
    count = len(full)
    if count == 0:
        if linear_lookup:
            return 0, 1, "one lookup by the state alone: heuristic, not a theorem"
        return 0, 0, "state too small for z_1's table (heuristic H*d_k < N_0, or [H] Theorem A.3)"
    if full[0] > 0:
        return count, count + 1, "derived: early-linear construction; [H] Theorem 1.1 + dummy layer"
    second = full[1] if count > 1 else len(stack)
    if second == 1:
        return count - 1, count - 1, "[H] Table 1; [C] and [H] section 4.1"
    return count, count, "derived: early-linear construction; [H] Theorem 1.1"


def _remarks(prefix: tuple[str, ...], window_reaches_table: bool) -> list[str]:
    """How the layers that are neither full nor linear were counted."""
    remarks = []
    if any(len(parts(kind)) > 1 for kind in prefix):
        remarks.append("derived: parallel parts count one behind the other at most, first at least")
    if any(parts(kind)[0] in WINDOWED_KINDS for kind in prefix):
        remarks.append(
            "derived: sliding counts as full at most, for its window reaches the table, "
            "as linear at least"
            if window_reaches_table
            else "derived: sliding counts as linear, or in front of all as full at most"
        )
    return remarks


def can_look_up(entries: int, heads: int, key_dimension: int) -> bool:
    """Whether a linear layer's state can hold a table of `entries` (heuristic).

    An outer-product memory keeps about `H·d_k` orthogonal keys, so a lookup needs about
    `H·d_k >= entries`.
    """
    return heads * key_dimension >= entries


LONGEST_CHAIN = 100
"""Hops up to which the size condition's numbers fit into floats."""

READABLE = 10**9
"""An exponent from here on is printed rounded; that of 44 hops has 54 digits."""


@dataclass(frozen=True)
class SizeCondition:
    """Whether a model is small enough, against its prompt, for [H] Theorem 1.1 to speak of it.

    The theorem asks for `H·d·p <= n^(2^(-4L-2))`, that is `n >= (H·d·p)^exponent`.

    Attributes:
        exponent: `2^(4L+2) = 4·16^L`.
        size: `H·d·p`, heads × head dimension × bits of precision.
        length: `n`, tokens in a prompt.
        log10_length_needed: `exponent · log10(size)`.
        holds: whether `length` is that large.
    """

    exponent: int
    size: int
    length: int
    log10_length_needed: float
    holds: bool

    def __str__(self) -> str:
        state = "holds" if self.holds else "does not hold"
        exponent, digits = str(self.exponent), f"{self.log10_length_needed:,.0f}"
        if self.exponent >= READABLE:
            exponent, digits = f"({self.exponent:.1e})", f"({self.log10_length_needed:.1e})"
        return (
            f"size condition of [H] Theorem 1.1 {state}: it asks for n >= (Hdp)^{exponent} = "
            f"10^{digits} tokens (Hdp = {self.size:,}), the prompt has n = {self.length}"
        )


def size_condition(
    hops: int, *, heads: int, head_dimension: int, precision: int, length: int
) -> SizeCondition:
    """By how much a model misses the size condition of [H] Theorem 1.1.

    Args:
        hops: L.
        heads, head_dimension, precision: H, d and p (bits).
        length: n, tokens in a prompt.

    Raises:
        ValueError: any of them below 1.
    """
    sizes = {
        "hops": hops,
        "heads": heads,
        "head_dimension": head_dimension,
        "precision": precision,
        "length": length,
    }
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} is {value}, but must be at least 1")
    if hops > LONGEST_CHAIN:
        raise ValueError(
            f"hops is {hops}, but the size condition's exponent 4 * 16^hops is computed up to "
            f"{LONGEST_CHAIN} hops"
        )
    exponent = 4 * 16**hops
    size = heads * head_dimension * precision
    needed = exponent * math.log10(size)
    return SizeCondition(exponent, size, length, needed, math.log10(length) >= needed)


def counting_bound(
    layers: int, *, heads: int, head_dimension: int, precision: int, length: int
) -> bool:
    """Whether [H] Theorem A.3 rules out one lookup in a stack of linear layers alone.

    It does where `L·H·d(d+1)·p < n log2 n`: the states together cannot hold the table.
    """
    state_bits = layers * heads * head_dimension * (head_dimension + 1) * precision
    return state_bits < length * math.log2(length)
