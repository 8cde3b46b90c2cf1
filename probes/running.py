"""How every tool here calls a model: rows of its inputs, and hooks that leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from architectures import HookedStack

Inputs = Tensor | Mapping[str, Tensor]
"""What a model is called with: tokens, or keyword tensors such as `input` and `attention_mask`.

Every tensor has the prompts along its first axis. Where prompts are padded on the left, positions
counted from the end (-1 is the last) mean the same in every row.
"""

HookFunction = Callable[..., Tensor | None]
"""`function(value, hook=…)`; what it returns, if anything, takes the value's place."""


def rows_of(inputs: Inputs, rows: slice | Tensor) -> Inputs:
    """The inputs of some prompts."""
    if isinstance(inputs, Tensor):
        return inputs[rows]
    return {name: tensor[rows] for name, tensor in inputs.items()}


def shape_of(inputs: Inputs) -> tuple[int, int]:
    """Number of prompts and of positions.

    Raises:
        ValueError: tensors that differ in their number of prompts, or none at all.
    """
    tensors = {"inputs": inputs} if isinstance(inputs, Tensor) else dict(inputs)
    counts = {len(tensor) for tensor in tensors.values()}
    if len(counts) != 1:
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        raise ValueError(f"inputs of one model call must have as many prompts each: {shapes}")
    first = next(iter(tensors.values()))
    return first.shape[0], first.shape[1]


def answer_logits(model: nn.Module, inputs: Inputs) -> Float[Tensor, "batch value"]:
    """The model's logits at the last position."""
    logits = model(inputs) if isinstance(inputs, Tensor) else model(**inputs)
    return logits[:, -1]


def device_of(model: nn.Module) -> torch.device:
    """Where the model's weights are; the CPU for a model without any."""
    return next((weight.device for weight in model.parameters()), torch.device("cpu"))


def hook_point(model: nn.Module, name: str) -> HookPoint | None:
    """The hook point of that name, aliases of TransformerLens' bridges included."""
    found: object = model
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, HookPoint) else None


@contextmanager
def added_hooks(model: nn.Module, hooks: Sequence[tuple[str, HookFunction]]) -> Iterator[None]:
    """Forward hooks for the time of the block.

    Only these are taken away afterwards, whatever happens inside: the caller's own stay.

    Raises:
        ValueError: no hook point of that name.
    """
    added = []
    try:
        for name, function in hooks:
            point = hook_point(model, name)
            if point is None:
                raise ValueError(
                    f"{type(model).__name__} has no hook point {name!r}; its hooks are named as "
                    "in TransformerLens, such as blocks.0.hook_resid_pre"
                )
            added.append((point, point.add_hook(function)))
        yield
    finally:
        for point, handle in added:
            handle.hook.remove()
            if handle in point.fwd_hooks:
                point.fwd_hooks.remove(handle)


@contextmanager
def opened_states(model: nn.Module, wanted: Mapping[int, set[int]]) -> Iterator[None]:
    """Recurrent states hookable for the time of the block; those the caller opened stay open.

    Args:
        wanted: for linear layers, the positions after which the state is wanted.

    Raises:
        ValueError: a model without recurrent states, or a layer without one.
    """
    if not wanted:
        yield
        return
    if not isinstance(model, HookedStack):
        raise ValueError(f"{type(model).__name__} has no recurrent states that can be hooked")
    layers = {layer: model.recurrent_layer(layer) for layer in wanted}
    before = {layer: mixer.hook_state for layer, mixer in layers.items()}
    try:
        for layer, mixer in layers.items():
            points = {int(position): point for position, point in before[layer].items()}
            for position in wanted[layer] - points.keys():
                points[position] = HookPoint()
            mixer.hook_state = nn.ModuleDict({str(p): points[p] for p in sorted(points)})
        model.setup()
        yield
    finally:
        for layer, mixer in layers.items():
            mixer.hook_state = before[layer]
        model.setup()


def require_determinism(model: nn.Module) -> None:
    """Raise a ValueError for a model whose dropout is on."""
    for module in model.modules():
        if isinstance(module, nn.Dropout) and module.training and module.p > 0:
            raise ValueError(
                f"{type(model).__name__} is in training mode and drops at random, so two runs of "
                "it cannot be compared: call model.eval() first"
            )
