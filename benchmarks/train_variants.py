"""Train (full, X, full) on two hops for every kind of layer X and several seeds.

    python -m benchmarks.train_variants --out DIR [--seeds 3] [--workers N]

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

OWN_STEPS = 6000

OWN_OPTIONS: dict[str, dict[str, int]] = {
    "linear": {},
    "retnet": {},
    "gated-deltanet": {},
    "mamba2": {"short_conv": 4},
    "mlstm": {},
}
"""Kinds that do not get there by the default recipe with every seed: they get twice the steps,
and Mamba-2 its published convolutions."""


def families(seed: int) -> dict[str, Family]:
    """By directory: every kind by the default recipe, and some by their own."""
    default, longer = default_family(seed=seed), default_family(seed=seed, steps=OWN_STEPS)
    return {
        "default": Family(arms=_arms(default, {kind: {} for kind in KINDS}), recipe=default.recipe),
        "own": Family(arms=_arms(longer, OWN_OPTIONS), recipe=longer.recipe),
    }


def _arms(family: Family, options: dict[str, dict[str, int]]) -> dict[str, ModelConfig]:
    """(full, kind, full) in the sizes of the default family's linear arm."""
    base = family.arms["early-linear"].model_dump()
    return {
        kind: ModelConfig(**{**base, "schedule": ("full", kind, "full"), **changes})
        for kind, changes in options.items()
    }


def main() -> None:
    """Train everything that is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=None)
    arguments = parser.parse_args()
    for seed in range(arguments.seeds):
        for recipe, family in families(seed).items():
            directory = arguments.out / recipe / f"seed{seed}"
            result = run_family(family, directory, workers=arguments.workers, report=tell)
            for kind, run in result.runs.items():
                print(
                    f"{recipe:8} seed {seed}  {kind:15} {run.accuracy:.4f}  "
                    f"{run.outcome}, step {run.progress.step}"
                )
            for kind, error in result.failed.items():
                print(f"{recipe:8} seed {seed}  {kind:15} failed: {error}")


def tell(kind: str, progress: Progress) -> None:
    """A line every 500 steps."""
    if progress.step % 500 == 0:
        print(f"  {kind} step {progress.step} level {progress.level} {progress.accuracy:.3f}")


if __name__ == "__main__":
    main()
