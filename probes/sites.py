"""Sites: where in a model something is read or replaced, as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from architectures.mixers.recurrent_layer import RECURRENCE_TENSORS
from probes.rows import chunks
from probes.running import (
    HookFunction,
    Inputs,
    added_hooks,
    answer_logits,
    hook_point,
    opened_states,
    rows_of,
    shape_of,
)

OF_THE_RULE = tuple(name for name in RECURRENCE_TENSORS if name not in ("q", "k", "v"))
OF_THE_BLOCK = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
OF_THE_MIXER = ("q", "k", "v", "z")
OF_ATTENTION = ("attn_scores", "pattern")


@dataclass(frozen=True, order=True)
class Site:
    """A component of one layer, at one position or several, of one head or all.

    Attributes:
        component: "resid_pre", "resid_mid", "resid_post", "attn_out" (the mixer's output, of
            whatever kind), "mlp_out"; "q", "k", "v", "z" of the layer's mixer; "attn_scores" and
            "pattern" of a softmax layer, whose position is the query's; "state", a linear layer's
            recurrent state after the position; or what follows `blocks.{layer}.` in a hook's name,
            such as "linear_attn.hook_beta".
        layer: 0 for the first.
        position: counted from the end where negative; several in a tuple; None for all.
        head: of components that have heads; None for all. Of "k" and "v" a key-value head.
    """

    component: str
    layer: int
    position: int | tuple[int, ...] | None = None
    head: int | None = None

    @property
    def tensor(self) -> str:
        """What the hook sees, whosever it is: "q" of "q" and of "attn.hook_q" alike."""
        return self.component.rpartition("hook_")[2]

    def __str__(self) -> str:
        place = "" if self.position is None else f", position {self.position}"
        head = "" if self.head is None else f", head {self.head}"
        return f"{self.component} of layer {self.layer}{place}{head}"


def hook_name(model: nn.Module, site: Site) -> str:
    """The name of the hook that sees the site.

    Raises:
        ValueError: the model has none, or two mixers side by side that the site could mean.
    """
    block = f"blocks.{site.layer}."
    if site.component == "state":
        if not isinstance(site.position, int):
            raise ValueError(f"{site}: a state is the one after a position; give that position")
        return f"{block}linear_attn.hook_state.{site.position}"
    if site.component in OF_THE_BLOCK:
        names = [f"{block}hook_{site.component}"]
    elif site.component in OF_ATTENTION:
        names = [f"{block}attn.hook_{site.component}"]
    elif site.component in OF_THE_MIXER:
        names = [f"{block}{mixer}.hook_{site.component}" for mixer in ("attn", "linear_attn")]
    else:
        names = [block + site.component]
    found = [name for name in names if hook_point(model, name) is not None]
    if not found:
        raise ValueError(f"{type(model).__name__} has no {site}: no hook {' or '.join(names)}")
    if len(found) > 1:
        raise ValueError(
            f"{site} is ambiguous: two mixers stand side by side; name the component "
            + " or ".join(name.removeprefix(block) for name in found)
        )
    return found[0]


def n_layers(model: nn.Module) -> int:
    """Number of blocks.

    Raises:
        ValueError: a model without `blocks`.
    """
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        raise ValueError(
            f"{type(model).__name__} has no layers with hooks named as in "
            "TransformerLens, such as blocks.0.hook_resid_pre"
        )
    return len(blocks)


def grid(
    model: nn.Module,
    inputs: Inputs,
    component: str,
    *,
    layers: Iterable[int] | None = None,
    positions: Iterable[int | tuple[int, ...] | None] | None = None,
    heads: Iterable[int | None] | None = None,
) -> list[Site]:
    """All sites of a component: layer by layer, position by position, head by head.

    Args:
        inputs: prompts of the length to be swept; one of them is run, to see the shapes.
        layers: those that have the component if None.
        positions: each one if None; `[None]` for all of them at once.
        heads: each one if None, where the component has heads; `[None]` for all at once.

    Raises:
        ValueError: no layer has the component.
    """
    length = shape_of(inputs)[1]
    places = list(range(length)) if positions is None else list(positions)
    anywhere = 0 if component == "state" else None
    found = []
    reasons = []
    for layer in range(n_layers(model)) if layers is None else layers:
        whole = Site(component, layer, anywhere)
        try:
            value = read(model, rows_of(inputs, slice(0, 1)), [whole])[0]
        except ValueError as error:
            if layers is not None:
                raise
            reasons.append(str(error))
            continue
        each: Sequence[int | None] = [None]
        if component == "state":
            each = range(value.shape[1])
        elif has_heads(whole, value):
            each = range(value.shape[2])
        chosen = each if heads is None else list(heads)
        found += [Site(component, layer, place, head) for place in places for head in chosen]
    if not found:
        raise ValueError(f"no layer has the component {component!r}: {reasons[0]}")
    return found


def has_heads(site: Site, value: Tensor) -> bool:
    """Whether the site's tensor has an axis of heads after that of positions."""
    if site.tensor in OF_THE_RULE:
        return True
    named = (*OF_THE_MIXER, *OF_ATTENTION, "rot_q", "rot_k", "gate", "recurrence_out")
    return site.tensor in named and value.dim() == 4  # a convolution has q, v, z, but no heads


def select(value: Tensor, site: Site) -> Tensor:
    """What stands at the site, in the tensor that its hook sees.

    `[batch, …]`, with an axis of positions unless the site has one position, and one of heads
    where the component has heads and the site is all of them.
    """
    by_position, index = _index(value, site)
    return by_position[index]


def replace_at(value: Tensor, site: Site, new: Tensor) -> Tensor:
    """A copy of the tensor that the site's hook sees, with `new` at the site.

    Raises:
        ValueError: `new` has not exactly the shape of what stands there.
    """
    by_position, index = _index(value.clone(), site)
    check_shape(site, new, by_position[index].shape)
    by_position[index] = new.to(value.dtype)
    return by_position.transpose(1, 2) if is_pattern(site) else by_position


def check_shape(site: Site, new: Tensor, expected: Sequence[int]) -> None:
    """Raise a ValueError unless the value has exactly the shape of what stands at the site."""
    if tuple(new.shape) != tuple(expected):
        raise ValueError(
            f"{tuple(new.shape)} cannot replace {tuple(expected)} at {site}: a patch has exactly "
            "the shape of what stands there, one row a prompt"
        )


def read(
    model: nn.Module, inputs: Inputs, sites: Sequence[Site], *, batch: int = 1024
) -> list[Tensor]:
    """What stands at every site: for each one `[prompt, …]` as `select` gives it.

    The tensors are copies: nothing that happens later changes them.

    Raises:
        ValueError: a site that the model does not have, or whose hook does not fire.
    """
    count = shape_of(inputs)[0]
    parts: list[list[Tensor]] = [[] for _ in sites]
    for rows in chunks(count, batch):
        for part, value in zip(parts, _read_once(model, rows_of(inputs, rows), sites), strict=True):
            part.append(value)
    return [part[0] if len(part) == 1 else torch.cat(part) for part in parts]


@torch.no_grad()
def _read_once(model: nn.Module, inputs: Inputs, sites: Sequence[Site]) -> list[Tensor]:
    length = shape_of(inputs)[1]
    sites = [resolved(site, length) for site in sites]
    with opened_states(model, states_of(sites)):
        names = [hook_name(model, site) for site in sites]
        found: dict[int, Tensor] = {}
        with added_hooks(model, keeping_hooks(names, sites, found)):
            answer_logits(model, inputs)
    for index, site in enumerate(sites):
        if index not in found:
            raise ValueError(f"{site} was never computed: the hook {names[index]} did not fire")
    return [found[index] for index in range(len(sites))]


def keeping_hooks(
    names: Sequence[str], sites: Sequence[Site], found: dict[int, Tensor]
) -> list[tuple[str, HookFunction]]:
    """A hook for every name, which puts copies of what stands at its sites into `found`.

    Args:
        names: of the sites' hooks, one a site.
        found: by the number of the site.
    """
    by_name: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        by_name.setdefault(name, []).append(index)

    def keeper(indices: list[int]) -> HookFunction:
        def keep(value: Tensor, hook: HookPoint) -> None:
            for index in indices:
                there = select(value, sites[index]).detach()
                # A copy: no later in-place operation may reach it.
                found[index] = there.clone(memory_format=torch.contiguous_format)

        return keep

    return [(name, keeper(indices)) for name, indices in by_name.items()]


def resolved(site: Site, length: int) -> Site:
    """The site with its positions counted from the beginning.

    Raises:
        ValueError: a position outside the prompt.
    """
    if site.position is None:
        return site
    several = site.position if isinstance(site.position, tuple) else (site.position,)
    for position in several:
        if not -length <= position < length:
            raise ValueError(
                f"{site} is outside prompts of {length} positions: use 0 … {length - 1}, or "
                f"-1 … {-length} from the end"
            )
    counted = tuple(position % length for position in several)
    place = counted if isinstance(site.position, tuple) else counted[0]
    return Site(site.component, site.layer, place, site.head)


def states_of(sites: Iterable[Site]) -> dict[int, set[int]]:
    """The positions whose states are among the sites, by layer."""
    wanted: dict[int, set[int]] = {}
    for site in sites:
        if site.component == "state" and isinstance(site.position, int):
            wanted.setdefault(site.layer, set()).add(site.position)
    return wanted


def is_pattern(site: Site) -> bool:
    """Whether the site's tensor is `[batch, head, query, key]`."""
    return site.tensor in OF_ATTENTION


def _index(value: Tensor, site: Site) -> tuple[Tensor, tuple[Any, ...]]:
    """The tensor with positions on axis 1 and heads on axis 2, and where the site is in it."""
    if site.component == "state":
        return value, (slice(None),) if site.head is None else (slice(None), site.head)
    by_position = value.transpose(1, 2) if is_pattern(site) else value
    place: Any = slice(None) if site.position is None else site.position
    if isinstance(place, tuple):
        place = list(place)
    if site.head is None:
        return by_position, (slice(None), place)
    if not has_heads(site, by_position):
        raise ValueError(f"{site}: {site.component} has no heads there")
    if not 0 <= site.head < by_position.shape[2]:
        raise ValueError(f"{site} is outside the {by_position.shape[2]} heads that are there")
    return by_position, (slice(None), place, site.head)
