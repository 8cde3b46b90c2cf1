"""The sizes and options that every linear mixer is built from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MixerSizes:
    """What a linear mixer may ask about itself.

    Attributes:
        d_model: width of the residual stream.
        heads, d_key, d_value: each head has a state `[d_key, d_value]`.
        short_conv: width of the causal convolutions on q, k and v; 0 for none.
        negative_eigenvalues: β of the delta rules in (0, 2) instead of (0, 1).
    """

    d_model: int
    heads: int
    d_key: int
    d_value: int
    short_conv: int = 0
    negative_eigenvalues: bool = False
