"""Linear probes in closed form: what features say about labels, for many sites and targets at once.

One pass over the rows gathers a site's Gram matrix; one eigendecomposition of it gives, for every
target and every penalty, the ridge solution and the linear discriminant. Rows are never kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.rows import BLOCK, blocks, check_rows, finite_mean, score_numbers

TINY = torch.finfo(torch.float64).tiny
"""The least penalty, with which features that are all zero give a zero probe."""

STRIP = 64
"""Rows of the Gram matrix at a time: what is left of its diagonal follows from symmetry."""


@dataclass(frozen=True)
class LinearProbe:
    """An affine map from features to scores of the classes.

    Attributes:
        weight: `[features, classes]`.
        bias: `[classes]`.
    """

    weight: Float[Tensor, "features classes"]
    bias: Float[Tensor, " classes"]

    def predict(self, features: Float[Tensor, "batch features"]) -> Int[Tensor, " batch"]:
        """The class with the highest score."""
        return (features.to(self.weight.dtype) @ self.weight + self.bias).argmax(-1)

    def accuracy(
        self, features: Float[Tensor, "batch features"], labels: Int[Tensor, " batch"]
    ) -> float:
        """Share of rows whose label is predicted."""
        return (self.predict(features) == labels).double().mean().item()


@dataclass(frozen=True)
class LinearProbes:
    """A probe for every target at every site, the scores of all targets side by side.

    Attributes:
        weight: `[site, features, scores]`; scores are the classes of the first target, then those
            of the second, and so on.
        bias: `[site, scores]`.
        classes: how many each target has.
    """

    weight: Float[Tensor, "site features scores"]
    bias: Float[Tensor, "site scores"]
    classes: tuple[int, ...]

    def probe(self, site: int, target: int) -> LinearProbe:
        """The probe of one target at one site."""
        begin = sum(self.classes[:target])
        scores = slice(begin, begin + self.classes[target])
        return LinearProbe(self.weight[site][:, scores], self.bias[site][scores])

    def first(self, targets: int) -> LinearProbes:
        """Those of the first targets alone."""
        classes = self.classes[:targets]
        scores = sum(classes)
        return LinearProbes(self.weight[..., :scores], self.bias[..., :scores], classes)

    def everywhere(self, site: int) -> LinearProbes:
        """One site's probes at all sites; nothing is copied."""
        weight, bias = self.weight[site].expand_as(self.weight), self.bias[site]
        return LinearProbes(weight, bias.expand_as(self.bias), self.classes)

    def predict(
        self, features: Float[Tensor, "site rows features"]
    ) -> Int[Tensor, "site target rows"]:
        """The class with the highest score: `[site, target, rows]`."""
        parts = []
        for rows in blocks(features.shape[1], len(features) * sum(self.classes)):
            scores = torch.baddbmm(
                self.bias[:, None], features[:, rows].to(self.weight.dtype), self.weight
            )
            by_target = scores.split(self.classes, dim=-1)
            parts.append(torch.stack([target.argmax(-1) for target in by_target], dim=1))
        return torch.cat(parts, dim=-1)

    def hits(
        self,
        features: Float[Tensor, "site rows features"],
        labels: Int[Tensor, "*site target rows"],
    ) -> Int[Tensor, "site target"]:
        """In how many rows each target's label is predicted at each site."""
        return (self.predict(features) == labels.to(features.device)).sum(-1)


class RidgeStatistics:
    """What all linear probes need to know of the rows, gathered chunk by chunk in float64.

    Chunks are centred by their own means and merged as Chan, Golub and LeVeque do (1983), so an
    offset common to all rows costs no digits.

    Attributes:
        count: rows so far.
        mean: `[site, features]`.
        rate: `[site or 1, scores]`, the share of rows in each class, target after target.
        gram: `[site, features, features]`, the sum of `(x - mean)(x - mean)ᵀ`.
        cross: `[site, features, scores]`, the sum of `(x - mean)(y - rate)ᵀ` with y one-hot.
    """

    def __init__(self, classes: Sequence[int]):
        self.classes = tuple(classes)
        self.count = 0
        self.mean = self.rate = self.gram = self.cross = torch.zeros(0, dtype=torch.float64)

    def add(
        self,
        features: Float[Tensor, "site rows features"],
        labels: Int[Tensor, "*site target rows"],
    ) -> None:
        """Take rows into account.

        Args:
            labels: `[target, rows]` if the sites have them in common, else `[site, target, rows]`.

        Raises:
            ValueError: shapes that do not fit each other or the rows before, a label outside its
                classes, or features that are not finite.
        """
        check_rows(features, labels, self.classes)
        centre = finite_mean(features)
        sites, rows, width = features.shape
        if self.count and self.mean.shape != (sites, width):
            raise ValueError(
                f"{sites} sites of {width} features follow {len(self.mean)} sites of "
                f"{self.mean.shape[1]}; every chunk must have the same sites"
            )
        scores = score_numbers(labels.to(features.device), self.classes)
        if not self.count:
            zero = torch.zeros(1, dtype=torch.float64, device=features.device)
            self.mean = zero.expand(sites, width).clone()
            self.rate = zero.expand(len(scores), sum(self.classes)).clone()
            self.gram = zero.expand(sites, width, width).clone()
            self.cross = zero.expand(sites, width, sum(self.classes)).clone()
        numbers = scores.flatten(1)
        rate = torch.zeros_like(self.rate)
        rate.scatter_add_(1, numbers, torch.full_like(numbers, 1 / rows, dtype=rate.dtype))
        mean = self._sum_products(features, scores, centre.double(), rate)
        weight = self.count * rows / (self.count + rows)
        shift, drift = mean - self.mean, (rate - self.rate)
        self.gram.baddbmm_(weight * shift[:, :, None], shift[:, None])
        self.cross += weight * shift[:, :, None] * drift[:, None]
        self.count += rows
        self.mean += shift * (rows / self.count)
        self.rate += drift * (rows / self.count)

    def _sum_products(
        self, features: Tensor, scores: Tensor, centre: Tensor, rate: Tensor
    ) -> Float[Tensor, "site features"]:
        """Add the chunk's own products, a few sites and rows at a time; its mean.

        `centre` is the mean as the features' own precision has it; what is left is corrected.
        """
        sites, rows, width = features.shape
        widest = max(width, sum(self.classes))
        left = torch.zeros_like(centre)
        memory = centre.new_empty(min(features.numel(), max(BLOCK, width)))
        for some in blocks(sites, rows * widest):
            own = some if len(rate) == sites else slice(None)
            for part in blocks(rows, widest * (some.stop - some.start)):
                x = features[some, part]
                X = memory[: x.numel()].view(x.shape)  # fresh pages cost as much as the product
                torch.sub(x, centre[some, None], out=X)
                y = scores[own, part]
                Y = (-rate[own, None]).repeat(1, y.shape[1], 1)
                Y.scatter_add_(-1, y, torch.ones_like(y, dtype=Y.dtype))
                for first in range(0, width, STRIP):
                    strip = X[:, :, first : first + STRIP].mT
                    self.gram[some, first : first + STRIP, first:].baddbmm_(strip, X[:, :, first:])
                self.cross[some].baddbmm_(X.mT, Y.expand(len(X), -1, -1))
                left[some] += X.sum(1)
        self.gram.baddbmm_(left[:, :, None], left[:, None], alpha=-1 / rows)
        self.gram.copy_(self.gram.triu() + self.gram.triu(1).mT)
        return centre + left / rows

    def rounding(self) -> Float[Tensor, "site 1"]:
        """What rounding of their means can leave of the variance of features that never vary."""
        eps = torch.finfo(self.mean.dtype).eps
        return (64 * eps * self.mean).square().mean(-1, keepdim=True)

    def path(self) -> RidgePath:
        """The eigendecomposition of every Gram matrix, from which all penalties are solved.

        Raises:
            ValueError: no rows were added.
        """
        if not self.count:
            raise ValueError("no rows were added: a probe needs at least one")
        eigenvalues, basis = torch.linalg.eigh(self.gram)
        return RidgePath(self, eigenvalues.clamp_min(0), basis, basis.mT @ self.cross)


@dataclass(frozen=True)
class RidgePath:
    """Probes of every penalty, from one eigendecomposition of each site's Gram matrix.

    A penalty is relative to the mean variance of a feature: it stands for
    `λ = penalty · trace(XᵀX) / features`.

    Attributes:
        eigenvalues: `[site, features]`, of the Gram matrix.
        basis: `[site, features, eigenvector]`.
        projected: `[site, eigenvector, scores]`, the cross-products in that basis.
    """

    statistics: RidgeStatistics
    eigenvalues: Float[Tensor, "site features"]
    basis: Float[Tensor, "site features features"]
    projected: Float[Tensor, "site features scores"]

    def ridge(self, penalty: float) -> LinearProbes:
        """`(XᵀX + λ I)⁻¹ XᵀY` with X and the one-hot Y centred, as scores of the classes."""
        known = self.statistics
        weight = self._solve(penalty)
        return LinearProbes(weight, known.rate - _product(known.mean, weight), known.classes)

    def discriminant(self, penalty: float) -> LinearProbes:
        """The linear discriminant: log posteriors of Gaussian classes that share a covariance.

        That covariance is the scatter within classes plus λ, over the number of rows. With C the
        cross-products, R the ridge weights and D the inverse class sizes, its solution is
        `n R (I - D CᵀR)⁻¹ D` (Woodbury), so it needs no other factorisation. Unlike ridge it does
        not hide a class that lies between others, nor favour frequent ones beyond their rate.
        """
        known = self.statistics
        size = (known.count * known.rate).clamp_min(0.5)  # a class that never occurs
        weight = self._solve(penalty)
        weights = []
        columns = (x.split(known.classes, dim=-1) for x in (weight, known.cross, size))
        for R, C, n in zip(*columns, strict=True):
            inner = torch.eye(n.shape[-1], dtype=R.dtype, device=R.device) - C.mT @ R / n[..., None]
            inverse_size = torch.diag_embed(1 / n).expand_as(inner)
            weights.append(known.count * R @ torch.linalg.solve(inner, inverse_size))
        weight = torch.cat(weights, dim=-1)
        bias = (size / known.count).log() - (weight * known.cross).sum(1) / (2 * size)
        return LinearProbes(weight, bias - _product(known.mean, weight), known.classes)

    def _solve(self, penalty: float) -> Float[Tensor, "site features scores"]:
        known, width = self.statistics, self.eigenvalues.shape[-1]
        ridge = penalty * self.eigenvalues.sum(-1, keepdim=True) / width
        smallest = known.count * known.rounding()
        shrunk = self.eigenvalues + torch.maximum(ridge, smallest).clamp_min(TINY)
        return self.basis @ (self.projected / shrunk[..., None])


def fit_ridge(
    features: Float[Tensor, "batch features"],
    labels: list[Int[Tensor, " batch"]],
    classes: list[int],
    *,
    ridge: float = 1e-3,
) -> list[LinearProbe]:
    """One probe for each set of labels, from one factorisation.

    Solves `(XᵀX + λ I) W = XᵀY` in float64 with X and the one-hot Y centred and
    `λ = ridge · trace(XᵀX) / features`. Features keep their scale: dividing each by its
    deviation would blow rounding noise in constant ones up to the size of signals.

    Args:
        labels, classes: for each probe its labels and how many there are to tell apart.
        ridge: penalty relative to the mean variance of a feature.

    Raises:
        ValueError: rows of features and labels that differ in number, a label outside its
            classes, or features that are not finite.
    """
    for label in labels:
        if label.shape != (len(features),):
            raise ValueError(
                f"labels have shape {tuple(label.shape)}, but features have {len(features)} rows"
            )
    statistics = RidgeStatistics(classes)
    statistics.add(features[None], torch.stack(labels))
    probes = statistics.path().ridge(ridge)
    return [probes.probe(0, target) for target in range(len(classes))]


def _product(mean: Tensor, weight: Tensor) -> Tensor:
    """`mean @ weight` at every site: `[site, scores]`."""
    return (mean[:, None] @ weight)[:, 0]
