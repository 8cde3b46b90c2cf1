"""Gated linear attention: `S = diag(e^g) S + k vᵀ`, g for every key channel (arXiv 2312.06635)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.mixers.projections import to_heads
from architectures.mixers.short_convolution import ShortConvolutions
from architectures.mixers.sizes import MixerSizes
from architectures.past import Past
from architectures.recurrence import RecurrenceInputs, float32_at_least

RANK, TEMPERATURE = 16, 16.0
"""Rank of the decay's projection, and what its logarithm is divided by."""


class GatedLinearAttention(nn.Module):
    """g = logsigmoid(x W_F_down W_F_up + b_F) / 16, and a normalised, swish-gated output.

    Attributes:
        W_Q, W_K: `[head, d_model, d_key]`.
        W_V, W_G: `[head, d_model, d_value]`.
        W_F_down, W_F_up, b_F: `[d_model, 16]`, `[16, head · d_key]`, `[head, d_key]`.
        scale_out: `[d_value]`, the gain of the output's RMSNorm.
    """

    def __init__(self, sizes: MixerSizes) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_key))
        self.W_K = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_key))
        self.W_V = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_value))
        self.W_G = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_value))
        self.W_F_down = nn.Parameter(torch.empty(sizes.d_model, RANK))
        self.W_F_up = nn.Parameter(torch.empty(RANK, sizes.heads * sizes.d_key))
        self.b_F = nn.Parameter(torch.zeros(sizes.heads, sizes.d_key))
        self.scale_out = nn.Parameter(torch.ones(sizes.d_value))
        self.convolutions = ShortConvolutions(sizes)

    def inputs(self, x: Tensor, past: Past) -> RecurrenceInputs:
        """q, k and v as projected, and g in float32."""
        projected = (to_heads(x, W) for W in (self.W_Q, self.W_K, self.W_V))
        q, k, v = self.convolutions(*projected, past)
        gate = (x @ self.W_F_down @ self.W_F_up).unflatten(-1, self.b_F.shape) + self.b_F
        return RecurrenceInputs(
            q=q, k=k, v=v, log_decay=F.logsigmoid(float32_at_least(gate)) / TEMPERATURE
        )

    def gate(self, x: Tensor, past: Past) -> Tensor:
        """silu(x W_G)."""
        return F.silu(to_heads(x, self.W_G))

    def read_out(self, out: Tensor, inputs: RecurrenceInputs, gate: Tensor) -> Tensor:
        """RMSNorm of each head's output, gated."""
        return F.rms_norm(out, out.shape[-1:], self.scale_out, eps=1e-5) * gate
