"""A prompt's tokens coloured by what patching their position does, layer by layer."""

from __future__ import annotations

from html import escape

from torch import Tensor, nn

from analyses.views.viewers import View
from composition.display import prompt_html
from composition.sampling import CounterfactualPairs
from probes.activations import residual_sites
from probes.metrics import logit_difference
from probes.patching import patch_sweep
from probes.running import device_of


def residual_effects(model: nn.Module, pairs: CounterfactualPairs) -> Tensor:
    """What putting one residual right does to each corrupted prompt, `[layer, position, pair]`.

    0 where it changes nothing, 1 where the whole difference between the two runs comes back.
    Layer 0 is the embedding. NaN for pairs whose two runs do not differ.
    """
    length = pairs.clean.tokens.shape[1]
    sites = [site for place in range(length) for site in residual_sites(model, place)]
    metric = logit_difference(pairs.clean.answer, pairs.corrupted.answer)
    swept = patch_sweep(model, pairs.clean.tokens, pairs.corrupted.tokens, sites, metric)
    assert swept.donor is not None
    shares = (swept.values - swept.base) / (swept.donor - swept.base)
    return shares.reshape(length, -1, shares.shape[1]).transpose(0, 1)


def effect_view(model: nn.Module, pairs: CounterfactualPairs, *, row: int = 0) -> View:
    """One prompt after every layer, each token coloured by the effect of patching its position.

    The clean residual is put into the run of the corrupted prompt: where the colour is, the
    changed value stands. Cells have the number as a tooltip.

    Args:
        pairs: as `task.counterfactual` gives them.
        row: which pair.

    Raises:
        ValueError: a row that is not there.
    """
    if not -len(pairs) <= row < len(pairs):
        raise ValueError(f"row {row} is none of the {len(pairs)} pairs")
    row %= len(pairs)
    one = pairs[row : row + 1].to(device_of(model))
    task, tokens = one.clean.task, one.clean.tokens[0].tolist()
    chain, changed = one.clean.chain[0].tolist(), one.corrupted.chain[0].tolist()
    hop = next(at for at, (a, b) in enumerate(zip(chain, changed, strict=True)) if a != b)
    effects = residual_effects(model, one)[:, :, 0].nan_to_num(0.0, 1.0, -1.0)
    parts = []
    for layer, shades in enumerate(effects.tolist()):
        after = f"after layer {layer}" if layer else "embedding"
        best = max(range(len(shades)), key=shades.__getitem__)
        label = task.token_label(best, tokens[best])
        words = f"{after}: most at {label} ({shades[best]:.2f})"
        shown = prompt_html(task, tokens, chain, shades, title=words)
        parts.append(f'<div style="flex:1 1 20rem;min-width:0">{shown}</div>')
    heading = (
        f"<p>In a twin of this prompt i<sub>{hop}</sub> is {changed[hop]} instead of {chain[hop]}, "
        f"and the answer {changed[-1]} instead of {chain[-1]}. Blue: how much of the right answer "
        "comes back when the residual at that position alone is put right; orange: how much "
        "further away it goes.</p>"
    )
    body = f'<div style="display:flex;flex-wrap:wrap;gap:1rem">{"".join(parts)}</div>'
    return View(heading + body, title=escape(f"i_{hop}, layer by layer"))
