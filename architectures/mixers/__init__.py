"""Sequence mixers. A new linear one is a file that makes `RecurrenceInputs`, and a row here."""

from architectures.mixers.deltanet import DeltaNet
from architectures.mixers.full_attention import FullAttention
from architectures.mixers.linear_attention import LinearAttention
from architectures.mixers.recurrent_layer import RecurrentLayer, RecurrentMixer

MIXERS: dict[str, type[RecurrentMixer]] = {
    "linear": LinearAttention,
    "deltanet": DeltaNet,
}
"""Linear mixers by their name in a schedule."""

__all__ = ["MIXERS", "DeltaNet", "FullAttention", "LinearAttention", "RecurrentLayer"]
