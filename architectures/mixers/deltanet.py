"""DeltaNet: the delta rule `S += k β (v - Sᵀk)ᵀ` replaces what a key held (arXiv 2406.06484)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.mixers.projections import to_heads
from architectures.mixers.short_convolution import ShortConvolutions
from architectures.mixers.sizes import MixerSizes
from architectures.past import Past
from architectures.recurrence import RecurrenceInputs


class DeltaNet(nn.Module):
    """The delta rule with SiLU features, unit-length keys and queries, and a normalised output.

    Attributes:
        W_Q, W_K: `[head, d_model, d_key]`.
        W_V: `[head, d_model, d_value]`.
        W_beta, b_beta: `[d_model, head]` and `[head]`; β = sigmoid(x W_beta + b_beta), twice
            that where eigenvalues may be negative (arXiv 2411.12537).
        scale_out: `[d_value]`, the gain of the output's RMSNorm.
    """

    def __init__(self, sizes: MixerSizes) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_key))
        self.W_K = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_key))
        self.W_V = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_value))
        self.W_beta = nn.Parameter(torch.empty(sizes.d_model, sizes.heads))
        self.b_beta = nn.Parameter(torch.zeros(sizes.heads))
        self.scale_out = nn.Parameter(torch.ones(sizes.d_value))
        self.convolutions = ShortConvolutions(sizes)
        self.largest_beta = 2.0 if sizes.negative_eigenvalues else 1.0

    def inputs(self, x: Tensor, past: Past) -> RecurrenceInputs:
        """Unit-length q and k, v, and β in (0, 1) or (0, 2)."""
        projected = (to_heads(x, W) for W in (self.W_Q, self.W_K, self.W_V))
        q, k, v = (F.silu(each) for each in self.convolutions(*projected, past))
        return RecurrenceInputs(
            q=F.normalize(q, dim=-1),
            k=F.normalize(k, dim=-1),
            v=v,
            beta=self.largest_beta * torch.sigmoid(x @ self.W_beta + self.b_beta),
        )

    def gate(self, x: Tensor, past: Past) -> None:
        """None: the output is not gated."""

    def read_out(self, out: Tensor, inputs: RecurrenceInputs, gate: Tensor | None) -> Tensor:
        """RMSNorm of each head's output."""
        return F.rms_norm(out, out.shape[-1:], self.scale_out, eps=1e-5)
