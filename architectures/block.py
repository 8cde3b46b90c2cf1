"""One layer of a stack: a mixer, or two side by side, then perhaps an MLP, between hook points."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from architectures.config import ModelConfig
from architectures.mixers import MIXERS, FullAttention, RecurrentLayer, ShortConvLayer
from architectures.mixers.short_conv_layer import WIDTH
from architectures.past import Past, last_of
from composition import SOFTMAX_KINDS, parts


class Block(nn.Module):
    """One layer: a mixer, then an MLP if the config has one, each added to the residual stream.

    Args:
        config: the stack's.
        kind: of the layer; "full+mamba2" has both read the same residual stream, side by side.
    """

    def __init__(self, config: ModelConfig, kind: str) -> None:
        super().__init__()
        self.hook_resid_pre, self.hook_resid_post = HookPoint(), HookPoint()
        self.hook_resid_mid, self.hook_attn_out = HookPoint(), HookPoint()
        self.ln1 = Norm(config)
        for part in parts(kind):
            if part in SOFTMAX_KINDS:
                self.attn = FullAttention(
                    config.d_model,
                    config.n_heads,
                    config.head_dimension,
                    n_kv_heads=config.n_kv_heads,
                    window=config.window if part == "sliding" else None,
                    rotary=config.positions == "rotary",
                )
            elif part == "short-conv":
                self.linear_attn: RecurrentLayer | ShortConvLayer = ShortConvLayer(
                    config.d_model, config.short_conv or WIDTH
                )
            else:
                self.linear_attn = RecurrentLayer(MIXERS[part], config.mixer_sizes)
        self.mlp: MLP | None = None
        if config.d_mlp:
            self.hook_mlp_out = HookPoint()
            self.ln2 = Norm(config)
            self.mlp = MLP(config.d_model, config.d_mlp)

    @property
    def mixers(self) -> tuple[FullAttention | RecurrentLayer | ShortConvLayer, ...]:
        """`attn`, `linear_attn`, or both where they stand side by side."""
        return tuple(getattr(self, name) for name in ("attn", "linear_attn") if hasattr(self, name))

    def forward(
        self,
        residual: Float[Tensor, "batch position d_model"],
        past: Past,
        wanted: int | None = None,
    ) -> Float[Tensor, "batch wanted d_model"]:
        """The residual stream after the layer.

        Args:
            past: the pieces before.
            wanted: at how many positions, counted from the last; at all if None.
        """
        residual = self.hook_resid_pre(residual)
        x = self.ln1(residual)
        mixed = [mixer(x, past, wanted) for mixer in self.mixers]
        return self.add(last_of(residual, wanted), sum(mixed[1:], start=mixed[0]))

    def add(
        self,
        residual: Float[Tensor, "batch position d_model"],
        mixed: Float[Tensor, "batch position d_model"],
    ) -> Float[Tensor, "batch position d_model"]:
        """The stream after the layer, from the one before it and what the mixers add."""
        residual = self.hook_resid_mid(residual + self.hook_attn_out(mixed))
        if self.mlp is not None:
            residual = residual + self.hook_mlp_out(self.mlp(self.ln2(residual)))
        return self.hook_resid_post(residual)

    def absorb(self, residual: Float[Tensor, "batch position d_model"], past: Past) -> None:
        """Keep in `past` what later positions need of these; nothing is written to the stream."""
        x = self.ln1(self.hook_resid_pre(residual))
        for mixer in self.mixers:
            mixer.absorb(x, past)


class MLP(nn.Module):
    """`gelu(x W_in + b_in) W_out + b_out`, with TransformerLens' names."""

    def __init__(self, d_model: int, d_mlp: int) -> None:
        super().__init__()
        self.W_in = nn.Parameter(torch.empty(d_model, d_mlp))
        self.b_in = nn.Parameter(torch.zeros(d_mlp))
        self.W_out = nn.Parameter(torch.empty(d_mlp, d_model))
        self.b_out = nn.Parameter(torch.zeros(d_model))
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        """What the MLP adds to the residual stream."""
        pre = self.hook_pre(x @ self.W_in + self.b_in)
        return self.hook_post(F.gelu(pre)) @ self.W_out + self.b_out


class Norm(nn.Module):
    """RMSNorm with a learned gain, or the identity where the config says "none"."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(config.d_model)) if config.normalization == "rms" else None
        self.hook_normalized = HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        """`x` divided by the root of its mean square over the last axis, times the gain."""
        if self.w is not None:
            x = F.rms_norm(x, x.shape[-1:], self.w, eps=1e-5)
        return self.hook_normalized(x)
