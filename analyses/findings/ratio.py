"""Finding: hybrids of one depth with fewer and fewer full layers."""

from __future__ import annotations

import pandas as pd

from analyses.findings.columns import accuracies, columns, past_a_bound
from analyses.findings.drawing import accuracy_by_arm
from analyses.findings.finding import Finding, Frames, Told, by_arm, finished, solved
from analyses.findings.words import listed, out_of, sentence, spread


def tell(frames: Frames) -> Told:
    """Accuracy and hops, one row a ratio."""
    groups = by_arm(finished(frames["ratio"]))
    table = pd.DataFrame(
        [
            {
                "full to linear": arm.replace("-to-", " : "),
                "full layers": sum(kind == "full" for kind in rows["schedule"].iloc[0]),
                **columns(
                    rows,
                    "parameters",
                    "state bits",
                    "exact accuracy",
                    "learned",
                    "steps they took",
                    "causal hop, by layer",
                    "allowed",
                ),
            }
            for arm, rows in groups.items()
        ]
    )
    alt = f"Exact accuracy by ratio. {accuracies(groups)}"
    return Told(_words(groups), table, accuracy_by_arm(groups), alt)


def _words(groups: dict[str, pd.DataFrame]) -> str:
    against = []
    for arm, rows in groups.items():
        most = int(rows["upper"].iloc[0][-1])
        hops = int(rows["hops"].iloc[0])
        ahead = past_a_bound(rows)
        if most < hops and len(solved(rows)):
            against.append(f"{len(solved(rows))} runs at {arm} are learned, which is not allowed")
        elif most >= hops and len(solved(rows)) < len(rows):
            missed = len(rows) - len(solved(rows))
            against.append(
                f"{missed} runs at {arm} are not learned, though {hops} hops are allowed"
            )
        if ahead:
            against.append(f"{out_of(ahead, len(rows))} at {arm} are past a bound")
    text = sentence(f"against the prediction, {listed(against)}") + " " if against else ""
    return text + sentence(
        "accuracy is "
        + listed([f"{spread(rows['accuracy'])} at {arm}" for arm, rows in groups.items()])
    )


RATIO = Finding(
    name="ratio",
    title="How few of eight layers may be full?",
    prediction="With linear layers from the second on, a full layers allow a hops: at L = 3 four "
    "full layers are enough, two and one are not.",
    grids=("ratio",),
    tell=tell,
)
