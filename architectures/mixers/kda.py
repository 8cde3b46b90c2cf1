"""Kimi Delta Attention: Gated DeltaNet with a decay for every key channel (arXiv 2510.26692)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from architectures.mixers import decay_gate
from architectures.mixers.deltanet import DeltaNet
from architectures.mixers.sizes import MixerSizes
from architectures.past import Past
from architectures.recurrence import RecurrenceInputs


class KimiDeltaAttention(nn.Module):
    """DeltaNet with g = -e^{A_log} softplus(x W_F_down W_F_up + b_dt), and a sigmoid gate.

    Attributes:
        delta: the `DeltaNet` that makes q, k, v and β and normalises the output.
        W_F_down, W_F_up: `[d_model, d_value]`, `[d_value, head · d_key]`.
        b_dt, A_log: `[head, d_key]`, `[head]`.
        W_G_down, W_G_up: `[d_model, d_value]`, `[d_value, head · d_value]`.
    """

    def __init__(self, sizes: MixerSizes) -> None:
        super().__init__()
        self.delta = DeltaNet(sizes)
        self.heads, rank = sizes.heads, sizes.d_value
        self.W_F_down = nn.Parameter(torch.empty(sizes.d_model, rank))
        self.W_F_up = nn.Parameter(torch.empty(rank, sizes.heads * sizes.d_key))
        self.b_dt = nn.Parameter(decay_gate.initial_steps(sizes.heads, sizes.d_key))
        self.A_log = nn.Parameter(decay_gate.initial_rates(sizes.heads))
        self.W_G_down = nn.Parameter(torch.empty(sizes.d_model, rank))
        self.W_G_up = nn.Parameter(torch.empty(rank, sizes.heads * sizes.d_value))

    def inputs(self, x: Tensor, past: Past) -> RecurrenceInputs:
        """DeltaNet's inputs, and g in float32."""
        gate = (x @ self.W_F_down @ self.W_F_up).unflatten(-1, self.b_dt.shape)
        step = decay_gate.time_step(gate, self.b_dt)
        return replace(
            self.delta.inputs(x, past), log_decay=decay_gate.log_decay(step, self.A_log[:, None])
        )

    def gate(self, x: Tensor, past: Past) -> Tensor:
        """sigmoid(x W_G_down W_G_up)."""
        gate = (x @ self.W_G_down @ self.W_G_up).unflatten(-1, (self.heads, -1))
        return torch.sigmoid(gate)

    def read_out(self, out: Tensor, inputs: RecurrenceInputs, gate: Tensor) -> Tensor:
        """RMSNorm of each head's output, gated."""
        return self.delta.read_out(out, inputs, None) * gate
