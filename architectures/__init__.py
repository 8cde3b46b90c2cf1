"""Hooked models: one recurrence engine, the mixers on it, the stack, hand-set models."""

from architectures.checkpoints import CheckpointError, load_model, save_model
from architectures.config import ModelConfig
from architectures.effective_attention import effective_attention
from architectures.hand_set import hand_set_model
from architectures.mixers import register_mixer
from architectures.stack import HookedStack

__all__ = [
    "CheckpointError",
    "HookedStack",
    "ModelConfig",
    "effective_attention",
    "hand_set_model",
    "load_model",
    "register_mixer",
    "save_model",
]
