"""Attribution patching: a gradient's guess at every cell of a patching sweep, and how good it is.

To first order, patching a site changes the metric by `∂metric/∂activation · (donor - base)`: one
forward and one backward pass for all sites (arXiv 2310.10348). Where a softmax or a sigmoid is
saturated the gradient is 0 while the patch decides the answer: always compare with real patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from probes.metrics import Metric
from probes.patching import Direction, PatchSweep, base_and_donor
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
from probes.sites import Site, hook_name, read, resolved, select, states_of


def attribution(
    model: nn.Module,
    clean: Inputs,
    corrupted: Inputs,
    sites: Sequence[Site],
    metric: Metric,
    *,
    direction: Direction = "denoise",
    batch: int = 256,
) -> Float[Tensor, "site prompt"]:
    """The change of the metric that patching each site should make, to first order.

    Args:
        others: as for `patch_sweep`, whose `values - base` this estimates.

    Raises:
        ValueError: as for `patch_sweep`.
    """
    base, donor = base_and_donor(clean, corrupted, direction)
    length = shape_of(base)[1]
    sites = [resolved(site, length) for site in sites]
    estimates = []
    for rows in chunks(shape_of(base)[0], batch):
        there = _with_gradients(model, rows_of(base, rows), sites, metric, rows)
        given = read(model, rows_of(donor, rows), sites)
        estimates.append(
            torch.stack(
                [
                    ((new - old) * gradient).reshape(len(new), -1).sum(1)
                    for (old, gradient), new in zip(there, given, strict=True)
                ]
            )
        )
    return torch.cat(estimates, dim=1)


@torch.enable_grad()
def _with_gradients(
    model: nn.Module, inputs: Inputs, sites: Sequence[Site], metric: Metric, rows: slice
) -> list[tuple[Tensor, Tensor]]:
    """Every site's activation and the metric's gradient there."""
    seen: dict[str, Tensor] = {}

    def keeper(name: str) -> HookFunction:
        def keep(value: Tensor, hook: HookPoint) -> Tensor:
            seen[name] = value if value.requires_grad else value.clone().requires_grad_()
            return seen[name]

        return keep

    with opened_states(model, states_of(sites)):
        names = [hook_name(model, site) for site in sites]
        with added_hooks(model, [(name, keeper(name)) for name in dict.fromkeys(names)]):
            total = metric(answer_logits(model, inputs), rows).sum()
    kept = list(seen)
    for name, site in zip(names, sites, strict=True):
        if name not in seen:
            raise ValueError(f"{site} was never computed: the hook {name} did not fire")
    gradients = torch.autograd.grad(total, [seen[name] for name in kept], allow_unused=True)
    by_name = {
        name: torch.zeros_like(seen[name]) if gradient is None else gradient
        for name, gradient in zip(kept, gradients, strict=True)
    }
    return [
        (select(seen[name], site).detach(), select(by_name[name], site))
        for name, site in zip(names, sites, strict=True)
    ]


@dataclass(frozen=True)
class Agreement:
    """How far an attribution can be believed, against real patches of the same sites.

    Attributes:
        correlation: Pearson's, over sites, of the mean estimated and the mean real change; NaN
            where one of them is constant.
        explained: 1 - Σ(real - estimate)² / Σ real²: 1 is exact, 0 no better than guessing
            "no effect" everywhere, below 0 is worse than that.
        missed: sites with a real change above half of the largest, and an estimate below a tenth
            of the real one.
    """

    correlation: float
    explained: float
    missed: tuple[Site, ...]


def agreement(sweep: PatchSweep, estimate: Float[Tensor, "site prompt"]) -> Agreement:
    """Compare an attribution with a sweep of the same sites and prompts.

    Raises:
        ValueError: an estimate of other sites or prompts.
    """
    if estimate.shape != sweep.values.shape:
        raise ValueError(
            f"the estimate is of {tuple(estimate.shape)} sites and prompts, the sweep of "
            f"{tuple(sweep.values.shape)}"
        )
    real, guess = sweep.change.double(), estimate.double().mean(1)
    whole = real.square().sum()
    explained = 1 - (real - guess).square().sum() / whole if whole > 0 else torch.tensor(1.0)
    large = real.abs() > real.abs().max() / 2
    missed = large & (guess * real.sign() < real.abs() / 10)
    return Agreement(
        correlation=torch.corrcoef(torch.stack([real, guess]))[0, 1].item(),
        explained=float(explained),
        missed=tuple(site for site, miss in zip(sweep.sites, missed.tolist(), strict=True) if miss),
    )
