"""Findings: hops beyond the bound, and the mechanism that makes them."""

from __future__ import annotations

import pandas as pd

from analyses.findings.columns import accuracies, columns, is_above, past_a_bound
from analyses.findings.drawing import accuracy_by_arm
from analyses.findings.finding import HALF, SOLVED, Finding, Frames, Told, by_arm, finished, solved
from analyses.findings.words import listed, out_of, sentence, spread


def tell_branching(frames: Frames) -> Told:
    """Two full layers at L = 2, by size of the start domain and branching."""
    runs = finished(frames["shortcuts-branching"]).copy()
    runs["n"] = runs["branching"].map(lambda branching: int(branching[0]))
    groups = {f"m = {m}, n = {n}": rows for (m, n), rows in runs.groupby(["start_domain", "n"])}
    table = pd.DataFrame([_branching_row(name, rows) for name, rows in groups.items()])
    alt = f"Exact accuracy of two full layers. {accuracies(groups)}"
    return Told(_branching_words(groups), table, accuracy_by_arm(groups), alt)


def _branching_row(name: str, rows: pd.DataFrame) -> dict[str, object]:
    return {
        "task": name,
        **columns(rows, "exact accuracy", "guessing", "learned"),
        **columns(rows, "causal hop, by layer", "past a bound"),
        **_mechanism_cells(rows),
    }


def _branching_words(groups: dict[str, pd.DataFrame]) -> str:
    runs = pd.concat(groups.values())
    ahead = past_a_bound(runs)
    by_n = {n: spread(rows["accuracy"]) for n, rows in runs.groupby("n")}
    text = (
        "Against the prediction, two full layers go past their bound in "
        f"{out_of(ahead, len(runs))} runs, and {len(solved(runs))} of them are above {SOLVED}. "
        if ahead
        else "As predicted, two full layers never go past their bound. "
    )
    text += sentence(
        "accuracy over both start domains is "
        + listed([f"{value} with n = {n}" for n, value in by_n.items()])
    )
    return f"{text} {_mechanism_words(runs)}"


def tell_no_query(frames: Frames) -> Told:
    """Four hops and no query, by number of full layers."""
    return _by_arm(
        frames["shortcuts-no-query"],
        "Without a query an entry can fetch its successor before anything is asked, and pointers "
        "double: about log2 L + 1 layers may do.",
    )


def tell_forward(frames: Frames) -> Told:
    """Forward order, by number of linear layers."""
    return _by_arm(
        frames["shortcuts-forward"],
        "In forward order the start is known before the functions: a recurrence could fold the "
        "chain in one layer.",
    )


def _by_arm(frame: pd.DataFrame, says: str) -> Told:
    runs = finished(frame)
    groups = by_arm(runs)
    table = pd.DataFrame(
        [
            {
                **columns(rows, "arm", "layers", "exact accuracy", "learned"),
                **columns(rows, "causal hop, by layer"),
                **_mechanism_cells(rows),
            }
            for rows in groups.values()
        ]
    )
    hops = int(runs["hops"].iloc[0])
    learned = [arm for arm, rows in groups.items() if len(solved(rows))]
    fewest = {arm: len(groups[arm]["schedule"].iloc[0]) for arm in learned}
    text = says + " "
    if learned:
        text += sentence(
            f"above {SOLVED} at L = {hops} are "
            + listed(
                [
                    f"{out_of(len(solved(groups[arm])), len(groups[arm]))} of {arm}"
                    for arm in learned
                ]
            )
            + f"; the fewest layers that learn it are {min(fewest.values())}"
        )
    else:
        text += f"No arm gets above {SOLVED} at L = {hops} within its budget."
    alt = f"Exact accuracy by arm. {accuracies(groups)}"
    return Told(f"{text} {_mechanism_words(runs)}".strip(), table, accuracy_by_arm(groups), alt)


def _mechanism_cells(rows: pd.DataFrame) -> dict[str, str]:
    """Entries that hold their successors, by function; nothing where it was not measured."""
    if "fetched" not in rows or rows["fetched"].isna().any():
        return {}
    functions = range(len(rows["fetched"].iloc[0]) - 1)
    return {
        "entries hold successors": "; ".join(
            f"z_{index + 1} {spread((shares[index] for shares in rows['fetched']), 2)}"
            for index in functions
        )
    }


def _mechanism_words(rows: pd.DataFrame) -> str:
    """Which of the runs past their bound have entries that hold their successors."""
    if "fetched" not in rows or rows["fetched"].isna().any():
        return ""
    ahead = rows[[is_above(row) or row["accuracy"] >= SOLVED for _, row in rows.iterrows()]]
    if not len(ahead):
        return ""
    holding = ahead[[max(shares) > HALF for shares in ahead["fetched"]]]
    return (
        f"In {out_of(len(holding), len(ahead))} of the runs that are past a bound or learned the "
        "visited entry of some function holds what comes after its own value in more than half of "
        "the interchange pairs"
        + (
            "; in the others no single mechanism of ours accounts for most pairs."
            if len(holding) < len(ahead)
            else "."
        )
    )


def tell_fetching(frames: Frames) -> Told:
    """Stacks with one layer too few that are exact all the same, and what their entries hold."""
    runs = finished(frames["depth-L4"])
    short = runs[runs["schedule"].map(len) == runs["hops"]]
    says = "As predicted, no run with four full layers is learned."
    if len(solved(short)):
        says = (
            f"Against the prediction, {out_of(len(solved(short)), len(short))} runs with four full "
            "layers are learned. Branching by two leaves an entry two successors: it can fetch "
            "both, and the query tells them apart later, which saves a hop."
        )
    return _by_arm(runs, says)


BRANCHING = Finding(
    name="shortcuts-branching",
    title="How far do two full layers get, and does branching stop them?",
    prediction="Two full layers make one hop at most (arXiv 2412.02975). The proofs need n_l far "
    "above H·d·p; with few successors an entry can hold them all (docs/theory.md).",
    grids=("shortcuts-branching",),
    tell=tell_branching,
)
FETCHING = Finding(
    name="shortcuts-fetching",
    title="How do four full layers make four hops?",
    prediction="Four full layers make three hops at most (arXiv 2412.02975).",
    grids=("depth-L4",),
    tell=tell_fetching,
)
NO_QUERY = Finding(
    name="shortcuts-no-query",
    title="Without a query, do pointers double?",
    prediction="Nothing forbids about log2 L + 1 layers: z_1's entries can fetch z_2, then those "
    "of the composed function the next two.",
    grids=("shortcuts-no-query",),
    tell=tell_no_query,
)
FORWARD = Finding(
    name="shortcuts-forward",
    title="In forward order, does a recurrence fold the chain?",
    prediction="Nothing forbids it: with eigenvalues in (-1, 1) a delta rule can exchange one "
    "value for the next as the functions come by.",
    grids=("shortcuts-forward",),
    tell=tell_forward,
)
