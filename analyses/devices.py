"""Where one model trains: on one device, or on several that share every batch.

Several processes draw the same batch, each answers its share of it, and gradients are averaged:
the weights stay those of a single process up to rounding. `accelerate launch` starts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from composition.sampling import Prompts

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")


class Devices:
    """This process's device, and what it does together with the other processes, if any.

    Args:
        device: a name that torch knows, such as "cpu" or "cuda:1"; or "accelerate" for what
            `accelerate launch` has given this process.

    Raises:
        ValueError: a device that is not there.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._accelerator: Accelerator | None = None
        if device == "accelerate":
            from accelerate import Accelerator

            self._accelerator = Accelerator()
            self.device = self._accelerator.device
            return
        try:
            self.device = torch.device(device)
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"device {device!r} cannot be used here: {reason}") from None

    @property
    def count(self) -> int:
        """Processes that train together."""
        return 1 if self._accelerator is None else self._accelerator.num_processes

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes files and speaks."""
        return self._accelerator is None or self._accelerator.is_main_process

    def check_batch(self, batch: int) -> None:
        """Raise a ValueError unless the processes can have equal shares of a batch."""
        if batch % self.count:
            raise ValueError(
                f"a batch of {batch} does not divide among {self.count} processes; "
                f"use a multiple of {self.count}"
            )

    def share(self, prompts: Prompts, questions: int) -> Prompts:
        """This process's part of a batch, on its device: some prompts with all their questions."""
        if self.count > 1:
            assert self._accelerator is not None
            rows = torch.arange(len(prompts)).unflatten(0, (questions, self.count, -1))
            prompts = prompts[rows[:, self._accelerator.process_index].flatten()]
        return prompts.to(self.device)

    def average_gradients(self, model: nn.Module) -> None:
        """Replace every gradient by its mean over the processes, in one message."""
        if self.count == 1:
            return
        assert self._accelerator is not None
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        together = self._accelerator.reduce(
            torch.cat([gradient.flatten() for gradient in gradients]), reduction="mean"
        )
        parts = together.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def together(self, rows: Tensor) -> Tensor:
        """The rows of all processes, the same everywhere, on the CPU."""
        if self.count > 1:
            assert self._accelerator is not None
            rows = self._accelerator.gather(rows)
        return rows.cpu()

    def agreed(self, decision: T) -> T:
        """The main process's decision: clocks and rounding may have made another one here."""
        if self.count == 1:
            return decision
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([decision])[0]

    def wait(self) -> None:
        """Until every process has come here."""
        if self._accelerator is not None:
            self._accelerator.wait_for_everyone()
