"""A linear layer in a stack: a mixer's q, k, v past the hooks, through the recurrence, and out."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from architectures.mixers.projections import from_heads
from architectures.recurrence import RecurrenceInputs, chunkwise

SMALLEST_SUM = 1e-6
"""Added to a sum of weights before dividing by it: features of elu + 1 can underflow to 0."""


class RecurrentMixer(Protocol):
    """What a linear mixer is: how it makes the recurrence's inputs, and how it reads its output.

    Implemented by `nn.Module`s built from `(d_model, heads, d_key, d_value)`.
    """

    normalised: bool
    """Divide each output by the sum of its weights on the values (Katharopoulos' z)."""

    def __init__(self, d_model: int, heads: int, d_key: int, d_value: int) -> None: ...

    def inputs(self, x: Float[Tensor, "batch position d_model"]) -> RecurrenceInputs:
        """q, k, v and, where the rule has them, beta and log_decay."""
        ...

    def read_out(
        self, out: Float[Tensor, "batch position head value"]
    ) -> Float[Tensor, "batch position head value"]:
        """The recurrence's output as the layer's output projection gets it."""
        ...


class RecurrentLayer(nn.Module):
    """Any linear mixer, with hooks.

    Attributes:
        W_O: `[head, value, d_model]`.
        hook_q, hook_k: `[batch, position, head, key]`, after feature maps and normalisation.
        hook_v: `[batch, position, head, value]`.
        hook_beta, hook_log_decay: `[batch, position, head]`, fired where the rule has them.
        hook_recurrence_out: `[batch, position, head, value]`, before `read_out`.
        hook_z: the same shape after it.
    """

    def __init__(
        self, mixer: type[RecurrentMixer], d_model: int, heads: int, d_key: int, d_value: int
    ) -> None:
        super().__init__()
        self.mixer = mixer(d_model, heads, d_key, d_value)
        self.W_O = nn.Parameter(torch.empty(heads, d_value, d_model))
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_beta, self.hook_log_decay = HookPoint(), HookPoint()
        self.hook_recurrence_out, self.hook_z = HookPoint(), HookPoint()

    def forward(
        self, x: Float[Tensor, "batch position d_model"]
    ) -> Float[Tensor, "batch position d_model"]:
        """What the layer adds to the residual stream."""
        made = self.mixer.inputs(x)
        hooked = replace(
            made,
            q=self.hook_q(made.q),
            k=self.hook_k(made.k),
            v=self.hook_v(made.v),
            beta=None if made.beta is None else self.hook_beta(made.beta),
            log_decay=None if made.log_decay is None else self.hook_log_decay(made.log_decay),
        )
        out = self.hook_recurrence_out(self._recur(hooked))
        return from_heads(self.hook_z(self.mixer.read_out(out)), self.W_O)

    def _recur(self, inputs: RecurrenceInputs) -> Float[Tensor, "batch position head value"]:
        if not self.mixer.normalised:
            return chunkwise(inputs)[0]
        # A value that is always 1 collects the sum of the weights: z needs no state of its own.
        ones = torch.ones_like(inputs.v[..., :1])
        out, _ = chunkwise(replace(inputs, v=torch.cat([inputs.v, ones], dim=-1)))
        return out[..., :-1] / (out[..., -1:] + SMALLEST_SUM)
