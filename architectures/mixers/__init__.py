"""Sequence mixers. A new linear one is a file that makes `RecurrenceInputs`, and a row here.

`register_mixer` adds one for the time of a session, such as a class in a notebook.
"""

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
from composition import theory

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

_OURS = (*theory.FULL_KINDS, *theory.LINEAR_KINDS, *theory.WINDOWED_KINDS)


def register_mixer(name: str, mixer: type[RecurrentMixer]) -> None:
    """Let schedules name a mixer that is not in this package; the theory counts it as linear.

    Registered again under the same name, the newer one takes its place. Checkpoints with it load
    only where it has been registered: they hold the name, never the code. Processes that a sweep
    starts do not know it either, so train such models one by one.

    Args:
        name: what schedules call it.
        mixer: as `RecurrentMixer` says: `inputs`, `gate` and `read_out`.

    Raises:
        ValueError: the name of a layer that comes with hoptrace, or one that no schedule can spell.
    """
    if name in _OURS:
        raise ValueError(f"{name!r} is a layer that comes with hoptrace; choose another name")
    if not name or set(name) & set("+, "):
        raise ValueError(f"{name!r} cannot stand in a schedule: use a name without '+', ',' or ' '")
    MIXERS[name] = mixer
    if name not in theory.LINEAR_KINDS:
        theory.LINEAR_KINDS += (name,)


__all__ = [
    "MIXERS",
    "DeltaNet",
    "FullAttention",
    "LinearAttention",
    "MixerSizes",
    "RecurrentLayer",
    "ShortConvLayer",
    "register_mixer",
]
