"""The recurrence as written, position by position: the specification, and the tests' reference."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from architectures.recurrence.inputs import RecurrenceInputs
from architectures.recurrence.normaliser import plain_recurrence

Output = tuple[Float[Tensor, "batch position head value"], Float[Tensor, "batch head key value"]]


def stepwise(inputs: RecurrenceInputs, state: Tensor | None = None) -> Output:
    """The recurrence of `RecurrenceInputs`, one position after the other.

    Returns:
        The outputs `o` in v's dtype, and the state after the last position.

    Raises:
        ValueError: shapes that do not fit together.
    """
    inputs.check(state)
    S = inputs.initial_state() if state is None else state.to(inputs.state_dtype)
    plain, finish = plain_recurrence(inputs.map(lambda tensor: tensor.to(inputs.state_dtype)))
    scale = plain.q.shape[-1] ** -0.5 if plain.scale is None else plain.scale
    outputs = []
    for t in range(plain.q.shape[1]):
        now = {name: tensor[:, t] for name, tensor in plain.tensors.items()}
        k, v, before = now["k"], now["v"], S
        if "log_decay" in now:
            g = now["log_decay"]
            S = S * (g if g.dim() == 3 else g[..., None]).exp()[..., None]
        if "beta" in now:
            v = now["beta"][..., None] * (v - _read(S, k))
        if "removal_key" in now:
            removed = _read(before, now["removal_key"])
            S = S - _outer(now["removal_rate"] * now["removal_key"], removed)
        S = S + _outer(k, v)
        outputs.append(_read(S, now["q"] * scale))
    out, S = finish(torch.stack(outputs, dim=1), S)
    return out.to(inputs.v.dtype), S


def _read(S: Tensor, key: Tensor) -> Float[Tensor, "batch head value"]:
    return torch.einsum("bhkv,bhk->bhv", S, key)


def _outer(key: Tensor, value: Tensor) -> Float[Tensor, "batch head key value"]:
    return key[..., :, None] * value[..., None, :]
