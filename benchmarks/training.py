"""What keeping freed memory is worth in training: `python benchmarks/training.py`.

glibc reads its settings when a process starts, so the two sides cannot share one: pairs of
processes are started alternately, and the ratio of each pair's seconds a step is reported.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from analyses.family import KEEP_FREED_MEMORY

PAIRS = 7

STEPS = """
import time, torch
torch.set_num_threads(1)
from analyses.family import default_family
from analyses.training_run import TrainingRun
family = default_family()
run = TrainingRun.begin(family.arms["full"], family.recipe)
for _ in range(20):
    run.step()
began = time.perf_counter()
for _ in range(100):
    run.step()
print((time.perf_counter() - began) / 100)
"""


def seconds_a_step(settings: dict[str, str]) -> float:
    """Measured in a fresh process with these environment variables."""
    plain = {name: v for name, v in os.environ.items() if name not in KEEP_FREED_MEMORY}
    done = subprocess.run(
        [sys.executable, "-c", STEPS],
        env=plain | settings,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main() -> None:
    """Print the median ratio and its range."""
    ratios = []
    for _ in range(PAIRS):
        plain, kept = seconds_a_step({}), seconds_a_step(KEEP_FREED_MEMORY)
        ratios.append(plain / kept)
        print(f"plain {plain * 1e3:.1f} ms, kept {kept * 1e3:.1f} ms, ratio {ratios[-1]:.2f}")
    print(
        f"keeping freed memory: {statistics.median(ratios):.2f} times as fast "
        f"({min(ratios):.2f} to {max(ratios):.2f} in {PAIRS} pairs)"
    )


if __name__ == "__main__":
    main()
