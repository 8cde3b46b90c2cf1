"""What a stack is made of, as data: frozen, checked, and the same after a trip through JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from composition import SOFTMAX_KINDS, CompositionTask, check_schedule, parts
from composition.task import PositiveInteger

if TYPE_CHECKING:
    from architectures.mixers import MixerSizes


class ModelConfig(BaseModel):
    """Everything that fixes a `HookedStack` up to its weights.

    Args:
        task: what the prompts look like; the embedding is laid out after it.
        schedule: kinds of the layers, first to last, such as `("full", "deltanet", "full")`;
            "full+mamba2" is a layer with both side by side.
        d_model: width of the residual stream.
        n_heads: heads of a full-attention or sliding layer.
        n_kv_heads: their key-value heads, each shared by `n_heads / n_kv_heads` heads; as many
            as heads if None.
        d_head: their dimension; `d_model / n_heads` if None.
        window: positions that a query of a sliding layer sees, its own included.
        positions: "rotary" turns queries and keys of full and sliding layers by their position;
            "none" leaves them what the embedding says.
        d_mlp: hidden width of the MLP after each mixer; 0 for none.
        linear_heads, d_key, d_value: heads of a linear layer, and the two sides of each
            head's recurrent state `[d_key, d_value]`.
        short_conv: width of causal convolutions on q, k and v of linear layers; 0 for none.
            The published DeltaNets, KDA and Mamba-2 have 4.
        negative_eigenvalues: β in (0, 2) for the layers with a delta rule.
        normalization: "rms" normalises what every mixer, MLP and the unembedding read;
            "none" reads the residual stream as it is.

    Raises:
        pydantic.ValidationError: an unknown field or layer, a size below its minimum, or
            heads that do not divide the width.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: CompositionTask
    schedule: tuple[str, ...]
    d_model: PositiveInteger = 64
    n_heads: PositiveInteger = 4
    n_kv_heads: PositiveInteger | None = None
    d_head: PositiveInteger | None = None
    window: PositiveInteger = 16
    positions: Literal["none", "rotary"] = "none"
    d_mlp: Annotated[int, Field(ge=0)] = 0
    linear_heads: PositiveInteger = 1
    d_key: PositiveInteger = 16
    d_value: PositiveInteger = 16
    short_conv: Annotated[int, Field(ge=0)] = 0
    negative_eigenvalues: bool = False
    normalization: Literal["rms", "none"] = "rms"

    @field_validator("schedule")
    @classmethod
    def _every_kind_can_be_built(cls, schedule: tuple[str, ...]) -> tuple[str, ...]:
        from architectures.mixers import MIXERS  # needs torch; a config alone should not

        buildable = (*SOFTMAX_KINDS, "short-conv", *MIXERS)
        for kind in check_schedule(schedule):
            for part in parts(kind):
                if part not in buildable:
                    raise ValueError(
                        f"the theory knows {part!r} layers but no mixer of that name is built; "
                        f"use one of {', '.join(buildable)}"
                    )
        return schedule

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> ModelConfig:
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads={self.n_heads} does not divide d_model={self.d_model}; "
                "choose another n_heads or give d_head"
            )
        if self.n_kv_heads is not None and self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_kv_heads={self.n_kv_heads} does not divide n_heads={self.n_heads}; every "
                "key-value head serves equally many heads"
            )
        if self.positions == "rotary" and self.head_dimension % 2:
            raise ValueError(
                f"rotary positions turn pairs, but heads have the odd dimension "
                f"{self.head_dimension}; choose another d_head, or positions='none'"
            )
        return self

    @property
    def n_layers(self) -> int:
        """Number of layers in the schedule."""
        return len(self.schedule)

    @property
    def head_dimension(self) -> int:
        """Dimension of a full-attention head."""
        return self.d_head or self.d_model // self.n_heads

    @property
    def mixer_sizes(self) -> MixerSizes:
        """What linear mixers are built from."""
        from architectures.mixers import MixerSizes  # needs torch; a config alone should not

        return MixerSizes(
            self.d_model,
            self.linear_heads,
            self.d_key,
            self.d_value,
            self.short_conv,
            self.negative_eigenvalues,
        )
