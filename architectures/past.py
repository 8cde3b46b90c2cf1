"""What a layer needs of the positions before the piece of a prompt that it is given."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

LayerState = dict[str, Tensor]
"""What one layer keeps between two pieces, by name; positions are axis 1 or folded into a state."""


@dataclass(frozen=True)
class ModelState:
    """Where a prompt was cut, and all that its later pieces need of the earlier ones.

    Attributes:
        position: number of positions that have passed.
        layers: for every layer its recurrent state, key-value cache, or convolution tails.
    """

    position: int
    layers: tuple[LayerState, ...]


class Past:
    """One layer's view of the pieces before, and what it keeps for the pieces to come.

    Attributes:
        position: number of positions before this piece.
        kept: the layer's state after this piece, filled while the layer runs.
        shared: whether several continuations share what came before. Attention then does not copy
            it, and keeps no more than the piece's own keys and values.

    Args:
        copies: how many times the piece has every prompt of the pieces before, one time after the
            other, where it shares them.
    """

    def __init__(
        self, position: int = 0, layer: LayerState | None = None, *, copies: int | None = None
    ) -> None:
        self.position = position
        self.kept: LayerState = {}
        self.shared = copies is not None
        self._copies = copies or 1
        self._layer = layer or {}

    def extend(self, name: str, x: Tensor, count: int | None = None) -> Tensor:
        """`x` with up to `count` earlier positions in front (all of them if None), kept as `name`.

        Raises:
            ValueError: a state whose shape does not go with `x`.
        """
        earlier = self._layer.get(name)
        if earlier is not None:
            rows = (self._copies * len(earlier),)
            if rows + earlier.shape[2:] != x.shape[:1] + x.shape[2:]:
                raise ValueError(
                    f"the state's {name} has shape {tuple(earlier.shape)}, which does not go "
                    f"before {tuple(x.shape)}; continue the prompts that the state came from"
                )
            shared = earlier.expand(self._copies, *earlier.shape)
            x = torch.cat([shared, x.unflatten(0, (self._copies, -1))], dim=2).flatten(0, 1)
        if count is None:
            self.kept[name] = x
        else:
            self.kept[name] = x[:, max(0, x.shape[1] - count) :]
        return x

    def extend_with_zeros(self, name: str, x: Tensor, count: int) -> Tensor:
        """`x` with exactly `count` positions in front, zeros before the prompt's beginning.

        Raises:
            ValueError: a state whose shape does not go with `x`.
        """
        extended = self.extend(name, x, count)
        missing = count + x.shape[1] - extended.shape[1]
        return F.pad(extended, (0, 0) * (x.dim() - 2) + (missing, 0))

    def recurrent_state(self) -> Tensor | None:
        """The recurrence's state after the piece before, `[batch, head, key, value]`."""
        state = self._layer.get("state")
        return state if state is None or self._copies == 1 else state.repeat(self._copies, 1, 1, 1)

    def earlier(self, name: str) -> Tensor | None:
        """What the pieces before kept under that name, once however many share it."""
        return self._layer.get(name)

    def by_copy(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "copy prompt ..."]:
        """A tensor of the piece, its rows sorted by the continuation that they are of."""
        return x.unflatten(0, (self._copies, -1))


def last_of(
    x: Float[Tensor, "batch position ..."], wanted: int | None
) -> Float[Tensor, "batch wanted ..."]:
    """The last `wanted` positions; all if None."""
    return x if wanted is None else x[:, x.shape[1] - wanted :]
