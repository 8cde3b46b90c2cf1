"""Many runs on this machine: one process a core, one thread a process.

A run that fails, or whose process is killed, ends alone. Workers leave when their parent is
gone, so that the same command started again does not meet those of the last.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from threading import Event, Thread
from typing import Any

import torch
from pebble import ProcessPool

from analyses.recipe import Progress, TrainingRecipe
from analyses.resources import Resources
from analyses.runs import RunResult, run
from architectures import ModelConfig
from probes.bars import hide_bars

Report = Callable[[str, Progress], None]
"""Told a run's name and progress, now and then."""

TELL_EVERY = 10
"""Steps between two messages of a worker."""


@dataclass(frozen=True)
class Job:
    """One run to be made: a model, how to train it, in which directory and on what."""

    config: ModelConfig
    recipe: TrainingRecipe
    directory: Path
    resources: Resources = field(default_factory=Resources)


@dataclass(frozen=True)
class Failure:
    """Why a run ended without a result: in one line, and where it happened."""

    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that an exception of a worker stands for."""
        killed = getattr(error, "exitcode", None)  # of pebble's ProcessExpired
        if killed is not None:
            how = f"signal {-killed}" if killed < 0 else f"exit code {killed}"
            return cls(f"its process ended with {how}; with signal 9 memory may have run out")
        return cls(f"{type(error).__name__}: {error}", getattr(error, "traceback", ""))


def run_all(
    jobs: Mapping[str, Job], *, workers: int | None = None, report: Report | None = None
) -> Iterator[tuple[str, RunResult | Failure]]:
    """Make every run and yield its name with its result, or with why there is none.

    Args:
        workers: processes; one a core if None, never more than jobs.
        report: called in this process while the runs go on.

    Yields:
        In the order in which the runs end.

    Raises:
        ValueError: a run that asks for a GPU.
    """
    if not jobs:
        return
    for name, job in jobs.items():
        if job.resources.gpus:
            raise ValueError(
                f"{name} asks for {job.resources.gpus:g} GPUs, but processes of this kind train on "
                "a CPU; use Ray (--ray), which may run on this machine"
            )
    count = min(processes(workers), len(jobs))
    # Fresh processes: a fork of a process that has used torch's threads can hang.
    context = multiprocessing.get_context("spawn")
    news: Queue = context.Queue()
    pool = ProcessPool(
        max_workers=count, context=context, initializer=_start_worker, initargs=(news,)
    )
    try:
        with Listener(news, report):
            futures: dict[Future[RunResult], str] = {
                pool.schedule(_run_one, args=(name, job)): name for name, job in jobs.items()
            }
            for future in as_completed(futures):
                error = future.exception()
                yield futures[future], future.result() if error is None else Failure.of(error)
    except BaseException:
        pool.stop()  # left early: what still runs goes on from its checkpoint next time
        raise
    else:
        pool.close()
    finally:
        pool.join()


def processes(workers: int | None) -> int:
    """How many processes to use: `workers`, or one a core if None.

    Raises:
        ValueError: workers below 1.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}, but at least one process must do the work")
    return workers or len(os.sched_getaffinity(0))


_news: Queue | None = None
"""In a worker: where progress is told."""


def _start_worker(news: Queue) -> None:
    global _news
    _news = news
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    torch.set_num_threads(1)
    hide_bars()
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _run_one(name: str, job: Job) -> RunResult:
    def tell(progress: Progress) -> None:
        if _news is not None and progress.step % TELL_EVERY == 0:
            _news.put((name, progress))

    return run(job.config, recipe=job.recipe, directory=job.directory, report=tell)


class Listener:
    """Hands what workers put into a queue to `report`, for the time of the block."""

    def __init__(self, news: Any, report: Report | None) -> None:
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
