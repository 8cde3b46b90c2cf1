"""Patched runs of a stack of ours that compute only what a patch can change.

A patch at one layer and position changes nothing below and nothing to the left. A cell therefore
starts at its layer, computes only the positions from its own to the end (or from a little before,
with its neighbours), and of the last layer only what the answer needs; cells of different layers
climb the stack in one batch. Where the first layer is softmax attention and one position of its
stream, queries, keys, values or z is patched, even there only what that changes is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from architectures import HookedStack
from architectures.block import Block
from architectures.mixers import FullAttention
from architectures.past import LayerState, ModelState, Past
from probes.one_position import (
    READ_BY_OTHERS,
    READ_THERE,
    Attended,
    attended,
    attends_alone,
    changes_one_position,
    stream_after,
)
from probes.patches import Patch, seen_from, writing
from probes.rows import chunks
from probes.running import added_hooks
from probes.sites import OF_ATTENTION, OF_THE_BLOCK, OF_THE_RULE, Site, is_pattern, replace_at

SEEN_LATER = (*READ_BY_OTHERS, *OF_THE_RULE)
"""What a mixer hands on to later positions: all else inside a layer stays at its own position."""

SEEN_THERE = (*READ_THERE, *OF_ATTENTION, "gate", "recurrence_out")

WORKING_COPIES = 16
"""Tensors of the size of a cell's residual stream that a block holds at a time, at most."""

KEPT_COPIES = 8
"""The same for each layer of the unpatched run."""

CACHED = 2**25
"""Bytes beyond which a larger batch no longer pays on a processor: it leaves the cache."""

ENOUGH_ROWS = 256
"""Rows of a batch beyond which more of them do not make a row cheaper."""


@dataclass(frozen=True)
class PlainRun:
    """What an unpatched run of some prompts leaves to its patched ones.

    Attributes:
        streams: the residual stream before every layer and after the last.
        logits: at the last position.
        attended: of layers in which patches at one position start, what the layer did.
    """

    streams: Sequence[Float[Tensor, "batch position d_model"]]
    logits: Float[Tensor, "batch value"]
    attended: dict[int, Attended] = field(default_factory=dict)


@torch.no_grad()
def climbing_runs(
    model: HookedStack,
    tokens: Tensor,
    patches: Sequence[Patch],
    batch: int,
    memory: int,
) -> Iterator[tuple[int, slice, Float[Tensor, "batch value"]]]:
    """The logits at the last position under every patch: number of the patch, prompts, logits."""
    count, length = tokens.shape
    last = model.config.n_layers - 1
    patches = [at_the_next_layer(patch, last) for patch in patches]
    heard = [i for i, patch in enumerate(patches) if reaches_the_answer(patch.site, length, last)]
    unheard = sorted(set(range(len(patches))) - set(heard))
    at_once = memory if tokens.device.type == "cuda" else min(memory, CACHED)
    row_bytes = 4 * length * _width(model, [patches[index].site for index in heard], length)
    fit = min(memory // (KEPT_COPIES * (last + 2)), at_once // WORKING_COPIES) // row_bytes
    batch = max(1, min(batch, count, fit))
    positions = at_once * length // (WORKING_COPIES * row_bytes * batch)
    single = [patches[i].site.layer for i in heard if changes_one_position(patches[i].site)]
    quick = {layer for layer in single if attends_alone(_block(model, layer))}
    groups = _groups([patches[index].site for index in heard], quick, length, positions, batch)
    for rows in chunks(count, batch):
        run = plain_run(model, tokens[rows], quick)
        yield from ((index, rows, run.logits) for index in unheard)
        state = None
        for begin, members in groups:
            state = state_at(model, run, begin, state)
            which = [heard[member] for member in members]
            climbing = [Patch(patches[index].site, patches[index].value[rows]) for index in which]
            yield from zip(
                which, [rows] * len(which), climb(model, run, state, climbing), strict=True
            )


def _width(model: HookedStack, sites: Sequence[Site], length: int) -> int:
    """Numbers that the widest tensor of a block holds for each position."""
    config = model.config
    widths = [config.d_model, config.n_heads * config.head_dimension]
    # A patched pattern makes its layer write the patterns of all cells.
    return max(*widths, config.n_heads * length if any(map(is_pattern, sites)) else 0)


def at_the_next_layer(patch: Patch, last_layer: int) -> Patch:
    """The same patch, of the stream before the next layer where it is of the one after a layer."""
    if patch.site.component != "resid_post" or patch.site.layer == last_layer:
        return patch
    site = replace(patch.site, component="resid_pre", layer=patch.site.layer + 1)
    return Patch(site, patch.value)


def _groups(
    sites: Sequence[Site], quick: set[int], length: int, positions: int, batch: int
) -> list[tuple[int, list[int]]]:
    """Which cells climb together, and from which position on; `positions` in all, at most.

    Left to right, so that the state before each group follows from the one before it. Where
    few prompts make small batches, cells that begin a little later start with the others: they
    compute up to an eighth of their positions in vain, which costs less than a climb of their own.
    """
    order = sorted(range(len(sites)), key=lambda index: begins_at(sites[index]))
    groups: list[tuple[int, list[int]]] = []
    for index in order:
        begin = begins_at(sites[index])
        if groups:
            first, members = groups[-1]
            exact = sites[index].component == "state"
            slack = 0 if exact or len(members) * batch >= ENOUGH_ROWS else (length - first) // 8
            room = (len(members) + 1) * (length - first) <= positions
            if begin <= first + slack and room:
                members.append(index)
                continue
        groups.append((begin, [index]))
    return [
        (begin, sorted(members, key=lambda index: _joins_at(sites[index], quick)))
        for begin, members in groups
    ]


def plain_run(model: HookedStack, tokens: Tensor, attending: set[int] | None = None) -> PlainRun:
    """An unpatched run, with what the layers in `attending` did."""
    last = model.config.n_layers - 1
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(last + 1)]
    names.append(f"blocks.{last}.hook_resid_post")
    inside: dict[int, list[str]] = {}
    for layer in sorted(attending or ()):
        turned = "rot_" if _block(model, layer).attn.rotary else ""
        parts = (f"{turned}q", f"{turned}k", "v", "z")
        inside[layer] = [f"blocks.{layer}.attn.hook_{part}" for part in parts]
    kept: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: HookPoint) -> None:
        assert hook.name is not None
        kept[hook.name] = value

    every = [*names, *(name for those in inside.values() for name in those)]
    with added_hooks(model, [(name, keep) for name in every]):
        logits = model(tokens)[:, -1]
    seen = {layer: attended(*(kept[name] for name in those)) for layer, those in inside.items()}
    return PlainRun([kept[name] for name in names], logits, seen)


def _block(model: HookedStack, layer: int) -> Block:
    block = model.blocks[layer]
    assert isinstance(block, Block)
    return block


def state_at(
    model: HookedStack, run: PlainRun, begin: int, state: ModelState | None = None
) -> ModelState:
    """The unpatched state after the positions before `begin`, from an earlier one if there is."""
    state = state or ModelState(0, tuple({} for _ in model.blocks))
    passed = state.position
    if begin == passed:
        return state
    layers: list[LayerState] = []
    for layer, (block, before) in enumerate(zip(model.blocks, state.layers, strict=True)):
        assert isinstance(block, Block)
        if layer in run.attended:
            seen = run.attended[layer]
            layers.append({"key": seen.key[:, :begin], "value": seen.value[:, :begin]})
            continue
        past = Past(passed, before)
        block.absorb(run.streams[layer][:, passed:begin], past)
        layers.append(past.kept)
    return ModelState(begin, tuple(layers))


def climb(
    model: HookedStack, run: PlainRun, state: ModelState, patches: Sequence[Patch]
) -> list[Float[Tensor, "batch value"]]:
    """Answers' logits of several patches that begin at one position, in one batch.

    Args:
        state: the unpatched model's after the positions before the patches.
        patches: ordered by the layer in whose batch they join.
    """
    begin, quick = state.position, set(run.attended)
    prompts, length = run.streams[0].shape[:2]
    residual = run.streams[0][:0, begin:]
    joins = [_joins_at(patch.site, quick) for patch in patches]
    joined = 0
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        inside: list[tuple[Patch, slice]] = []
        states: list[tuple[Patch, slice]] = []
        newcomers = [residual]
        while joined < len(patches) and joins[joined] == (layer, 0):
            patch, rows = patches[joined], slice(joined * prompts, (joined + 1) * prompts)
            newcomers.append(_entering(run.streams[layer][:, begin:], patch, begin))
            if patch.site.component == "state":
                states.append((patch, rows))
            elif patch.site.component != "resid_pre":
                inside.append((patch, rows))
            joined += 1
        last = layer + 1 == len(model.blocks)
        residual = torch.cat(newcomers) if len(newcomers) > 1 else residual
        if joined:
            past = _past_of_cells(state, layer, joined, states)
            with writing(model, inside, length):
                residual = block(residual, past, 1 if last and _single(inside) else None)
        if last:
            residual = residual[:, -1:]
        newcomers = [residual]
        while joined < len(patches) and joins[joined] == (layer, 1):
            around = run.streams[layer], run.streams[layer + 1]
            seen = run.attended[layer]
            newcomers.append(stream_after(model, layer, *around, seen, patches[joined], begin))
            joined += 1
        residual = torch.cat(newcomers) if len(newcomers) > 1 else residual
    if joined < len(patches):
        after = [_entering(run.streams[-1][:, begin:], patch, begin) for patch in patches[joined:]]
        residual = torch.cat([residual, *(each[:, -1:] for each in after)])
    return list(model.read_out(residual)[:, -1].split(prompts))


def _entering(stream: Tensor, patch: Patch, begin: int) -> Tensor:
    """The stream with which a cell joins: patched already where the patch is in the stream."""
    if patch.site.component not in ("resid_pre", "resid_post"):
        return stream
    return replace_at(stream, seen_from(patch.site, begin), patch.value)


def _past_of_cells(
    state: ModelState, layer: int, cells: int, patched: list[tuple[Patch, slice]]
) -> Past:
    """What came before, the same for every cell but for the recurrent states that are patched."""
    if not state.position:
        return Past(copies=cells)
    before = state.layers[layer]
    if not patched:
        return Past(state.position, before, copies=cells)
    tiled = {name: part.repeat(cells, *[1] * (part.dim() - 1)) for name, part in before.items()}
    for patch, rows in patched:
        tiled["state"][rows] = replace_at(tiled["state"][rows], patch.site, patch.value)
    return Past(state.position, tiled)


def _single(cells: list[tuple[Patch, slice]]) -> bool:
    return all(isinstance(patch.site.position, int) for patch, _ in cells)


def can_start_at(model: HookedStack, site: Site) -> bool:
    """Whether it is known what a patch there can change, and that can be computed alone."""
    if is_pattern(site) and site.position is not None:
        # It may look at keys that a window has let go of.
        attention = model.blocks[site.layer].attn
        assert isinstance(attention, FullAttention)
        return attention.window is None
    in_the_stream = site.component in (*OF_THE_BLOCK, "state")
    return in_the_stream or site.tensor in (*SEEN_LATER, *SEEN_THERE)


def begins_at(site: Site) -> int:
    """The first position that has to be computed anew."""
    if site.position is None:
        return 0
    first = min(site.position) if isinstance(site.position, tuple) else site.position
    return first + (site.component == "state")  # a state is read by the positions after it


def _joins_at(site: Site, quick: set[int]) -> tuple[int, int]:
    """The layer whose batch a cell joins: before it runs (0), or with its own result of it (1)."""
    if site.layer in quick and changes_one_position(site):
        return site.layer, 1
    return site.layer + (site.component == "resid_post"), 0


def reaches_the_answer(site: Site, length: int, last_layer: int) -> bool:
    """Whether causality lets a patch there change the last position's logits."""
    if site.component == "state":
        return begins_at(site) < length
    if site.layer < last_layer or site.position is None:
        return True
    places = site.position if isinstance(site.position, tuple) else (site.position,)
    looks_back = site.component == "resid_pre" or site.tensor in SEEN_LATER
    return looks_back or length - 1 in places
