"""Train (full, X, full) on two hops for every kind of layer X and several seeds.

    python benchmarks/train_variants.py --out DIR [--seeds 3] [--workers N]

Sizes and recipe are the default family's (m = 8, n_1 = 4; a linear layer has two heads of two
keys, fewer than the eight entries of `z_1`). Killed and started again, it goes on. The table of
benchmarks/variants.py reads DIR.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from analyses.family import Family, default_family, run_family
from analyses.recipe import Progress
from architectures import ModelConfig
from architectures.mixers import MIXERS

KINDS = (*MIXERS, "sliding", "short-conv")

OWN_OPTIONS: dict[str, dict[str, int]] = {}
"""What a kind needs beyond the default sizes, written into the table."""


def config(kind: str, family: Family) -> ModelConfig:
    """(full, kind, full) in the sizes of the default family's linear arm."""
    changes = {"schedule": ("full", kind, "full"), **OWN_OPTIONS.get(kind, {})}
    return ModelConfig(**{**family.arms["early-linear"].model_dump(), **changes})


def seed_directory(out: Path, seed: int) -> Path:
    """Where a seed's runs lie."""
    return out / f"seed{seed}"


def main() -> None:
    """Train everything that is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=None)
    arguments = parser.parse_args()
    for seed in range(arguments.seeds):
        family = default_family(seed=seed)
        arms = {kind: config(kind, family) for kind in KINDS}
        result = run_family(
            Family(arms=arms, recipe=family.recipe),
            seed_directory(arguments.out, seed),
            workers=arguments.workers,
            report=tell,
        )
        for kind, run in result.runs.items():
            print(f"seed {seed}  {kind:15} {run.accuracy:.4f}  {run.outcome}, {run.progress.step}")
        for kind, error in result.failed.items():
            print(f"seed {seed}  {kind:15} failed: {error}")


def tell(kind: str, progress: Progress) -> None:
    """A line every 500 steps."""
    if progress.step % 500 == 0:
        print(f"  {kind} step {progress.step} level {progress.level} {progress.accuracy:.3f}")


if __name__ == "__main__":
    main()
