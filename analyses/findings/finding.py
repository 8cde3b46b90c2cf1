"""What a finding is: a question put to the results of sweeps, answered by table, figure, words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def by_arm(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The seeds of every arm, in the order of the grid."""
    return {str(arm): rows for arm, rows in runs.groupby("arm", sort=False)}
