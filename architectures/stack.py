"""The model: an embedding, layers after a schedule, an unembedding, and hook points between."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from architectures.config import ModelConfig
from architectures.embedding import PromptEmbedding
from architectures.mixers import MIXERS, FullAttention, RecurrentLayer


class HookedStack(HookedRootModule):
    """Full-attention and linear layers in the order of `config.schedule`, TransformerLens style.

    Called on tokens `[batch, position]` it returns logits `[batch, position, value]`; the
    answer is read at the last position. `run_with_hooks`, `run_with_cache` and
    `transformer_lens.patching` work on it. Hook names: `hook_embed`,
    `hook_pos_embed`, `blocks.{i}.hook_resid_pre|mid|post`, `blocks.{i}.hook_attn_out`
    (the mixer's output, whatever its kind), `blocks.{i}.hook_mlp_out`, and inside a layer
    those of `FullAttention` under `blocks.{i}.attn`, those of `RecurrentLayer` under
    `blocks.{i}.linear_attn`.

    Args:
        config: what to build.
        seed: of the initial weights; the global random state is neither read nor changed.
    """

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embed = PromptEmbedding(config.task, config.d_model)
        self.hook_embed, self.hook_pos_embed = HookPoint(), HookPoint()
        self.blocks = nn.ModuleList(Block(config, kind) for kind in config.schedule)
        self.ln_final = Norm(config)
        self.unembed = nn.Parameter(torch.empty(config.d_model, config.task.n_values))
        self._initialise(torch.Generator().manual_seed(seed))
        self.setup()

    def forward(
        self, tokens: Int[Tensor, "batch position"]
    ) -> Float[Tensor, "batch position value"]:
        """Logits for the value at every position.

        Raises:
            ValueError: tokens that are not prompts of the config's task.
        """
        token_part, position_part = self.embed(tokens)
        residual = self.hook_embed(token_part) + self.hook_pos_embed(position_part)
        for block in self.blocks:
            residual = block(residual)
        return self.ln_final(residual) @ self.unembed

    @property
    def cfg(self) -> SimpleNamespace:
        """The sizes that TransformerLens' own tools ask a model for."""
        return SimpleNamespace(
            n_layers=self.config.n_layers,
            n_heads=self.config.n_heads,
            n_key_value_heads=None,
            d_model=self.config.d_model,
            d_head=self.config.head_dimension,
            device=self.unembed.device,
        )

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """Random weights that keep the residual stream near unit size; biases and gains stay."""
        depth = (2 * self.config.n_layers) ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue  # gains and biases were set where they were made
            if name.startswith("embed.") and not name.endswith("argument_map"):
                std = 1.0
            else:
                fan_in = parameter.shape[-2] * (parameter.shape[0] if name.endswith("W_O") else 1)
                std = fan_in**-0.5 * (depth if name.endswith(("W_O", "W_out")) else 1.0)
            parameter.normal_(0.0, std, generator=generator)


class Block(nn.Module):
    """One layer: a mixer, then an MLP if the config has one, each added to the residual stream."""

    def __init__(self, config: ModelConfig, kind: str) -> None:
        super().__init__()
        self.hook_resid_pre, self.hook_resid_post = HookPoint(), HookPoint()
        self.hook_resid_mid, self.hook_attn_out = HookPoint(), HookPoint()
        self.ln1 = Norm(config)
        if kind == "full":
            self.attn = FullAttention(config.d_model, config.n_heads, config.head_dimension)
        else:
            self.linear_attn = RecurrentLayer(
                MIXERS[kind], config.d_model, config.linear_heads, config.d_key, config.d_value
            )
        self.mlp: MLP | None = None
        if config.d_mlp:
            self.hook_mlp_out = HookPoint()
            self.ln2 = Norm(config)
            self.mlp = MLP(config.d_model, config.d_mlp)

    @property
    def mixer(self) -> FullAttention | RecurrentLayer:
        """`attn` or `linear_attn`, whichever the layer is."""
        return self.attn if hasattr(self, "attn") else self.linear_attn

    def forward(
        self, residual: Float[Tensor, "batch position d_model"]
    ) -> Float[Tensor, "batch position d_model"]:
        """The residual stream after the layer."""
        residual = self.hook_resid_pre(residual)
        residual = residual + self.hook_attn_out(self.mixer(self.ln1(residual)))
        residual = self.hook_resid_mid(residual)
        if self.mlp is not None:
            residual = residual + self.hook_mlp_out(self.mlp(self.ln2(residual)))
        return self.hook_resid_post(residual)


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
