"""The residual stream at chosen positions after every layer, from any hooked model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

HookFunction = Callable[..., Tensor | None]
"""`function(value, hook=…)`; what it returns, if anything, takes the value's place."""


def residual_hooks(model: HookedRootModule) -> list[str]:
    """Names of the hooks that see the residual stream: before the first layer, after each.

    Raises:
        ValueError: the model has no `blocks.{i}.hook_resid_pre` and `…_post` hooks.
    """
    layers = sorted(
        int(match[1])
        for name in model.hook_dict
        if (match := re.fullmatch(r"blocks\.(\d+)\.hook_resid_post", name))
    )
    if not layers or "blocks.0.hook_resid_pre" not in model.hook_dict:
        raise ValueError(
            f"{type(model).__name__} has no residual-stream hooks named as in TransformerLens: "
            "blocks.0.hook_resid_pre and blocks.{i}.hook_resid_post are needed"
        )
    return ["blocks.0.hook_resid_pre", *(f"blocks.{layer}.hook_resid_post" for layer in layers)]


@torch.no_grad()
def residual_stream(
    model: HookedRootModule,
    tokens: Int[Tensor, "batch position"],
    positions: Mapping[str, int],
    *,
    batch: int = 1024,
) -> dict[str, Float[Tensor, "layer batch d_model"]]:
    """The residual stream at named positions: layer 0 is the embedding, layer l follows layer l.

    Args:
        positions: what to call each position, and where it is.
        batch: prompts a forward pass.
    """
    hooks = residual_hooks(model)
    parts: dict[str, list[Tensor]] = {name: [] for name in positions}
    for begin in range(0, len(tokens), batch):
        kept: dict[str, Tensor] = {}

        def keep(value: Tensor, hook: HookPoint, kept: dict[str, Tensor] = kept) -> None:
            kept[str(hook.name)] = value

        with added_hooks(model, [(name, keep) for name in hooks]):
            model(tokens[begin : begin + batch])
        for name, position in positions.items():
            parts[name].append(torch.stack([kept[hook][:, position] for hook in hooks]))
    return {name: torch.cat(stacks, dim=1) for name, stacks in parts.items()}


@contextmanager
def added_hooks(model: HookedRootModule, hooks: list[tuple[str, HookFunction]]) -> Iterator[None]:
    """Forward hooks for the time of the block.

    Only these are taken away afterwards, whatever happens inside: the caller's own stay.
    """
    handles = []
    try:
        for name, function in hooks:
            point = model.hook_dict[name]
            handle = point.add_hook(function)
            handles.append((point, handle))
        yield
    finally:
        for point, handle in handles:
            handle.hook.remove()
            point.fwd_hooks.remove(handle)
