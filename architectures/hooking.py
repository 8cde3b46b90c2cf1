"""What the forward pass asks of its hook points."""

from __future__ import annotations

from transformer_lens.hook_points import HookPoint


def is_watched(point: HookPoint) -> bool:
    """Whether any hook, TransformerLens' or torch's own, sees what passes this point."""
    return bool(
        point._forward_hooks
        or point._forward_pre_hooks
        or point._backward_hooks
        or point._backward_pre_hooks
    )
