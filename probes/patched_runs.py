"""Answers of patched models, as fast as causality allows.

A patch at one layer and position changes nothing below and nothing to the left. On an unwatched
`HookedStack` a cell therefore starts at its layer, computes only the positions from its own to
the end, and of the last layer only what the answer needs; cells of different layers climb the
stack in one batch. Any other model, or one with the caller's hooks on it, runs in full for every
cell. Both ways give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from architectures import HookedStack
from architectures.block import Block
from architectures.hooking import is_watched
from architectures.mixers import FullAttention
from architectures.past import ModelState, Past
from probes.rows import chunks
from probes.running import (
    HookFunction,
    Inputs,
    added_hooks,
    answer_logits,
    opened_states,
    rows_of,
    shape_of,
)
from probes.sites import (
    OF_ATTENTION,
    OF_THE_BLOCK,
    OF_THE_RULE,
    Site,
    check_shape,
    hook_name,
    is_pattern,
    read,
    replace_at,
    resolved,
    states_of,
)

MEMORY = 2**28
"""Bytes that the activations of one batch of cells may take, by estimate."""

SEEN_LATER = ("k", "v", "rot_k", *OF_THE_RULE)
"""What a mixer hands on to later positions: all else inside a layer stays at its own position."""

SEEN_THERE = ("q", "rot_q", *OF_ATTENTION, "z", "gate", "recurrence_out")


@dataclass(frozen=True)
class Patch:
    """Another value at a site.

    Attributes:
        site: where.
        value: `[prompt, …]`, exactly of the shape that `read` gives for the site.
    """

    site: Site
    value: Tensor


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
        unheard = [p for p in patches if not _reaches_the_answer(p.site, length, last)]
        there = read(model, inputs[:1], [patch.site for patch in unheard])
        for patch, value in zip(unheard, there, strict=True):
            check_shape(patch.site, patch.value, (count, *value.shape[1:]))
        known = [i for i, patch in enumerate(patches) if _can_start_at(model, patch.site)]
        if known:
            yield from _resumed_runs(model, inputs, patches, known, batch, memory)
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
    if not (isinstance(inputs, Tensor) and can_resume(model) and _can_start_at(model, site)):
        return [
            (rows, partial(_answer_in_full, model, rows_of(inputs, rows)))
            for rows in chunks(count, batch)
        ]
    prepared: list[tuple[slice, Callable[[Patch], Tensor]]] = []
    begin = _begin(site)
    for rows in chunks(count, batch):
        with torch.no_grad():
            streams, _ = _every_stream(model, inputs[rows])
            state = model(inputs[rows, :begin], return_state=True)[1] if begin else None
        prepared.append((rows, partial(_answer_of_one, model, streams, state)))
    return prepared


def _answer_in_full(model: nn.Module, prompts: Inputs, patch: Patch) -> Tensor:
    """The answer's logits under a patch, by running the whole model."""
    patch = Patch(resolved(patch.site, shape_of(prompts)[1]), patch.value)
    with opened_states(model, states_of([patch.site])):
        writer = _Writer([(patch, slice(0, len(patch.value)))])
        with added_hooks(model, [(hook_name(model, patch.site), writer)]):
            logits = answer_logits(model, prompts)
    writer.check_fired()
    return logits


def _answer_of_one(
    model: HookedStack, streams: Sequence[Tensor], state: ModelState | None, patch: Patch
) -> Tensor:
    site = resolved(patch.site, streams[0].shape[1])
    return climb(model, streams, state, [Patch(site, patch.value)])[0]


def can_resume(model: nn.Module) -> TypeGuard[HookedStack]:
    """Whether runs may start in the middle: a stack of ours that nobody else watches."""
    return isinstance(model, HookedStack) and not any(is_watched(m) for m in model.modules())


def replacing_hook(site: Site, value: Tensor) -> HookFunction:
    """A hook that puts `value` at the site, in every prompt of the batch."""
    return _Writer([(Patch(site, value), slice(0, len(value)))])


class _Writer:
    """A hook that replaces what stands at sites, each in its own rows of the batch.

    Attributes:
        first: position of the first token of the piece that runs.
    """

    def __init__(self, cells: Sequence[tuple[Patch, slice]], first: int = 0) -> None:
        self.cells = cells
        self.first = first
        self.fired = [False] * len(cells)

    def __call__(self, value: Tensor, hook: HookPoint) -> Tensor:
        value = value.clone()
        for index, (patch, rows) in enumerate(self.cells):
            site, new = _seen_from(patch.site, self.first), patch.value
            by_position = site.component != "state" and not is_pattern(site)
            if by_position and not _in_piece(site, value.shape[1]):
                continue
            value[rows] = replace_at(value[rows], site, new)
            self.fired[index] = True
        return value

    def check_fired(self) -> None:
        for (patch, _), fired in zip(self.cells, self.fired, strict=True):
            if not fired:
                raise RuntimeError(f"the patch at {patch.site} never took place: no hook fired")


def _seen_from(site: Site, first: int) -> Site:
    """The site in a piece that begins at position `first`."""
    if site.component == "state" or site.position is None or first == 0:
        return site
    if isinstance(site.position, tuple):
        return replace(site, position=tuple(place - first for place in site.position))
    return replace(site, position=site.position - first)


def _in_piece(site: Site, length: int) -> bool:
    return not isinstance(site.position, int) or 0 <= site.position < length


# -- only what a patch can change ------------------------------------------------------------


@torch.no_grad()
def _resumed_runs(
    model: HookedStack,
    tokens: Tensor,
    patches: Sequence[Patch],
    resumable: list[int],
    batch: int,
    memory: int,
) -> Iterator[tuple[int, slice, Tensor]]:
    length = tokens.shape[1]
    last = model.config.n_layers - 1
    heard = [index for index in resumable if _reaches_the_answer(patches[index].site, length, last)]
    unheard = sorted(set(resumable) - set(heard))
    # Left to right, so that the state before each beginning follows from the one before it.
    row_bytes = 4 * model.config.d_model * length
    batch = max(1, min(batch, len(tokens), memory // (2 * row_bytes * (last + 2))))
    cells = max(1, memory // (2 * WORKING_COPIES * row_bytes * batch))
    groups = _groups([patches[index].site for index in heard], length, cells, batch)
    for rows in chunks(len(tokens), batch):
        streams, logits = _every_stream(model, tokens[rows])
        yield from ((index, rows, logits) for index in unheard)
        state: ModelState | None = None
        for begin, members in groups:
            passed = state.position if state else 0
            if begin > passed:
                _, state = model(tokens[rows, passed:begin], state=state, return_state=True)
            which = [heard[member] for member in members]
            climbing = [Patch(patches[index].site, patches[index].value[rows]) for index in which]
            answers = climb(model, streams, state, climbing)
            yield from zip(which, [rows] * len(which), answers, strict=True)


def _groups(
    sites: Sequence[Site], length: int, most: int, batch: int
) -> list[tuple[int, list[int]]]:
    """Which cells climb together, and from which position on.

    Left to right, so that the state before each group follows from the one before it. Where
    few prompts make small batches, cells that begin a little later start with the others: they
    compute up to an eighth of their positions in vain, which costs less than a climb of their own.
    """
    order = sorted(range(len(sites)), key=lambda index: _begin(sites[index]))
    groups: list[tuple[int, list[int]]] = []
    for index in order:
        begin = _begin(sites[index])
        if groups:
            first, members = groups[-1]
            exact = any(sites[each].component == "state" for each in (index, members[-1]))
            slack = 0 if exact or len(members) * batch >= ENOUGH_ROWS else (length - first) // 8
            if begin <= first + slack and len(members) < most:
                members.append(index)
                continue
        groups.append((begin, [index]))
    return [
        (begin, sorted(members, key=lambda index: _joins_at(sites[index])))
        for begin, members in groups
    ]


WORKING_COPIES = 8
"""Tensors of the size of a cell's residual stream that a block holds at a time, roughly."""

ENOUGH_ROWS = 256
"""Rows of a batch beyond which more of them do not make a row cheaper."""


def _every_stream(model: HookedStack, tokens: Tensor) -> tuple[list[Tensor], Tensor]:
    """The residual stream before every layer and after the last, and the answer's logits."""
    streams: list[Tensor] = []

    def keep(value: Tensor, hook: HookPoint) -> None:
        streams.append(value)

    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(model.config.n_layers)]
    names.append(f"blocks.{model.config.n_layers - 1}.hook_resid_post")
    with added_hooks(model, [(name, keep) for name in names]):
        logits = model(tokens)[:, -1]
    return streams, logits


def climb(
    model: HookedStack,
    streams: Sequence[Float[Tensor, "batch position d_model"]],
    state: ModelState | None,
    patches: Sequence[Patch],
) -> list[Float[Tensor, "batch value"]]:
    """Answers' logits of several patches that begin at one position, in one batch.

    Args:
        streams: the unpatched residual stream before every layer and after the last.
        state: the unpatched model's after the positions before the patches; None for none.
        patches: ordered by the layer at which they change the stream.
    """
    begin = state.position if state else 0
    prompts, length = streams[0].shape[:2]
    residual = streams[0][:0, begin:]
    joined = 0
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        inside: list[tuple[Patch, slice]] = []
        states: list[tuple[Patch, slice]] = []
        newcomers = [residual]
        while joined < len(patches) and _joins_at(patches[joined].site) == layer:
            patch, rows = patches[joined], slice(joined * prompts, (joined + 1) * prompts)
            newcomers.append(_entering(streams[layer][:, begin:], patch, begin))
            if patch.site.component == "state":
                states.append((patch, rows))
            elif patch.site.component not in ("resid_pre", "resid_post"):
                inside.append((patch, rows))
            joined += 1
        if not joined:
            continue
        residual = torch.cat(newcomers) if len(newcomers) > 1 else residual
        past = _past_of_cells(state, layer, joined, states)
        with _writing(model, inside, begin) as writers:
            if layer + 1 == len(model.blocks) and length - begin > 1 and _single(inside):
                block.absorb(residual[:, :-1], past)
                for writer in writers:
                    writer.first = length - 1
                past = Past(length - 1, past.kept)
                residual = residual[:, -1:]
            residual = block(residual, past)
    residual = residual[:, -1:]
    if joined < len(patches):
        after = [_entering(streams[-1][:, begin:], patch, begin) for patch in patches[joined:]]
        residual = torch.cat([residual, *(each[:, -1:] for each in after)])
    return list(model.read_out(residual)[:, -1].split(prompts))


@contextmanager
def _writing(
    model: HookedStack, cells: list[tuple[Patch, slice]], first: int
) -> Iterator[list[_Writer]]:
    by_name: dict[str, list[tuple[Patch, slice]]] = {}
    for patch, rows in cells:
        by_name.setdefault(hook_name(model, patch.site), []).append((patch, rows))
    writers = {name: _Writer(those, first) for name, those in by_name.items()}
    with added_hooks(model, list(writers.items())):
        yield list(writers.values())
    for writer in writers.values():
        writer.check_fired()


def _entering(stream: Tensor, patch: Patch, begin: int) -> Tensor:
    """The stream with which a cell joins: patched already where the patch is in the stream."""
    if patch.site.component not in ("resid_pre", "resid_post"):
        return stream
    return replace_at(stream, _seen_from(patch.site, begin), patch.value)


def _past_of_cells(
    state: ModelState | None, layer: int, cells: int, patched: list[tuple[Patch, slice]]
) -> Past:
    """What came before, the same for every cell but for the recurrent states that are patched."""
    if state is None:
        return Past()
    before = state.layers[layer]
    if not patched:
        return Past(state.position, before, copies=cells)
    tiled = {name: part.repeat(cells, *[1] * (part.dim() - 1)) for name, part in before.items()}
    for patch, rows in patched:
        tiled["state"][rows] = replace_at(tiled["state"][rows], patch.site, patch.value)
    return Past(state.position, tiled)


def _single(cells: list[tuple[Patch, slice]]) -> bool:
    return all(isinstance(patch.site.position, int) for patch, _ in cells)


def _can_start_at(model: HookedStack, site: Site) -> bool:
    """Whether it is known what a patch there can change, and that can be computed alone."""
    if is_pattern(site) and site.position is not None:
        # It may look at keys that a window has let go of.
        attention = model.blocks[site.layer].attn
        assert isinstance(attention, FullAttention)
        return attention.window is None
    in_the_stream = site.component in (*OF_THE_BLOCK, "state")
    return in_the_stream or site.tensor in (*SEEN_LATER, *SEEN_THERE)


def _begin(site: Site) -> int:
    """The first position that has to be computed anew."""
    if site.position is None:
        return 0
    first = min(site.position) if isinstance(site.position, tuple) else site.position
    return first + (site.component == "state")  # a state is read by the positions after it


def _joins_at(site: Site) -> int:
    """The layer that has to be computed anew, first of all."""
    return site.layer + (site.component == "resid_post")


def _reaches_the_answer(site: Site, length: int, last_layer: int) -> bool:
    """Whether causality lets a patch there change the last position's logits."""
    if site.component == "state":
        return _begin(site) < length
    if site.layer < last_layer or site.position is None:
        return True
    places = site.position if isinstance(site.position, tuple) else (site.position,)
    looks_back = site.component == "resid_pre" or site.tensor in SEEN_LATER
    return looks_back or length - 1 in places
