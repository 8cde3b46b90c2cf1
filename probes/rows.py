"""Rows of features and labels: what they must be, and how many are worked on at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 2**20
"""Numbers converted to float64 at a time: 8 MB, which caches hold and the allocator reuses."""


def check_rows(features: Tensor, labels: Tensor, classes: Sequence[int]) -> None:
    """Raise a ValueError unless labels are classes of the rows of `[site, rows, features]`."""
    if features.ndim != 3 or 0 in features.shape:
        raise ValueError(
            f"features have shape {tuple(features.shape)}: [site, rows, features] is needed, "
            "with at least one of each"
        )
    sites, rows, _ = features.shape
    if labels.shape not in ((len(classes), rows), (sites, len(classes), rows)):
        raise ValueError(
            f"labels have shape {tuple(labels.shape)}, but features have {rows} rows at {sites} "
            f"sites: {[len(classes), rows]} or {[sites, len(classes), rows]} is needed"
        )
    by_target = labels.movedim(-2, 0).flatten(1)
    lowest, highest = by_target.amin(1).tolist(), by_target.amax(1).tolist()
    for low, high, count in zip(lowest, highest, classes, strict=True):
        if not 0 <= low <= high < count:
            raise ValueError(
                f"labels range over {low} … {high}, but there are {count} classes: 0 … {count - 1}"
            )


def finite_mean(features: Tensor) -> Float[Tensor, "site features"]:
    """The mean over rows, in the features' precision; a ValueError if that is not finite.

    It is finite only if all features are, and takes a thirtieth of the time of asking each.
    """
    mean = features.mean(1)
    if not mean.isfinite().all():
        raise ValueError("features hold values that are not finite: no probe can be fitted to them")
    return mean


def score_numbers(labels: Tensor, classes: Sequence[int]) -> Int[Tensor, "site_or_1 rows target"]:
    """The score that stands for each label where the scores of all targets are side by side."""
    first = torch.tensor([0, *classes[:-1]], device=labels.device).cumsum(0)
    scores = labels.mT + first
    return scores if labels.ndim == 3 else scores[None]


def chunks(stop: int, size: int, start: int = 0) -> Iterator[slice]:
    """`start … stop` in slices of at most `size`."""
    if size < 1:
        raise ValueError(f"batch is {size}, but at least one prompt must run at a time")
    for begin in range(start, stop, size):
        yield slice(begin, min(begin + size, stop))


def blocks(count: int, numbers: int) -> Iterator[slice]:
    """`0 … count` in slices so short that `numbers` for each do not exceed a block together."""
    return chunks(count, max(1, BLOCK // numbers))
