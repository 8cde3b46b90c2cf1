"""Train, trace, compare with theory, draw, and run whole families of models.

Names are loaded when first asked for: the command line answers `--help` and `theory` without
waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyses.family import Family, default_family, run_family
    from analyses.figures import staircase
    from analyses.recipe import TrainingRecipe
    from analyses.runs import RunResult, read_result, run
    from analyses.tracing import ProgressTrace, trace
    from analyses.training import TrainingResult, train

__all__ = [
    "Family",
    "ProgressTrace",
    "RunResult",
    "TrainingRecipe",
    "TrainingResult",
    "default_family",
    "read_result",
    "run",
    "run_family",
    "staircase",
    "trace",
    "train",
]

_HOMES = {
    "analyses.family": ("Family", "default_family", "run_family"),
    "analyses.figures": ("staircase",),
    "analyses.recipe": ("TrainingRecipe",),
    "analyses.runs": ("RunResult", "read_result", "run"),
    "analyses.tracing": ("ProgressTrace", "trace"),
    "analyses.training": ("TrainingResult", "train"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'analyses' has no attribute {name!r}")
