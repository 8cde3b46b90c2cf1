"""The task and its theory: chains, prompts, pairs, predicted progress; public hybrids by name."""

from composition.schedules import PUBLIC_HYBRIDS, PublicHybrid, named_schedule, read_schedule
from composition.task import CompositionTask, Entry
from composition.theory import (
    FULL_KINDS,
    LINEAR_KINDS,
    SOFTMAX_KINDS,
    WINDOWED_KINDS,
    ProgressBound,
    SizeCondition,
    can_look_up,
    check_schedule,
    counting_bound,
    parts,
    predict_progress,
    size_condition,
)

__all__ = [
    "FULL_KINDS",
    "LINEAR_KINDS",
    "PUBLIC_HYBRIDS",
    "SOFTMAX_KINDS",
    "WINDOWED_KINDS",
    "CompositionTask",
    "Entry",
    "ProgressBound",
    "PublicHybrid",
    "SizeCondition",
    "can_look_up",
    "check_schedule",
    "counting_bound",
    "named_schedule",
    "parts",
    "predict_progress",
    "read_schedule",
    "size_condition",
]
