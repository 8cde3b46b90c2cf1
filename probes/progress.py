"""Which hops a linear probe reads after each layer, with the floors a reading must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedRootModule

from composition import CompositionTask
from composition.sampling import Prompts
from probes.activations import residual_stream
from probes.frames import by_position, tidy
from probes.linear import fit_ridge

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class HopProbes:
    """Held-out accuracy of probes for every hop's value, after every layer.

    All tensors are `[layer, hop]` on a scale from 0 to 1; layer 0 is the embedding, hop l is
    `i_l`.

    Attributes:
        accuracy: by position ("start", "answer").
        shuffled: the same with training labels shuffled among the prompts.
    """

    accuracy: dict[str, Float[Tensor, "layer hop"]]
    shuffled: dict[str, Float[Tensor, "layer hop"]]

    def to_frame(self) -> pd.DataFrame:
        """A row for each position, layer and hop.

        Columns: `position` ("start", "answer"), `layer` (0 is the embedding), `hop`, `accuracy`,
        `shuffled`.
        """
        accuracy = by_position(self.accuracy)
        _, layers, hops = accuracy.shape
        axes = {"position": list(self.accuracy), "layer": range(layers), "hop": range(hops)}
        shuffled = by_position({name: self.shuffled[name] for name in self.accuracy})
        return tidy(axes, {"accuracy": accuracy, "shuffled": shuffled})


def probe_hops(
    model: HookedRootModule,
    task: CompositionTask,
    fit_on: Prompts,
    test_on: Prompts,
    *,
    ridge: float = 1e-3,
    seed: int = 0,
) -> HopProbes:
    """Fit probes for `i_0 … i_L` at the start and answer positions after every layer.

    Args:
        fit_on, test_on: separate prompts; everything fitted comes from the first.
        ridge: see `fit_ridge`.
        seed: of the shuffling.

    Raises:
        ValueError: a model without residual-stream hooks, or fewer prompts to fit on than
            values to tell apart.
    """
    if len(fit_on) < task.n_values:
        raise ValueError(
            f"{len(fit_on)} prompts to fit probes on, but {task.n_values} values to tell apart; "
            f"draw at least {task.n_values}, better 100 times as many"
        )
    positions = task.traced_positions
    fit_streams = residual_stream(model, fit_on.tokens, positions)
    test_streams = residual_stream(model, test_on.tokens, positions)
    order = torch.randperm(len(fit_on), generator=torch.Generator().manual_seed(seed))
    hops = range(task.hops + 1)
    labels = [fit_on.chain[:, hop] for hop in hops]
    labels += [fit_on.chain[order, hop] for hop in hops]
    classes = [task.ranges[hop] for hop in hops] * 2

    accuracy, shuffled = {}, {}
    for name in positions:
        rows = []
        for fit, test in zip(fit_streams[name], test_streams[name], strict=True):
            fitted = fit_ridge(fit, labels, classes, ridge=ridge)
            truth = [test_on.chain[:, hop] for hop in hops] * 2
            rows.append([p.accuracy(test, y) for p, y in zip(fitted, truth, strict=True)])
        table = torch.tensor(rows, dtype=torch.float64)
        accuracy[name], shuffled[name] = table[:, : len(hops)], table[:, len(hops) :]
    return HopProbes(accuracy, shuffled)
