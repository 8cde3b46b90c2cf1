"""Hooked models: one recurrence engine, the mixers on it, the stack, hand-set models."""

from architectures.config import ModelConfig
from architectures.stack import HookedStack

__all__ = ["HookedStack", "ModelConfig"]
