"""RWKV-7: a decay a channel, and what the removal key finds in the undecayed state taken out.

`S = diag(w) S - (a ⊙ κ̂)(Sᵀ κ̂)ᵀ + k vᵀ` (arXiv 2503.14456).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.mixers.projections import to_heads
from architectures.mixers.sizes import MixerSizes
from architectures.past import Past
from architectures.recurrence import RecurrenceInputs, float32_at_least

STRONGEST = -0.6065306597126334
"""log w = -e^(-1/2) · sigmoid(·): no channel loses more than 45 % a position."""

RANK = 16
"""Rank of the projections of decay, removal rate and gate."""


class RWKV7(nn.Module):
    """Token shift, low-rank decay, rate and gate, a bonus for the current position, GroupNorm.

    The value residual from the first layer (a matter between layers) is left out.

    Attributes:
        mix: `[6, d_model]`, for r, k, v, decay, rate and gate how much of the position before
            is mixed in.
        W_Q, W_K: `[head, d_model, d_key]`, of the receptance r and the key.
        W_V: `[head, d_model, d_value]`.
        W_F_down, W_F_up, b_F: `[d_model, 16]`, `[16, head · d_key]`, `[head, d_key]`, decay.
        W_A_down, W_A_up, b_A: the same of the removal rate a.
        W_G_down, W_G_up: `[d_model, 16]`, `[16, head · d_value]`, gate.
        removal_gain, rate_gain, bonus: `[head, d_key]`; κ̂ = normalise(k ⊙ removal_gain),
            k ← k ⊙ (1 + (a - 1) ⊙ rate_gain), and (Σ r ⊙ k ⊙ bonus) v is added to the output.
        scale_out, shift_out: `[head, d_value]`, of the GroupNorm with a group a head.
    """

    def __init__(self, sizes: MixerSizes) -> None:
        super().__init__()
        d_model, heads, d_key, d_value = sizes.d_model, sizes.heads, sizes.d_key, sizes.d_value
        if sizes.short_conv:
            raise ValueError(
                f"short_conv is {sizes.short_conv}, but rwkv7 mixes positions by its token shift: "
                "use 0 with it"
            )
        self.mix = nn.Parameter(torch.full((6, d_model), 0.5))
        self.W_Q = nn.Parameter(torch.empty(heads, d_model, d_key))
        self.W_K = nn.Parameter(torch.empty(heads, d_model, d_key))
        self.W_V = nn.Parameter(torch.empty(heads, d_model, d_value))
        self.W_F_down = nn.Parameter(torch.empty(d_model, RANK))
        self.W_F_up = nn.Parameter(torch.empty(RANK, heads * d_key))
        self.b_F = nn.Parameter(torch.linspace(-6.0, -1.0, d_key).expand(heads, d_key).clone())
        self.W_A_down = nn.Parameter(torch.empty(d_model, RANK))
        self.W_A_up = nn.Parameter(torch.empty(RANK, heads * d_key))
        self.b_A = nn.Parameter(torch.zeros(heads, d_key))
        self.W_G_down = nn.Parameter(torch.empty(d_model, RANK))
        self.W_G_up = nn.Parameter(torch.empty(RANK, heads * d_value))
        self.removal_gain = nn.Parameter(torch.ones(heads, d_key))
        self.rate_gain = nn.Parameter(torch.ones(heads, d_key))
        self.bonus = nn.Parameter(torch.zeros(heads, d_key))
        self.scale_out = nn.Parameter(torch.ones(heads, d_value))
        self.shift_out = nn.Parameter(torch.zeros(heads, d_value))

    def inputs(self, x: Tensor, past: Past) -> RecurrenceInputs:
        """r, k, v, log w in float32, and the removal key and rate; the output is not scaled."""
        r, k, v, f, a = self._shifted(x, past, self.mix[:5])
        shape = self.b_F.shape
        k = to_heads(k, self.W_K)
        gate = (torch.tanh(f @ self.W_F_down) @ self.W_F_up).unflatten(-1, shape) + self.b_F
        rate = (a @ self.W_A_down @ self.W_A_up).unflatten(-1, shape) + self.b_A
        rate = torch.sigmoid(rate)
        return RecurrenceInputs(
            q=to_heads(r, self.W_Q),
            k=k * (1 + (rate - 1) * self.rate_gain),
            v=to_heads(v, self.W_V),
            log_decay=STRONGEST * torch.sigmoid(float32_at_least(gate)),
            removal_key=F.normalize(k * self.removal_gain, dim=-1),
            removal_rate=rate,
            scale=1.0,
        )

    def gate(self, x: Tensor, past: Past) -> Tensor:
        """sigmoid(x W_G_down) W_G_up of the shifted x."""
        (g,) = self._shifted(x, past, self.mix[5:])
        low = torch.sigmoid(g @ self.W_G_down)
        return (low @ self.W_G_up).unflatten(-1, self.scale_out.shape)

    def read_out(self, out: Tensor, inputs: RecurrenceInputs, gate: Tensor) -> Tensor:
        """(GroupNorm of the output + bonus) times the gate."""
        variance, mean = torch.var_mean(out, dim=-1, correction=0, keepdim=True)
        eps = 1e-5 * out.shape[-1]
        normed = (out - mean) * torch.rsqrt(variance + eps) * self.scale_out + self.shift_out
        bonus = (inputs.q * inputs.k * self.bonus).sum(-1, keepdim=True) * inputs.v
        return (normed + bonus) * gate

    def _shifted(self, x: Tensor, past: Past, shares: Tensor) -> tuple[Tensor, ...]:
        """x moved towards the position before it, once for each of the shares `[_, d_model]`."""
        before = past.extend_with_zeros("token_shift", x, 1)[:, :-1]
        return tuple(x + (before - x) * share for share in shares)
