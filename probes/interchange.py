"""Interchange interventions: what a site causes, measured by giving it a donor's residual.

The donor prompt has other tables and the same query. If a site carries `i_l`, its residual put
into the base prompt makes the model answer what the *base's* functions make of the *donor's*
`i_l`. A site that only correlates with `i_l` does not (arXiv 2106.02997).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from composition import CompositionTask
from composition.sampling import Prompts, share_query
from probes.activations import added_hooks, residual_hooks, residual_stream


@dataclass(frozen=True)
class InterchangePairs:
    """Base and donor prompts on which every hypothesis predicts another answer.

    Attributes:
        base, donor: row by row the same query, other functions and start.
        predictions: `[pair, hops + 2]`; column l is the base's functions continued from the
            donor's `i_l` (for l = L: the donor's answer), the last is the base's own answer.
        drawn: pairs drawn to find these; the others had two hypotheses that agree.
    """

    base: Prompts
    donor: Prompts
    predictions: Int[Tensor, "pair hypothesis"]
    drawn: int

    def __len__(self) -> int:
        return len(self.base)


def interchange_pairs(
    task: CompositionTask, count: int, generator: torch.Generator
) -> InterchangePairs:
    """Draw `count` pairs whose hypotheses all predict different answers.

    Raises:
        ValueError: count below 1, or a task with too few values to tell its hypotheses apart.
    """
    if count < 1:
        raise ValueError(f"count is {count}, but at least one pair must be drawn")
    bases: list[Prompts] = []
    donors: list[Prompts] = []
    kept: list[Tensor] = []
    found = drawn = 0
    while found < count:
        base = task.sample(2048, generator)
        donor = share_query(task, task.sample(2048, generator), base)
        columns = [
            task.continue_chain(base, hop, donor.chain[:, hop]) for hop in range(task.hops + 1)
        ]
        predictions = torch.stack([*columns, base.answer], dim=1)
        ordered = predictions.sort(1).values
        rows = (ordered[:, 1:] != ordered[:, :-1]).all(1).nonzero()[:, 0]
        bases.append(base[rows])
        donors.append(donor[rows])
        kept.append(predictions[rows])
        found, drawn = found + len(rows), drawn + len(base)
        if found * 10_000 < drawn:
            raise ValueError(
                f"only {found} of {drawn} pairs tell the {task.hops + 2} hypotheses apart: "
                f"{task.ranges[-1]} answers are too few; use a larger start_domain or branching"
            )
    return InterchangePairs(
        Prompts.concatenate(bases)[:count],
        Prompts.concatenate(donors)[:count],
        torch.cat(kept)[:count],
        drawn,
    )


@dataclass(frozen=True)
class Interchange:
    """How often the patched model answers as each hypothesis says, after every layer.

    All tensors are on a scale from 0 to 1; layer 0 is the embedding.

    Attributes:
        follows: by position, `[layer, hop]`: interchange accuracy of `i_hop`. Hop L is also
            "the donor's answer is copied".
        unchanged: by position, `[layer]`: the base's own answer, as if nothing was patched.
        pairs: how many pairs each share is of.
    """

    follows: dict[str, Float[Tensor, "layer hop"]]
    unchanged: dict[str, Float[Tensor, " layer"]]
    pairs: int


@torch.no_grad()
def interchange(
    model: HookedRootModule,
    task: CompositionTask,
    pairs: InterchangePairs,
    *,
    batch: int = 1024,
) -> Interchange:
    """Patch the whole residual at the start and answer positions after every layer, one by one.

    Args:
        model: its logits `[batch, position, value]` are read at the task's answer position.
        batch: pairs a forward pass.

    Raises:
        ValueError: a model without residual-stream hooks.
    """
    positions = task.traced_positions
    hooks = residual_hooks(model)
    donated = residual_stream(model, pairs.donor.tokens, positions, batch=batch)
    follows, unchanged = {}, {}
    for name, position in positions.items():
        shares = []
        for layer, hook in enumerate(hooks):
            answers = [
                _patched_logits(
                    model,
                    pairs.base.tokens[begin : begin + batch],
                    hook,
                    position,
                    donated[name][layer, begin : begin + batch],
                )[:, task.answer_position].argmax(-1)
                for begin in range(0, len(pairs), batch)
            ]
            agrees = torch.cat(answers)[:, None] == pairs.predictions
            shares.append(agrees.double().mean(0))
        table = torch.stack(shares)
        follows[name], unchanged[name] = table[:, :-1], table[:, -1]
    return Interchange(follows, unchanged, len(pairs))


def _patched_logits(
    model: HookedRootModule, tokens: Tensor, hook_name: str, position: int, residual: Tensor
) -> Float[Tensor, "batch position value"]:
    """The model's logits when the residual at one site is another."""

    def patch(value: Tensor, hook: HookPoint) -> Tensor:
        if residual.shape != value[:, position].shape:
            raise ValueError(
                f"a residual of shape {tuple(residual.shape)} cannot replace "
                f"{tuple(value[:, position].shape)} at {hook.name}"
            )
        value = value.clone()
        value[:, position] = residual
        return value

    with added_hooks(model, [(hook_name, patch)]):
        return model(tokens)
