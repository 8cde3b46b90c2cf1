"""Findings: accuracy that the bounds forbid for all prompts, and the mechanism that makes it."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analyses.findings.columns import accuracies, ahead, columns, count, has_mechanisms, past
from analyses.findings.drawing import accuracy_and_fetching, accuracy_by_arm
from analyses.findings.finding import HALF, SOLVED, Finding, Frames, Told, by_arm, finished, solved
from analyses.findings.words import listed, out_of, sentence, spread, verdict


def tell_branching(frames: Frames) -> Told:
    """Two full layers at L = 2, by size of the start domain and branching."""
    runs = finished(frames["shortcuts-branching"]).copy()
    runs["n"] = runs["branching"].map(lambda branching: int(branching[0]))
    groups = {f"m = {m}, n = {n}": rows for (m, n), rows in runs.groupby(["start_domain", "n"])}
    by_size = [
        f"{spread(rows['accuracy'])} at {name}, where guessing gives "
        f"{rows['frequency_baseline'].iloc[0]:.3f}"
        for name, rows in groups.items()
    ]
    words = (
        verdict(_past(runs, "two full layers"), "two full layers are never past their bound")
        + " In most pairs they are ahead of it "
        + f"in {count(ahead(runs), runs)} runs. "
        + sentence(f"accuracy is {listed(by_size)}")
        + _which_fetch(ahead(runs), "runs that are ahead in most pairs")
        + _gated(groups)
    )
    return Told(
        words,
        _table(groups, "task", "exact accuracy", "guessing", "learned", "causal hop, by layer"),
        _figure(groups),
        f"Exact accuracy of two full layers. {accuracies(groups)}",
    )


def tell_fetching(frames: Frames) -> Told:
    """Stacks with one layer too few that are exact all the same, and what their entries hold."""
    runs = finished(frames["depth-L4"])
    short = runs[runs["schedule"].map(len) == runs["hops"]]
    learned = solved(short)
    words = verdict(
        _past(short, "four full layers"), "four full layers are never past their bound"
    ) + _which_fetch(learned, "learned runs of four full layers")
    if len(learned) and has_mechanisms(learned):
        words += (
            " With two successors an entry can hold both until the query tells them apart, which "
            "saves a hop and is why the proofs ask for larger branching; that it holds both was "
            "not measured."
        )
    return _told_by_arm(runs, words)


def tell_no_query(frames: Frames) -> Told:
    """Four hops and no query, by number of full layers."""
    runs = finished(frames["shortcuts-no-query"])
    hops = int(runs["hops"].iloc[0])
    learned = solved(runs)
    fewest = None if not len(learned) else int(learned["schedule"].map(len).min())
    found = (
        f"{fewest} full layers are enough for {hops} hops, where a query would ask for {hops + 1}"
        if fewest is not None and fewest <= hops
        else f"no run of {hops} layers or fewer gets above {SOLVED} at {hops} hops"
    )
    words = (
        verdict([], found)
        if fewest is not None and fewest <= hops
        else f"Against the expectation, {found}, within the budget."
    )
    return _told_by_arm(runs, f"{words} {_learned(runs)}" + _which_fetch(learned, "learned runs"))


def tell_forward(frames: Frames) -> Told:
    """Forward order, by number of linear layers."""
    runs = finished(frames["shortcuts-forward"])
    linear = runs[runs["state_bits"] > 0]
    learned = solved(linear)
    hops = int(runs["hops"].iloc[0])
    fewest = int(learned["schedule"].map(len).min()) if len(learned) else None
    one = linear[linear["schedule"].map(len) == 1]["accuracy"]
    if fewest == 1:
        words = f"As predicted, one linear layer folds {hops} hops."
    else:
        found = (
            f"the fewest linear layers that learn {hops} hops, without any attention, are {fewest}"
            if fewest
            else f"no linear stack gets above {SOLVED} either"
        )
        words = (
            f"Against the expectation, one linear layer does not learn to fold {hops} hops within "
            f"its budget ({spread(one)}); {found}."
        )
    return _told_by_arm(runs, f"{words} {_learned(runs)}{_folding(learned)}")


def _folding(learned: pd.DataFrame) -> str:
    """Which layer's state holds which value of the chain; nothing if it was not measured."""
    if not len(learned) or "folded" not in learned or learned["folded"].isna().any():
        return ""
    runs = [[list(layer) for layer in row] for row in learned["folded"]]
    by_function = []
    for index in range(len(runs[0][0])):
        best = [max((layer[index], number) for number, layer in enumerate(run, 1)) for run in runs]
        holding = [number for share, number in best if share > HALF]
        where = f", in layer {' or '.join(map(str, sorted(set(holding))))}" if holding else ""
        by_function.append(f"of z_{index + 1} in {len(holding)}{where}")
    return (
        f" Of the {len(runs)} learned runs without attention some layer's state carries, once the "
        "entries of a function have passed, the chain's value behind it in more than half of the "
        f"pairs: {listed(by_function)}. Where it does, the chain is folded."
    )


def _told_by_arm(runs: pd.DataFrame, words: str) -> Told:
    groups = by_arm(runs)
    table = _table(groups, "arm", "layers", "exact accuracy", "learned", "causal hop, by layer")
    return Told(words, table, _figure(groups), f"Exact accuracy by arm. {accuracies(groups)}")


def _table(groups: dict[str, pd.DataFrame], *names: str) -> pd.DataFrame:
    runs = pd.concat(groups.values())
    bounded = any(upper[1] < hops for upper, hops in zip(runs["upper"], runs["hops"], strict=True))
    if bounded:  # the theorems do not speak of prompts without a query, or in forward order
        names = (*names, "allowed", "past a bound", "ahead in most pairs")
    return pd.DataFrame([{**columns(rows, *names), **_fetched(rows)} for rows in groups.values()])


def _figure(groups: dict[str, pd.DataFrame]) -> Figure:
    measured = all(has_mechanisms(rows) for rows in groups.values())
    return accuracy_and_fetching(groups) if measured else accuracy_by_arm(groups)


def _past(runs: pd.DataFrame, who: str) -> list[str]:
    beyond = past(runs)
    return [f"{count(beyond, runs)} runs of {who} are past their bound"] if len(beyond) else []


def _learned(runs: pd.DataFrame) -> str:
    return sentence(
        "learned are "
        + listed([f"{count(solved(rows), rows)} of {arm}" for arm, rows in by_arm(runs).items()])
    )


def _fetched(rows: pd.DataFrame) -> dict[str, str]:
    """Entries that hold their successors, by function; nothing where it was not measured."""
    if not has_mechanisms(rows):
        return {}
    functions = range(len(rows["fetched"].iloc[0]) - 1)
    return {
        "entries hold successors": "; ".join(
            f"z_{index + 1} {spread((shares[index] for shares in rows['fetched']), 2)}"
            for index in functions
        )
    }


def _gated(groups: dict[str, pd.DataFrame]) -> str:
    """Of how many start values gated heads make the first hop; nothing if it was not measured."""
    if not all("gate" in rows and rows["gate"].notna().all() for rows in groups.values()):
        return ""
    by_group = [f"{spread(rows['gate'], 2)} at {name}" for name, rows in groups.items()]
    return (
        " One that has a name: a head of the first layer attends from the answer to z_1's entry of "
        "a start value only if it is the start, because otherwise the start token outbids it "
        "(probes/gating.py). The share of start values for which some head does so is "
        f"{listed(by_group)}; it cannot account for more prompts than that."
    )


def _which_fetch(rows: pd.DataFrame, who: str) -> str:
    """In how many of the runs the entries of which function hold their successors."""
    if not len(rows) or not has_mechanisms(rows):
        return ""
    functions = range(len(rows["fetched"].iloc[0]) - 1)
    by_function = [
        f"of z_{index + 1} in {sum(shares[index] > HALF for shares in rows['fetched'])}"
        for index in functions
    ]
    without = sum(max(shares) <= HALF for shares in rows["fetched"])
    text = (
        f" Of {len(rows)} {who} the visited entry holds what comes after its own value, in more "
        f"than half of the interchange pairs, {listed(by_function)}"
    )
    if not without:
        return f"{text}."
    return (
        f"{text}; in {out_of(without, len(rows))} no function's does, and what makes their hops is "
        "more than one mechanism, or one that we have no name for."
    )


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
