"""What a patched answer is worth: a number for every prompt from its logits."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float, Int
from torch import Tensor

Metric = Callable[[Float[Tensor, "batch value"], slice], Float[Tensor, " batch"]]
"""`metric(logits, rows)`: logits at the last position, and which of the prompts they are of."""


def logit_difference(right: Int[Tensor, " prompt"], wrong: Int[Tensor, " prompt"]) -> Metric:
    """The logit of each prompt's right answer minus that of its wrong one.

    Raises:
        ValueError: answers of different numbers of prompts.
    """
    if right.shape != wrong.shape:
        raise ValueError(
            f"{tuple(right.shape)} right and {tuple(wrong.shape)} wrong answers: give one of each "
            "a prompt"
        )

    def metric(logits: Tensor, rows: slice) -> Tensor:
        return _of(logits, right, rows) - _of(logits, wrong, rows)

    return metric


def log_probability(answer: Int[Tensor, " prompt"]) -> Metric:
    """The log-probability of each prompt's answer, in nats."""

    def metric(logits: Tensor, rows: slice) -> Tensor:
        return _of(logits.log_softmax(-1), answer, rows)

    return metric


def correctness(answer: Int[Tensor, " prompt"]) -> Metric:
    """1 where the answer has the highest logit, else 0."""

    def metric(logits: Tensor, rows: slice) -> Tensor:
        right = answer[rows]
        if right.shape != logits.shape[:1]:
            raise ValueError(f"{len(answer)} answers are too few: give one answer a prompt")
        return (logits.argmax(-1) == right).to(logits.dtype)

    return metric


def _of(logits: Tensor, answer: Tensor, rows: slice) -> Tensor:
    return logits.gather(1, answer[rows, None])[:, 0]
