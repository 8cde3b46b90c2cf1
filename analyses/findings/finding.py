"""What a finding is: a question put to the results of sweeps, answered by table, figure, words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

Frames = Mapping[str, pd.DataFrame]
"""Results by the name of their grid, as `analyses.sweep.read_sweep` gives them."""

SOLVED = 0.99
"""Exact accuracy from which a run counts as having learned the task."""

HALF = 0.5
"""Share of the interchange pairs from which a mechanism is named."""


@dataclass(frozen=True)
class Told:
    """What was seen.

    Attributes:
        words: a paragraph; where the prediction fails, its first sentence says so.
        table: one row for each thing compared.
        figure: the same to look at.
        alt: what the figure shows, for those who cannot see it.
    """

    words: str
    table: pd.DataFrame
    figure: Figure
    alt: str


@dataclass(frozen=True)
class Finding:
    """A question, and how results answer it.

    Attributes:
        name: of its figure's file.
        title: the question.
        prediction: what the theory leads one to expect, and from where.
        grids: names of the grids in `grids/` whose results it needs.
        tell: answers from the finished runs of those grids.
    """

    name: str
    title: str
    prediction: str
    grids: tuple[str, ...]
    tell: Callable[[Frames], Told]


def finished(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of runs that have a result."""
    return frame[frame["error"].isna()] if "error" in frame else frame


def solved(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of runs that learned the task."""
    return frame[frame["accuracy"] >= SOLVED]


def spread(values: Iterable[float], digits: int = 3) -> str:
    """ "0.798 (0.450 … 0.837)": median, lowest and highest.

    Of n seeds, the range holds the median of all seeds with probability `1 - 2^(1-n)`: 94 % for
    five, 75 % for three.
    """
    ordered = pd.Series(list(values), dtype=float)
    low, middle, high = (
        f"{value:.{digits}f}" for value in (ordered.min(), ordered.median(), ordered.max())
    )
    return middle if len(ordered) == 1 else f"{middle} ({low} … {high})"


def coverage(seeds: int) -> str:
    """How sure the range of so many seeds holds the median, in words."""
    return f"{1 - 2 ** (1 - seeds):.0%}".replace("%", " %")


def out_of(count: int, total: int) -> str:
    """ "4 of 5 (38 … 96 %)": a share of seeds with its 95 % interval after Wilson."""
    low, high = wilson(count, total)
    return f"{count} of {total} ({100 * low:.0f} … {100 * high:.0f} %)"


def wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    share = count / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
    return max(0.0, middle - half), min(1.0, middle + half)


def staircases(rows: pd.DataFrame, column: str = "causal_hop") -> str:
    """ "0 1 2 ×4; 0 0 2": hops after every layer, and how many seeds share them."""
    counts = Counter(tuple(int(hop) for hop in hops[1:]) for hops in rows[column])
    return "; ".join(
        " ".join(map(str, hops)) + (f" ×{count}" if count > 1 else "")
        for hops, count in counts.most_common()
    )


def bounds(rows: pd.DataFrame) -> str:
    """ "0 1-2 2": what the theory allows after every layer."""
    first = rows.iloc[0]
    return " ".join(
        str(low) if low == high else f"{low}-{high}"
        for low, high in zip(first["lower"][1:], first["upper"][1:], strict=True)
    )


def is_above(row: pd.Series, column: str = "causal_hop") -> bool:
    """Whether a run is past its upper bound after some layer."""
    return any(hop > upper for hop, upper in zip(row[column], row["upper"], strict=True))


def seeds_of(frame: pd.DataFrame) -> str:
    """ "5 seeds", or "3 to 5 seeds", of the arms of a frame."""
    counts = frame.groupby("arm").size()
    low, high = int(counts.min()), int(counts.max())
    return f"{low} seeds" if low == high else f"{low} to {high} seeds"


def listed(items: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return f"{text[0].upper()}{text[1:]}."
