"""What numbers depend on besides their command: seed, device, threads and the version of torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from analyses.grid import Point
from analyses.workers import processes as number_of_processes


def setting(
    seeds: Sequence[int], device: str = "cpu", threads: int | None = None, processes: int = 1
) -> str:
    """One short line, such as "seed 0, cpu, 1 thread, torch 2.14.1".

    Args:
        seeds: all that are drawn from.
        threads: of each process; this one's if None.
        processes: that work side by side.
    """
    threads = torch.get_num_threads() if threads is None else threads
    work = f"{threads} thread{'s' if threads != 1 else ''}"
    if processes > 1:
        work = f"{processes} processes with {work} each"
    return f"{_seeds(seeds)}, {device}, {work}, torch {torch.__version__.partition('+')[0]}"


def _seeds(seeds: Sequence[int]) -> str:
    known = sorted(set(seeds))
    if len(known) == 1:
        return f"seed {known[0]}"
    if len(known) > 2 and known == list(range(known[0], known[-1] + 1)):
        return f"seeds {known[0]} … {known[-1]}"
    return f"seeds {', '.join(map(str, known[:-1]))} and {known[-1]}"


def of_a_sweep(points: Sequence[Point], workers: int | None, *, on_ray: bool) -> str:
    """The same of all runs of a grid.

    Raises:
        ValueError: workers below 1.
    """
    seeds = [point.recipe.seed for point in points]
    if not on_ray:
        return setting(seeds, threads=1, processes=min(number_of_processes(workers), len(points)))
    devices = " and ".join(sorted({point.resources.device for point in points}))
    most = max(point.resources.threads for point in points)
    return setting(seeds, f"{devices} on Ray", most)
