"""Finding: accuracy against the number of full layers, for each L. The theory's step is at L+1."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analyses.figures import CAUSAL, THEORY
from analyses.findings.columns import columns, count
from analyses.findings.finding import SOLVED, Finding, Frames, Told, finished, solved
from analyses.findings.words import listed, verdict


def tell(frames: Frames) -> Told:
    """Accuracy by depth, one row for each L and depth."""
    runs = pd.concat([finished(frame) for frame in frames.values()], ignore_index=True)
    runs["depth"] = runs["schedule"].map(len)
    table = pd.DataFrame([_row(rows) for _, rows in runs.groupby(["hops", "arm"])])
    return Told(_words(runs), table, _figure(runs), _alt(table))


def _row(rows: pd.DataFrame) -> dict[str, object]:
    return {
        **columns(rows, "L", "arm"),
        "full layers": rows["depth"].iloc[0],
        **columns(rows, "parameters", "task", "exact accuracy", "guessing", "learned"),
    }


def _words(runs: pd.DataFrame) -> str:
    too_few, enough = runs[runs["depth"] <= runs["hops"]], runs[runs["depth"] > runs["hops"]]
    against = [
        f"at L = {hops} {count(solved(rows), rows)} runs with {hops} full layers or fewer are "
        f"above {SOLVED}"
        for hops, rows in too_few.groupby("hops")
        if len(solved(rows))
    ]
    text = verdict(
        against, f"none of {len(too_few)} runs with L full layers or fewer gets above {SOLVED}"
    )
    for hops, rows in runs.groupby("hops"):
        steps = [
            f"{len(solved(of_depth))} of {len(of_depth)} with {depth} "
            f"(median {of_depth['accuracy'].median():.3f})"
            for depth, of_depth in rows.groupby("depth")
        ]
        guessing = rows["frequency_baseline"].iloc[0]
        text += f" At L = {hops}, guessing at {guessing:.3f}, learned are {listed(steps)}."
    missed = enough[enough["accuracy"] < SOLVED]
    if len(missed):
        text += (
            f" {count(missed, enough)} runs with more than L layers did not get there within their "
            "budget, so the threshold is one of training too."
        )
    return text + (
        " Below the threshold accuracy is above guessing: the bound says that not every prompt can "
        "be answered, not that few can."
    )


def _figure(runs: pd.DataFrame) -> Figure:
    lengths = sorted(runs["hops"].unique())
    figure = Figure(figsize=(3.3 * len(lengths), 3.2), layout="constrained")
    axes = figure.subplots(1, len(lengths), squeeze=False, sharey=True)[0]
    for axis, hops in zip(axes, lengths, strict=True):
        rows = runs[runs["hops"] == hops]
        plain = rows[rows["arm"].str.fullmatch(r"full-\d+")]
        right = max(rows["depth"].max(), hops + 1) + 0.5
        axis.axvspan(hops + 0.5, right, color=THEORY, lw=0, label="enough, says the theory")
        middle = plain.groupby("depth")["accuracy"].median()
        axis.plot(middle.index, middle, "-", color=CAUSAL)
        for arm, group in rows.groupby("arm"):
            wide = arm not in set(plain["arm"])
            axis.plot(
                group["depth"] + (0.12 if wide else 0.0),
                group["accuracy"],
                "^" if wide else "o",
                color="#7a4fb5" if wide else CAUSAL,
                mfc="none",
                label="wider, with more parameters" if wide else "a seed",
            )
        guess = rows["frequency_baseline"].iloc[0]
        axis.axhline(guess, color="#777777", ls=":", lw=1, label="guessing")
        axis.set_title(f"L = {hops}")
        axis.set_xlabel("full layers")
        axis.set_xticks(range(rows["depth"].min(), rows["depth"].max() + 1))
    axes[0].set_ylabel("exact accuracy")
    axes[0].set_ylim(0, 1.04)
    handles, labels = axes[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        unique.values(), unique.keys(), loc="outside lower center", ncols=4, frameon=False
    )
    return figure


def _alt(table: pd.DataFrame) -> str:
    return "Exact accuracy against full layers. " + " ".join(
        f"L = {row['L']}, {row['arm']}: {row['exact accuracy']}."
        for row in table.to_dict("records")
    )


DEPTH = Finding(
    name="depth",
    title="Is there a threshold at L + 1 full layers?",
    prediction="L full layers cannot solve L-FuncComp, L + 1 can (arXiv 2412.02975; 2602.01763, "
    "Table 1): accuracy should step at L + 1.",
    grids=("depth-L2", "depth-L3", "depth-L4"),
    tell=tell,
)
