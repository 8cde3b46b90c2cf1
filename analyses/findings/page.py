"""docs/findings.md: written from results by a command, so that it cannot drift from them.

For every finding whose results are there the question, the prediction, what was seen, the figure,
the table, and which file the numbers come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from analyses.figures import to_png
from analyses.findings.finding import SOLVED, Finding, Frames, Told
from analyses.findings.words import coverage
from analyses.mechanism_rows import MECHANISMS_FILE
from analyses.results import write_parquet
from analyses.sweep import RESULTS_FILE
from architectures.checkpoints import write_atomically

PAGE, FIGURES, RESULTS = "findings.md", "findings", "results"


def gather(sweeps: Path, docs: Path, findings: Iterable[Finding]) -> list[str]:
    """Copy what findings need from sweeps into `docs/results`, mechanisms joined to results.

    Args:
        sweeps: a directory with one sweep for each grid, named after it.

    Returns:
        The names of the grids found there.
    """
    found = []
    for grid in dict.fromkeys(grid for finding in findings for grid in finding.grids):
        results = sweeps / grid / RESULTS_FILE
        if not results.exists():
            continue
        frame = pd.read_parquet(results)
        mechanisms = sweeps / grid / MECHANISMS_FILE
        if mechanisms.exists():
            frame = frame.merge(pd.read_parquet(mechanisms), on="name", how="left")
        (docs / RESULTS).mkdir(parents=True, exist_ok=True)
        write_parquet(frame, docs / RESULTS / f"{grid}.parquet")
        found.append(grid)
    return found


def load(docs: Path, findings: Iterable[Finding]) -> Frames:
    """The results that lie in `docs/results`, by grid."""
    paths = {
        grid: docs / RESULTS / f"{grid}.parquet" for finding in findings for grid in finding.grids
    }
    return {grid: pd.read_parquet(path) for grid, path in paths.items() if path.exists()}


def told(findings: Iterable[Finding], frames: Frames) -> dict[str, Told]:
    """What each finding says, by name, for those of whose grids at least the first is there."""
    return {
        finding.name: finding.tell({grid: frames[grid] for grid in finding.grids if grid in frames})
        for finding in findings
        if finding.grids[0] in frames
    }


def write_page(docs: Path, findings: Iterable[Finding], frames: Frames) -> Path:
    """Write the page and its figures under `docs`, and return the page's path."""
    findings = list(findings)
    answers = told(findings, frames)
    for name, answer in answers.items():
        (docs / FIGURES).mkdir(parents=True, exist_ok=True)
        write_atomically(docs / FIGURES / f"{name}.png", to_png(answer.figure))
    path = docs / PAGE
    write_atomically(path, render(findings, answers, frames).encode())
    return path


def render(findings: Iterable[Finding], answers: dict[str, Told], frames: Frames) -> str:
    """The page as Markdown."""
    present = [finding for finding in findings if finding.name in answers]
    parts = [
        _head(frames),
        *(_section(finding, answers[finding.name], frames) for finding in present),
    ]
    return "\n\n".join(parts) + "\n"


def _head(frames: Frames) -> str:
    runs = pd.concat(frames.values(), ignore_index=True)
    exponents = runs["size_exponent"].dropna()
    return f"""# Findings

Written by `hoptrace findings` from the results in [results/](results), {len(runs)} runs; every
number below is computed from rows of the files named under each table, and a test writes the page
again and compares. `hoptrace sweep grids/NAME.toml` makes the rows anew.

**How to read it.** "a (b … c)" is the median of the seeds, the lowest and the highest. With five
seeds that range holds the median of all seeds with probability {coverage(5)}, with three
{coverage(3)}. "k of n (b … c %)" has the 95 % interval of Wilson. Hops are causal hops at the
answer position ([measures.md](measures.md)), after layer 1, 2, …; "×4" means four seeds. A run
counts as learned above {SOLVED}. Guessing is naming the most frequent value in sight.

**What can be compared.** The theorems' size condition holds for none of these models: it would
ask for prompts of 10^{exponents.min():,.0f} to 10^{exponents.max():,.0f} tokens, and these have
{runs["length"].min()} to {runs["length"].max()}. So a run past a bound contradicts no theorem. What
can be compared is the shape: one hop for a full layer, none for a linear one."""


def _section(finding: Finding, answer: Told, frames: Frames) -> str:
    used = [grid for grid in finding.grids if grid in frames]
    missing = [grid for grid in finding.grids if grid not in frames]
    sources = ", ".join(f"[results/{grid}.parquet](results/{grid}.parquet)" for grid in used)
    lines = [
        f"## {finding.title}",
        f"*Prediction.* {finding.prediction}",
        f"*Seen.* {answer.words}",
        f"![{answer.alt}]({FIGURES}/{finding.name}.png)",
        _markdown(answer.table),
        f"Rows: {sources}." + (f" Not run yet: {', '.join(missing)}." if missing else ""),
    ]
    return "\n\n".join(lines)


def _markdown(table: pd.DataFrame) -> str:
    rows = [list(table.columns), ["---"] * len(table.columns), *table.values.tolist()]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)
