"""How to train, and how far a training run is, as data that goes through JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from architectures import CheckpointError
from composition.task import PositiveInteger

Fraction = Annotated[float, Field(gt=0, le=1)]

BUDGET = frozenset({"steps", "target", "max_seconds", "checkpoint_every"})
"""Fields that say when to stop, not what happens on the way: a resumed run may change them."""


class TrainingRecipe(BaseModel):
    """How to train.

    Args:
        steps: budget; training ends here if `target` is not reached before.
        target: exact accuracy at which training ends, measured on `evaluation_prompts`
            held-out prompts of the task.
        max_seconds: budget in seconds, summed over the parts of a resumed run; None for no
            limit. Where such a run ends depends on the machine.
        batch: sets of functions drawn for a step.
        questions: starts and queries asked of each set. What stands in front of them is computed
            once, so several cost little more than one. In forward order the question comes first
            and nothing can be shared: a step then has `batch * questions` sets.
        learning_rate, warmup, betas, weight_decay, clip: AdamW at a constant rate after
            `warmup` steps of linear increase, gradients clipped to norm `clip`.
        curriculum: "active-hops", or "none" for the task itself from the first step.
        level_up: running accuracy at which the curriculum's level rises.
        checkpoint_every: steps between checkpoints, where there is a directory for them.
        seed: of the initial weights and of the prompts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: PositiveInteger = 3000
    target: Fraction = 0.998
    max_seconds: Annotated[float, Field(gt=0)] | None = None
    batch: PositiveInteger = 64
    questions: PositiveInteger = 16
    learning_rate: Annotated[float, Field(gt=0)] = 2e-3
    warmup: PositiveInteger = 50
    betas: tuple[Fraction, Fraction] = (0.9, 0.98)
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(gt=0)] = 1.0
    curriculum: Literal["active-hops", "none"] = "active-hops"
    level_up: Fraction = 0.95
    evaluation_prompts: PositiveInteger = 4096
    checkpoint_every: PositiveInteger = 200
    seed: int = 0


class Progress(BaseModel):
    """How far a training run is.

    Attributes:
        step: steps taken.
        level: of the curriculum, 1 … L; L + 1 is the task itself.
        accuracy: running accuracy (mean life 20 steps) since the level began.
        by_hops: the same on prompts with 1 … L uniform functions; None before any was seen.
        loss: cross-entropy of the last batch, in nats.
        seconds: spent on steps, earlier parts of a resumed run included.
    """

    model_config = ConfigDict(frozen=True)

    step: int = 0
    level: int = 1
    accuracy: float = 0.0
    by_hops: tuple[float | None, ...]
    loss: float | None = None
    seconds: float = 0.0


def check_version(recipe: TrainingRecipe, path: Path) -> None:
    """Refuse a stored recipe that does not name every field.

    We store them all; a default of ours need not be what an older version did without the field.

    Raises:
        CheckpointError: some are missing.
    """
    missing = sorted(type(recipe).model_fields.keys() - recipe.model_fields_set)
    if missing:
        raise CheckpointError(
            f"{path} is of an older version, which knew no {missing[0]!r}; use another directory, "
            "or remove this one"
        )
