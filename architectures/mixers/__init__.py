"""Sequence mixers. A new linear one is a file that makes `RecurrenceInputs`, and a row here."""

from architectures.mixers.deltanet import DeltaNet
from architectures.mixers.full_attention import FullAttention
from architectures.mixers.gated_deltanet import GatedDeltaNet
from architectures.mixers.gla import GatedLinearAttention
from architectures.mixers.kda import KimiDeltaAttention
from architectures.mixers.linear_attention import LinearAttention
from architectures.mixers.mamba2 import Mamba2
from architectures.mixers.mlstm import MLSTM
from architectures.mixers.recurrent_layer import RecurrentLayer, RecurrentMixer
from architectures.mixers.retnet import RetNet
from architectures.mixers.rwkv7 import RWKV7
from architectures.mixers.short_conv_layer import ShortConvLayer
from architectures.mixers.sizes import MixerSizes

MIXERS: dict[str, type[RecurrentMixer]] = {
    "linear": LinearAttention,
    "retnet": RetNet,
    "gla": GatedLinearAttention,
    "deltanet": DeltaNet,
    "gated-deltanet": GatedDeltaNet,
    "kda": KimiDeltaAttention,
    "mamba2": Mamba2,
    "rwkv7": RWKV7,
    "mlstm": MLSTM,
}
"""Linear mixers on the recurrence engine, by their name in a schedule."""

__all__ = [
    "MIXERS",
    "DeltaNet",
    "FullAttention",
    "LinearAttention",
    "MixerSizes",
    "RecurrentLayer",
    "ShortConvLayer",
]
