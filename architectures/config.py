"""What a stack is made of, as data: frozen, checked, and the same after a trip through JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from composition import CompositionTask, check_schedule
from composition.task import PositiveInteger


class ModelConfig(BaseModel):
    """Everything that fixes a `HookedStack` up to its weights.

    Args:
        task: what the prompts look like; the embedding is laid out after it.
        schedule: kinds of the layers, first to last, such as `("full", "deltanet", "full")`.
        d_model: width of the residual stream.
        n_heads: heads of a full-attention layer.
        d_head: their dimension; `d_model / n_heads` if None.
        d_mlp: hidden width of the MLP after each mixer; 0 for none.
        linear_heads, d_key, d_value: heads of a linear layer, and the two sides of each
            head's recurrent state `[d_key, d_value]`.
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
    d_head: PositiveInteger | None = None
    d_mlp: Annotated[int, Field(ge=0)] = 0
    linear_heads: PositiveInteger = 1
    d_key: PositiveInteger = 16
    d_value: PositiveInteger = 16
    normalization: Literal["rms", "none"] = "rms"

    @field_validator("schedule")
    @classmethod
    def _every_kind_can_be_built(cls, schedule: tuple[str, ...]) -> tuple[str, ...]:
        from architectures.mixers import MIXERS  # needs torch; a config alone should not

        for kind in check_schedule(schedule):
            if kind != "full" and kind not in MIXERS:
                raise ValueError(
                    f"the theory knows {kind!r} layers but no mixer of that name is built yet; "
                    f"use one of full, {', '.join(MIXERS)}"
                )
        return schedule

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> ModelConfig:
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads={self.n_heads} does not divide d_model={self.d_model}; "
                "choose another n_heads or give d_head"
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
