"""Finding: is the step between too few and enough full layers sharper with larger branching?"""

from __future__ import annotations

import pandas as pd

from analyses.findings.columns import accuracies, ahead, columns, count, past
from analyses.findings.drawing import accuracy_by_arm
from analyses.findings.finding import Finding, Frames, Told, by_arm, finished, solved
from analyses.findings.words import listed, spread, verdict

ARMS = ("full-2", "late-linear", "full-3", "early-linear")
"""Two that the theory gives one hop, two that it gives both."""

COLUMNS = (
    "task",
    "layers",
    "parameters",
    "exact accuracy",
    "guessing",
    "learned",
    "causal hop, by layer",
    "allowed",
    "ahead in most pairs",
)


def tell(frames: Frames) -> Told:
    """The same four stacks at L = 2 with branching 4 and 8."""
    runs = pd.concat([finished(frame) for frame in frames.values()], ignore_index=True)
    runs["n"] = runs["branching"].map(lambda branching: int(branching[0]))
    groups = {
        f"n = {n}: {arm}": arms[arm]
        for n, rows in runs.groupby("n")
        for arms in [by_arm(rows)]
        for arm in ARMS
        if arm in arms
    }
    table = pd.DataFrame([columns(rows, *COLUMNS) for rows in groups.values()])
    alt = f"Exact accuracy by branching and stack. {accuracies(groups)}"
    return Told(_words(runs), table, accuracy_by_arm(groups), alt)


def _words(runs: pd.DataFrame) -> str:
    short = runs[runs["arm"].isin(ARMS[:2])]
    beyond = past(short)
    against = [f"{count(beyond, short)} runs are past their bound"] if len(beyond) else []
    text = verdict(against, f"none of {len(short)} stacks that are allowed one hop gets both")
    for n, rows in runs.groupby("n"):
        arms = by_arm(rows)
        reached = [
            f"{spread(arms[arm]['accuracy'])} by {arm} ({len(solved(arms[arm]))} of "
            f"{len(arms[arm])} learned)"
            for arm in ARMS
            if arm in arms
        ]
        few = rows[rows["arm"].isin(ARMS[:2])]
        text += (
            f" With n = {n} accuracy is {listed(reached)}, and of the first two most pairs are "
            f"ahead of the bound in {count(ahead(few), few)} runs."
        )
    return text


SEPARATION = Finding(
    name="separation",
    title="Does larger branching make the step sharper?",
    prediction="The proofs need branching far above H·d·p. With more successors than an entry can "
    "fetch, what one layer too few can do all the same should shrink, and what is enough should "
    "stay enough.",
    grids=("separation-L2", "depth-L2", "placement-L2"),
    tell=tell,
)
