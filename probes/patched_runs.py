"""Answers of patched models, as fast as causality allows.

On an unwatched `HookedStack` only what a patch can change is computed (`climbing.py`). Any other
model, or one with the caller's hooks on it, runs in full for every cell. Both ways give the same
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn

from architectures import HookedStack
from architectures.hooking import is_watched
from architectures.past import ModelState
from probes.climbing import (
    PlainRun,
    at_the_next_layer,
    begins_at,
    can_start_at,
    climb,
    climbing_runs,
    plain_run,
    reaches_the_answer,
    state_at,
)
from probes.patches import Patch, writing
from probes.rows import chunks
from probes.running import (
    Inputs,
    answer_logits,
    opened_states,
    rows_of,
    shape_of,
)
from probes.sites import Site, check_shape, hook_name, read, resolved, states_of

MEMORY = 2**28
"""Bytes that the activations of one batch of cells may take, by estimate."""


def run_patched(
    model: nn.Module,
    inputs: Inputs,
    patches: Sequence[Patch],
    *,
    batch: int = 1024,
    memory: int = MEMORY,
) -> Iterator[tuple[int, slice, Float[Tensor, "batch value"]]]:
    """The logits at the last position under every patch, one patch at a time.

    Args:
        batch: prompts a run, at most.
        memory: bytes that one batch's activations may take, by estimate.

    Yields:
        Number of the patch, the prompts, and their logits; in no particular order, each patch
        and prompt once.

    Raises:
        ValueError: a site that the model does not have, or a value of another shape.
        RuntimeError: a patch whose hook did not fire.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}, but at least one prompt must run at a time")
    count, length = shape_of(inputs)
    patches = [Patch(resolved(patch.site, length), patch.value) for patch in patches]
    for patch in patches:
        if len(patch.value) != count:
            raise ValueError(
                f"the value for {patch.site} has {len(patch.value)} rows, but there are {count} "
                "prompts: give one row a prompt"
            )
    known: list[int] = []
    if isinstance(inputs, Tensor) and can_resume(model):
        last = model.config.n_layers - 1
        with opened_states(model, states_of(patch.site for patch in patches)):
            for patch in patches:
                hook_name(model, patch.site)
        unheard = [p for p in patches if not reaches_the_answer(p.site, length, last)]
        there = read(model, inputs[:1], [patch.site for patch in unheard])
        for patch, value in zip(unheard, there, strict=True):
            check_shape(patch.site, patch.value, (count, *value.shape[1:]))
        known = [i for i, patch in enumerate(patches) if can_start_at(model, patch.site)]
        if known:
            climbing = climbing_runs(model, inputs, [patches[i] for i in known], batch, memory)
            yield from ((known[number], rows, logits) for number, rows, logits in climbing)
    for index in sorted(set(range(len(patches))) - set(known)):
        site, value = patches[index].site, patches[index].value
        for rows in chunks(count, min(batch, 1024)):
            with torch.no_grad():
                logits = _answer_in_full(model, rows_of(inputs, rows), Patch(site, value[rows]))
            yield index, rows, logits


def patched_once(
    model: nn.Module, inputs: Inputs, site: Site, *, batch: int = 256
) -> list[tuple[slice, Callable[[Patch], Float[Tensor, "batch value"]]]]:
    """For chunks of the prompts, a function from a patch at the site to the answer's logits.

    The functions are differentiable in the patch's value, and what comes before the site is
    computed only once.
    """
    count, length = shape_of(inputs)
    site = resolved(site, length)
    if not (
        isinstance(inputs, Tensor)
        and can_resume(model)
        and can_start_at(model, site)
        and reaches_the_answer(site, length, model.config.n_layers - 1)
    ):
        return [
            (rows, partial(_answer_in_full, model, rows_of(inputs, rows)))
            for rows in chunks(count, batch)
        ]
    prepared: list[tuple[slice, Callable[[Patch], Tensor]]] = []
    begin = begins_at(site)
    for rows in chunks(count, batch):
        with torch.no_grad():
            run = plain_run(model, inputs[rows])
            state = state_at(model, run, begin)
        prepared.append((rows, partial(_answer_of_one, model, run, state)))
    return prepared


def _answer_in_full(model: nn.Module, prompts: Inputs, patch: Patch) -> Tensor:
    """The answer's logits under a patch, by running the whole model."""
    patch = Patch(resolved(patch.site, shape_of(prompts)[1]), patch.value)
    everywhere = [(patch, slice(0, len(patch.value)))]
    with opened_states(model, states_of([patch.site])), writing(model, everywhere):
        return answer_logits(model, prompts)


def _answer_of_one(
    model: HookedStack, run: PlainRun, state: ModelState, patch: Patch
) -> Float[Tensor, "batch value"]:
    site = resolved(patch.site, run.streams[0].shape[1])
    entering = at_the_next_layer(Patch(site, patch.value), model.config.n_layers - 1)
    return climb(model, run, state, [entering])[0]


def can_resume(model: nn.Module) -> TypeGuard[HookedStack]:
    """Whether runs may start in the middle: a stack of ours that nobody else watches."""
    return isinstance(model, HookedStack) and not any(is_watched(m) for m in model.modules())
