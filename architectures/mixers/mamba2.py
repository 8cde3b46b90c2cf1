"""Mamba-2: `S = e^{dt·A} S + dt · B xᵀ`, read by C, plus a skip `D x` (arXiv 2405.21060)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.mixers import decay_gate
from architectures.mixers.projections import to_heads
from architectures.mixers.short_convolution import ShortConvolutions
from architectures.mixers.sizes import MixerSizes
from architectures.past import Past
from architectures.recurrence import RecurrenceInputs


class Mamba2(nn.Module):
    """State-space duality in attention's names: query C, key dt · B, value x; a group a head.

    Attributes:
        W_Q, W_K: `[head, d_model, d_key]`, of C and B.
        W_V, W_G: `[head, d_model, d_value]`, of x and of the gate z.
        W_dt, b_dt, A_log: `[d_model, head]`, `[head]`, `[head]`; dt = softplus(x W_dt + b_dt),
            A = -e^{A_log}.
        D: `[head]`, the skip.
        scale_out: `[head, d_value]`, the gain of the output's RMSNorm.
    """

    def __init__(self, sizes: MixerSizes) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_key))
        self.W_K = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_key))
        self.W_V = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_value))
        self.W_G = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_value))
        self.W_dt = nn.Parameter(torch.empty(sizes.d_model, sizes.heads))
        self.b_dt = nn.Parameter(decay_gate.initial_steps(sizes.heads))
        self.A_log = nn.Parameter(decay_gate.initial_rates(sizes.heads))
        self.D = nn.Parameter(torch.ones(sizes.heads))
        self.scale_out = nn.Parameter(torch.ones(sizes.heads, sizes.d_value))
        self.convolutions = ShortConvolutions(sizes, bias=True)

    def inputs(self, x: Tensor, past: Past) -> RecurrenceInputs:
        """C, dt · B, x after SiLU, and dt · A in float32; the output is not scaled."""
        projected = (to_heads(x, W) for W in (self.W_Q, self.W_K, self.W_V))
        q, k, v = (F.silu(each) for each in self.convolutions(*projected, past))
        step = decay_gate.time_step(x @ self.W_dt, self.b_dt)
        return RecurrenceInputs(
            q=q,
            k=k * step[..., None],
            v=v,
            log_decay=decay_gate.log_decay(step, self.A_log),
            scale=1.0,
        )

    def gate(self, x: Tensor, past: Past) -> Tensor:
        """silu(x W_G)."""
        return F.silu(to_heads(x, self.W_G))

    def read_out(self, out: Tensor, inputs: RecurrenceInputs, gate: Tensor) -> Tensor:
        """RMSNorm, a head at a time, of (out + D x) times the gate."""
        gated = (out + self.D[:, None] * inputs.v) * gate
        return F.rms_norm(gated, gated.shape[-1:], eps=1e-5) * self.scale_out
