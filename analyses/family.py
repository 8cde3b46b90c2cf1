"""Several runs side by side: the default family, one process a core, one thread a process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from threading import Event, Thread

import torch
from pydantic import BaseModel, ConfigDict

from analyses.differences import first_difference
from analyses.figures import staircase, to_png
from analyses.recipe import Progress, TrainingRecipe
from analyses.report import render_report
from analyses.runs import RunResult, run
from architectures import CheckpointError, ModelConfig
from architectures.checkpoints import read_json, visible_files, write_atomically, write_json
from composition import CompositionTask

FAMILY_FILE, PROGRESS_FILE = "family.json", "progress.json"
FIGURE_FILE, REPORT_FILE = "staircase.png", "report.html"

Report = Callable[[str, Progress], None]


class Family(BaseModel):
    """Runs that belong together.

    Attributes:
        arms: configs by name.
        recipe: how each is trained; the budget is the same for all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    arms: dict[str, ModelConfig]
    recipe: TrainingRecipe


class FamilyResult(BaseModel):
    """What `progress.json` holds: finished runs, and errors of those that failed, by name."""

    model_config = ConfigDict(frozen=True)

    family: Family
    runs: dict[str, RunResult]
    failed: dict[str, str]


def default_family(*, steps: int = 3000, seed: int = 0) -> Family:
    """Four stacks at L = 2 whose bounds differ, small enough for minutes on two cores.

    With `m = 8` and `n_1 = 4` three full layers learn the task well within the budget and two do
    not; with `m = 4` two get further, by a shortcut (docs/default_family.md). The linear layers'
    state has two heads of two keys, fewer than the eight entries of `z_1`: it can carry a value
    but not hold the table.
    """
    task = CompositionTask(start_domain=8, branching=(4,))
    schedules = {
        "full": ("full", "full", "full"),
        "early-linear": ("full", "deltanet", "full"),
        "late-linear": ("full", "full", "deltanet"),
        "linear-only": ("deltanet", "deltanet", "deltanet"),
    }
    arms = {
        name: ModelConfig(task=task, schedule=schedule, linear_heads=2, d_key=2)
        for name, schedule in schedules.items()
    }
    return Family(arms=arms, recipe=TrainingRecipe(steps=steps, seed=seed))


def run_family(
    family: Family,
    directory: str | Path,
    *,
    workers: int | None = None,
    report: Report | None = None,
) -> FamilyResult:
    """Train and trace every arm in `directory/<name>`, then write what they show.

    Writes `progress.json` (everything measured), `staircase.png` and `report.html`. Arms that
    are finished already are read, those cut off are gone on with. An arm that fails leaves its
    error in the result and the others alone; it is tried again next time.

    Args:
        workers: processes; one a core if None, never more than arms.
        report: called in this process with an arm's name and progress, now and then.

    Raises:
        CheckpointError: the directory holds another family, or files that are not a run's.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}, but at least one process must do the work")
    directory = Path(directory)
    _claim(directory, family)
    runs: dict[str, RunResult] = {}
    failed: dict[str, str] = {}
    workers = min(workers or len(os.sched_getaffinity(0)), len(family.arms))
    # Fresh processes: a fork of a process that has used torch's threads can hang.
    context = multiprocessing.get_context("spawn")
    news: Queue = context.Queue()
    with (
        _Listener(news, report),
        ProcessPoolExecutor(workers, context, _start_worker, (news,)) as pool,
    ):
        futures: dict[Future[RunResult], str] = {
            pool.submit(_run_arm, name, config, family.recipe, directory / name): name
            for name, config in family.arms.items()
        }
        try:
            for future in as_completed(futures):
                name, error = futures[future], future.exception()
                if error is None:
                    runs[name] = future.result()
                else:
                    failed[name] = f"{type(error).__name__}: {error}"
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    in_order = {name: runs[name] for name in family.arms if name in runs}
    result = FamilyResult(family=family, runs=in_order, failed=failed)
    write_family(result, directory)
    return result


def write_family(result: FamilyResult, directory: Path) -> None:
    """Figure and report, then `progress.json`: where that is, the rest is."""
    if result.runs:
        figure = to_png(staircase({name: run.trace for name, run in result.runs.items()}))
        write_atomically(directory / FIGURE_FILE, figure)
        write_atomically(directory / REPORT_FILE, render_report(result, figure).encode())
    write_json(directory / PROGRESS_FILE, result)


def _claim(directory: Path, family: Family) -> None:
    """Make the directory this family's, unless it is something else's already."""
    manifest = directory / FAMILY_FILE
    if manifest.exists():
        there = read_json(Family, manifest)
        if there != family:
            raise CheckpointError(
                f"{directory} holds another family of runs ({_difference(there, family)}); "
                "give another --out, or remove it"
            )
        return
    if directory.exists() and (not directory.is_dir() or visible_files(directory)):
        raise CheckpointError(
            f"{directory} is there already and is not a family of runs; "
            "give --out a new or empty directory"
        )
    write_json(manifest, family)


def _difference(there: Family, here: Family) -> str:
    name = first_difference(there.recipe, here.recipe)
    if name is not None:
        old, new = getattr(there.recipe, name), getattr(here.recipe, name)
        return f"{name} is {old} there and {new} here"
    return f"arms {', '.join(there.arms)} there and {', '.join(here.arms)} here"


_news: Queue | None = None
"""In a worker: where progress is told."""


def _start_worker(news: Queue) -> None:
    global _news
    _news = news
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    torch.set_num_threads(1)
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """Leave when the parent is gone, so that the same command does not meet workers of the last."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _run_arm(name: str, config: ModelConfig, recipe: TrainingRecipe, directory: Path) -> RunResult:
    def tell(progress: Progress) -> None:
        if _news is not None and progress.step % 10 == 0:
            _news.put((name, progress))

    return run(config, recipe=recipe, directory=directory, report=tell)


class _Listener:
    """Hands what workers tell to `report`, for the time of the block."""

    def __init__(self, news: Queue, report: Report | None) -> None:
        self._news, self._report, self._over = news, report, Event()
        self._thread = Thread(target=self._listen, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                name, progress = self._news.get(timeout=0.2)
            except Empty:
                continue
            if self._report is not None:
                self._report(name, progress)
