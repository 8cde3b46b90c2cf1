"""RetNet: `S = γ S + k vᵀ` with a decay γ that is a constant of the head (arXiv 2307.08621)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.mixers.projections import to_heads
from architectures.mixers.short_convolution import ShortConvolutions
from architectures.mixers.sizes import MixerSizes
from architectures.past import Past
from architectures.recurrence import RecurrenceInputs
from architectures.rotary import rotate


class RetNet(nn.Module):
    """Rotary queries and keys, γ_h = 1 - 2^(-5-h), and a normalised, swish-gated output.

    Attributes:
        W_Q, W_K: `[head, d_model, d_key]`, d_key even.
        W_V, W_G: `[head, d_model, d_value]`.
        scale_out: `[d_value]`, the gain of the output's RMSNorm.
    """

    def __init__(self, sizes: MixerSizes) -> None:
        super().__init__()
        if sizes.d_key % 2:
            raise ValueError(
                f"retnet turns pairs of keys: d_key is {sizes.d_key}, but must be even"
            )
        self.W_Q = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_key))
        self.W_K = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_key))
        self.W_V = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_value))
        self.W_G = nn.Parameter(torch.empty(sizes.heads, sizes.d_model, sizes.d_value))
        self.scale_out = nn.Parameter(torch.ones(sizes.d_value))
        self.convolutions = ShortConvolutions(sizes)
        self.heads = sizes.heads

    def inputs(self, x: Tensor, past: Past) -> RecurrenceInputs:
        """q and k turned by their positions, v, and the heads' constant decays."""
        projected = (to_heads(x, W) for W in (self.W_Q, self.W_K, self.W_V))
        q, k, v = self.convolutions(*projected, past)
        # Made anew, not a buffer: it stays float32 when the model is cast.
        dtype = torch.promote_types(x.dtype, torch.float32)
        head = torch.arange(self.heads, device=x.device, dtype=dtype)
        log_gamma = torch.log1p(-(2.0 ** (-5 - head)))
        return RecurrenceInputs(
            q=rotate(q, past.position),
            k=rotate(k, past.position),
            v=v,
            log_decay=log_gamma.expand(*x.shape[:2], self.heads),
        )

    def gate(self, x: Tensor, past: Past) -> Tensor:
        """silu(x W_G)."""
        return F.silu(to_heads(x, self.W_G))

    def read_out(self, out: Tensor, inputs: RecurrenceInputs, gate: Tensor) -> Tensor:
        """RMSNorm of each head's output, gated."""
        return F.rms_norm(out, out.shape[-1:], self.scale_out, eps=1e-5) * gate
