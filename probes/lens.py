"""Lenses: what the model would answer if a layer's residual were its last.

The logit lens reads every residual through the model's own last norm and unembedding. It sees a
value only where it is kept as the answer is; a tuned lens first sends each layer's residual through
an affine map that was learned to predict the model's own answer (arXiv 2303.08112).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from architectures import HookedStack
from composition import CompositionTask
from composition.sampling import Prompts
from probes.activations import residual_stream
from probes.frames import tidy
from probes.rows import chunks
from probes.running import Inputs, answer_logits, rows_of, shape_of

if TYPE_CHECKING:
    import pandas as pd


def unembedded(
    model: nn.Module, residual: Float[Tensor, "*batch d_model"]
) -> Float[Tensor, "*batch value"]:
    """The logits that the model makes of a residual after its last layer.

    Raises:
        ValueError: a model without `ln_final` and `unembed`.
    """
    if isinstance(model, HookedStack):
        return model.read_out(residual)
    norm, last = getattr(model, "ln_final", None), getattr(model, "unembed", None)
    if last is None:
        raise ValueError(f"{type(model).__name__} has no unembed to look through")
    return last(residual if norm is None else norm(residual))


@torch.no_grad()
def logit_lens(
    model: nn.Module, inputs: Inputs, positions: Sequence[int], *, batch: int = 1024
) -> Float[Tensor, "layer position prompt value"]:
    """Logits of the residual stream at each position, before the first layer and after each."""
    return unembedded(model, _residuals(model, inputs, positions, batch))


@dataclass(frozen=True)
class TunedLens:
    """An affine map for every layer, in front of the model's own unembedding.

    Attributes:
        weight, bias: `[layer, d_model, d_model]` and `[layer, d_model]`, added to the residual;
            layer 0 is the embedding.
        position: whose residuals it was fitted to.
        divergence: `[layer]`, KL divergence in nats of the model's answer from the lens's, on
            the prompts it was fitted to.
    """

    weight: Float[Tensor, "layer d_model d_model"]
    bias: Float[Tensor, "layer d_model"]
    position: int
    divergence: Float[Tensor, " layer"]

    def to_frame(self) -> pd.DataFrame:
        """A row for each layer: `layer` (0 is the embedding), `divergence`; `position` for all."""
        frame = tidy({"layer": range(len(self.divergence))}, {"divergence": self.divergence})
        return frame.assign(position=self.position)

    @torch.no_grad()
    def logits(
        self, model: nn.Module, inputs: Inputs, *, batch: int = 1024
    ) -> Float[Tensor, "layer prompt value"]:
        """What the lens reads after every layer."""
        residuals = _residuals(model, inputs, [self.position], batch)[:, 0]
        return unembedded(model, _moved(residuals, self.weight, self.bias))


def fit_tuned_lens(
    model: nn.Module,
    inputs: Inputs,
    *,
    position: int = -1,
    steps: int = 300,
    batch: int = 512,
    learning_rate: float = 1e-2,
    seed: int = 0,
) -> TunedLens:
    """Learn, for all layers at once, the affine maps whose logits are nearest to the model's own.

    Minimises the KL divergence of the model's answer (at the last position) from the lens's with
    Adam, from the identity on.

    Args:
        inputs: prompts to fit on; read the lens on others.
        position: whose residuals are looked through.
        steps, batch, learning_rate: of Adam; the rate falls to 0.
        seed: of the order in which prompts are seen.
    """
    residuals = _residuals(model, inputs, [position], batch)[:, 0]
    target = answers_in_chunks(model, inputs, batch).log_softmax(-1)
    layers, prompts, d_model = residuals.shape
    weight = torch.zeros(layers, d_model, d_model, requires_grad=True)
    bias = torch.zeros(layers, d_model, requires_grad=True)
    optimiser = torch.optim.Adam([weight, bias], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(prompts, (min(batch, prompts),), generator=generator)
        with torch.enable_grad():
            moved = _moved(residuals[:, rows], weight, bias)
            loss = _divergence(model, moved, target[rows]).sum()
            weight.grad, bias.grad = torch.autograd.grad(loss, [weight, bias])
        optimiser.step()
        schedule.step()
    weight, bias = weight.detach(), bias.detach()
    with torch.no_grad():
        divergence = _divergence(model, _moved(residuals, weight, bias), target)
    return TunedLens(weight, bias, position, divergence)


def lens_accuracy(
    logits: Float[Tensor, "*axes prompt value"], task: CompositionTask, prompts: Prompts
) -> Float[Tensor, "*axes hop"]:
    """How often what a lens reads is each hop's value: argmax over the values of `i_hop`."""
    return torch.stack(
        [
            (logits[..., : task.ranges[hop]].argmax(-1) == prompts.chain[:, hop]).double().mean(-1)
            for hop in range(task.hops + 1)
        ],
        dim=-1,
    )


@torch.no_grad()
def answers_in_chunks(model: nn.Module, inputs: Inputs, batch: int) -> Tensor:
    """The model's logits at the last position, of all prompts."""
    rows = chunks(shape_of(inputs)[0], batch)
    return torch.cat([answer_logits(model, rows_of(inputs, part)) for part in rows])


def _moved(residuals: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return residuals + residuals @ weight + bias[:, None]


def _divergence(model: nn.Module, moved: Tensor, target: Tensor) -> Float[Tensor, " layer"]:
    read_out = unembedded(model, moved).log_softmax(-1)
    pointwise = F.kl_div(read_out, target.expand_as(read_out), reduction="none", log_target=True)
    return pointwise.sum(-1).mean(-1)


def _residuals(
    model: nn.Module, inputs: Inputs, positions: Sequence[int], batch: int
) -> Float[Tensor, "layer position prompt d_model"]:
    streams = residual_stream(model, inputs, {str(p): p for p in positions}, batch=batch)
    return torch.stack([streams[str(p)] for p in positions], dim=1)
