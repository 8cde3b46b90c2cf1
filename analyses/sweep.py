"""A sweep: every run of a grid in a directory of its own, and one Parquet file of all results.

grid.json            the runs that belong here; more may be added later
runs/<name>/         one run each, as `analyses.runs` leaves it
errors/<name>.txt    why a run failed, with its traceback; gone once it succeeds
results.parquet      a row a run, in the grid's order
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pandas as pd

from analyses.grid import Grid, Point
from analyses.lock import alone_in
from analyses.results import row_of, write_parquet
from analyses.runs import RESULT_FILE, RunResult, read_finished
from analyses.workers import Failure, Job, Report, processes, run_all
from architectures import CheckpointError
from architectures.checkpoints import read_json, visible_files, write_atomically, write_json
from probes.bars import Bars

GRID_FILE, RESULTS_FILE = "grid.json", "results.parquet"
RUNS, ERRORS = "runs", "errors"

Runner = Callable[..., Iterator[tuple[str, RunResult | Failure]]]
"""`runner(jobs, report=…)` makes runs and yields each with its result, in the order they end."""

Ended = Callable[[str, RunResult | Failure, bool], None]
"""Told a run's name and result when it is over, and whether it was so before the sweep began."""


def run_sweep(
    grid: Grid,
    directory: str | Path,
    *,
    workers: int | None = None,
    report: Report | None = None,
    ended: Ended | None = None,
    runner: Runner | None = None,
) -> pd.DataFrame:
    """Make the grid's runs that are not finished yet, and collect all of them.

    May be killed at any moment: finished runs are never made again, one that was cut off goes
    on from its last checkpoint, one that failed is tried again. Runs may be added to a grid
    later; those that are there must stay what they are.

    Args:
        workers: processes on this machine, one thread each; one a core if None.
        report: told a run's name and progress while it goes on.
        ended: told when a run is over, at once of those that were so before; without it and
            `report` a progress bar is shown.
        runner: what makes the runs instead of this machine's processes, such as
            `analyses.ray_runner.on_ray()`.

    Returns:
        One row a run, as `results.parquet` has them; see `analyses.results`.

    Raises:
        ValueError: a grid with an impossible run.
        CheckpointError: the directory holds something else, or the same names for other runs, or
            another process is at work there.
    """
    directory, points, workers = Path(directory).resolve(), grid.points(), processes(workers)
    check_ours(directory)
    with alone_in(directory), Bars() as bars:
        _claim(directory, grid)
        jobs = {
            point.name: Job(
                point.config, point.recipe, directory / RUNS / point.name, point.resources
            )
            for point in points
        }
        results: dict[str, RunResult | Failure] = {}

        bars.add("runs", len(points))

        def over(name: str, result: RunResult | Failure, found: bool = False) -> None:
            results[name] = result
            _keep_error(directory / ERRORS / f"{name}.txt", result)
            if ended is not None:
                ended(name, result, found)
            elif report is None:
                bars.tell("runs", len(results), name)

        there = {name for name, job in jobs.items() if (job.directory / RESULT_FILE).exists()}
        for name in there:
            over(name, _finished(jobs[name]), True)
        waiting = {name: job for name, job in jobs.items() if name not in there}
        make = runner or partial(run_all, workers=workers)
        for name, result in make(waiting, report=report):
            over(name, result)
        return _collect(directory, points, results)


def read_sweep(directory: str | Path) -> pd.DataFrame:
    """The results of a sweep that is at its end.

    Raises:
        CheckpointError: it is not: there are none, or its grid has more runs by now.
    """
    directory = Path(directory)
    if not (directory / GRID_FILE).exists():
        raise CheckpointError(f"{directory} is no sweep: it has no {GRID_FILE}")
    grid, path = read_json(Grid, directory / GRID_FILE), directory / RESULTS_FILE
    frame = pd.read_parquet(path) if path.exists() else pd.DataFrame({"name": []})
    missing = [point.name for point in grid.points() if point.name not in set(frame["name"])]
    if missing:
        raise CheckpointError(
            f"{directory} is not at its end ({missing[0]} and {len(missing) - 1} more are not in "
            f"{RESULTS_FILE}); start the sweep again"
        )
    return frame


def _finished(job: Job) -> RunResult | Failure:
    try:
        return read_finished(job.directory, job.config, job.recipe)
    except CheckpointError as error:
        return Failure(str(error))


def _collect(
    directory: Path, points: list[Point], results: Mapping[str, RunResult | Failure]
) -> pd.DataFrame:
    frame = pd.DataFrame([row_of(point, results[point.name]) for point in points])
    write_parquet(frame, directory / RESULTS_FILE)
    return frame


def _keep_error(path: Path, result: RunResult | Failure) -> None:
    if isinstance(result, Failure):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{result.message}\n\n{result.traceback}".encode())
    else:
        path.unlink(missing_ok=True)


def check_ours(directory: Path) -> None:
    """Raise a CheckpointError unless the directory is a sweep, or new, or empty."""
    if (directory / GRID_FILE).exists() or not directory.exists():
        return
    if not directory.is_dir() or visible_files(directory):
        raise CheckpointError(
            f"{directory} is there already and is not a sweep; give --out a new or empty directory"
        )


def _claim(directory: Path, grid: Grid) -> None:
    """Make the directory this grid's, unless some run that is there would change."""
    manifest = directory / GRID_FILE
    if manifest.exists():
        there = {point.name: point for point in read_json(Grid, manifest).points()}
        for point in grid.points():
            if there.get(point.name, point).same != point.same:
                raise CheckpointError(
                    f"{directory} holds another run named {point.name}; give another --out, "
                    "or undo what has changed in the grid"
                )
    write_json(manifest, grid)
