"""What figures of several findings share."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analyses.figures import CAUSAL

FUNCTIONS = (("o", "#0b5cad"), ("s", "#d1661a"), ("^", "#1b7a3d"), ("v", "#7a4fb5"))
"""Of the functions z_1, z_2, … in a figure."""


def accuracy_by_arm(groups: Mapping[str, pd.DataFrame], title: str = "") -> Figure:
    """A row an arm, a ring a seed, a bar at the median; the dotted line is guessing."""
    figure = Figure(figsize=(6.4, 0.9 + 0.34 * len(groups)), layout="constrained")
    accuracy_rows(figure.subplots(), groups)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def accuracy_and_fetching(groups: Mapping[str, pd.DataFrame]) -> Figure:
    """The same, and beside it how often the entries of each function hold their successors."""
    figure = Figure(figsize=(8.6, 1.1 + 0.34 * len(groups)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    accuracy_rows(left, groups)
    for height, rows in enumerate(groups.values()):
        for function, (marker, color) in enumerate(FUNCTIONS):
            shares = [row[function] for row in rows["fetched"] if function < len(row) - 1]
            label = f"z_{function + 1}'s" if height == 0 and shares else None
            right.plot(shares, [height] * len(shares), marker, color=color, mfc="none", label=label)
    right.set_xlim(-0.03, 1.03)
    right.set_xlabel("pairs whose visited entry holds its successor")
    right.grid(axis="x", alpha=0.25)
    figure.legend(loc="outside upper right", ncols=len(FUNCTIONS), frameon=False, fontsize=8)
    return figure


def accuracy_rows(axes: Axes, groups: Mapping[str, pd.DataFrame]) -> None:
    """The same into axes that are there."""
    for height, rows in enumerate(groups.values()):
        axes.plot(rows["accuracy"], [height] * len(rows), "o", color=CAUSAL, mfc="none", ms=7)
        axes.plot([rows["accuracy"].median()], [height], "|", color=CAUSAL, ms=15, mew=2)
        guess = rows["frequency_baseline"].iloc[0]
        axes.plot([guess, guess], [height - 0.4, height + 0.4], ":", color="#777777", lw=1)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlim(0, 1.03)
    axes.set_xlabel("exact accuracy, a ring a seed")
    axes.grid(axis="x", alpha=0.25)
