"""A softmax layer in which one position has changed, without running it again everywhere.

In the first layer that a patch reaches, the streams of all other positions are what they were.
Their queries are too, and so are all keys and values but one. A later query then needs only its
product with the old key and with the new one: the old key's share is taken out of what it read,
and the new one's put in. Taking out a share close to one would cancel, so what every query reads
without the key that it looks at most is kept beside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from architectures import HookedStack
from architectures.block import Block
from architectures.mixers import FullAttention
from architectures.mixers.projections import for_every_head, from_heads
from architectures.past import Past
from probes.patches import Patch, seen_from, writing
from probes.rows import chunks
from probes.sites import Site, replace_at

READ_BY_OTHERS = ("k", "v", "rot_k")
READ_THERE = ("q", "rot_q", "z")
IN_THE_STREAM = ("resid_mid", "attn_out", "mlp_out")

SCORES = 2**20
"""Entries of the patterns that are computed at a time: they are not kept."""


@dataclass(frozen=True)
class Attended:
    """What an unpatched softmax layer did.

    Attributes:
        key, value: `[batch, position, key-value head, d_head]`, as the queries met them.
        query, z: `[batch, head, position, d_head]`.
    """

    key: Float[Tensor, "batch position kv_head d_head"]
    value: Float[Tensor, "batch position kv_head d_head"]
    query: Float[Tensor, "batch head position d_head"]
    z: Float[Tensor, "batch head position d_head"]

    @cached_property
    def reading(self) -> Reading:
        """What a changed key can change; computed when the first one is met."""
        heads, length, d_head = self.query.shape[1:]
        keys, values = (
            for_every_head(x, heads, dim=-2).transpose(1, 2) for x in (self.key, self.value)
        )
        hidden = torch.ones(length, length, dtype=torch.bool, device=keys.device).triu(1)
        found: list[tuple[Tensor, ...]] = []
        for rows in chunks(len(keys), max(1, SCORES // (heads * length**2))):
            scores = self.query[rows] @ keys[rows].mT / math.sqrt(d_head)
            scores = scores.masked_fill_(hidden, -math.inf)
            total, most = scores.logsumexp(-1), scores.argmax(-1)
            scores = scores.scatter_(-1, most[..., None], -math.inf)
            # The first position has one key only, but no key before it can change either.
            without = scores.softmax(-1) @ values[rows]
            found.append((total, most, without, scores.logsumexp(-1)))
        return Reading(*(torch.cat(part) for part in zip(*found, strict=True)))


@dataclass(frozen=True)
class Reading:
    """How the queries of an unpatched layer divide what they read.

    Attributes:
        total: `[batch, head, position]`, logarithm of the sum of the exponentiated scores.
        most: the key that the query looks at most, `[batch, head, position]`.
        z_without_it, total_without_it: z and total if that key were not there.
    """

    total: Float[Tensor, "batch head position"]
    most: Int[Tensor, "batch head position"]
    z_without_it: Float[Tensor, "batch head position d_head"]
    total_without_it: Float[Tensor, "batch head position"]


def attends_alone(block: Block) -> bool:
    """Whether the layer is softmax attention over everything, and nothing beside it."""
    mixers = block.mixers
    return len(mixers) == 1 and isinstance(mixers[0], FullAttention) and mixers[0].window is None


def changes_one_position(site: Site) -> bool:
    """Whether a patch there leaves the layer's other queries, keys and values as they were."""
    inside = site.component in IN_THE_STREAM or site.tensor in (*READ_BY_OTHERS, *READ_THERE)
    return isinstance(site.position, int) and (inside or site.component == "resid_pre")


def attended(q: Tensor, k: Tensor, v: Tensor, z: Tensor) -> Attended:
    """From what the layer's hooks saw, `[batch, position, head, d_head]` each."""
    # Every head by itself in memory: their products with single queries then need no copy.
    q, k, v, z = (x.transpose(1, 2).contiguous() for x in (q, k, v, z))
    return Attended(k.transpose(1, 2), v.transpose(1, 2), q, z)


def reading_again(
    layer: Attended, position: int, key: Tensor, value: Tensor, first: int
) -> Float[Tensor, "batch query head d_head"]:
    """z of the queries from `first` on, all after `position`, with another key and value there.

    Args:
        key, value: `[batch, key-value head, d_head]`.
    """
    reading = layer.reading
    heads, scale = layer.query.shape[1], 1 / math.sqrt(layer.query.shape[-1])
    old_and_new = [
        torch.stack(
            [for_every_head(x, heads, dim=-2) for x in pair], dim=2
        )  # [batch, head, 2, d_head]
        for pair in ((layer.key[:, position], key), (layer.value[:, position], value))
    ]
    later = slice(first, None)
    scores = layer.query[:, :, later] @ (scale * old_and_new[0]).mT
    scores = scores - reading.total[:, :, later, None]
    looks_there = reading.most[:, :, later] == position
    share = scores[..., 0].exp().masked_fill(looks_there, 0.0)
    few = looks_there.nonzero(as_tuple=True)
    without = torch.log1p(-share)
    without[few] = (reading.total_without_it - reading.total)[:, :, later][few]
    new_share = torch.sigmoid(scores[..., 1] - without)
    kept = (1 - new_share) / (1 - share)
    z = layer.z[:, :, later] * kept[..., None]
    z[few] = reading.z_without_it[:, :, later][few] * kept[few][:, None]
    z = torch.baddbmm(
        z.flatten(0, 1),
        torch.stack([-kept * share, new_share], dim=-1).flatten(0, 1),
        old_and_new[1].flatten(0, 1),
    ).unflatten(0, kept.shape[:2])
    return z.transpose(1, 2)


def stream_after(
    model: HookedStack,
    layer: int,
    before: Float[Tensor, "batch position d_model"],
    after: Float[Tensor, "batch position d_model"],
    seen: Attended,
    patch: Patch,
    begin: int,
) -> Float[Tensor, "batch position d_model"]:
    """The stream after a softmax layer of which a patch changes one position.

    Args:
        before, after: the unpatched stream around the layer, all positions.
        begin: first position of the result. Of the stack's last layer it is the answer alone.
    """
    block = model.blocks[layer]
    assert isinstance(block, Block)
    position = patch.site.position
    assert isinstance(position, int)
    here = before[:, position : position + 1]
    earlier = {"key": seen.key[:, :position], "value": seen.value[:, :position]}
    past = Past(position, earlier, copies=1)
    inside = []
    if patch.site.component == "resid_pre":
        here = replace_at(here, seen_from(patch.site, position), patch.value)
    else:
        inside = [(patch, slice(0, len(here)))]
    with writing(model, inside, position + 1):
        here = block(here, past)
    length = before.shape[1]
    first = length - 1 if layer + 1 == len(model.blocks) else position + 1
    if position + 1 == length:
        later = after[:, length:]
    elif patch.site.component == "resid_pre" or patch.site.tensor in READ_BY_OTHERS:
        key, value = past.kept["key"][:, -1], past.kept["value"][:, -1]
        z = reading_again(seen, position, key, value, first)
        later = block.add(before[:, first:], from_heads(z, block.attn.W_O))
    else:
        later = after[:, first:]
    if layer + 1 == len(model.blocks):
        return torch.cat([here, later], dim=1)[:, -1:]
    return torch.cat([after[:, begin:position], here, later], dim=1)
