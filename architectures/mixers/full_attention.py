"""Causal softmax attention: the fused kernel, or the explicit pattern when a hook wants it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from architectures.hooking import is_watched
from architectures.mixers.projections import from_heads, to_heads


class FullAttention(nn.Module):
    """Causal multi-head softmax attention without positions of its own.

    Attributes:
        W_Q, W_K, W_V: `[head, d_model, d_head]`.
        W_O: `[head, d_head, d_model]`.
        hook_q, hook_k, hook_v, hook_z: `[batch, position, head, d_head]`.
        hook_attn_scores, hook_pattern: `[batch, head, query position, key position]`. A hook
            on either switches from the fused kernel to the explicit product; the numbers are
            the same.
    """

    def __init__(self, d_model: int, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_K = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_V = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_O = nn.Parameter(torch.empty(n_heads, d_head, d_model))
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z = HookPoint()

    def forward(
        self, x: Float[Tensor, "batch position d_model"]
    ) -> Float[Tensor, "batch position d_model"]:
        """What the layer adds to the residual stream."""
        q = self.hook_q(to_heads(x, self.W_Q))
        k = self.hook_k(to_heads(x, self.W_K))
        v = self.hook_v(to_heads(x, self.W_V))
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        if is_watched(self.hook_attn_scores) or is_watched(self.hook_pattern):
            z = self._pattern(q, k) @ v
        else:
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return from_heads(self.hook_z(z.transpose(1, 2)), self.W_O)

    def _pattern(self, q: Tensor, k: Tensor) -> Float[Tensor, "batch head query key"]:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = self.hook_attn_scores(scores.masked_fill(later, -math.inf))
        return self.hook_pattern(scores.softmax(-1))
