"""docs/findings.md: written from results by a command, so that it cannot drift from them.

For every finding whose results are there the question, the prediction, what was seen, the figure,
the table, and which file the numbers come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from analyses.figures import to_png
from analyses.findings.finding import SOLVED, Finding, Frames, Told, finished
from analyses.findings.words import coverage, size_note
from analyses.mechanism_rows import MECHANISMS_FILE
from analyses.results import write_parquet
from analyses.sweep import read_sweep
from architectures import CheckpointError
from architectures.checkpoints import write_atomically

PAGE, FIGURES, RESULTS = "findings.md", "findings", "results"


def gather(
    sweeps: Path, docs: Path, findings: Iterable[Finding]
) -> tuple[list[str], dict[str, str]]:
    """Copy what findings need from sweeps into `docs/results`, mechanisms joined to results.

    Args:
        sweeps: a directory with one sweep for each grid, named after it.

    Returns:
        The names of the grids found there, and of those that cannot be used with the reason.
    """
    found, unusable = [], {}
    for grid in dict.fromkeys(grid for finding in findings for grid in finding.grids):
        if not (sweeps / grid).exists():
            continue
        try:
            frame = read_sweep(sweeps / grid)
        except CheckpointError as error:
            unusable[grid] = str(error)
            continue
        mechanisms = sweeps / grid / MECHANISMS_FILE
        if mechanisms.exists():
            frame = frame.merge(pd.read_parquet(mechanisms), on="name", how="left")
        (docs / RESULTS).mkdir(parents=True, exist_ok=True)
        write_parquet(frame, docs / RESULTS / f"{grid}.parquet")
        found.append(grid)
    return found, unusable


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
        if finding.grids[0] in frames and len(finished(frames[finding.grids[0]]))
    }


def write_page(docs: Path, findings: Iterable[Finding], frames: Frames) -> Path:
    """Write the page and its figures under `docs`, and return the page's path."""
    findings = list(findings)
    answers = told(findings, frames)
    for name, answer in answers.items():
        (docs / FIGURES).mkdir(parents=True, exist_ok=True)
        write_atomically(docs / FIGURES / f"{name}.png", to_png(answer.figure, answer.alt))
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
    failed = len(runs) - len(finished(runs))
    without = f", {failed} of which failed and are left out" if failed else ""
    return f"""# Findings

Written by `hoptrace findings` from the results in [results/](results), {len(runs)} runs{without};
every number below is computed from rows of the files named under each table, and a test writes the
page again and compares. `hoptrace sweep grids/NAME.toml` makes the rows anew.

**How to read it.** "a (b … c)" is the median of the seeds, the lowest and the highest. With five
seeds that range holds the median of all seeds with probability {coverage(5)}, with three
{coverage(3)}. "k of n (b … c %)" has the 95 % interval of Wilson. Hops are causal hops at the
answer position ([measures.md](measures.md)), after layer 1, 2, …; "×4" means four seeds. A run has
*learned* the task above {SOLVED}. It is *past a bound* if after some layer {100 * SOLVED:.0f} % of
the pairs carry a later value than the theory allows there, and *ahead in most pairs* if more than
half do: the theorems forbid that all prompts are answered, not that most are. After the last layer
that share is the accuracy. Guessing is naming the most frequent value in sight.

**What can be compared.** {size_note(runs)} So a run past a bound contradicts no theorem. What
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
