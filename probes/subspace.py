"""Interchange of a subspace: which directions of a site carry a value.

The donor's activation replaces the base's only inside the subspace: `base + (donor - base) B Bᵀ`
with an orthonormal basis B. The basis comes from a probe's own directions, or is learned so that
the exchange moves the answer (distributed alignment search, arXiv 2303.02536; linear only, since a
nonlinear map finds any algorithm in any network, arXiv 2507.08802). Random bases of the same
dimension and an untrained model are the controls.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from probes.frames import tidy
from probes.interchange import InterchangePairs, interchange_at
from probes.patched_runs import patched_once
from probes.patches import Patch
from probes.sites import Site, read

if TYPE_CHECKING:
    import pandas as pd


def exchanged(
    base: Float[Tensor, "*batch features"],
    donor: Float[Tensor, "*batch features"],
    basis: Float[Tensor, "features dimension"],
) -> Float[Tensor, "*batch features"]:
    """The base's activation with the donor's inside the subspace.

    Raises:
        ValueError: activations of different shapes, or a basis of another number of features.
    """
    if base.shape != donor.shape or base.shape[-1] != len(basis):
        raise ValueError(
            f"base {tuple(base.shape)}, donor {tuple(donor.shape)} and basis {tuple(basis.shape)} "
            "must agree in their features, and base and donor in everything"
        )
    return base + (donor - base) @ basis @ basis.T


def span(directions: Float[Tensor, "features any"]) -> Float[Tensor, "features dimension"]:
    """An orthonormal basis of what the directions span, such as a probe's `weight`.

    Directions of one another's span, as those of the classes of a probe whose weights sum to
    nothing, count once.

    Raises:
        ValueError: directions that are all zero.
    """
    left, values, _ = torch.linalg.svd(directions.double(), full_matrices=False)
    kept = values > values.max() * 1e-6
    if not values.max() > 0:
        raise ValueError("the directions are all zero: they span nothing")
    return left[:, kept].to(torch.get_default_dtype())


def random_subspace(
    features: int, dimension: int, generator: torch.Generator
) -> Float[Tensor, "features dimension"]:
    """A uniformly random subspace: the control for one that was found.

    Raises:
        ValueError: more dimensions than features.
    """
    _check_dimension(features, dimension)
    return torch.linalg.qr(torch.randn(features, dimension, generator=generator))[0]


@dataclass(frozen=True)
class Alignment:
    """A subspace that was learned to carry `i_hop` at a site.

    Attributes:
        basis: `[features, dimension]`, orthonormal.
        losses: the cross-entropy of every step, in nats; the basis is that of the lowest.
    """

    site: Site
    hop: int
    basis: Float[Tensor, "features dimension"]
    losses: tuple[float, ...]

    def to_frame(self) -> pd.DataFrame:
        """A row for each step of the search: `step` (from 0), `loss` before it, in nats."""
        losses = torch.tensor(self.losses, dtype=torch.float64)
        return tidy({"step": range(len(losses))}, {"loss": losses})


def align(
    model: nn.Module,
    pairs: InterchangePairs,
    site: Site,
    hop: int,
    dimension: int,
    *,
    steps: int = 200,
    batch: int = 256,
    learning_rate: float = 0.03,
    seed: int = 0,
) -> Alignment:
    """Learn a subspace whose exchange makes the model answer as if `i_hop` were the donor's.

    Args:
        pairs: to learn from; measure on others.
        site: one position of the residual stream, a head's output, or whatever has its features
            on the last axis.
        dimension: of the subspace.
        steps, batch, learning_rate: of Adam on a matrix whose QR factor is the basis.

    Raises:
        ValueError: a hop that is not on the chain, or more dimensions than features.
    """
    if not 0 <= hop < pairs.predictions.shape[1] - 1:
        raise ValueError(f"hop {hop} has no prediction: use 0 … {pairs.predictions.shape[1] - 2}")
    donated = read(model, pairs.donor.tokens, [site])[0]
    own = read(model, pairs.base.tokens, [site])[0]
    _check_dimension(own.shape[-1], dimension)
    free = _first_guess(own, donated, pairs, hop, dimension, seed).requires_grad_()
    optimiser = torch.optim.Adam([free], lr=learning_rate)
    run = patched_once(model, pairs.base.tokens, site, batch=batch)
    losses: list[float] = []
    best = free.detach().clone()
    for rows, answer in islice(cycle(run), steps):
        with torch.enable_grad():
            basis = torch.linalg.qr(free)[0]
            value = exchanged(own[rows], donated[rows], basis)
            loss = F.cross_entropy(answer(Patch(site, value)), pairs.predictions[rows, hop])
            (free.grad,) = torch.autograd.grad(loss, [free])
        if loss.item() < min(losses, default=float("inf")):
            best = free.detach().clone()  # Adam wanders off where the loss is almost 0
        losses.append(loss.item())
        optimiser.step()
    return Alignment(site, hop, torch.linalg.qr(best)[0], tuple(losses))


def _first_guess(
    own: Tensor, donated: Tensor, pairs: InterchangePairs, hop: int, dimension: int, seed: int
) -> Float[Tensor, "features dimension"]:
    """Where activations and values of `i_hop` vary together, and a little noise.

    From a random start, saturated softmaxes further up leave no gradient to follow.
    """
    classes = int(torch.stack([pairs.base.chain[:, hop], pairs.donor.chain[:, hop]]).max()) + 1
    here, there = (F.one_hot(p.chain[:, hop], classes).to(own) for p in (pairs.base, pairs.donor))
    together = (donated - own).flatten(0, -2).T @ (there - here)
    generator = torch.Generator().manual_seed(seed)
    noise = random_subspace(len(together), dimension, generator).to(own)
    left, values, _ = torch.linalg.svd(together, full_matrices=False)
    left = left[:, :dimension] * (values[:dimension] > 1e-6 * values.max().clamp_min(1e-30))
    noise[:, : left.shape[1]] = left + 0.03 * noise[:, : left.shape[1]]
    return noise


@dataclass(frozen=True)
class SubspaceInterchange:
    """Interchange accuracy of one hop in a subspace, beside its controls; all from 0 to 1.

    Attributes:
        accuracy: of the subspace.
        whole: of the whole site.
        random: of random subspaces of the same dimension, on average.
        untrained: of a subspace learned in the same way on an untrained model; None if none was
            given.
    """

    accuracy: float
    whole: float
    random: float
    untrained: float | None


def subspace_interchange(
    model: nn.Module,
    pairs: InterchangePairs,
    site: Site,
    hop: int,
    basis: Float[Tensor, "features dimension"],
    *,
    untrained: float | None = None,
    seed: int = 0,
    draws: int = 5,
) -> SubspaceInterchange:
    """Measure a subspace on pairs that it was not learned from.

    Args:
        untrained: the accuracy that the same search reached on untrained weights, to stand
            beside the others.
        seed, draws: of the random subspaces.
    """
    own, donated = (read(model, p.tokens, [site])[0] for p in (pairs.base, pairs.donor))
    generator = torch.Generator().manual_seed(seed)
    features, dimension = basis.shape
    others = [random_subspace(features, dimension, generator) for _ in range(draws)]
    bases = [basis, *(other.to(basis) for other in others)]
    values = [exchanged(own, donated, each) for each in bases]
    shares = interchange_at(model, pairs, [site] * (draws + 2), [donated, *values])[:, hop]
    return SubspaceInterchange(
        shares[1].item(), shares[0].item(), shares[2:].mean().item(), untrained
    )


def _check_dimension(features: int, dimension: int) -> None:
    if not 1 <= dimension <= features:
        raise ValueError(f"dimension {dimension} of {features} features: use 1 … {features}")
