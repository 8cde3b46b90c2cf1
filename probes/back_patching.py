"""Back-patching: give an earlier layer what a later one had made, and see whether that helps.

An answer that comes out right only when a late residual is put back into an early layer was cut
off: the stack ran out of layers after the hop was made. Where no back-patch helps, the hop was
never made at all (after arXiv 2406.12775).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from probes.frames import tidy
from probes.metrics import correctness
from probes.patched_runs import MEMORY
from probes.patching import sweep_values
from probes.running import Inputs
from probes.sites import Site, n_layers, read

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class BackPatch:
    """Accuracy when the residual after one layer is put in front of another.

    Attributes:
        accuracy: `[source, target]`, the residual after layer `source` put before layer
            `target`; NaN above the diagonal, where it would not go back.
        unpatched: accuracy without.
        rescued: share of the prompts answered wrongly that the best (source, target) puts right.
        best: that source and target.
    """

    accuracy: Float[Tensor, "source target"]
    unpatched: float
    rescued: float
    best: tuple[int, int]

    def to_frame(self) -> pd.DataFrame:
        """A row for each way back: `source`, `target`, `accuracy`; `unpatched`, the same for all.

        Both layers count from 0; the target is not above the source.
        """
        layers = range(len(self.accuracy))
        frame = tidy({"source": layers, "target": layers}, {"accuracy": self.accuracy})
        ways = frame[frame["target"] <= frame["source"]].reset_index(drop=True)
        return ways.assign(unpatched=self.unpatched)


def back_patch(
    model: nn.Module,
    inputs: Inputs,
    answers: Int[Tensor, " prompt"],
    *,
    position: int = -1,
    batch: int = 1024,
    memory: int = MEMORY,
) -> BackPatch:
    """Put the residual after every layer in front of every layer up to it, at one position.

    Args:
        answers: the right ones.
        position: of the residual; the last by default.
    """
    layers = n_layers(model)
    ways = [(source, target) for source in range(layers) for target in range(source + 1)]
    after = read(model, inputs, [Site("resid_post", layer, position) for layer in range(layers)])
    swept = sweep_values(
        model,
        inputs,
        [Site("resid_pre", target, position) for _, target in ways],
        [after[source] for source, _ in ways],
        correctness(answers),
        batch=batch,
        memory=memory,
    )
    accuracy = torch.full((layers, layers), float("nan"), dtype=torch.float64)
    for (source, target), values in zip(ways, swept.values, strict=True):
        accuracy[source, target] = values.double().mean()
    wrong = swept.base == 0
    best = int(accuracy[tuple(zip(*ways, strict=True))].argmax())
    rescued = swept.values[best][wrong].double().mean().item() if wrong.any() else 0.0
    return BackPatch(accuracy, swept.base.double().mean().item(), rescued, ways[best])
