"""Finding: from which size of its state on a linear layer looks things up."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from analyses.findings.finding import HALF, SOLVED, Finding, Frames, Told, finished, solved
from analyses.findings.words import listed, spread

MARKS = (("o", "#0b5cad"), ("s", "#d1661a"), ("^", "#1b7a3d"))
"""Of the sizes of the table, from small to large."""


def tell(frames: Frames) -> Told:
    """Accuracy by recurrence, table size N and keys H·d_k, and where it switches on."""
    runs = finished(frames["capacity"]).copy()
    runs["keys"] = runs["linear_heads"] * runs["d_key"]
    runs["ratio"] = runs["start_domain"] / runs["keys"]
    runs["first hop"] = runs.apply(first_hop_share, axis=1)
    curves = list(runs.groupby(["arm", "start_domain"], sort=False))
    crossings = {key: crossing(rows) for key, rows in curves}
    table = pd.DataFrame([_row(key, rows, crossings[key]) for key, rows in curves])
    alt = "Exact accuracy against N / (H d_k). " + " ".join(
        f"{arm}, N = {size}: half-way at {_ratio(crossings[arm, size])}." for arm, size in crossings
    )
    return Told(_words(runs, crossings), table, _figure(runs), alt)


def first_hop_share(row: pd.Series) -> float:
    """Largest share of interchange pairs in which some site carries `i_1` after some layer."""
    return max(layer[1] for site in ("answer", "start") for layer in row[f"{site}_interchange"][1:])


def crossing(rows: pd.DataFrame) -> float | None:
    """N / (H·d_k) where median accuracy is half-way from guessing to 1, on a log scale.

    None if it is on one side everywhere.
    """
    half = (1 + rows["frequency_baseline"].iloc[0]) / 2
    medians = rows.groupby("ratio")["accuracy"].median().sort_index(ascending=False)
    before: tuple[float, float] | None = None
    for ratio, accuracy in medians.items():
        if before is not None and before[1] < half <= accuracy:
            share = (half - before[1]) / (accuracy - before[1])
            return math.exp(math.log(before[0]) * (1 - share) + math.log(ratio) * share)
        before = float(ratio), float(accuracy)
    return None


def _ratio(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"


def _row(key: tuple[str, int], rows: pd.DataFrame, crossed: float | None) -> dict[str, object]:
    arm, size = key
    by_keys = {
        f"H·d_k = {keys}": spread(group["accuracy"], 2) for keys, group in rows.groupby("keys")
    }
    return {"recurrence": arm, "N": size, **by_keys, "half-way at N / (H·d_k)": _ratio(crossed)}


def _words(runs: pd.DataFrame, crossings: dict[tuple[str, int], float | None]) -> str:
    seen = {key: value for key, value in crossings.items() if value is not None}
    off = [f"{arm} at N = {n} ({value:.2f})" for (arm, n), value in seen.items() if value > 2]
    late = [f"{arm} at N = {n} ({value:.2f})" for (arm, n), value in seen.items() if value < 0.5]
    never = [f"{arm} at N = {n}" for (arm, n), value in crossings.items() if value is None]
    far = runs[runs["ratio"] >= 4]
    near = runs[runs["ratio"] <= 0.5]
    begin = []
    if off or late or never:
        begin.append(
            "Against the prediction, half-way is not within a factor of two of N = H·d_k for "
            + listed(off + late + [f"{name} (never)" for name in never])
        )
    within = len(seen) - len(off) - len(late)
    begin.append(
        f"{within} of {len(crossings)} curves pass half-way between guessing and 1 within a factor "
        "of two of N = H·d_k"
    )
    begin.append(
        f"With a quarter of the keys or fewer accuracy is {spread(far['accuracy'])}; with twice "
        f"the keys or more it is {spread(near['accuracy'])}"
    )
    if never:
        budget = int(runs["steps"].max())
        begin.append(
            f"Never means within {budget:,} steps: more training may move a curve that the state "
            "does not stop"
        )
    return ". ".join(begin) + ". " + _how(solved(runs))


def _how(learned: pd.DataFrame) -> str:
    """By which of two ways the runs that learned make two hops without attention."""
    looks = learned["first hop"] > HALF
    holds = ~looks & (learned["fetched"].map(max) > HALF)
    text = (
        f"The {len(learned)} runs above {SOLVED} make both hops without any attention, which the "
        "theorems forbid only to states that cannot hold the table. "
        f"In {looks.sum()} the answer or the start carries i_1 after the first layer in more than "
        f"half of the pairs: each layer looks up once. In {holds.sum()} neither does, but "
        "z_1's visited entry holds its successor in more than half: the first layer composes the "
        "functions, the second looks up in the result"
    )
    rest = len(learned) - looks.sum() - holds.sum()
    return text + (f". In {rest} neither accounts for half of the pairs." if rest else ".")


def _figure(runs: pd.DataFrame) -> Figure:
    arms = list(dict.fromkeys(runs["arm"]))
    figure = Figure(figsize=(2.9 * len(arms), 3.2), layout="constrained")
    axes = figure.subplots(1, len(arms), squeeze=False, sharey=True)[0]
    for axis, arm in zip(axes, arms, strict=True):
        for size, (marker, color) in zip(
            sorted(runs["start_domain"].unique()), MARKS, strict=False
        ):
            rows = runs[(runs["arm"] == arm) & (runs["start_domain"] == size)]
            middle = rows.groupby("ratio")["accuracy"].median()
            axis.plot(middle.index, middle, "-", color=color, lw=1)
            axis.plot(
                rows["ratio"],
                rows["accuracy"],
                marker,
                color=color,
                mfc="none",
                label=f"N = {size}",
            )
            axis.axhline(rows["frequency_baseline"].iloc[0], color=color, ls=":", lw=0.8)
        axis.axvline(1, color="#777777", lw=1)
        axis.set_xscale("log", base=2)
        axis.invert_xaxis()
        axis.set_title(arm)
        axis.set_xlabel("entries a key, N / (H·d_k)")
    axes[0].set_ylabel("exact accuracy, two linear layers")
    axes[0].legend(frameon=False)
    return figure


CAPACITY = Finding(
    name="capacity",
    title="When does a linear layer look up?",
    prediction="An outer-product memory keeps about H·d_k orthogonal keys (docs/theory.md, a "
    "heuristic): looking up should switch on near N = H·d_k.",
    grids=("capacity",),
    tell=tell,
)
