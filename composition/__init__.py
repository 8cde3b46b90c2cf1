"""The task and its theory: chains, prompts, counterfactual pairs, predicted progress."""

from composition.task import CompositionTask, Entry
from composition.theory import (
    FULL_KINDS,
    LINEAR_KINDS,
    ProgressBound,
    SizeCondition,
    can_look_up,
    check_schedule,
    counting_bound,
    predict_progress,
    size_condition,
)

__all__ = [
    "FULL_KINDS",
    "LINEAR_KINDS",
    "CompositionTask",
    "Entry",
    "ProgressBound",
    "SizeCondition",
    "can_look_up",
    "check_schedule",
    "counting_bound",
    "predict_progress",
    "size_condition",
]
