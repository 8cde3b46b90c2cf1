"""Train, trace, compare with theory, draw, and run whole families of models.

Names are loaded when first asked for: the command line answers `--help` and `theory` without
waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyses.family import Family, default_family, run_family
    from analyses.figures import staircase
    from analyses.grid import Grid
    from analyses.recipe import TrainingRecipe
    from analyses.runs import RunResult, read_result, run
    from analyses.sweep import read_sweep, run_sweep
    from analyses.tracing import ProgressTrace, trace
    from analyses.training import TrainingResult, train
    from analyses.zoo import load_trained, trained_models, trained_result

__all__ = [
    "Family",
    "Grid",
    "ProgressTrace",
    "RunResult",
    "TrainingRecipe",
    "TrainingResult",
    "default_family",
    "load_trained",
    "read_result",
    "read_sweep",
    "run",
    "run_family",
    "run_sweep",
    "staircase",
    "trace",
    "train",
    "trained_models",
    "trained_result",
]

_HOMES = {
    "analyses.family": ("Family", "default_family", "run_family"),
    "analyses.figures": ("staircase",),
    "analyses.grid": ("Grid",),
    "analyses.recipe": ("TrainingRecipe",),
    "analyses.runs": ("RunResult", "read_result", "run"),
    "analyses.sweep": ("read_sweep", "run_sweep"),
    "analyses.tracing": ("ProgressTrace", "trace"),
    "analyses.training": ("TrainingResult", "train"),
    "analyses.zoo": ("load_trained", "trained_models", "trained_result"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'analyses' has no attribute {name!r}")
