"""DeltaNet: the delta rule `S += k β (v - Sᵀk)ᵀ` replaces what a key held (arXiv 2406.06484)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.mixers.projections import to_heads
from architectures.recurrence import RecurrenceInputs


class DeltaNet(nn.Module):
    """The delta rule with SiLU features, unit-length keys and queries, and a normalised output.

    Attributes:
        W_Q, W_K: `[head, d_model, d_key]`.
        W_V: `[head, d_model, d_value]`.
        W_beta, b_beta: `[d_model, head]` and `[head]`; β = sigmoid(x W_beta + b_beta).
        scale_out: `[d_value]`, the gain of the output's RMSNorm.
    """

    normalised = False

    def __init__(self, d_model: int, heads: int, d_key: int, d_value: int) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(torch.empty(heads, d_model, d_key))
        self.W_K = nn.Parameter(torch.empty(heads, d_model, d_key))
        self.W_V = nn.Parameter(torch.empty(heads, d_model, d_value))
        self.W_beta = nn.Parameter(torch.empty(d_model, heads))
        self.b_beta = nn.Parameter(torch.zeros(heads))
        self.scale_out = nn.Parameter(torch.ones(d_value))

    def inputs(self, x: Tensor) -> RecurrenceInputs:
        """Unit-length q and k, v, and β in (0, 1)."""
        return RecurrenceInputs(
            q=F.normalize(F.silu(to_heads(x, self.W_Q)), dim=-1),
            k=F.normalize(F.silu(to_heads(x, self.W_K)), dim=-1),
            v=F.silu(to_heads(x, self.W_V)),
            beta=torch.sigmoid(x @ self.W_beta + self.b_beta),
        )

    def read_out(self, out: Tensor) -> Tensor:
        """RMSNorm of each head's output."""
        return F.rms_norm(out, out.shape[-1:], self.scale_out, eps=1e-5)
