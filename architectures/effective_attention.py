"""The attention pattern that a linear layer amounts to: exact, delta rules and decay included."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from architectures.past import Past
from architectures.recurrence import RecurrenceInputs, chunkwise
from architectures.stack import HookedStack
from composition import SOFTMAX_KINDS


@torch.no_grad()
def effective_attention(
    model: HookedStack, tokens: Int[Tensor, "batch position"], layer: int
) -> Float[Tensor, "batch head query key"]:
    """M of a layer: `o_t = Σ_s M_ts v_s` with the layer's own q, k, decay and β on these prompts.

    For a linear layer o is `hook_recurrence_out` and v `hook_v`: patching v at a source s moves
    the output at t by M_ts times the change. M has no softmax behind it: its entries may be
    negative, and its rows sum to what the recurrence gives a value that is always 1 (exactly 1
    for normalised linear attention). For a full layer it is the pattern. Hooks on the model
    count. Of two mixers side by side, it is the linear one's.

    Raises:
        ValueError: no such layer, or one that is no weighted sum of values.
    """
    model.check_layer(layer)
    if model.config.schedule[layer] in SOFTMAX_KINDS:
        return _seen(model, tokens, f"blocks.{layer}.attn.hook_pattern")
    recurrent = model.recurrent_layer(layer)
    x = _seen(model, tokens, f"blocks.{layer}.ln1.hook_normalized")
    return recurrence_matrix(recurrent.recurrence_inputs(x, Past()))


def recurrence_matrix(inputs: RecurrenceInputs) -> Float[Tensor, "batch head query key"]:
    """M of a recurrence that begins with an empty state.

    Outputs are linear in the values, so values that are the unit vectors, one a position, come
    out as the columns of M.
    """
    batch, length, head, _ = inputs.q.shape
    unit = torch.eye(length, dtype=inputs.state_dtype, device=inputs.v.device)
    unit = unit[:, None].expand(batch, length, head, length)
    out, _ = chunkwise(replace(inputs, v=unit))
    return out.transpose(1, 2)


def _seen(model: HookedStack, tokens: Tensor, name: str) -> Tensor:
    seen: list[Tensor] = []

    def keep(tensor: Tensor, hook: HookPoint) -> None:
        seen.append(tensor)

    with model.hooks(fwd_hooks=[(name, keep)]):
        model(tokens)
    return seen[0]
