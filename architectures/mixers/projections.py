"""Between the residual stream and heads, with TransformerLens' shapes for the weights."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def to_heads(
    x: Float[Tensor, "batch position d_model"], W: Float[Tensor, "head d_model d_head"]
) -> Float[Tensor, "batch position head d_head"]:
    """`x` seen by every head: one matrix product for all of them."""
    heads, d_model, d_head = W.shape
    return (x @ W.transpose(0, 1).reshape(d_model, heads * d_head)).unflatten(-1, (heads, d_head))


def from_heads(
    z: Float[Tensor, "batch position head d_head"], W: Float[Tensor, "head d_head d_model"]
) -> Float[Tensor, "batch position d_model"]:
    """The sum over heads of what each writes into the residual stream."""
    return z.flatten(-2) @ W.flatten(0, 1)


def for_every_head(x: Tensor, heads: int, dim: int) -> Tensor:
    """Key-value heads, on axis `dim`, each as often as query heads share it."""
    shared = x.shape[dim]
    return x if shared == heads else x.repeat_interleave(heads // shared, dim=dim)
