"""Path patching: what one component sends to another directly, past everything in between.

The sender has its donor value, every other mixer and MLP above it is held at its base value, and
what then arrives at a receiver differs through the residual stream alone. Put into the otherwise
unpatched base run, it shows what that one path is worth (arXiv 2211.00593, 2304.05969).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from probes.metrics import Metric
from probes.patched_runs import MEMORY
from probes.patches import replacing_hook
from probes.patching import PatchSweep, of_the_plain_run, sweep_values
from probes.rows import chunks
from probes.running import (
    Inputs,
    added_hooks,
    answer_logits,
    hook_point,
    rows_of,
    shape_of,
)
from probes.sites import Site, hook_name, keeping_hooks, n_layers, read, resolved


def path_sweep(
    model: nn.Module,
    base: Inputs,
    donor: Inputs,
    sender: Site,
    receivers: Sequence[Site],
    metric: Metric,
    *,
    batch: int = 1024,
    memory: int = MEMORY,
) -> PatchSweep:
    """Patch the direct path from a sender to each receiver, one at a time.

    Args:
        base: the run that is patched (corrupted prompts to denoise, clean ones to noise).
        donor: the run that the sender's value comes from.
        sender: what is sent from: a head's "z", "attn_out", "mlp_out", "resid_pre".
        receivers: what reads it: "q", "k" or "v" of a head above, "resid_post" of the last layer
            for the direct path to the logits, or "attn_out" or "mlp_out" for all that such a
            component makes of what it receives.

    Raises:
        ValueError: a receiver that is not above the sender, or a site that does not exist.
    """
    layers = n_layers(model)
    length = shape_of(base)[1]
    sender = resolved(sender, length)
    receivers = [resolved(receiver, length) for receiver in receivers]
    for receiver in receivers:
        if not _stands_above(receiver, sender):
            raise ValueError(f"nothing goes from {sender} to {receiver}: it is not above it")
    held = [
        Site(part, layer)
        for layer in range(sender.layer, layers)
        for part in ("attn_out", "mlp_out")
        if _stands_above(Site(part, layer), sender)
        and hook_point(model, f"blocks.{layer}.hook_{part}") is not None
    ]
    arrived: list[list[Tensor]] = [[] for _ in receivers]
    sent = read(model, donor, [sender], batch=batch)[0]
    for rows in chunks(shape_of(base)[0], batch):
        prompts = rows_of(base, rows)
        values = _received(model, prompts, sender, sent[rows], held, receivers)
        for parts, value in zip(arrived, values, strict=True):
            parts.append(value)
    return sweep_values(
        model,
        base,
        receivers,
        [torch.cat(parts) for parts in arrived],
        metric,
        donor=of_the_plain_run(model, donor, metric, batch)[0],
        batch=batch,
        memory=memory,
    )


@torch.no_grad()
def _received(
    model: nn.Module,
    prompts: Inputs,
    sender: Site,
    sent: Tensor,
    held: Sequence[Site],
    receivers: Sequence[Site],
) -> list[Tensor]:
    """What stands at the receivers when only the direct paths from the sender are changed."""
    found: dict[int, Tensor] = {}
    keepers = keeping_hooks([hook_name(model, site) for site in receivers], receivers, found)
    base = read(model, prompts, held)
    holders = [
        (hook_name(model, site), replacing_hook(site, value))
        for site, value in zip(held, base, strict=True)
    ]
    change = (hook_name(model, sender), replacing_hook(sender, sent))
    # What a receiver makes of its input is kept before it is held at its base value.
    with added_hooks(model, [change, *keepers, *holders]):
        answer_logits(model, prompts)
    return [found[index] for index in range(len(receivers))]


INSIDE_OF_THE_LAYER = {"resid_pre": 0, "attn_out": 2, "resid_mid": 3, "mlp_out": 4, "resid_post": 5}
"""In what order a layer computes; what is inside its mixer comes at 1."""


def _stands_above(site: Site, sender: Site) -> bool:
    first, second = (INSIDE_OF_THE_LAYER.get(each.component, 1) for each in (sender, site))
    if first == 1 and second == 2 and site.layer == sender.layer:
        return False  # the mixer's own output is what the sender is a part of
    return (sender.layer, first) < (site.layer, second)
