"""Multinomial logistic regression, for many sites and targets in one batch.

While the weights are zero, the Hessian is the features' covariance times the covariance of the
class rates, a Kronecker product. In its eigenbasis, each coordinate divided by the root of its
curvature, it is the identity: there L-BFGS starts with a Newton step, features of very different
variance cost it nothing, and half the squared gradient is about the loss still to be gained.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.linear import LinearProbes, RidgeStatistics
from probes.rows import blocks

HISTORY = 8
"""Steps that L-BFGS remembers."""

SMALLEST_RATE = 1e-6
"""Taken for the rate of a class that never occurs."""


@dataclass(frozen=True)
class LogisticFit:
    """Fitted probes and how near to the optimum they are.

    Attributes:
        probes: for every site and target.
        loss: `[site, target]`, what is minimised, in nats.
        gap: `[site, target]`, about how much loss is still to be gained, from the gradient.
        converged: `[site, target]`, whether the gap is within the tolerance of the loss.
        iterations: `[site, target]`, evaluations of the loss.
    """

    probes: LinearProbes
    loss: Float[Tensor, "site target"]
    gap: Float[Tensor, "site target"]
    converged: Bool[Tensor, "site target"]
    iterations: Int[Tensor, "site target"]


def fit_logistic(
    features: Float[Tensor, "site rows features"],
    labels: Int[Tensor, "*site target rows"],
    classes: int,
    *,
    penalty: float = 1e-3,
    iterations: int = 200,
    tolerance: float = 1e-4,
) -> LogisticFit:
    """Minimise mean cross-entropy + `penalty / 2 · v ‖W‖²`, v the mean variance of a feature.

    scikit-learn's `C` is `1 / (rows · penalty · v)`; the bias is not penalised. Curvature is
    gathered in float64, the steps are made in float32.

    Args:
        labels: `[target, rows]` if the sites have them in common, else `[site, target, rows]`.
            Many label sets on the same features are one site with many targets: nothing is copied.
        penalty: above 0; relative to the features' variance, as in `fit_ridge`.
        iterations: evaluations of the loss at most.
        tolerance: how much of the loss may be left to be gained.

    Warns:
        RuntimeWarning: some probes did not converge; `converged` says which.

    Raises:
        ValueError: shapes that do not fit each other, a label outside its classes, features that
            are not finite, or a penalty that is not above 0.
    """
    if not penalty > 0:
        raise ValueError(f"penalty is {penalty}, but separable classes need one above 0, say 1e-6")
    labels = labels.to(features.device)
    targets = labels.shape[-2] if labels.ndim > 1 else 1
    statistics = RidgeStatistics([classes] * targets)
    statistics.add(features, labels)
    path = statistics.path()
    variance = path.eigenvalues / statistics.count
    mean_variance = variance.mean(-1, keepdim=True) + statistics.rounding()
    mean_variance = mean_variance.where(mean_variance > 0, 1)
    scale = mean_variance.sqrt()[..., None]
    by_site = labels if labels.ndim == 3 else labels[None].expand(len(features), -1, -1)
    results = []
    mean = statistics.mean.to(features.dtype)
    for sites in blocks(len(features), features.shape[1] * max(features.shape[2], classes)):
        X = features[sites] - mean[sites, None]
        X = torch.cat([X, torch.ones_like(X[..., :1])], dim=-1).float()
        along_targets = []
        for some in blocks(targets, len(X) * X.shape[1] * classes):
            problem = _Problem(X, by_site[sites, some].mT[..., None])
            scores = slice(some.start * classes, some.stop * classes)
            rate = statistics.rate[sites if labels.ndim == 3 else slice(None), scores]
            coordinates = _Coordinates.at(
                rate.unflatten(-1, (-1, classes)),
                path.basis[sites] / scale[sites],
                variance[sites] / scale[sites, 0] ** 2,
                penalty,
            )
            along_targets.append(_minimise(problem, coordinates, iterations, tolerance))
        results.append([torch.cat(parts, dim=1) for parts in zip(*along_targets, strict=True)])
    weights, loss, gap, used = (torch.cat(parts) for parts in zip(*results, strict=True))
    converged = gap <= tolerance * loss
    if not converged.all():
        warnings.warn(
            f"{int((~converged).sum())} of {converged.numel()} logistic probes did not converge in "
            f"{iterations} iterations: up to {(gap / loss).max():.1e} of the loss may be left, and "
            f"{tolerance:.1e} is allowed; raise iterations or penalty",
            RuntimeWarning,
            stacklevel=2,
        )
    flat = weights.double().movedim(1, 2).flatten(2)
    weight = flat[:, :-1]
    bias = flat[:, -1] - (mean.double()[:, None] @ weight)[:, 0]
    probes = LinearProbes(weight, bias, statistics.classes)
    return LogisticFit(probes, loss, gap, converged, used)


@dataclass(frozen=True)
class _Problem:
    """Mean cross-entropy as a function of weights `[site, target, features, classes]`.

    Attributes:
        features: `[site, rows, features]`, the last of which is 1: its weights are the bias.
        labels: `[site, rows, target, 1]`.
    """

    features: Tensor
    labels: Tensor

    def log_probabilities(self, weights: Tensor) -> Float[Tensor, "site rows target classes"]:
        """Of every class in every row."""
        scores = self.features @ weights.movedim(1, 2).flatten(2)
        return scores.unflatten(-1, (weights.shape[1], -1)).log_softmax(-1)

    def loss_and_gradient(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """`[site, target]`, and the gradient in the weights' shape."""
        log_p = self.log_probabilities(weights)
        loss = -log_p.gather(-1, self.labels).squeeze(-1).double().mean(1)
        error = log_p.exp_().scatter_add_(-1, self.labels, -torch.ones_like(log_p[..., :1]))
        gradient = self.features.mT @ error.flatten(2) / error.shape[1]
        return loss, gradient.unflatten(-1, (error.shape[2], -1)).movedim(2, 1)


@dataclass(frozen=True)
class _Coordinates:
    """Coordinates in which the penalised loss curves alike in all directions at the origin.

    Attributes:
        features: `[site, 1, features, eigenvector]`, of the covariance; the bias by itself.
        classes: `[site, target, classes, eigenvector]`, of the covariance of the class rates.
        penalty: `[features, 1]`, zero for the bias.
        stretch: `[site, target, features, classes]`, one over the root of the curvature.
        origin: `[site, target, features, classes]`, the bias that gives every class its rate.
    """

    features: Tensor
    classes: Tensor
    penalty: Tensor
    stretch: Tensor
    origin: Tensor

    @staticmethod
    def at(rate: Tensor, basis: Tensor, variance: Tensor, penalty: float) -> _Coordinates:
        """Those where the classes have their rates `[site, target, classes]` in every row."""
        rate = rate.clamp_min(SMALLEST_RATE)
        curvature = torch.diag_embed(rate) - rate[..., None] * rate[..., None, :]
        # A number added to all scores changes nothing: that direction comes last, and stays still.
        curvatures, classes = torch.linalg.eigh(curvature + 1)
        with_bias = F.pad(basis, (0, 1, 0, 1))
        with_bias[:, -1, -1] = 1
        penalties = F.pad(torch.full_like(variance[0], penalty), (0, 1))[:, None]
        variances = F.pad(variance, (0, 1), value=1.0)[:, None, :, None]
        stretch = (variances * curvatures[..., None, :] + penalties).rsqrt()
        stretch[..., -1] = 0
        origin = torch.zeros_like(stretch)
        origin[..., -1, :] = rate.log()
        return _Coordinates(
            with_bias[:, None].float(),
            classes.float(),
            penalties.float(),
            stretch.float(),
            origin.float(),
        )

    def weights(self, place: Tensor) -> Tensor:
        """The weights at a place; at 0 they are the origin."""
        return self.features @ (place * self.stretch) @ self.classes.mT + self.origin

    def loss_and_gradient(self, problem: _Problem, place: Tensor) -> tuple[Tensor, Tensor]:
        """The penalised loss `[site, target]` and its gradient with respect to the place."""
        loss, gradient = problem.loss_and_gradient(self.weights(place))
        pulled = self.penalty * place * self.stretch
        loss = loss + (pulled * place * self.stretch).double().sum((-2, -1)) / 2
        return loss, (self.features.mT @ gradient @ self.classes + pulled) * self.stretch


def _minimise(
    problem: _Problem, coordinates: _Coordinates, iterations: int, tolerance: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """L-BFGS from the origin: weights, loss, gap and evaluations, for every problem by itself.

    Every evaluation serves all problems; one whose step did not lower its loss enough goes
    back and tries a shorter one, one that has converged stays where it is.
    """
    place = torch.zeros_like(coordinates.stretch)
    loss, gradient = coordinates.loss_and_gradient(problem, place)
    direction = -gradient
    gap = _dot(gradient, gradient) / 2
    used = torch.ones_like(gap, dtype=torch.int64)
    length = torch.ones_like(gap)
    pairs: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=HISTORY)
    flatness = torch.ones_like(gap)
    active = torch.ones_like(gap, dtype=torch.bool)
    for _ in range(iterations - 1):
        active = active & (gap > tolerance * loss)
        if not active.any():
            break
        used += active
        slope = _dot(gradient, direction)
        step = (length * active)[..., None, None] * direction
        new_loss, new_gradient = coordinates.loss_and_gradient(problem, place + step)
        rounding = 1e-7 * (1 + loss.abs())
        accepted = active & (new_loss <= loss + 1e-4 * length * slope + rounding)
        moved = accepted[..., None, None]
        change = (new_gradient - gradient).where(moved, 0)
        step = step.where(moved, 0)
        curvature = _dot(step, change)
        usable = curvature > 1e-10 * _dot(step, step)
        pairs.append((step, change, torch.where(usable, 1 / curvature, 0)))
        # The minimum of the parabola through what is known, where a step went too far.
        parabola = -slope * length**2 / (2 * (new_loss - loss - slope * length))
        shorter = torch.nan_to_num(parabola, nan=0.0).clamp(0.1 * length, 0.5 * length)
        length = torch.where(accepted, 1.0, shorter).float()
        place = place + step
        loss, gradient = torch.where(accepted, new_loss, loss), gradient + change
        flatness = torch.where(usable, (curvature / _dot(change, change)).clamp_min(1), flatness)
        direction = -_times_inverse_hessian(gradient, pairs, flatness)
        left = torch.maximum(_dot(gradient, gradient), -_dot(gradient, direction)) / 2
        gap = torch.where(active, left, gap)
    return coordinates.weights(place), loss, gap, used


def _times_inverse_hessian(
    vector: Tensor, pairs: Sequence[tuple[Tensor, Tensor, Tensor]], flatness: Tensor
) -> Tensor:
    """L-BFGS' two loops; a pair whose last entry is 0 changes nothing."""
    amounts = []
    for step, change, inverse in reversed(pairs):
        amount = inverse * _dot(step, vector)
        vector = vector - amount[..., None, None] * change
        amounts.append(amount)
    vector = flatness[..., None, None] * vector
    for (step, change, inverse), amount in zip(pairs, reversed(amounts), strict=True):
        again = inverse * _dot(change, vector)
        vector = vector + (amount - again)[..., None, None] * step
    return vector


def _dot(a: Tensor, b: Tensor) -> Float[Tensor, "site target"]:
    return (a * b).sum((-2, -1))
