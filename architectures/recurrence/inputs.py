"""What a mixer hands to the recurrence: queries, keys, values, and how the state forgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

Normaliser = Literal["none", "sum", "floor"]


def float32_at_least(x: Tensor) -> Tensor:
    """`x` in float32, or as it is where it is wider: what states and decays are kept in."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@dataclass(frozen=True)
class RecurrenceInputs:
    """All that the recurrence reads. With state S, log-decay g and `scale`::

        S' = e^{g_t} S_{t-1}                                  decay, if given
        S_t = S' + e^{i_t} k_t v_tᵀ                           additive, or
        S_t = S' + k_t β_t (v_t - S'ᵀ k_t)ᵀ                   delta rule, if beta is given, or
        S_t = S' - (a_t ⊙ κ_t)(S_{t-1}ᵀ κ_t)ᵀ + k_t v_tᵀ      removal, if κ and a are given
        o_t = scale · S_tᵀ q_t

    The delta rule reads the decayed state (Gated DeltaNet, arXiv 2412.06464; Kimi Linear, arXiv
    2510.26692), the removal the undecayed one (RWKV-7, arXiv 2503.14456).

    Attributes:
        q, k: `[batch, position, head, key]`.
        v: `[batch, position, head, value]`.
        beta: β, `[batch, position, head]`, writing strength of the delta rule.
        log_decay: g, at most 0, one a head `[batch, position, head]` or one a key channel
            `[batch, position, head, key]`; None for no decay.
        removal_key, removal_rate: κ and a, `[batch, position, head, key]`; both or none.
        log_input: i, `[batch, position, head]`, logarithm of the weight a position is written
            with (mLSTM's exponential input gate); None for weight 1.
        normaliser: what outputs are divided by. With n_t the sum of the weights that o_t puts on
            values: "none", "sum" for n_t (Katharopoulos, arXiv 2006.16236), "floor" for
            `max(|n_t|, 1)` (mLSTM, arXiv 2405.04517). A normalised state has one more value
            column, the keys summed up: `[batch, head, key, value + 1]`.
        scale: factor on the output; `key^-1/2` if None.
    """

    q: Float[Tensor, "batch position head key"]
    k: Float[Tensor, "batch position head key"]
    v: Float[Tensor, "batch position head value"]
    beta: Float[Tensor, "batch position head"] | None = None
    log_decay: Float[Tensor, "batch position head *key"] | None = None
    removal_key: Float[Tensor, "batch position head key"] | None = None
    removal_rate: Float[Tensor, "batch position head key"] | None = None
    log_input: Float[Tensor, "batch position head"] | None = None
    normaliser: Normaliser = "none"
    scale: float | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are given, by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, Tensor)}

    def map(self, function: Callable[[Tensor], Tensor]) -> RecurrenceInputs:
        """The same with `function` applied to every tensor."""
        changed: dict[str, Any] = {name: function(value) for name, value in self.tensors.items()}
        return replace(self, **changed)

    def positions(self, begin: int, end: int) -> RecurrenceInputs:
        """The part from position `begin` up to, without, `end`."""
        return self.map(lambda tensor: tensor[:, begin:end])

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        """`[batch, head, key, value]`, a column more where outputs are normalised."""
        batch, _, head, key = self.q.shape
        return batch, head, key, self.v.shape[-1] + (self.normaliser != "none")

    @property
    def state_dtype(self) -> torch.dtype:
        """Float32, or wider where the values are."""
        return torch.promote_types(self.v.dtype, torch.float32)

    def initial_state(self) -> Float[Tensor, "batch head key value"]:
        """The empty state."""
        return self.v.new_zeros(self.state_shape, dtype=self.state_dtype)

    def check(self, state: Tensor | None) -> None:
        """Raise a ValueError unless shapes and rules fit together."""
        batch, position, head, key = self.q.shape
        scalar, channel = (batch, position, head), (batch, position, head, key)
        expected: dict[str, tuple[tuple[int, ...], ...]] = {
            "k": (channel,),
            "v": ((batch, position, head, self.v.shape[-1]),),
            "beta": (scalar,),
            "log_decay": (scalar, channel),
            "removal_key": (channel,),
            "removal_rate": (channel,),
            "log_input": (scalar,),
            "state": (self.state_shape,),
        }
        given = dict(self.tensors) if state is None else {**self.tensors, "state": state}
        for name, shapes in expected.items():
            if name in given and tuple(given[name].shape) not in shapes:
                raise ValueError(
                    f"{name} has shape {tuple(given[name].shape)}, but q of shape "
                    f"{tuple(self.q.shape)} and v of shape {tuple(self.v.shape)} ask for "
                    + " or ".join(map(str, shapes))
                )
        if position == 0:
            raise ValueError("the recurrence got 0 positions, but needs at least 1")
        if ("removal_key" in given) != ("removal_rate" in given):
            raise ValueError("removal_key and removal_rate go together: give both or neither")
        if "removal_key" in given and "beta" in given:
            raise ValueError("beta is the delta rule's and removal_key RWKV-7's: give one of them")
        if "log_input" in given and len(given.keys() & {"beta", "removal_key"}):
            raise ValueError("log_input weighs the additive update: leave beta and removal_key out")
        if "log_input" in given and self.log_decay is not None and self.log_decay.dim() == 4:
            raise ValueError("log_input goes with one log_decay a head, not one a key channel")
