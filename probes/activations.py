"""Activations for probes: the residual stream at chosen positions, or any sites, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probes.running import Inputs, hook_point, rows_of
from probes.sites import Site, n_layers, read


def residual_sites(model: nn.Module, position: int | None) -> list[Site]:
    """The residual stream at a position: before the first layer, then after each.

    Raises:
        ValueError: the model has no `blocks.{i}.hook_resid_pre` and `…_post` hooks.
    """
    count = n_layers(model)
    if not count or hook_point(model, "blocks.0.hook_resid_pre") is None:
        raise ValueError(
            f"{type(model).__name__} has no residual-stream hooks named as in TransformerLens: "
            "blocks.0.hook_resid_pre and blocks.{i}.hook_resid_post are needed"
        )
    after = [Site("resid_post", layer, position) for layer in range(count)]
    return [Site("resid_pre", 0, position), *after]


def residual_stream(
    model: nn.Module,
    inputs: Inputs,
    positions: Mapping[str, int],
    *,
    batch: int = 1024,
) -> dict[str, Float[Tensor, "layer batch d_model"]]:
    """The residual stream at named positions: layer 0 is the embedding, layer l follows layer l.

    Args:
        positions: what to call each position, and where it is.
        batch: prompts a forward pass.
    """
    sites = {name: residual_sites(model, position) for name, position in positions.items()}
    flat = [site for those in sites.values() for site in those]
    values = iter(read(model, inputs, flat, batch=batch))
    return {name: torch.stack([next(values) for _ in those]) for name, those in sites.items()}


def activation_reader(
    model: nn.Module, inputs: Inputs, sites: Sequence[Site]
) -> Callable[[slice], list[Float[Tensor, "batch features"]]]:
    """What `probe_sites` reads: the sites' activations for a slice of the prompts, flattened.

    A recurrent state `[head, key, value]` becomes one feature vector like any other activation.
    """

    def reader(rows: slice) -> list[Tensor]:
        return [
            value.reshape(len(value), -1) for value in read(model, rows_of(inputs, rows), sites)
        ]

    return reader
