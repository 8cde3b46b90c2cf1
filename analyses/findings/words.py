"""Numbers of several seeds as words, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd


def spread(values: Iterable[float], digits: int = 3) -> str:
    """ "0.798 (0.450 … 0.837)": median, lowest and highest.

    Of n seeds, the range holds the median of all seeds with probability `1 - 2^(1-n)`: 94 % for
    five, 75 % for three.
    """
    ordered = pd.Series(list(values), dtype=float)
    if not len(ordered):
        return "–"
    low, middle, high = (
        f"{value:.{digits}f}" for value in (ordered.min(), ordered.median(), ordered.max())
    )
    return middle if len(ordered) == 1 else f"{middle} ({low} … {high})"


def coverage(seeds: int) -> str:
    """How sure the range of so many seeds holds the median, in words."""
    return f"{1 - 2 ** (1 - seeds):.0%}".replace("%", " %")


def out_of(count: int, total: int) -> str:
    """ "4 of 5 (38 … 96 %)": a share of seeds with its 95 % interval after Wilson."""
    if not total:
        return "none"
    low, high = wilson(count, total)
    return f"{count} of {total} ({100 * low:.0f} … {100 * high:.0f} %)"


def wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    share = count / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
    return max(0.0, middle - half), min(1.0, middle + half)


def size_note(runs: pd.DataFrame) -> str:
    """That the theorems' size condition holds for none of the runs, and by how much it does not."""
    exponents, lengths = runs["size_exponent"].dropna(), runs["length"]
    if not len(exponents):
        return ""
    asked = _range(exponents.min(), exponents.max(), "10^")
    return (
        f"The theorems' size condition holds for none of these models: it would ask for prompts of "
        f"{asked} tokens, and these have {_range(lengths.min(), lengths.max())}."
    )


def _range(low: float, high: float, before: str = "") -> str:
    ends = [f"{before}{value:,.0f}" for value in (low, high)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def verdict(against: Sequence[str], otherwise: str) -> str:
    """The first sentence of a finding: what goes against the prediction, or that nothing does.

    Only what the theory forbids and a run does all the same goes against it. What the theory
    allows and training has not found within its budget is said, but is no contradiction.
    """
    if against:
        return sentence(f"against the prediction, {listed(against)}")
    return sentence(f"as predicted, {otherwise}")


def listed(items: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return f"{text[0].upper()}{text[1:]}."
