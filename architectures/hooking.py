"""What the forward pass asks of its hook points."""

from __future__ import annotations

from torch import nn


def is_watched(point: nn.Module) -> bool:
    """Whether any hook, TransformerLens' or torch's own, sees what passes this point."""
    return bool(
        point._forward_hooks
        or point._forward_pre_hooks
        or point._backward_hooks
        or point._backward_pre_hooks
    )
