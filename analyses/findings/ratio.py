"""Finding: hybrids of one depth with fewer and fewer full layers."""

from __future__ import annotations

from itertools import pairwise

import pandas as pd

from analyses.findings.columns import accuracies, columns, count, past
from analyses.findings.drawing import accuracy_by_arm
from analyses.findings.finding import SOLVED, Finding, Frames, Told, finished, solved
from analyses.findings.words import sentence, spread, verdict

COLUMNS = (
    "parameters",
    "state bits",
    "exact accuracy",
    "learned",
    "steps they took",
    "causal hop, by layer",
    "allowed",
    "ahead in most pairs",
)


def tell(frames: Frames) -> Told:
    """Accuracy and hops, one row for each L and ratio."""
    runs = pd.concat([finished(frame) for frame in frames.values()], ignore_index=True)
    groups = {
        f"L = {hops}, {str(arm).replace('-to-', ' : ')}": rows
        for (hops, arm), rows in runs.groupby(["hops", "arm"])
    }
    table = pd.DataFrame(
        [
            {
                "L, full to linear": name,
                "full layers": sum(kind == "full" for kind in rows["schedule"].iloc[0]),
                **columns(rows, *COLUMNS),
            }
            for name, rows in groups.items()
        ]
    )
    alt = f"Exact accuracy by ratio. {accuracies(groups)}"
    return Told(_words(groups) + _where(groups), table, accuracy_by_arm(groups), alt)


def _words(groups: dict[str, pd.DataFrame]) -> str:
    against = [
        f"{count(past(rows), rows)} runs at {name} are past their bound"
        for name, rows in groups.items()
        if len(past(rows))
    ]
    reached = []
    for name, rows in groups.items():
        hops, allowed = rows["hops"].iloc[0], rows["upper"].iloc[0][-1]
        reached.append(
            f"{name} reaches {spread(rows['accuracy'])}, {count(solved(rows), rows)} learned, "
            f"where {allowed} of {hops} hops are allowed"
        )
        missed = rows[(rows["accuracy"] < SOLVED) & (rows["level"] <= allowed)]
        if len(missed):
            most = int(missed["level"].max())
            reached[-1] += (
                f" ({len(missed)} of them did not get beyond prompts of "
                f"{most} hop{'s' if most > 1 else ''}: training found less than is allowed)"
            )
    return f"{verdict(against, 'no run is past its bound')} {sentence('; '.join(reached))}"


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
    "full layers of eight are enough, two and one are not; at L = 2 two are.",
    grids=("ratio", "ratio-L2"),
    tell=tell,
)
