"""Short causal convolutions over q, k and v: a position sees the few before it (one a channel)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from architectures.mixers.sizes import MixerSizes
from architectures.past import Past


def causal_convolution(
    x: Float[Tensor, "batch position channel"],
    weight: Float[Tensor, "width channel"],
    past: Past,
    name: str,
) -> Float[Tensor, "batch position channel"]:
    """`y_t = Σ_s weight_s ⊙ x_{t - width + 1 + s}`, zeros before the prompt's beginning.

    The positions before this piece are kept in `past` as `name`.
    """
    x = past.extend_with_zeros(name, x, weight.shape[0] - 1)
    return F.conv1d(x.mT, weight.mT[:, None], groups=x.shape[-1]).mT


class ShortConvolutions(nn.Module):
    """One convolution each for q, k and v, or none where the width is 0.

    Attributes:
        W_q, W_k, W_v: `[width, head · dimension]`; the last row is the position's own.
        b_q, b_k, b_v: `[head · dimension]`, where there is a bias.
    """

    def __init__(self, sizes: MixerSizes, bias: bool = False) -> None:
        super().__init__()
        self.width, self.bias = sizes.short_conv, bias
        for name, d in (("q", sizes.d_key), ("k", sizes.d_key), ("v", sizes.d_value)):
            if self.width:
                weight = torch.empty(self.width, sizes.heads * d)
                self.register_parameter(f"W_{name}", nn.Parameter(weight))
            if self.width and bias:
                zeros = torch.zeros(sizes.heads * d)
                self.register_parameter(f"b_{name}", nn.Parameter(zeros))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v `[batch, position, head, dimension]`, each convolved."""
        if not self.width:
            return q, k, v
        return self._one("q", q, past), self._one("k", k, past), self._one("v", v, past)

    def _one(self, name: str, x: Tensor, past: Past) -> Tensor:
        weight = getattr(self, f"W_{name}")
        y = causal_convolution(x.flatten(-2), weight, past, f"convolution_{name}")
        if self.bias:
            y = y + getattr(self, f"b_{name}")
        return y.unflatten(-1, x.shape[-2:])
