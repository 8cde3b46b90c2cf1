"""The runs of a sweep on a Ray cluster, local or remote, on CPUs or GPUs (extra `[ray]`).

Every node needs hoptrace installed. A run writes where the sweep's directory is, if its node can
write there, and into a scratch directory otherwise; in both cases the finished run's files come
back to whoever started the sweep. What was cut off goes on from its checkpoint where the next
node sees the same directory, and begins anew elsewhere.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from analyses.recipe import Progress
from analyses.runs import RESULT_FILE, RunResult, read_result, run
from analyses.sweep import Runner
from analyses.workers import TELL_EVERY, Failure, Job, Listener, Report
from architectures.checkpoints import visible_files, write_atomically
from probes.bars import hide_bars

Files = dict[str, bytes]


def on_ray(address: str | None = None) -> Runner:
    """A runner for `run_sweep` that hands every run to a Ray cluster as one task.

    A run reserves what its grid says, `cpus` and `gpus`.

    Args:
        address: of the cluster, such as "auto" or "ray://head:10001"; None starts one on this
            machine for the time of the sweep. Ray that this process has started is used as it is.

    Raises:
        ValueError: Ray is not installed.
    """
    try:
        import ray
    except ImportError:
        raise ValueError('Ray is not installed; pip install "hoptrace[ray]"') from None

    def make(
        jobs: Mapping[str, Job], report: Report | None = None
    ) -> Iterator[tuple[str, RunResult | Failure]]:
        ours = not ray.is_initialized()
        if ours:
            ray.init(address=address or "local", include_dashboard=False, log_to_driver=False)
        try:
            yield from _make(jobs, report)
        finally:
            if ours:
                ray.shutdown()

    return make


def _make(
    jobs: Mapping[str, Job], report: Report | None
) -> Iterator[tuple[str, RunResult | Failure]]:
    import ray
    from ray.util.queue import Queue

    there = ray.remote(max_retries=2)(_run_there)
    news = Queue(actor_options={"num_cpus": 0})
    tasks = {
        there.options(num_cpus=job.resources.cpus, num_gpus=job.resources.gpus).remote(
            name, job, news
        ): name
        for name, job in jobs.items()
    }
    try:
        with Listener(news, report):
            while tasks:
                (task,), _ = ray.wait(list(tasks))
                name = tasks.pop(task)
                yield name, _brought_home(task, jobs[name])
    finally:
        for task in tasks:  # only where this loop was left early
            ray.cancel(task, force=True)
        news.shutdown(force=True)


def _brought_home(task: Any, job: Job) -> RunResult | Failure:
    """The run's files written here, and its result read; or why there is none."""
    import ray

    try:
        files: Files = ray.get(task)
        for name, content in sorted(files.items(), key=lambda item: item[0] == RESULT_FILE):
            path = job.directory / name
            if not path.exists() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, content)
        return read_result(job.directory)
    except ray.exceptions.RayTaskError as error:
        return Failure(f"{type(error.cause).__name__}: {error.cause}", str(error))
    except (ray.exceptions.RayError, ValueError, OSError) as error:
        return Failure(f"{type(error).__name__}: {error}")


def _run_there(name: str, job: Job, news: Any) -> Files:
    """In a process of the cluster: one run, and the files that it leaves."""
    from analyses.devices import Devices

    def tell(progress: Progress) -> None:
        if progress.step % TELL_EVERY == 0:
            news.put((name, progress))

    hide_bars()
    torch.set_num_threads(job.resources.threads)
    directory, devices = _writable(job.directory), Devices(job.resources.device)
    run(job.config, recipe=job.recipe, directory=directory, report=tell, devices=devices)
    return {path.name: path.read_bytes() for path in visible_files(directory)}


def _writable(directory: Path) -> Path:
    """The directory itself where this node can make it, else one that is always the same here."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return directory
    except OSError:
        name = hashlib.sha256(str(directory).encode()).hexdigest()[:16]
        scratch = Path(tempfile.gettempdir()) / "hoptrace" / name
        scratch.mkdir(parents=True, exist_ok=True)
        return scratch
