"""Linear probes: what a layer's residual stream says about a value, in closed form.

A ridge regression to one-hot labels, read by argmax. All labels of one site share one
factorisation of its Gram matrix, so a floor from shuffled labels costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class RidgeProbe:
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


def fit_ridge(
    features: Float[Tensor, "batch features"],
    labels: list[Int[Tensor, " batch"]],
    classes: list[int],
    *,
    ridge: float = 1e-3,
) -> list[RidgeProbe]:
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
    for label, count in zip(labels, classes, strict=True):
        if label.shape != (len(features),):
            raise ValueError(
                f"labels have shape {tuple(label.shape)}, but features have {len(features)} rows"
            )
        if not 0 <= int(label.min()) <= int(label.max()) < count:
            raise ValueError(
                f"labels range over {int(label.min())} … {int(label.max())}, but there are "
                f"{count} classes: 0 … {count - 1}"
            )
    if not features.isfinite().all():
        raise ValueError("features hold values that are not finite: no probe can be fitted to them")
    X = features.double()
    mean = X.mean(0)
    X = X - mean
    gram = X.mT @ X
    smallest = torch.finfo(X.dtype).tiny  # so that features that never vary give a zero probe
    penalty = max(ridge * gram.diagonal().mean().item(), smallest)
    factor = torch.linalg.cholesky(gram + penalty * torch.eye(len(gram), dtype=X.dtype))
    Y = torch.cat([F.one_hot(y, n).double() for y, n in zip(labels, classes, strict=True)], dim=1)
    base_rate = Y.mean(0)
    weight = torch.cholesky_solve(X.mT @ (Y - base_rate), factor)
    bias = base_rate - mean @ weight
    return [
        RidgeProbe(w, b)
        for w, b in zip(weight.split(classes, dim=1), bias.split(classes), strict=True)
    ]
