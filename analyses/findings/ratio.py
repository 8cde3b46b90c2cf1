"""Finding: hybrids of one depth with fewer and fewer full layers."""

from __future__ import annotations

from itertools import pairwise

import pandas as pd

from analyses.findings.columns import accuracies, ahead, columns, count, past
from analyses.findings.drawing import accuracy_by_arm
from analyses.findings.finding import Finding, Frames, Told, by_arm, finished, solved
from analyses.findings.words import listed, sentence, spread, verdict


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
    return Told(_words(groups) + _where(groups), table, accuracy_by_arm(groups), alt)


def _words(groups: dict[str, pd.DataFrame]) -> str:
    against = [
        f"{count(past(rows), rows)} runs at {arm} are past their bound"
        for arm, rows in groups.items()
        if len(past(rows))
    ]
    text = verdict(against, "no run is past its bound")
    return f"{text} " + sentence(
        listed(
            [
                f"{arm} reaches {spread(rows['accuracy'])}, {count(solved(rows), rows)} learned "
                f"where {rows['upper'].iloc[0][-1]} of {rows['hops'].iloc[0]} hops are allowed, "
                f"most pairs ahead in {count(ahead(rows), rows)}"
                for arm, rows in groups.items()
            ]
        )
    )


def _where(groups: dict[str, pd.DataFrame]) -> str:
    """In which kind of layer the answer position gets further, in runs that learned."""
    kinds = [
        kind
        for rows in groups.values()
        for _, row in solved(rows).iterrows()
        for kind, (before, after) in zip(row["schedule"], pairwise(row["causal_hop"]), strict=True)
        if after > before
    ]
    if not kinds:
        return ""
    full = kinds.count("full")
    return (
        f" In runs that learned, the answer position gets further in {len(kinds)} layers, of which "
        f"{full} are full; in the other layers it keeps what it has."
        if full == len(kinds)
        else f" In runs that learned, the answer position gets further in {len(kinds)} layers, of "
        f"which {full} are full and {len(kinds) - full} linear."
    )


RATIO = Finding(
    name="ratio",
    title="How few of eight layers may be full?",
    prediction="With linear layers from the second on, a full layers allow a hops: at L = 3 four "
    "full layers are enough, two and one are not.",
    grids=("ratio",),
    tell=tell,
)
