"""Finding: which recurrence carries a hop between two full layers, at one size of the state."""

from __future__ import annotations

import pandas as pd

from analyses.findings.drawing import accuracy_by_arm
from analyses.findings.finding import (
    SOLVED,
    Finding,
    Frames,
    Told,
    bounds,
    finished,
    listed,
    out_of,
    solved,
    spread,
    staircases,
)


def tell(frames: Frames) -> Told:
    """Accuracy and steps, one row a recurrence."""
    runs = finished(frames["recurrences"])
    groups = {str(arm): rows for arm, rows in runs.groupby("arm", sort=False)}
    table = pd.DataFrame([_row(arm, rows) for arm, rows in groups.items()])
    alt = "Exact accuracy by recurrence. " + " ".join(
        f"{arm}: {spread(rows['accuracy'])}." for arm, rows in groups.items()
    )
    return Told(_words(runs, groups), table, accuracy_by_arm(groups), alt)


def _row(arm: str, rows: pd.DataFrame) -> dict[str, object]:
    first, learned = rows.iloc[0], solved(rows)
    return {
        "recurrence": arm,
        "parameters": f"{first['parameters']:,}",
        "state bits": f"{first['state_bits']:,}",
        "exact accuracy": spread(rows["accuracy"]),
        f"seeds above {SOLVED}": out_of(len(learned), len(rows)),
        "steps they took": spread(learned["steps_taken"], 0) if len(learned) else "",
        "causal hop, by layer": staircases(rows),
        "allowed": bounds(rows),
    }


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
