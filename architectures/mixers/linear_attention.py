"""Linear attention, `S += k vᵀ`, normalised, with feature map elu + 1 (arXiv 2006.16236)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.mixers.projections import to_heads
from architectures.recurrence import RecurrenceInputs


class LinearAttention(nn.Module):
    """`o_t = S_tᵀ φ(q_t) / (z_tᵀ φ(q_t))` with `S = Σ φ(k) vᵀ`, `z = Σ φ(k)`, `φ = elu + 1`.

    Attributes:
        W_Q, W_K: `[head, d_model, d_key]`.
        W_V: `[head, d_model, d_value]`.
    """

    normalised = True

    def __init__(self, d_model: int, heads: int, d_key: int, d_value: int) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(torch.empty(heads, d_model, d_key))
        self.W_K = nn.Parameter(torch.empty(heads, d_model, d_key))
        self.W_V = nn.Parameter(torch.empty(heads, d_model, d_value))

    def inputs(self, x: Tensor) -> RecurrenceInputs:
        """q and k after the feature map, v as projected."""
        return RecurrenceInputs(
            q=F.elu(to_heads(x, self.W_Q)) + 1,
            k=F.elu(to_heads(x, self.W_K)) + 1,
            v=to_heads(x, self.W_V),
        )

    def read_out(self, out: Tensor) -> Tensor:
        """Nothing: the output is an average of values already."""
        return out
