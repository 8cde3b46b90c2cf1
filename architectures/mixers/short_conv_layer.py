"""A gated short convolution, LFM2's other layer: no state beyond the last few positions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from architectures.mixers.short_convolution import causal_convolution
from architectures.past import Past, last_of

WIDTH = 3
"""Positions that the convolution spans where the config says nothing, as in LFM2."""


class ShortConvLayer(nn.Module):
    """`y = C ⊙ conv(B ⊙ x)`, with B, C and x projected from the residual stream.

    Attributes:
        W_B, W_C, W_V: `[d_model, d_model]`.
        W_conv: `[width, d_model]`; the last row is the position's own.
        W_O: `[d_model, d_model]`.
        hook_v, hook_z: `[batch, position, d_model]`, what is convolved and the gated result.
    """

    def __init__(self, d_model: int, width: int = WIDTH) -> None:
        super().__init__()
        self.W_B = nn.Parameter(torch.empty(d_model, d_model))
        self.W_C = nn.Parameter(torch.empty(d_model, d_model))
        self.W_V = nn.Parameter(torch.empty(d_model, d_model))
        self.W_conv = nn.Parameter(torch.empty(width, d_model))
        self.W_O = nn.Parameter(torch.empty(d_model, d_model))
        self.hook_v, self.hook_z = HookPoint(), HookPoint()

    def forward(
        self,
        x: Float[Tensor, "batch position d_model"],
        past: Past,
        wanted: int | None = None,
    ) -> Float[Tensor, "batch wanted d_model"]:
        """What the layer adds to the residual stream, at the last `wanted` positions or all."""
        convolved = last_of(self.absorb(x, past), wanted)
        return self.hook_z((last_of(x, wanted) @ self.W_C) * convolved) @ self.W_O

    def absorb(
        self, x: Float[Tensor, "batch position d_model"], past: Past
    ) -> Float[Tensor, "batch position d_model"]:
        """What the convolution makes of these positions; later ones find their tail in `past`."""
        v = self.hook_v((x @ self.W_B) * (x @ self.W_V))
        return causal_convolution(v, self.W_conv, past, "convolution")
