"""Folding: a recurrence that exchanges one value of the chain for the next as functions come by.

In forward order the query and the start come first, so a state can hold `i_{k-1}` while the entries
of `z_k` pass, and `i_k` behind them. Interchange of the state after the last entry of each function
shows which layer's state does.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from architectures import HookedStack
from architectures.mixers import MIXERS
from composition import CompositionTask, parts
from probes.interchange import interchange_at, interchange_pairs
from probes.sites import Site


def folded(
    model: HookedStack, task: CompositionTask, *, pairs: int = 256, seed: int = 0
) -> Float[Tensor, "layer function"]:
    """How often a layer's recurrent state carries `i_k` once the entries of `z_k` have passed.

    Returns:
        Share of pairs that go on from the donor's `i_k` when the layer's state after the last entry
        of `z_k` is the donor's, for k = 1 … L; 0 for layers without a recurrent state.

    Raises:
        ValueError: a task in another order than "forward", or too small to tell hypotheses apart.
    """
    if task.order != "forward":
        raise ValueError(
            f"in {task.order} order the start comes after the functions, so nothing can be folded "
            'while they pass; give a task with order="forward"'
        )
    drawn = interchange_pairs(task, pairs, torch.Generator().manual_seed(seed))
    shares = torch.zeros(model.config.n_layers, task.hops)
    for layer, kind in enumerate(model.config.schedule):
        if not any(part in MIXERS for part in parts(kind)):
            continue
        for hop in range(1, task.hops + 1):
            after = Site("state", layer, task.positions[f"z{hop}"].stop - 1)
            shares[layer, hop - 1] = interchange_at(model, drawn, [after])[0, hop]
    return shares
