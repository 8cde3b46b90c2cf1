"""Models whose weights are written down: they solve the task exactly, by a known mechanism.

They are ordinary `HookedStack`s, so a probe or a patch that does not find the mechanism in
them is wrong. The residual stream is laid out in fields (`_Fields`) that hold values in binary;
every layer moves a value from one field at one position to another field at another position.
A value among N takes `2 log2 N` numbers of 0 or 1, so that width, heads and precision stay
polylogarithmic in the prompt's length, as the theorems' constructions have to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from architectures.block import Block
from architectures.config import ModelConfig
from architectures.mixers import DeltaNet, FullAttention, LinearAttention, RecurrentLayer
from architectures.stack import HookedStack
from composition import CompositionTask

Construction = Literal["full", "full-twin", "early-linear", "linear-first"]

SHARPNESS = 40.0
"""Score for one matching bit: what a softmax leaves to a non-match is e^-40 of it."""

ROLE_WEIGHT = 64.0
"""A position's role outweighs all bits it holds, so only entries of the right function compete."""


@torch.no_grad()
def hand_set_model(
    task: CompositionTask,
    construction: Construction,
    *,
    mixer: str = "deltanet",
    layers: Sequence[int | None] | None = None,
) -> HookedStack:
    """A stack of L + 1 layers that answers every prompt of `task` exactly.

    Args:
        task: the task itself (with its query, backward), of any size.
        construction: how the hops are divided.
            "full": L + 1 full layers. Layer 1 carries `z_0` to the answer position, layer
            l + 1 looks up `z_l` there (arXiv 2412.02975).
            "full-twin": as many full layers. Layer 1 looks up `z_1` at the start position,
            layer 2 carries `i_1` to the answer position, the others look up.
            "early-linear": "full-twin" with a linear layer for the carrying: L full layers
            and one linear layer suffice.
            "linear-first": a linear layer carries `z_0` to the answer position, L full layers
            look up: "full" with a linear layer for the carrying.
        mixer: "deltanet" or "linear", the linear layer of the last two.
        layers: which of the construction's layers stand where, None for a full layer that writes
            nothing. `(0, None, 1, 2)` makes every hop after the first layer one layer later and
            answers as exactly; `(0, 2, 1)` looks up z_2 before it has i_1; `(0, 1)` never looks
            it up. A tool has to tell these from one another. All in order if None.

    Raises:
        ValueError: an ablation of the task, an unknown construction, mixer or layer.
    """
    if not task.query or task.order != "backward":
        raise ValueError(
            "hand-set weights exist for the task itself, not for its ablations: "
            "use query=True and order='backward'"
        )
    lookups = ("full",) * (task.hops - 1)
    schedules = {
        "full": ("full", "full", *lookups),
        "full-twin": ("full", "full", *lookups),
        "early-linear": ("full", mixer, *lookups),
        "linear-first": (mixer, "full", *lookups),
    }
    if construction not in schedules:
        raise ValueError(
            f"unknown construction {construction!r}; use one of {', '.join(schedules)}"
        )
    if mixer not in ("deltanet", "linear"):
        raise ValueError(f"no hand-set weights for mixer {mixer!r}; use deltanet or linear")

    schedule = schedules[construction]
    chosen = range(len(schedule)) if layers is None else layers
    for layer in chosen:
        if layer is not None and not 0 <= layer < len(schedule):
            raise ValueError(
                f"layers asks for layer {layer}, but the construction has 0 … {len(schedule) - 1} "
                "(None is a layer that writes nothing)"
            )
    fields = _Fields.of(task)
    config = ModelConfig(
        task=task,
        schedule=tuple("full" if layer is None else schedule[layer] for layer in chosen),
        d_model=fields.width,
        n_heads=1,
        d_head=fields.head_width,
        linear_heads=1,
        d_key=1,
        d_value=_width(fields.value),
        normalization="none",
    )
    model = HookedStack(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 or name.endswith("b_beta"):
            parameter.zero_()
    _set_embedding(model, fields)
    for layer, block in zip(chosen, model.blocks, strict=True):
        assert isinstance(block, Block)
        if layer is not None:
            _set_layer(block.mixers[0], fields, construction, layer)
    model.unembed[fields.hop(task.hops)] = 10.0 * _binary(task.n_values).T
    return model.eval()


def _set_layer(mixer: nn.Module, fields: _Fields, construction: Construction, layer: int) -> None:
    """The weights of one layer of a construction."""
    query, start = fields.roles["query"], fields.roles["start"]
    if layer == 0 and construction == "full":
        _set_attention(mixer, fields, looks={query: start}, reads=fields.value, writes=0)
    elif layer == 0 and construction == "linear-first":
        _set_carrier(mixer, fields, reads=fields.value, writes=0)
    elif layer == 0:
        looks = {start: fields.roles["z1"], query: query}
        _set_attention(mixer, fields, looks, reads=fields.value, writes=1, matches=[fields.value])
    elif layer == 1 and construction == "early-linear":
        _set_carrier(mixer, fields, reads=fields.hop(1), writes=1)
    elif layer == 1 and construction == "full-twin":
        _set_attention(mixer, fields, {query: start}, reads=fields.hop(1), writes=1)
    else:
        hop = layer
        looks = {query: fields.roles[f"z{hop}"], start: start}
        matches = [fields.hop(hop - 1)] + ([fields.query_part(hop - 1)] if hop > 1 else [])
        _set_attention(mixer, fields, looks, fields.value, writes=hop, matches=matches)


@dataclass(frozen=True)
class _Fields:
    """Fields of the residual stream, and of the space that queries and keys share.

    value, query, role: what a token is (roles are one-hot, the others binary). argument,
    selector: the value and the query part that index an entry. hop(l): where `i_l` is kept
    once it is known.
    """

    task: CompositionTask
    roles: dict[str, int]
    value: slice
    query: slice
    role: slice
    argument: slice
    selector: slice
    hops: slice

    @classmethod
    def of(cls, task: CompositionTask) -> _Fields:
        values = _binary(task.n_values).shape[1]
        parts = sum(_binary(n).shape[1] for n in task.branching)
        widths = (values, parts, len(task.roles), values, parts, (task.hops + 1) * values)
        ends = list(accumulate(widths, initial=0))
        slices = [slice(begin, end) for begin, end in pairwise(ends)]
        return cls(task, {role: index for index, role in enumerate(task.roles)}, *slices)

    @property
    def width(self) -> int:
        return self.hops.stop

    @property
    def head_width(self) -> int:
        """Queries and keys meet in: role, argument, selector."""
        return len(self.roles) + _width(self.argument) + _width(self.selector)

    def hop(self, hop: int) -> slice:
        begin = self.hops.start + hop * _width(self.value)
        return slice(begin, begin + _width(self.value))

    def query_part(self, part: int) -> slice:
        """Where `w_part` is kept inside `query`, for part 1 … L - 1."""
        widths = [_binary(n).shape[1] for n in self.task.branching]
        begin = self.query.start + sum(widths[: part - 1])
        return slice(begin, begin + widths[part - 1])


def _binary(count: int) -> Tensor:
    """`[count, 2 · bits]`: every number's bits and their complements.

    Two numbers agree in as many ones as they have equal bits, and only a number itself reaches
    all of them: a dot product tells equality.
    """
    bits = max(1, (count - 1).bit_length())
    ones = torch.tensor([[number >> bit & 1 for bit in range(bits)] for number in range(count)])
    return torch.cat([ones, 1 - ones], dim=1).float()


def _width(field: slice) -> int:
    return field.stop - field.start


def _set_embedding(model: HookedStack, fields: _Fields) -> None:
    embed, task = model.embed, fields.task
    embed.value[:, fields.value] = _binary(task.n_values)
    row = 0
    for part, n in enumerate(task.branching, start=1):
        embed.query[row : row + n, fields.query_part(part)] = _binary(n)
        row += n
    embed.role[:, fields.role] = torch.eye(len(fields.roles))
    embed.argument_map[fields.value, fields.argument] = torch.eye(_width(fields.value))
    embed.argument_map[fields.query, fields.selector] = torch.eye(_width(fields.query))


def _set_attention(
    attn: nn.Module,
    fields: _Fields,
    looks: dict[int, int],
    reads: slice,
    writes: int,
    matches: list[slice] | None = None,
) -> None:
    """A head that fetches one entry's field.

    Args:
        looks: for positions of which role, entries of which role are looked at.
        reads: the field fetched from there.
        writes: the hop whose field it is put into.
        matches: fields of the looking position that the entry's argument (a field of values)
            or selector (a query part) has to equal.
    """
    assert isinstance(attn, FullAttention)
    W_Q, W_K, W_V, W_O = attn.W_Q[0], attn.W_K[0], attn.W_V[0], attn.W_O[0]
    roles, values = len(fields.roles), _width(fields.value)
    argument, selector = slice(roles, roles + values), slice(roles + values, fields.head_width)
    W_K[fields.role, :roles] = torch.eye(roles)
    W_K[fields.argument, argument] = torch.eye(values)
    W_K[fields.selector, selector] = torch.eye(_width(selector))
    strength = SHARPNESS * fields.head_width**0.5  # undoes attention's 1 / sqrt(d_head)
    for looking, seen in looks.items():
        W_Q[fields.role.start + looking, seen] = ROLE_WEIGHT * strength
    for field in matches or []:
        size = _width(field)
        inside_query = fields.query.start <= field.start < fields.query.stop
        begin = selector.start + field.start - fields.query.start if inside_query else roles
        W_Q[field, begin : begin + size] = strength * torch.eye(size)
    W_V[reads, :values] = torch.eye(values)
    W_O[:values, fields.hop(writes)] = torch.eye(values)


def _set_carrier(layer: nn.Module, fields: _Fields, reads: slice, writes: int) -> None:
    """A linear layer that brings a field from the start position to the answer position.

    Only the start position writes into the state; only the answer position reads it.
    """
    assert isinstance(layer, RecurrentLayer)
    mixer, values = layer.mixer, _width(fields.value)
    start = fields.role.start + fields.roles["start"]
    query = fields.role.start + fields.roles["query"]
    gain = 1.0
    if isinstance(mixer, DeltaNet):
        # The large numbers saturate SiLU and sigmoid; the norms undo them.
        mixer.W_K[0, start, 0] = mixer.W_Q[0, query, 0] = mixer.W_beta[start, 0] = SHARPNESS
        mixer.W_V[0, reads] = SHARPNESS * torch.eye(values)
        gain = 2**-0.5  # half of a code's numbers are 1: its root mean square is sqrt(1 / 2)
    else:
        assert isinstance(mixer, LinearAttention)
        _only_at(mixer.W_K[0, :, 0], fields, start)
        _only_at(mixer.W_Q[0, :, 0], fields, query)
        mixer.W_V[0, reads] = torch.eye(values)
    layer.W_O[0, :, fields.hop(writes)] = gain * torch.eye(values)


def _only_at(weights: Tensor, fields: _Fields, position: int) -> None:
    """Under elu + 1, a weight on `position`'s role and next to nothing on every other."""
    weights[fields.role] = -SHARPNESS
    weights[position] = 1.0
