"""Finding: do the layers of trained full stacks make one hop each?"""

from __future__ import annotations

from itertools import pairwise

import pandas as pd
from matplotlib.figure import Figure

from analyses.figures import CAUSAL, PROBE, THEORY
from analyses.findings.columns import ahead, columns, count, past
from analyses.findings.finding import SOLVED, Finding, Frames, Told, finished, solved
from analyses.findings.words import out_of, spread, verdict


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
        **columns(rows, "past a bound", "ahead in most pairs"),
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


def skipped(row: pd.Series) -> list[float]:
    """For every layer that takes the causal hop up by two or more: the share of pairs in which the
    answer position carried a hop in between before it.
    """
    hops, shares = list(row["causal_hop"]), list(row["answer_interchange"])
    return [
        float(sum(shares[layer - 1][hops[layer - 1] + 1 : hops[layer]]))
        for layer in range(1, len(hops))
        if hops[layer] > hops[layer - 1] + 1
    ]


def _words(runs: pd.DataFrame, learned: pd.DataFrame) -> str:
    if not len(learned):
        return "No run has learned the task."
    exact = learned[learned["schedule"].map(len) == learned["hops"] + 1]
    short = runs[runs["schedule"].map(len) == runs["hops"]]
    spare = learned[learned["schedule"].map(len) > learned["hops"] + 1]
    jumps = [share for _, row in exact.iterrows() for share in skipped(row)]
    against = []
    if len(past(exact)):
        against.append(
            f"{count(past(exact), exact)} learned stacks of L + 1 layers are past their bound"
        )
    if len(past(short)):
        against.append(
            f"{count(past(short), short)} stacks of L layers, one too few, are past theirs"
        )
    if jumps:
        against.append(
            f"in {len(jumps)} layers of learned stacks of L + 1 layers the causal hop goes up by "
            f"two or more (the hops left out are carried before them in {spread(jumps, 2)} of the "
            "pairs, so that a part of the pairs made them one by one)"
        )
    text = verdict(against, f"none of {len(exact)} learned stacks of L + 1 layers is past a bound")
    if len(short):
        text += (
            f" In {count(ahead(short), short)} stacks of L layers most pairs carry a later value "
            "than the bound allows for all of them."
        )
    if len(spare):
        idle = sum(idle_layers(row) > 0 for _, row in spare.iterrows())
        begun = sum(row["causal_hop"][2] == 0 for _, row in spare.iterrows())
        text += (
            f" With layers to spare, {out_of(idle, len(spare))} learned stacks have layers after "
            "which the answer position has got no further, and in "
            f"{out_of(begun, len(spare))} nothing has been looked up there after two layers."
        )
    return text


def _figure(learned: pd.DataFrame) -> Figure:
    groups = list(learned.groupby(["hops", "arm"]))
    if not groups:
        return Figure()
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
