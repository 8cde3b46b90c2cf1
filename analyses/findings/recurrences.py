"""Finding: which recurrence carries a hop between two full layers, at one size of the state."""

from __future__ import annotations

import pandas as pd

from analyses.findings.columns import accuracies, columns
from analyses.findings.drawing import accuracy_by_arm
from analyses.findings.finding import SOLVED, Finding, Frames, Told, by_arm, finished, solved
from analyses.findings.words import listed

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
    short = [arm for arm, rows in groups.items() if len(solved(rows)) < len(rows)]
    learned = solved(runs)
    steps = learned.groupby("arm")["steps_taken"].median()
    follow = sum(list(row["causal_hop"][1:]) == [0, 1, 2] for _, row in learned.iterrows())
    begin = (
        f"Against the prediction, {listed(short)} stays below {SOLVED} in some seed; the others do "
        "not"
        if short
        else "As predicted, it makes no difference which recurrence stands between"
    )
    bits = {arm: int(rows["state_bits"].iloc[0]) for arm, rows in groups.items()}
    usual = min(bits.values())
    more = [f"{arm} {value:,}" for arm, value in bits.items() if value > usual]
    return (
        f"{begin}: {len(learned)} of {len(runs)} runs are above {SOLVED}, {follow} of them with "
        f"the staircase 0, 1, 2. Learning takes {steps.min():.0f} ({steps.idxmin()}) to "
        f"{steps.max():.0f} steps ({steps.idxmax()}), by the median of {len(runs) // len(groups)} "
        f"seeds; with so few the order between them is not settled. States have {usual:,} bits"
        + (f", but {listed(more)}." if more else " each.")
    )


RECURRENCES = Finding(
    name="recurrences",
    title="Does it matter which recurrence?",
    prediction="The theorems know one kind of linear layer, any recurrence of small state: every "
    "one should bring i_1 over and none should do more.",
    grids=("recurrences",),
    tell=tell,
)
