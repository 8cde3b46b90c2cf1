"""Finding: what a linear layer is worth, by where it stands among the same full layers."""

from __future__ import annotations

import pandas as pd

from analyses.findings.columns import accuracies, ahead, columns, count, past
from analyses.findings.drawing import accuracy_by_arm
from analyses.findings.finding import SOLVED, Finding, Frames, Told, finished, solved
from analyses.findings.words import listed, spread, verdict

PLAIN = r"full-\d+"
"""Arms of full layers alone, wider ones too, which tell what the linear layer adds."""

COLUMNS = (
    "L",
    "layers",
    "parameters",
    "state bits",
    "exact accuracy",
    "learned",
    "steps they took",
    "causal hop, by layer",
    "allowed",
    "past a bound",
    "ahead in most pairs",
)


def tell(frames: Frames) -> Told:
    """Accuracy and hops, one row for each L and order of the layers."""
    runs = pd.concat([finished(frame) for frame in frames.values()], ignore_index=True)
    runs = runs.sort_values("hops", kind="stable", ignore_index=True)
    depth = runs["schedule"].map(len)
    runs = runs[(runs["state_bits"] > 0) | ((depth == runs["hops"]) & runs["arm"].str.match(PLAIN))]
    groups = {
        f"L = {hops}: {_short(rows)}": rows
        for (hops, _), rows in runs.groupby(["hops", "arm"], sort=False)
    }
    table = pd.DataFrame([columns(rows, *COLUMNS) for rows in groups.values()])
    alt = f"Exact accuracy by order of the layers. {accuracies(groups)}"
    return Told(_words(runs), table, accuracy_by_arm(groups), alt)


def _short(rows: pd.DataFrame) -> str:
    """ "F D F": F for a full layer, D for DeltaNet; "F F, wide" with more parameters."""
    letters = " ".join("F" if kind == "full" else "D" for kind in rows["schedule"].iloc[0])
    return letters + (", wide" if rows["arm"].iloc[0].endswith("wide") else "")


def _words(runs: pd.DataFrame) -> str:
    full = runs["schedule"].map(lambda kinds: sum(kind == "full" for kind in kinds))
    linear = runs["state_bits"] > 0
    ends_linear = runs["schedule"].map(lambda kinds: kinds[-1] != "full")
    late = runs[linear & ends_linear & (full == runs["hops"])]
    early = runs[linear & ~ends_linear]
    without, alone = runs[~linear], runs[linear & (full == 0)]
    mixed = runs[linear & (full > 0)]
    allowed = mixed["upper"].map(lambda bounds: bounds[-1]) >= mixed["hops"]
    enough, short = mixed[allowed], mixed[~allowed]
    against = [
        f"at L = {hops} {count(past(rows), rows)} runs with {', '.join(rows['schedule'].iloc[0])} "
        "are past their bound"
        for (hops, _), rows in runs.groupby(["hops", "arm"], sort=False)
        if len(past(rows))
    ]
    text = verdict(against, "no run is past its bound")
    text += (
        f" Above {SOLVED} are {count(solved(enough), enough)} hybrids whose order allows all L "
        f"hops and {count(solved(short), short)} of those whose order does not."
    )
    for hops, _ in early.groupby("hops"):
        mine = [rows[rows["hops"] == hops] for rows in (early, late, without, alone)]
        text += " " + _about(int(hops), *mine)
    return text


def _about(
    hops: int, early: pd.DataFrame, late: pd.DataFrame, without: pd.DataFrame, alone: pd.DataFrame
) -> str:
    """One sentence for one L, and one for what the linear layer is compared with."""
    learned = [
        f"{count(solved(rows), rows)} with {', '.join(rows['schedule'].iloc[0])}"
        for _, rows in early.groupby("arm", sort=False)
    ]
    text = f"At L = {hops} learned are {listed(learned)}"
    if len(late):
        text += (
            f"; with the linear layer last accuracy is {spread(late['accuracy'])}, and most pairs "
            f"are ahead of the bound in {count(ahead(late), late)}"
        )
    text += "."
    if len(without):
        compared = [
            f"{spread(rows['accuracy'])} with {rows['parameters'].iloc[0]:,} parameters"
            for _, rows in without.groupby("arm", sort=False)
        ]
        text += f" The {hops} full layers without it reach {listed(compared)}."
    if len(alone):
        text += (
            f" Linear layers alone, with fewer parameters, end at {spread(alone['accuracy'])}; "
            f"guessing gives {alone['frequency_baseline'].iloc[0]:.3f}."
        )
    return text


PLACEMENT = Finding(
    name="placement",
    title="Where is a linear layer worth a hop?",
    prediction="L full layers solve L hops with one linear layer between the first and the second "
    "(docs/theory.md) and, with a linear layer in front, are allowed to; one that comes later "
    "is not allowed to add a hop (arXiv 2602.01763, section 4.1).",
    grids=("placement-L2", "placement-L3", "depth-L2", "depth-L3"),
    tell=tell,
)
