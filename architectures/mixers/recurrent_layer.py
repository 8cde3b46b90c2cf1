"""A linear layer in a stack: a mixer's q, k, v past the hooks, through the recurrence, and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from architectures.hooking import is_watched
from architectures.mixers.projections import from_heads
from architectures.mixers.sizes import MixerSizes
from architectures.past import Past, last_of
from architectures.recurrence import RecurrenceInputs, chunkwise


class RecurrentMixer(Protocol):
    """What a linear mixer is: how it makes the recurrence's inputs, and how it reads its output.

    An `nn.Module` implements it. Weights named `W_…` are drawn at random by the stack, all others
    keep the values they are constructed with.
    """

    def __init__(self, sizes: MixerSizes) -> None: ...

    def inputs(self, x: Float[Tensor, "batch position d_model"], past: Past) -> RecurrenceInputs:
        """q, k, v and whatever else the rule has; earlier positions come from `past`."""
        ...

    def gate(
        self, x: Float[Tensor, "batch position d_model"], past: Past
    ) -> Float[Tensor, "batch position head value"] | None:
        """What multiplies the output, if anything does."""
        ...

    def read_out(
        self, out: Float[Tensor, "batch position head value"], inputs: RecurrenceInputs, gate: Any
    ) -> Float[Tensor, "batch position head value"]:
        """The recurrence's output as the layer's output projection gets it."""
        ...


RECURRENCE_TENSORS = tuple(
    field.name for field in fields(RecurrenceInputs) if field.name not in ("normaliser", "scale")
)


class RecurrentLayer(nn.Module):
    """Any linear mixer, with hooks.

    Attributes:
        W_O: `[head, value, d_model]`.
        hook_q, hook_k: `[batch, position, head, key]`, after feature maps and normalisation.
        hook_v: `[batch, position, head, value]`.
        hook_beta, hook_log_decay, hook_removal_key, hook_removal_rate, hook_log_input: the
            other tensors of `RecurrenceInputs`, fired where the rule has them.
        hook_recurrence_out: `[batch, position, head, value]`, before `read_out`.
        hook_gate: the same shape, fired where the output is gated.
        hook_z: the same shape after `read_out`.
        hook_state: after `open_states`, a hook point for each position asked for, with the
            state `[batch, head, key, value]` after that position.
    """

    def __init__(self, mixer: type[RecurrentMixer], sizes: MixerSizes) -> None:
        super().__init__()
        self.mixer = mixer(sizes)
        self.W_O = nn.Parameter(torch.empty(sizes.heads, sizes.d_value, sizes.d_model))
        for name in RECURRENCE_TENSORS:
            self.add_module(f"hook_{name}", HookPoint())
        self.hook_recurrence_out, self.hook_gate = HookPoint(), HookPoint()
        self.hook_z = HookPoint()
        self.hook_state = nn.ModuleDict()

    def forward(
        self,
        x: Float[Tensor, "batch position d_model"],
        past: Past,
        wanted: int | None = None,
    ) -> Float[Tensor, "batch wanted d_model"]:
        """What the layer adds to the residual stream, at the last `wanted` positions or all.

        Raises:
            ValueError: a state of another shape.
        """
        inputs, out, gate = self.absorb(x, past)
        if wanted is not None:
            length = x.shape[1]
            inputs, out = inputs.positions(length - wanted, length), last_of(out, wanted)
            gate = None if gate is None else last_of(gate, wanted)
        gate = None if gate is None else self.hook_gate(gate)
        z = self.mixer.read_out(self.hook_recurrence_out(out), inputs, gate)
        return from_heads(self.hook_z(z), self.W_O)

    def absorb(
        self, x: Float[Tensor, "batch position d_model"], past: Past
    ) -> tuple[RecurrenceInputs, Tensor, Tensor | None]:
        """The recurrence's inputs, its output and the gate; later positions find all in `past`."""
        inputs = self.recurrence_inputs(x, past)
        out, past.kept["state"] = self._recur(inputs, past)
        return inputs, out, self.mixer.gate(x, past)

    def recurrence_inputs(self, x: Tensor, past: Past) -> RecurrenceInputs:
        """What the recurrence reads when the layer reads `x`, after all hooks."""
        made = self.mixer.inputs(x, past)
        hooked = {
            name: getattr(self, f"hook_{name}")(tensor) for name, tensor in made.tensors.items()
        }
        return replace(made, **hooked)

    def open_states(self, positions: Sequence[int]) -> None:
        """Hook points `hook_state.{position}` for these positions, in place of earlier ones."""
        self.hook_state = nn.ModuleDict(
            {str(position): HookPoint() for position in sorted(set(positions))}
        )

    def _recur(self, inputs: RecurrenceInputs, past: Past) -> tuple[Tensor, Tensor]:
        """Outputs and final state, the run split after every position whose state is watched."""
        first, length = past.position, inputs.q.shape[1]
        watched = {
            int(position) - first: point
            for position, point in self.hook_state.items()
            if is_watched(point) and first <= int(position) < first + length
        }
        state, outputs, begin = past.recurrent_state(), [], 0
        for last, point in watched.items():
            out, state = chunkwise(inputs.positions(begin, last + 1), state)
            state, begin = point(state), last + 1
            outputs.append(out)
        if begin < length:
            out, state = chunkwise(inputs.positions(begin, length) if begin else inputs, state)
            outputs.append(out)
        assert state is not None
        return torch.cat(outputs, dim=1) if len(outputs) > 1 else outputs[0], state
