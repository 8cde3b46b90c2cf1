"""Linear attention, `S += k vᵀ`, normalised, with feature map elu + 1 (arXiv 2006.16236)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.mixers.projections import to_heads
from architectures.mixers.short_convolution import ShortConvolutions
from architectures.mixers.sizes import MixerSizes
from architectures.past import Past
from architectures.recurrence import RecurrenceInputs


class LinearAttention(nn.Module):
    """`o_t = S_tᵀ φ(q_t) / (z_tᵀ φ(q_t))` with `S = Σ φ(k) vᵀ`, `z = Σ φ(k)`, `φ = elu + 1`.

    Attributes:
        W_Q, W_K: `[head, d_model, d_key]`.
        W_V: `[head, d_model, d_value]`.
    """

    def __init__(self, sizes: MixerSizes) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_key))
        self.W_K = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_key))
        self.W_V = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_value))
        self.convolutions = ShortConvolutions(sizes)

    def inputs(self, x: Tensor, past: Past) -> RecurrenceInputs:
        """q and k after the feature map, v as projected."""
        projected = (to_heads(x, W) for W in (self.W_Q, self.W_K, self.W_V))
        q, k, v = self.convolutions(*projected, past)
        return RecurrenceInputs(q=F.elu(q) + 1, k=F.elu(k) + 1, v=v, normaliser="sum")

    def gate(self, x: Tensor, past: Past) -> None:
        """None: the output is not gated."""

    def read_out(self, out: Tensor, inputs: RecurrenceInputs, gate: Tensor | None) -> Tensor:
        """Nothing: the output is an average of values already."""
        return out
