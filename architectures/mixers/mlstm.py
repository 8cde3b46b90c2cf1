"""mLSTM: exponential input gates, `C = f C + i k vᵀ`, `h = Cᵀq / max(|nᵀq|, 1)` (arXiv 2405.04517).

Gates, their soft cap and the read-out are those of xLSTM-7B (arXiv 2503.13427).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.mixers.projections import to_heads
from architectures.mixers.short_convolution import ShortConvolutions
from architectures.mixers.sizes import MixerSizes
from architectures.past import Past
from architectures.recurrence import RecurrenceInputs, float32_at_least

CAP = 15.0
"""Gates before their nonlinearity lie within ±CAP, so that e^i stays in float32's range."""


class MLSTM(nn.Module):
    """log f = logsigmoid(cap(x W_f + b_f)), i = cap(x W_i + b_i), and a normalised, gated output.

    Attributes:
        W_Q, W_K: `[head, d_model, d_key]`.
        W_V, W_G: `[head, d_model, d_value]`.
        W_i, b_i, W_f, b_f: `[d_model, head]` and `[head]`.
        scale_out: `[head, d_value]`, the gain of the output's LayerNorm, a head at a time.
    """

    def __init__(self, sizes: MixerSizes) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_key))
        self.W_K = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_key))
        self.W_V = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_value))
        self.W_G = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_value))
        self.W_i = nn.Parameter(torch.empty(sizes.d_model, sizes.heads))
        self.W_f = nn.Parameter(torch.empty(sizes.d_model, sizes.heads))
        self.b_i = nn.Parameter(torch.zeros(sizes.heads))
        self.b_f = nn.Parameter(torch.linspace(3.0, 6.0, sizes.heads))
        self.scale_out = nn.Parameter(torch.ones(sizes.heads, sizes.d_value))
        self.convolutions = ShortConvolutions(sizes)

    def inputs(self, x: Tensor, past: Past) -> RecurrenceInputs:
        """q, k and v as projected, log f and i in float32."""
        projected = (to_heads(x, W) for W in (self.W_Q, self.W_K, self.W_V))
        q, k, v = self.convolutions(*projected, past)
        return RecurrenceInputs(
            q=q,
            k=k,
            v=v,
            log_decay=F.logsigmoid(_capped(x @ self.W_f + self.b_f)),
            log_input=_capped(x @ self.W_i + self.b_i),
            normaliser="floor",
        )

    def gate(self, x: Tensor, past: Past) -> Tensor:
        """sigmoid(x W_G)."""
        return torch.sigmoid(to_heads(x, self.W_G))

    def read_out(self, out: Tensor, inputs: RecurrenceInputs, gate: Tensor) -> Tensor:
        """LayerNorm of each head's output, gated."""
        return F.layer_norm(out, out.shape[-1:], eps=1e-6) * self.scale_out * gate


def _capped(gate: Tensor) -> Tensor:
    return CAP * torch.tanh(float32_at_least(gate) / CAP)
