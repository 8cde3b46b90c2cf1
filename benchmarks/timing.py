"""Fair timing: what is compared runs in one process, turn by turn, and ratios keep their spread."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch


def interleaved(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every function in every round; in a round each runs once, in turn.

    The order is reversed from round to round, so that none always follows the same other.
    """
    for function in functions.values():
        function()  # caches, allocations, dispatch tables
    times: dict[str, list[float]] = {name: [] for name in functions}
    names = list(functions)
    for turn in range(rounds):
        for name in names if turn % 2 else reversed(names):
            begin = time.perf_counter()
            functions[name]()
            times[name].append(time.perf_counter() - begin)
    return times


def ratio(slow: list[float], fast: list[float]) -> str:
    """Median over rounds of slow / fast, with the quartiles: `1.52 (1.48 … 1.57)`."""
    low, middle, high = statistics.quantiles(
        [a / b for a, b in zip(slow, fast, strict=True)], n=4, method="inclusive"
    )
    return f"{middle:.2f} ({low:.2f} … {high:.2f})"


def milliseconds(times: list[float]) -> str:
    """The median."""
    return f"{1e3 * statistics.median(times):.1f}"


def machine() -> str:
    """Processor, threads and versions, for the line beside the numbers."""
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        names = [line for line in information.read_text().splitlines() if "model name" in line]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    return (
        f"{cpu}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"transformers {version('transformers')}, Python {platform.python_version()}"
    )
