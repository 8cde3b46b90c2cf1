"""Finding: what a linear layer is worth, by where it stands among the same full layers."""

from __future__ import annotations

import pandas as pd

from analyses.findings.columns import accuracies, columns, past_a_bound
from analyses.findings.drawing import accuracy_by_arm
from analyses.findings.finding import SOLVED, Finding, Frames, Told, finished, solved
from analyses.findings.words import listed, out_of, sentence, spread

PLAIN = r"full-\d+$"
"""Arms of full layers alone, which tell what the linear layer adds."""

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
)


def tell(frames: Frames) -> Told:
    """Accuracy and hops, one row for each L and order of the layers."""
    runs = pd.concat([finished(frame) for frame in frames.values()], ignore_index=True)
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
    """ "F D F": F for a full layer, D for DeltaNet."""
    return " ".join("F" if kind == "full" else "D" for kind in rows["schedule"].iloc[0])


def _words(runs: pd.DataFrame) -> str:
    return " ".join(
        _about(int(hops), rows) for hops, rows in runs.groupby("hops") if rows["state_bits"].any()
    )


def _about(hops: int, rows: pd.DataFrame) -> str:
    full = rows["schedule"].map(lambda kinds: sum(kind == "full" for kind in kinds))
    mixed, alone = rows[rows["state_bits"] > 0], rows[(full == hops) & (rows["state_bits"] == 0)]
    last = mixed["schedule"].map(lambda kinds: kinds[-1] != "full")
    none = mixed[full[mixed.index] == 0]
    late, early = mixed[last & (full[mixed.index] == hops)], mixed[~last]
    ahead = past_a_bound(late)
    missed = [arm for arm, group in early.groupby("arm", sort=False) if not len(solved(group))]
    against = []
    if len(solved(late)):
        against.append(f"{out_of(len(solved(late)), len(late))} runs with it last are learned")
    if ahead:
        against.append(
            f"with the linear layer last the answer position is past its bound in "
            f"{out_of(ahead, len(late))} runs: most pairs carry a later value than is allowed"
        )
    if missed:
        against.append(f"{listed(missed)} is not learned in any seed within the budget")
    reached = [
        f"{out_of(len(solved(group)), len(group))} with {', '.join(group['schedule'].iloc[0])}"
        for _, group in early.groupby("arm", sort=False)
    ]
    text = (
        f"Against the prediction, at L = {hops} {listed(against)}. " if against else ""
    ) + sentence(
        f"at L = {hops} runs above {SOLVED} are {listed(reached)}, and "
        f"{out_of(len(solved(late)), len(late))} with the linear layer last, where accuracy is "
        f"{spread(late['accuracy'])}"
    )
    if len(alone):
        text += (
            f" The {hops} full layers without it reach {spread(alone['accuracy'])}, so what a "
            "linear layer adds at the end is within the spread of seeds."
            if abs(alone["accuracy"].median() - late["accuracy"].median()) < 0.05
            else f" The {hops} full layers without it reach {spread(alone['accuracy'])}."
        )
    if len(none):
        text += (
            f" Linear layers alone end at {spread(none['accuracy'])}, where guessing gives "
            f"{none['frequency_baseline'].iloc[0]:.3f}."
        )
    return text


PLACEMENT = Finding(
    name="placement",
    title="Where is a linear layer worth a hop?",
    prediction="L full layers solve L hops with one linear layer between the first and the second "
    "(docs/theory.md) and, with a linear layer in front, are allowed to; one that comes after the "
    "last full layer adds nothing (arXiv 2602.01763, Theorem 1.1).",
    grids=("placement-L2", "placement-L3", "depth-L2", "depth-L3"),
    tell=tell,
)
