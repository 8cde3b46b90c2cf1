"""Causal softmax attention: the fused kernel, or the explicit pattern when a hook wants it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from architectures.hooking import is_watched
from architectures.mixers.projections import for_every_head, from_heads, to_heads
from architectures.past import Past, last_of
from architectures.rotary import rotate

FEW = 4
"""Queries up to which sharing earlier keys beats copying them for the fused kernel."""


class FullAttention(nn.Module):
    """Causal multi-head softmax attention, over everything or over a window.

    Attributes:
        W_Q: `[head, d_model, d_head]`.
        W_K, W_V: `[key-value head, d_model, d_head]`; each serves `n_heads / n_kv_heads`
            consecutive heads.
        W_O: `[head, d_head, d_model]`.
        window: positions that a query sees, its own included; None for all.
        rotary: whether queries and keys are turned by their positions.
        hook_q, hook_z: `[batch, position, head, d_head]`.
        hook_k, hook_v: `[batch, position, key-value head, d_head]`; q and k before the rotation.
        hook_rot_q, hook_rot_k: the same after it, fired with rotary positions only.
        hook_attn_scores, hook_pattern: `[batch, head, query position, key position]`. A hook
            on either switches from the fused kernel to the explicit product; the numbers are
            the same.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_head: int,
        *,
        n_kv_heads: int | None = None,
        window: int | None = None,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        shared = n_kv_heads or n_heads
        self.W_Q = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_K = nn.Parameter(torch.empty(shared, d_model, d_head))
        self.W_V = nn.Parameter(torch.empty(shared, d_model, d_head))
        self.W_O = nn.Parameter(torch.empty(n_heads, d_head, d_model))
        self.window, self.rotary, self.group = window, rotary, n_heads // shared
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        if rotary:
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z = HookPoint()

    def forward(
        self,
        x: Float[Tensor, "batch position d_model"],
        past: Past,
        wanted: int | None = None,
    ) -> Float[Tensor, "batch wanted d_model"]:
        """What the layer adds to the residual stream, at the last `wanted` positions or all.

        Raises:
            ValueError: a key-value cache of another shape.
        """
        asking = last_of(x, wanted)
        q = self.hook_q(to_heads(asking, self.W_Q))
        if self.rotary:
            q = self.hook_rot_q(rotate(q, past.position + x.shape[1] - asking.shape[1]))
        k, v = self._keys_and_values(x, past)
        watched = is_watched(self.hook_attn_scores) or is_watched(self.hook_pattern)
        if past.shared and q.shape[1] <= FEW and self.window is None and not watched:
            z = self._sharing(q, k, v, past)
        else:
            k, v = self._with_earlier(k, v, past)
            q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
            z = self._explicit(q, k, v) if watched else self._fused(q, k, v)
            z = z.transpose(1, 2)
        return from_heads(self.hook_z(z), self.W_O)

    def absorb(self, x: Float[Tensor, "batch position d_model"], past: Past) -> None:
        """Keep the keys and values that later positions see."""
        self._with_earlier(*self._keys_and_values(x, past), past)

    def _keys_and_values(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        k = self.hook_k(to_heads(x, self.W_K))
        v = self.hook_v(to_heads(x, self.W_V))
        return (self.hook_rot_k(rotate(k, past.position)) if self.rotary else k), v

    def _with_earlier(self, k: Tensor, v: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        seen = None if self.window is None else self.window - 1
        return past.extend("key", k, seen), past.extend("value", v, seen)

    def _sharing(
        self,
        q: Float[Tensor, "batch query head d_head"],
        k: Float[Tensor, "batch position kv_head d_head"],
        v: Float[Tensor, "batch position kv_head d_head"],
        past: Past,
    ) -> Float[Tensor, "batch query head d_head"]:
        """z of the piece's last positions, whose earlier keys and values need no copy."""
        past.kept.update(key=k, value=v)
        queries, keys = q.shape[1], k.shape[1]
        q = q.unflatten(2, (-1, self.group)) / math.sqrt(q.shape[-1])
        # c copies of p prompts, h key-value heads shared by g heads each, q queries, l keys
        q, k, v = past.by_copy(q), past.by_copy(k), past.by_copy(v)
        earlier_k, earlier_v = past.earlier("key"), past.earlier("value")
        scores = torch.einsum("cpqhgd,cplhd->cphgql", q, k)
        if queries > 1:  # a single query is the last position and sees everything
            scores = scores.masked_fill(~self._visible(queries, keys, q.device), -math.inf)
        if earlier_k is None or earlier_v is None:
            z = torch.einsum("cphgql,cplhd->cpqhgd", scores.softmax(-1), v)
        else:
            before = torch.einsum("cpqhgd,plhd->cphgql", q, earlier_k)
            pattern = torch.cat([before, scores], dim=-1).softmax(-1)
            then, here = pattern.split([before.shape[-1], keys], dim=-1)
            z = torch.einsum("cphgql,plhd->cpqhgd", then, earlier_v)
            z = z + torch.einsum("cphgql,cplhd->cpqhgd", here, v)
        return z.flatten(0, 1).flatten(2, 3)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        grouped = self.group > 1
        if self.window is None and q.shape[2] == k.shape[2]:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        mask = self._visible(q.shape[2], k.shape[2], q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)

    def _explicit(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._pattern(q, k) @ for_every_head(v, q.shape[1], dim=1)

    def _pattern(self, q: Tensor, k: Tensor) -> Float[Tensor, "batch head query key"]:
        hidden = ~self._visible(q.shape[2], k.shape[2], q.device)
        mask = q.new_zeros(hidden.shape).masked_fill(hidden, -math.inf)
        q, k = q / math.sqrt(q.shape[-1]), for_every_head(k, q.shape[1], dim=1)
        # Mask and product in one pass: patterns are large, and it is writing them that costs.
        scores = torch.baddbmm(mask, q.flatten(0, 1), k.flatten(0, 1).mT)
        scores = self.hook_attn_scores(scores.unflatten(0, q.shape[:2]))
        return self.hook_pattern(scores.softmax(-1))

    def _visible(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """`[query, key]`: what each query may look at; the last query is the last key."""
        distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(
            keys, device=device
        )
        visible = distance >= 0
        return visible if self.window is None else visible & (distance < self.window)
