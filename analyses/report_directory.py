"""The report of what a directory holds: a run, a family, a sweep, or a shipped model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from analyses.family import FAMILY_FILE, PROGRESS_FILE, FamilyResult, family_report
from analyses.report import Report, Reported, model_in, render_report
from analyses.runs import RESULT_FILE, RunResult, read_result
from analyses.sweep import GRID_FILE, RUNS, read_sweep
from analyses.zoo import trained_directory, trained_names
from architectures import CheckpointError
from architectures.checkpoints import read_json, write_atomically

REPORT_FILE = "report.html"

SECTIONS = 6
"""Runs of a sweep that get a section of their own, one an arm; a page of more is no report."""


def write_report(
    directory: str | Path,
    out: str | Path | None = None,
    *,
    told: Callable[[str], None] | None = None,
) -> Path:
    """Write the report of a directory that train, run or sweep has left.

    Args:
        directory: or the name of a trained model that comes with hoptrace.
        out: the page; `report.html` in the directory if None, or `NAME.html` here for a model
            that comes with hoptrace.
        told: called with the name of each run when its section is begun.

    Raises:
        CheckpointError: nothing there that can be reported.
        ValueError: runs that have all failed.
    """
    directory = Path(directory)
    shipped = not directory.exists() and str(directory) in trained_names()
    place = trained_directory(str(directory)) if shipped else directory
    if out is None:
        out = Path(f"{directory}.html") if shipped else directory / REPORT_FILE
    page = render_report(report_of(place), told)
    write_atomically(Path(out), page.encode())
    return Path(out)


def report_of(directory: Path) -> Report:
    """What the report of a directory is made of.

    Raises:
        CheckpointError: it holds neither a finished run, nor a family, nor a sweep, or those are
            not at their end.
    """
    directory = directory.resolve()  # "." has no name
    if (directory / FAMILY_FILE).exists():
        if not (directory / PROGRESS_FILE).exists():
            raise CheckpointError(
                f"{directory} is not at its end: no {PROGRESS_FILE}; start the same run again"
            )
        return family_report(read_json(FamilyResult, directory / PROGRESS_FILE), directory)
    if (directory / GRID_FILE).exists():
        return _of_sweep(directory)
    if (directory / RESULT_FILE).exists():
        result = read_result(directory)
        run = Reported(directory.name, result, model_in(directory))
        return Report(
            f"{directory.name}: how many hops does each layer make?", [run], _rerun(result)
        )
    raise CheckpointError(
        f"{directory} holds no finished run, no family of runs and no sweep; give a directory that "
        f"`hoptrace run`, `train` or `sweep` has left, or one of {', '.join(trained_names())}"
    )


def _of_sweep(directory: Path) -> Report:
    """One run an arm, that of median accuracy, has a section; the others have a row."""
    frame = read_sweep(directory)
    finished = frame[frame["error"].isna()]
    chosen = []
    for _, arm in finished.groupby("arm", sort=False):
        ordered = arm.sort_values("accuracy")["name"].tolist()
        chosen.append(ordered[(len(ordered) - 1) // 2])
    shown = chosen[:SECTIONS]
    runs = {}
    for name in finished["name"]:
        place = directory / RUNS / name
        model = model_in(place) if name in shown else None
        runs[name] = Reported(name, read_result(place), model)
    left = len(chosen) - len(shown)
    note = "Sections show one run an arm, that of median accuracy"
    note += f"; {left} more arms have rows only." if left else "."
    errors = frame[frame["error"].notna()]
    return Report(
        f"Sweep {directory.name}: how many hops does each layer make?",
        [runs[name] for name in shown],
        (
            "python",
            "from pathlib import Path\n\nfrom analyses import Grid, run_sweep\n\n"
            f'grid = Grid.model_validate_json(Path("{GRID_FILE}").read_text())\n'
            'run_sweep(grid, "again")',
        ),
        more=[run for name, run in runs.items() if name not in shown],
        failed=dict(zip(errors["name"], errors["error"], strict=True)),
        note=note,
    )


def _rerun(result: RunResult) -> tuple[str, str]:
    """Code that makes the run again; it may hold nothing that a page could not show."""
    config = result.trace.config.model_dump_json(exclude_defaults=True)
    recipe = result.recipe.model_dump_json(exclude_defaults=True)
    return (
        "python",
        "from analyses import TrainingRecipe, run\nfrom architectures import ModelConfig\n\n"
        f"config = ModelConfig.model_validate_json({config!r})\n"
        f"recipe = TrainingRecipe.model_validate_json({recipe!r})\n"
        'run(config, recipe=recipe, directory="again")',
    )
