"""Finding: from which size of its state on a linear layer looks things up."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from analyses.findings.columns import count, has_mechanisms, past
from analyses.findings.finding import HALF, SOLVED, Finding, Frames, Told, finished, solved
from analyses.findings.words import listed, out_of, spread, verdict

MARKS = (("o", "#0b5cad"), ("s", "#d1661a"), ("^", "#1b7a3d"))
"""Of the sizes of the table, from small to large."""


def tell(frames: Frames) -> Told:
    """Accuracy by recurrence, table size N and keys H·d_k, and where it switches on."""
    runs = finished(frames["capacity"]).copy()
    runs["keys"] = runs["linear_heads"] * runs["d_key"]
    runs["ratio"] = runs["start_domain"] / runs["keys"]
    curves = dict(list(runs.groupby(["arm", "start_domain"], sort=False)))
    crossings = {
        key: [crossing(of_seed) for _, of_seed in rows.groupby("seed")]
        for key, rows in curves.items()
    }
    table = pd.DataFrame([_row(key, rows, crossings[key]) for key, rows in curves.items()])
    alt = "Exact accuracy against N / (H d_k). " + " ".join(
        f"{arm}, N = {size}: half-way at {_ratios(seeds)}."
        for (arm, size), seeds in crossings.items()
    )
    return Told(_words(runs, crossings), table, _figure(runs), alt)


def crossing(rows: pd.DataFrame) -> float:
    """N / (H·d_k) where one seed's accuracy is half-way from guessing to 1, on a log scale.

    0 if it is below everywhere, infinity if it is above from the smallest state on.
    """
    half = (1 + rows["frequency_baseline"].iloc[0]) / 2
    rows = rows.sort_values("ratio", ascending=False)
    before: tuple[float, float] | None = None
    for ratio, accuracy in zip(rows["ratio"], rows["accuracy"], strict=True):
        if accuracy >= half:
            if before is None:
                return math.inf
            share = (half - before[1]) / (accuracy - before[1])
            return math.exp(math.log(before[0]) * (1 - share) + math.log(ratio) * share)
        before = float(ratio), float(accuracy)
    return 0.0


def _ratios(values: list[float]) -> str:
    """ "never, 0.75, 1.29": of the seeds, in order."""
    names = {0.0: "never", math.inf: "always"}
    return ", ".join(names.get(value, f"{value:.2f}") for value in sorted(values))


def _row(key: tuple[str, int], rows: pd.DataFrame, crossed: list[float]) -> dict[str, object]:
    arm, size = key
    by_keys = {
        f"H·d_k = {keys}": spread(group["accuracy"], 2) for keys, group in rows.groupby("keys")
    }
    sizes = {
        name: f"{rows[column].min():,} to {rows[column].max():,}"
        for name, column in (("parameters", "parameters"), ("state bits", "state_bits"))
    }
    return {
        "recurrence": arm,
        "N": size,
        **by_keys,
        "half-way at N / (H·d_k), each seed": _ratios(crossed),
        **sizes,
    }


def _words(runs: pd.DataFrame, crossings: dict[tuple[str, int], list[float]]) -> str:
    seeds = [value for values in crossings.values() for value in values]
    never = {
        f"{arm} at N = {n}": sum(value == 0 for value in values)
        for (arm, n), values in crossings.items()
        if 0.0 in values
    }
    early, late = sum(value > 2 for value in seeds), sum(0 < value < 0.5 for value in seeds)
    against = []
    if len(past(runs)):
        against.append(
            f"{count(past(runs), runs)} runs make two hops without attention, where one is the most"
        )
    if never:
        of_them = [f"{number} of {name}" for name, number in never.items()]
        against.append(
            f"{sum(never.values())} of {len(seeds)} curves, each of one seed, never pass half-way "
            f"between guessing and 1 ({listed(of_them)})"
        )
    against += [
        f"{number} do so {where} a factor of two of N = H·d_k"
        for number, where in ((early, "with fewer keys than"), (late, "only with more keys than"))
        if number
    ]
    within = len(seeds) - early - late - sum(never.values())
    text = verdict(against, "every curve passes half-way within a factor of two of N = H·d_k")
    text += f" Within that factor {out_of(within, len(seeds))} curves pass."
    if never:
        text += (
            f" Never means within {int(runs['steps'].max()):,} steps: more training may move a "
            "curve that the state does not stop."
        )
    return text + _how(solved(runs))


def _how(learned: pd.DataFrame) -> str:
    """By which of two ways the runs that learned make two hops without attention."""
    text = (
        f" {len(learned)} runs are above {SOLVED}. The theorems forbid that only to states that "
        "cannot hold the table."
    )
    if not len(learned) or not has_mechanisms(learned):
        return text
    looks = pd.Series([max(_first_hops(row)) > HALF for _, row in learned.iterrows()])
    holds = pd.Series([shares[0] > HALF for shares in learned["fetched"]]) & ~looks
    rest = len(learned) - looks.sum() - holds.sum()
    text += (
        f" In {looks.sum()} the answer or the start carries i_1 after the first layer, in more "
        f"than half of the pairs: a layer, a lookup. In {holds.sum()} neither does, but z_1's "
        "visited entry holds its successor: the functions are composed first, the start is looked "
        "up in what results"
    )
    return text + (f". In {rest} neither holds for half of the pairs." if rest else ".")


def _first_hops(row: pd.Series) -> tuple[float, float]:
    """Share of pairs in which the answer, and the start position, carry i_1 after layer 1."""
    return row["answer_interchange"][1][1], row["start_interchange"][1][1]


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
    "heuristic): looking up should switch on near N = H·d_k. Without a full layer one hop is the "
    "most.",
    grids=("capacity",),
    tell=tell,
)
