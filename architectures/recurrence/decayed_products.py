"""Products of two positions of a chunk, decayed by what lies between them.

With c the log-decay summed up inside the chunk, `P_ij = Σ_k x_ik y_jk e^{c_ik - c_jk}` for j <= i.
One decay a head factors out: `(X Yᵀ) ⊙ L` with `L_ij = e^{c_i - c_j}`. One a key channel does
not, and `e^{c_i} · e^{-c_j}` overflows once a chunk's decay passes e^-88. So the chunk is halved
again and again: with r the c at the end of the first half, a pair across the middle gets
`e^{c_i - r} · e^{r - c_j}`, and neither factor exceeds 1 however strong the decay.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def summing_dtype(x: Tensor) -> torch.dtype:
    """What log-decays are summed up in: float64, where the device has it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def decay_matrix(
    rows: Float[Tensor, "*chunk position"],
    c: Float[Tensor, "*chunk position"],
    dtype: torch.dtype,
    diagonal: int = 0,
) -> Float[Tensor, "*chunk row column"]:
    """L: e^{rows_i - c_j} for columns up to the `diagonal` (0, or -1 to leave j = i out)."""
    return _DecayMatrix.apply(rows, c, dtype, diagonal)


class _DecayMatrix(torch.autograd.Function):
    """`decay_matrix` with its gradient written out: L is large, and autograd would pass over it
    once for every step of its making.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, c: Tensor, dtype: torch.dtype, diagonal: int) -> Tensor:
        # Masked before exp: the upper half can overflow, and inf · 0 has gradient NaN.
        L = _masked((rows[..., :, None] - c[..., None, :]).to(dtype), diagonal).exp_()
        ctx.save_for_backward(L)
        ctx.dtype = c.dtype
        return L

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (L,) = ctx.saved_tensors
        moved = gradient * L
        return moved.sum(-1).to(ctx.dtype), -moved.sum(-2).to(ctx.dtype), None, None


def channel_products(
    x: Float[Tensor, "*chunk position key"],
    y: Float[Tensor, "*chunk position key"],
    rows: Float[Tensor, "*chunk position key"],
    c: Float[Tensor, "*chunk position key"],
    diagonal: int = 0,
) -> Float[Tensor, "*chunk row column"]:
    """P, the sum over channels of x_ik y_jk e^{rows_ik - c_jk}, zero beyond the `diagonal`.

    Args:
        x, y: of rows and of columns.
        rows: what the rows are decayed by, `c` or what it was one position earlier.
        c: log-decay summed up from the chunk's beginning, at most 0 and falling.
        diagonal: 0, or -1 to leave j = i out.
    """
    size = c.shape[-2]
    leaf = size  # what cannot be halved: there `e^{c_i - c_j}` is written out for every channel
    while leaf % 2 == 0:
        leaf //= 2
    x_, y_, rows_, c_ = (tensor.unflatten(-2, (-1, leaf)) for tensor in (x, y, rows, c))
    between = (rows_[..., :, None, :] - c_[..., None, :, :]).movedim(-1, -3).to(x.dtype)
    between = _masked(between, diagonal)
    blocks = torch.einsum("...ik,...jk,...kij->...ij", x_, y_, between.exp())
    while leaf < size:
        # [..., pair, half, position, key]
        x_, y_, rows_, c_ = (tensor.unflatten(-2, (-1, 2, leaf)) for tensor in (x, y, rows, c))
        middle = c_[..., 0, -1:, :]
        later = x_[..., 1, :, :] * (rows_[..., 1, :, :] - middle).to(x.dtype).exp()
        earlier = y_[..., 0, :, :] * (middle - c_[..., 0, :, :]).to(x.dtype).exp()
        across = later @ earlier.mT
        first, second = blocks.unflatten(-3, (-1, 2)).unbind(-3)
        upper = torch.cat([first, torch.zeros_like(first)], dim=-1)
        blocks = torch.cat([upper, torch.cat([across, second], dim=-1)], dim=-2)
        leaf *= 2
    return blocks.squeeze(-3)


def _masked(exponents: Tensor, diagonal: int) -> Tensor:
    later = torch.ones(exponents.shape[-2:], dtype=torch.bool, device=exponents.device)
    return exponents.masked_fill(later.triu(diagonal + 1), -math.inf)
