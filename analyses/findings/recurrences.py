"""Finding: which recurrence carries a hop between two full layers, at one size of the state."""

from __future__ import annotations

import pandas as pd

from analyses.findings.columns import accuracies, columns, count, past
from analyses.findings.drawing import accuracy_by_arm
from analyses.findings.finding import Finding, Frames, Told, by_arm, finished, solved
from analyses.findings.words import listed, verdict

COLUMNS = (
    "parameters",
    "state bits",
    "exact accuracy",
    "learned",
    "steps they took",
    "causal hop, by layer",
    "allowed",
)


def tell(frames: Frames) -> Told:
    """Accuracy and steps, one row a recurrence."""
    runs = finished(frames["recurrences"])
    groups = by_arm(runs)
    table = pd.DataFrame(
        [{"recurrence": arm, **columns(rows, *COLUMNS)} for arm, rows in groups.items()]
    )
    alt = f"Exact accuracy by recurrence. {accuracies(groups)}"
    return Told(_words(runs, groups), table, accuracy_by_arm(groups), alt)


def _words(runs: pd.DataFrame, groups: dict[str, pd.DataFrame]) -> str:
    learned = solved(runs)
    brings = learned[[list(row["causal_hop"][1:]) == [0, 1, 2] for _, row in learned.iterrows()]]
    against = []
    if len(past(runs)):
        against.append(f"{count(past(runs), runs)} runs are past their bound")
    if len(brings) < len(learned):
        against.append(
            f"{len(learned) - len(brings)} of {len(learned)} learned runs do not have the "
            "staircase 0, 1, 2"
        )
    text = verdict(
        against,
        f"all {len(learned)} learned runs have the staircase 0, 1, 2, whatever stands between",
    )
    missed = [
        f"{len(rows) - len(solved(rows))} of {len(rows)} of {arm}"
        for arm, rows in groups.items()
        if len(solved(rows)) < len(rows)
    ]
    text += f" {count(learned, runs)} runs are learned" + (
        f"; not within their budget are {listed(missed)}." if missed else "."
    )
    steps = learned.groupby("arm")["steps_taken"].median()
    if len(steps):
        text += (
            f" It takes {steps.min():,.0f} ({steps.idxmin()}) to {steps.max():,.0f} steps "
            f"({steps.idxmax()}), by the median of {len(runs) // len(groups)} seeds; with so few "
            "the order between them is not settled."
        )
    bits = {arm: int(rows["state_bits"].iloc[0]) for arm, rows in groups.items()}
    usual = min(bits.values())
    more = [f"{arm} {value:,}" for arm, value in bits.items() if value > usual]
    return text + f" States have {usual:,} bits" + (f", but {listed(more)}." if more else " each.")


RECURRENCES = Finding(
    name="recurrences",
    title="Does it matter which recurrence?",
    prediction="The theorems know one kind of linear layer, any recurrence of small state: every "
    "one should bring i_1 over and none should do more.",
    grids=("recurrences",),
    tell=tell,
)
