"""What figures of several findings share."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analyses.figures import CAUSAL


def accuracy_by_arm(groups: Mapping[str, pd.DataFrame], title: str = "") -> Figure:
    """A row an arm, a ring a seed, a bar at the median; the dotted line is guessing."""
    figure = Figure(figsize=(6.4, 0.9 + 0.34 * len(groups)), layout="constrained")
    accuracy_rows(figure.subplots(), groups)
    if title:
        figure.suptitle(title, fontsize=10)
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
