"""Finding: accuracy against the number of full layers, for each L. The theory's step is at L+1."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analyses.figures import CAUSAL, THEORY
from analyses.findings.columns import columns
from analyses.findings.finding import SOLVED, Finding, Frames, Told, finished, solved
from analyses.findings.words import listed, sentence, spread


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
    against, within = [], []
    for hops, of_length in runs.groupby("hops"):
        short = of_length[of_length["depth"] == hops]
        early, late = (
            solved(of_length[of_length["depth"] <= hops]),
            of_length[of_length["depth"] > hops],
        )
        if len(early):
            against.append(
                f"at L = {hops} {len(early)} runs with no more than {hops} full layers are above "
                f"{SOLVED} all the same"
            )
        elif len(short):
            reached = solved(of_length[of_length["depth"] == hops + 1])
            total = int((of_length["depth"] == hops + 1).sum())
            within.append(
                f"at L = {hops} no run with {hops} full layers gets above {SOLVED} (the best "
                f"reaches {short['accuracy'].max():.3f}), and {len(reached)} of {total} with "
                f"{hops + 1} do"
            )
        missed = late[late["accuracy"] < SOLVED]
        if len(missed):
            within.append(
                f"{len(missed)} of {len(late)} deeper runs at L = {hops} did not get there within "
                "their budget, so the threshold is one of training too"
            )
    begin = ""
    if against:
        begin = f"Against the prediction, {listed(against)}. "
    rest = sentence(listed(within)) if within else ""
    shortfall = runs[runs["depth"] == runs["hops"]]
    middle = (
        f" Below the threshold accuracy is not at the level of guessing: with L layers it is "
        f"{spread(shortfall['accuracy'])} over all L, where guessing gives "
        f"{spread(shortfall['frequency_baseline'].unique())}. The bound says that not every prompt "
        "can be answered; it does not say that few can."
    )
    return begin + rest + middle


def _figure(runs: pd.DataFrame) -> Figure:
    lengths = sorted(runs["hops"].unique())
    figure = Figure(figsize=(3.3 * len(lengths), 3.2), layout="constrained")
    axes = figure.subplots(1, len(lengths), squeeze=False, sharey=True)[0]
    for axis, hops in zip(axes, lengths, strict=True):
        rows = runs[runs["hops"] == hops]
        plain = rows[rows["arm"].str.fullmatch(r"full-\d+")]
        axis.axvspan(hops + 0.5, max(rows["depth"].max(), hops + 1) + 0.5, color=THEORY, lw=0)
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
                label="more parameters" if wide else None,
            )
        axis.axhline(rows["frequency_baseline"].iloc[0], color="#777777", ls=":", lw=1)
        axis.set_title(f"L = {hops}")
        axis.set_xlabel("full layers")
        axis.set_xticks(range(rows["depth"].min(), rows["depth"].max() + 1))
    axes[0].set_ylabel("exact accuracy")
    axes[0].set_ylim(0, 1.04)
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
