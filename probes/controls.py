"""What a probe's accuracy is compared with: shuffled labels, control tasks, sampling error.

A control task (Hewitt and Liang, arXiv 1909.03368) gives every kind of input a random label of
its own, the same wherever that kind occurs. A probe can only learn it by heart; selectivity, its
accuracy on the target less that on the control, says how much of the accuracy is not that.
"""

from __future__ import annotations

from statistics import NormalDist

import torch
from jaxtyping import Float, Int
from torch import Tensor


def token_keys(tokens: Int[Tensor, "prompts chosen"]) -> Int[Tensor, " prompts"]:
    """A number for every distinct combination of the chosen tokens, `0 …` in sorted order."""
    if tokens.ndim != 2:
        raise ValueError(
            f"tokens have shape {tuple(tokens.shape)}, but keys need [prompts, chosen positions]"
        )
    return torch.unique(tokens, dim=0, return_inverse=True)[1]


def control_labels(
    keys: Int[Tensor, " prompts"], classes: int, generator: torch.Generator
) -> Int[Tensor, " prompts"]:
    """Random labels, a fixed function of the keys; each class gets as many keys, or one less.

    What to take for keys: something that stands in the input, is finer than the label and
    recurs, so that a probe could learn it by heart. For `i_hop` that is the start and the query,
    `token_keys(tokens[:, [start, query]])`: they select the chain as a word's type selects its
    tags. The value of `i_hop` itself is no key, since a probe that reads the value reads any
    relabelling of it, and selectivity would be 0 for a perfect code. The whole prompt is none
    either: it never recurs, the control is not to be learnt, and selectivity is accuracy less
    chance.

    Raises:
        ValueError: fewer distinct keys than classes, which leaves classes without a key.
    """
    distinct, number = torch.unique(keys, return_inverse=True)
    if len(distinct) < classes:
        raise ValueError(
            f"{len(distinct)} distinct keys for {classes} classes: take keys that are finer, such "
            "as combinations of several tokens"
        )
    order = torch.randperm(len(distinct), generator=generator).to(keys.device)
    return (order % classes)[number]


def shuffled(
    labels: Int[Tensor, " prompts"], generator: torch.Generator
) -> Int[Tensor, " prompts"]:
    """The same labels in random order: as frequent as before, unknown to the input."""
    order = torch.randperm(len(labels), generator=generator)
    return labels[order.to(labels.device)]


def accuracy_interval(
    hits: Int[Tensor, "*shape"], total: int, level: float = 0.95
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Wilson's score interval of a probability, given hits among independent trials: low, high.

    Unlike hits / total plus or minus a deviation it stays within 0 … 1, and keeps its level near
    both ends.

    Raises:
        ValueError: no trials, hits outside `0 … total`, or a level not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, but a confidence lies between 0 and 1, such as 0.95")
    hits = torch.as_tensor(hits)
    if total < 1 or hits.min() < 0 or hits.max() > total:
        raise ValueError(
            f"hits range over {hits.min()} … {hits.max()} among {total} trials: use 0 … {total}, "
            "and at least one trial"
        )
    z = NormalDist().inv_cdf((1 + level) / 2)
    rate = hits.double() / total
    middle = (rate + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * (rate * (1 - rate) / total + z**2 / (4 * total**2)).sqrt()
    return (middle - half).clamp_min(0), (middle + half).clamp_max(1)
