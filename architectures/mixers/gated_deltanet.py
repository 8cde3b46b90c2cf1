"""Gated DeltaNet: the state decays, then the delta rule writes (arXiv 2412.06464; Qwen3-Next)."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.mixers import decay_gate
from architectures.mixers.deltanet import DeltaNet
from architectures.mixers.projections import to_heads
from architectures.mixers.sizes import MixerSizes
from architectures.past import Past
from architectures.recurrence import RecurrenceInputs


class GatedDeltaNet(nn.Module):
    """DeltaNet with one decay a head, g = -e^{A_log} softplus(x W_dt + b_dt), and a SiLU gate.

    Attributes:
        delta: the `DeltaNet` that makes q, k, v and β and normalises the output.
        W_dt, b_dt, A_log: `[d_model, head]`, `[head]`, `[head]`.
        W_G: `[head, d_model, d_value]`.
    """

    def __init__(self, sizes: MixerSizes) -> None:
        super().__init__()
        self.delta = DeltaNet(sizes)
        self.W_dt = nn.Parameter(torch.empty(sizes.d_model, sizes.heads))
        self.b_dt = nn.Parameter(decay_gate.initial_steps(sizes.heads))
        self.A_log = nn.Parameter(decay_gate.initial_rates(sizes.heads))
        self.W_G = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_value))

    def inputs(self, x: Tensor, past: Past) -> RecurrenceInputs:
        """DeltaNet's inputs, and g in float32."""
        step = decay_gate.time_step(x @ self.W_dt, self.b_dt)
        return replace(self.delta.inputs(x, past), log_decay=decay_gate.log_decay(step, self.A_log))

    def gate(self, x: Tensor, past: Past) -> Tensor:
        """silu(x W_G)."""
        return F.silu(to_heads(x, self.W_G))

    def read_out(self, out: Tensor, inputs: RecurrenceInputs, gate: Tensor) -> Tensor:
        """RMSNorm of each head's output, gated."""
        return self.delta.read_out(out, inputs, None) * gate
