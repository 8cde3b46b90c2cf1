"""What the seeds of an arm did, in cells: the columns that tables of several findings share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pandas as pd

from analyses.findings.finding import HALF, SOLVED, solved
from analyses.findings.words import out_of, spread


def columns(rows: pd.DataFrame, *names: str) -> dict[str, object]:
    """The columns called `names`, of one group of seeds."""
    return {name: COLUMNS[name](rows) for name in names}


def task(rows: pd.DataFrame) -> str:
    """ "m = 6, n = 3, 2"."""
    first = rows.iloc[0]
    return f"m = {first['start_domain']}, n = {', '.join(map(str, first['branching']))}"


def steps_taken(rows: pd.DataFrame) -> str:
    """Of the seeds that learned; nothing where none did."""
    learned = solved(rows)
    return spread(learned["steps_taken"], 0) if len(learned) else ""


def shares_beyond(row: pd.Series) -> list[float]:
    """After every layer, the share of pairs in which the answer position carries what comes after
    the hop that the theory allows there.

    After the last layer the residual is the answer, so there it is the exact accuracy.
    """
    shares = [
        float(sum(shares[upper + 1 :]))
        for shares, upper in zip(row["answer_interchange"], row["upper"], strict=True)
    ]
    last = row["accuracy"] if row["upper"][-1] < row["hops"] else 0.0
    return [*shares[:-1], last]


def is_past(row: pd.Series) -> bool:
    """Whether a run does what its bound forbids: later values, after some layer, in all pairs.

    The theorems forbid that every prompt is answered, not that many are: hence 99 % of pairs.
    """
    return max(shares_beyond(row)) >= SOLVED


def is_ahead(row: pd.Series) -> bool:
    """Whether most pairs carry a later value than allowed: for them a shortcut was found."""
    return max(shares_beyond(row)) > HALF


def past(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of runs that do what their bound forbids."""
    return rows[[is_past(row) for _, row in rows.iterrows()]]


def ahead(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of runs that are ahead of their bound in most pairs."""
    return rows[[is_ahead(row) for _, row in rows.iterrows()]]


def has_mechanisms(rows: pd.DataFrame) -> bool:
    """Whether `hoptrace mechanisms` has measured these runs."""
    return "fetched" in rows and bool(rows["fetched"].notna().all())


def count(part: pd.DataFrame, rows: pd.DataFrame) -> str:
    """ "4 of 5 (38 … 96 %)"."""
    return out_of(len(part), len(rows))


def staircases(rows: pd.DataFrame, column: str = "causal_hop") -> str:
    """ "0 1 2 ×4; 0 0 2": hops after every layer, and how many seeds share them."""
    counts = Counter(tuple(int(hop) for hop in hops[1:]) for hops in rows[column])
    return "; ".join(
        " ".join(map(str, hops)) + (f" ×{count}" if count > 1 else "")
        for hops, count in counts.most_common()
    )


def bounds(rows: pd.DataFrame) -> str:
    """ "0 1-2 2": what the theory allows after every layer."""
    first = rows.iloc[0]
    return " ".join(
        str(low) if low == high else f"{low}-{high}"
        for low, high in zip(first["lower"][1:], first["upper"][1:], strict=True)
    )


def accuracies(groups: Mapping[str, pd.DataFrame]) -> str:
    """ "full-2: 0.788 (0.751 … 0.804). full-3: …", for those who cannot see the figure."""
    return " ".join(f"{name}: {spread(rows['accuracy'])}." for name, rows in groups.items())


COLUMNS: dict[str, Callable[[pd.DataFrame], object]] = {
    "L": lambda rows: rows["hops"].iloc[0],
    "arm": lambda rows: rows["arm"].iloc[0],
    "layers": lambda rows: ", ".join(rows["schedule"].iloc[0]),
    "task": task,
    "parameters": lambda rows: f"{rows['parameters'].iloc[0]:,}",
    "state bits": lambda rows: f"{rows['state_bits'].iloc[0]:,}",
    "exact accuracy": lambda rows: spread(rows["accuracy"]),
    "guessing": lambda rows: f"{rows['frequency_baseline'].iloc[0]:.3f}",
    "learned": lambda rows: count(solved(rows), rows),
    "steps they took": steps_taken,
    "causal hop, by layer": staircases,
    "probe hop, by layer": lambda rows: staircases(rows, "probe_hop"),
    "allowed": bounds,
    "past a bound": lambda rows: count(past(rows), rows),
    "ahead in most pairs": lambda rows: count(ahead(rows), rows),
}
"""By heading; a group of seeds is turned into the text of a cell."""
