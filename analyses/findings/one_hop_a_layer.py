"""Finding: do the layers of trained full stacks make one hop each?"""

from __future__ import annotations

from itertools import pairwise

import pandas as pd
from matplotlib.figure import Figure

from analyses.figures import CAUSAL, PROBE, THEORY
from analyses.findings.columns import columns, is_above, past_a_bound
from analyses.findings.finding import SOLVED, Finding, Frames, Told, finished, solved
from analyses.findings.words import out_of, spread


def tell(frames: Frames) -> Told:
    """Staircases of the runs that learned the task, one row for each L and depth."""
    runs = pd.concat([finished(frame) for frame in frames.values()], ignore_index=True)
    runs = runs[runs["schedule"].map(len) > 1]
    learned = solved(runs)
    rows = [_row(group) for _, group in learned.groupby(["hops", "arm"])]
    return Told(_words(runs, learned), pd.DataFrame(rows), _figure(learned), _alt(rows))


def _row(rows: pd.DataFrame) -> dict[str, object]:
    start = sum(first_hop_position(row) == "start" for _, row in rows.iterrows())
    return {
        **columns(rows, "L", "arm", "allowed", "causal hop, by layer", "probe hop, by layer"),
        **columns(rows, "past a bound"),
        "hop 1 made at the start": out_of(start, len(rows)),
    }


def first_hop_position(row: pd.Series) -> str | None:
    """Where `z_1` is looked up: at the position whose residual carries what it needs, or none.

    The start position if `i_1` is there in more than half of the interchange pairs after some
    layer, and in more than carry `i_0` at the answer position; else the answer position.
    """
    at_start = max(layer[1] for layer in row["start_interchange"])
    at_answer = max(layer[0] for layer in row["answer_interchange"][1:])
    if max(at_start, at_answer) <= 0.5:
        return None
    return "start" if at_start > at_answer else "answer"


def idle_layers(row: pd.Series) -> int:
    """Layers after which the causal hop is what it was before, but for the one that brings `i_0`.

    L + 1 layers are needed by the construction; whatever is idle beyond was to spare.
    """
    hops = list(row["causal_hop"])
    return sum(after == before for before, after in pairwise(hops)) - 1


def _words(runs: pd.DataFrame, learned: pd.DataFrame) -> str:
    exact = learned[learned["schedule"].map(len) == learned["hops"] + 1]
    ahead = exact[[is_above(row) for _, row in exact.iterrows()]]
    short = runs[(runs["schedule"].map(len) == runs["hops"])]
    short_ahead = past_a_bound(short)
    spare = learned[learned["schedule"].map(len) > learned["hops"] + 1]
    follow = len(exact) - len(ahead)
    begin = (
        f"Against the prediction, {len(ahead)} of {len(exact)} learned stacks of L + 1 layers run "
        "ahead of the schedule after some layer"
        if len(ahead)
        else f"All {len(exact)} learned stacks of L + 1 full layers stay within the schedule"
    )
    text = f"{begin}; {follow} of {len(exact)} never carry more hops than the bound allows. "
    if len(short):
        inexact = short[short["accuracy"] < SOLVED]["accuracy"]
        text += (
            f"Stacks of L layers, one too few, do what the bound forbids in {short_ahead} of "
            f"{len(short)} runs: most pairs already carry a later value after some layer. "
            f"{len(short) - len(inexact)} of them are learned all the same; the others end at "
            f"{spread(inexact)}. "
        )
    if len(spare):
        idle = [idle_layers(row) for _, row in spare.iterrows()]
        begun = sum(row["causal_hop"][2] == 0 for _, row in spare.iterrows())
        text += (
            f"With layers to spare, {sum(count > 0 for count in idle)} of {len(spare)} learned "
            f"stacks have layers after which the answer position has got no further, and in "
            f"{begun} nothing has been looked up there after two layers."
        )
    return text


def _figure(learned: pd.DataFrame) -> Figure:
    groups = list(learned.groupby(["hops", "arm"]))
    figure = Figure(figsize=(2.6 * len(groups), 3.2), layout="constrained")
    axes = figure.subplots(1, len(groups), squeeze=False, sharey=True)[0]
    for axis, ((hops, arm), rows) in zip(axes, groups, strict=True):
        first = rows.iloc[0]
        layers = range(len(first["upper"]))
        for layer in layers:
            low, high = first["lower"][layer] - 0.18, first["upper"][layer] + 0.18
            axis.fill_between([layer - 0.5, layer + 0.5], low, high, color=THEORY, lw=0)
        for number, (_, row) in enumerate(rows.iterrows()):
            shift = 0.05 * (number - (len(rows) - 1) / 2)
            axis.plot(
                [layer + shift for layer in layers],
                [hop + shift for hop in row["causal_hop"]],
                "s-", color=CAUSAL, alpha=0.6, ms=4, lw=1, label="causal hop, a line a seed",
            )  # fmt: skip
            axis.plot(
                [layer + shift for layer in layers], row["probe_hop"],
                "o", color=PROBE, mfc="none", ms=9, alpha=0.6, label="probe hop",
            )  # fmt: skip
        axis.set_title(f"L = {hops}, {arm}", fontsize=9)
        axis.set_xticks(list(layers), ["emb", *map(str, layers[1:])], fontsize=8)
        axis.set_xlabel("after layer")
    axes[0].set_yticks(range(int(learned["hops"].max()) + 1))
    axes[0].set_ylabel("hops at the answer position")
    handles, labels = axes[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        unique.values(), unique.keys(), loc="outside lower center", ncols=2, frameon=False
    )
    return figure


def _alt(rows: list[dict[str, object]]) -> str:
    return "Hops after every layer on the band the theory allows. " + " ".join(
        f"L = {row['L']}, {row['arm']}: {row['causal hop, by layer']} of {row['allowed']}."
        for row in rows
    )


ONE_HOP_A_LAYER = Finding(
    name="one-hop-a-layer",
    title="Does each layer of a full stack make one hop?",
    prediction="The construction carries z_0 to the answer position in the first layer and makes "
    f"one hop in each that follows; no more are possible. Runs above {SOLVED} only.",
    grids=("depth-L2", "depth-L3", "depth-L4"),
    tell=tell,
)
