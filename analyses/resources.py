"""What a run reserves on a cluster."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Amount = Annotated[float, Field(ge=0)]


class Resources(BaseModel):
    """What a run reserves on a Ray cluster; fractions share a device among runs.

    Args:
        cpus: and as many threads as whole ones.
        gpus: if any, the run trains on one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpus: Amount = 1
    gpus: Amount = 0

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.cpus + self.gpus:
            raise ValueError("a run with no CPUs and no GPUs has nothing to compute on")
        return self

    @property
    def threads(self) -> int:
        """Of a run's process."""
        return max(1, int(self.cpus))

    @property
    def device(self) -> str:
        """Where a run trains, as torch names it."""
        return "cuda" if self.gpus else "cpu"
