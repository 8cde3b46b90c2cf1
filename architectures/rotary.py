"""Rotary positions: queries and keys turned by an angle that grows with the position."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

BASE = 10_000.0
"""Ratio between the fastest and, about, the slowest rotation."""


def rotate(
    x: Float[Tensor, "batch position head d_head"], first: int = 0
) -> Float[Tensor, "batch position head d_head"]:
    """Every pair (x_i, x_{i + d/2}) turned by `position · BASE^(-2i/d)` (arXiv 2104.09864).

    A query's product with a key then depends on their distance, not on where they stand.

    Args:
        x: queries or keys of an even dimension.
        first: position of `x[:, 0]`.
    """
    half = x.shape[-1] // 2
    # Float64 angles: at long positions float32 ones lose the fast rotations.
    frequency = BASE ** -(torch.arange(half, device=x.device, dtype=torch.float64) / half)
    position = torch.arange(first, first + x.shape[1], device=x.device, dtype=torch.float64)
    angle = (position[:, None] * frequency)[:, None]  # [position, 1, half]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    low, high = x.split(half, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
