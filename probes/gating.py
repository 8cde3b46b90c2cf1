"""A lookup in one layer by a position that does not know what to look up: gated heads.

The answer position's query does not know `i_0`, so no head of the first layer can attend to the
entry of `z_1` that belongs to it. But softmax weights compete: a head that would attend to the
entry of one start value `a`, and even more to the start token unless that token is `a`, reads
`z_1(a)` exactly if `i_0 = a`. One head a start value makes the first hop in the first layer, so
small start domains are a shortcut. The bounds ask for many more entries than heads.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedRootModule

from composition import CompositionTask
from composition.sampling import visited_position


@torch.no_grad()
def gated_attention(
    model: HookedRootModule,
    task: CompositionTask,
    layer: int = 0,
    *,
    prompts: int = 1024,
    seed: int = 0,
) -> Float[Tensor, "head start_value"]:
    """How much more a head attends from the answer to `z_1`'s entry of a start value if it is the
    prompt's.

    Args:
        layer: one with a pattern.

    Returns:
        Weight at the entry of `a` in prompts with `i_0 = a`, less that in the others, averaged
        over prompts, for every head and `a`; in -1 … 1, and 0 where the weight does not depend
        on the start.

    Raises:
        ValueError: a layer without a pattern, or too few prompts to have every start value.
    """
    name = f"blocks.{layer}.attn.hook_pattern"
    if name not in model.hook_dict:
        raise ValueError(f"layer {layer} has no attention pattern; give a full or sliding layer")
    drawn = task.sample(prompts, torch.Generator().manual_seed(seed))
    start = drawn.tokens[:, task.start_position]
    values = range(task.start_domain)
    chosen = torch.stack([start == value for value in values])  # [start value, prompt]
    if not (chosen.any(1) & (~chosen).any(1)).all():
        raise ValueError(
            f"{prompts} prompts do not show all {task.start_domain} start values; draw more"
        )
    visited = visited_position(task, drawn, 1)
    entries = torch.stack([visited[rows][0] for rows in chosen])
    _, cache = model.run_with_cache(drawn.tokens, names_filter=name)
    weights = cache[name][:, :, task.answer_position][..., entries]  # [prompt, head, start value]
    own, other = chosen.T.float()[:, None], (~chosen).T.float()[:, None]
    return (weights * own).sum(0) / own.sum(0) - (weights * other).sum(0) / other.sum(0)


def gate(gated: Float[Tensor, "head start_value"]) -> float:
    """Share of the first hop that gated heads can make: the best head for every start value.

    0 without gating, 1 where every start value has a head that attends to its entry alone, and
    only if it is the start.
    """
    return gated.max(0).values.clamp_min(0).mean().item()
