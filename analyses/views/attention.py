"""Who looks at what: patterns of full layers, and beside them what linear layers amount to.

A linear layer has no pattern, but its output is a weighted sum of values all the same. Its weights
are exact (`effective_attention`) and may be negative, so their scale has two ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor, nn

from analyses.figures import to_png
from analyses.views.pictures import heads_picture
from analyses.views.viewers import View, beside, viewer_html
from architectures import HookedStack, effective_attention
from composition import SOFTMAX_KINDS, parts
from composition.sampling import Prompts
from probes.running import device_of
from probes.sites import Site, n_layers, read

BLUE, ORANGE = "#0b5cad", "#d1661a"
LONGEST = 256
"""Positions that a viewer draws; more than this no browser draws in a blink, nor can one see."""


def attention_view(
    model: nn.Module,
    prompts: Prompts | Int[Tensor, "batch position"],
    *,
    row: int = 0,
    layers: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
) -> View:
    """Attention of every head on one prompt, layer beside layer.

    Full layers show their pattern, linear layers of a `HookedStack` their exact effective
    attention, in the same viewer. Click a head, or reach it with the keyboard, to see it large.

    Args:
        model: a `HookedStack`, or any model with `blocks.{i}.attn.hook_pattern`.
        prompts: prompts of the task, or tokens.
        row: which of them.
        layers: 0 for the first; all that can be shown if None.
        labels: of the tokens; the task's own if None.

    Raises:
        ValueError: a row or layer that is not there, not one label a token, a prompt too long to
            draw, or tokens without labels.
    """
    tokens = prompts.tokens if isinstance(prompts, Prompts) else prompts
    if not -len(tokens) <= row < len(tokens):
        raise ValueError(f"row {row} is none of the {len(tokens)} prompts")
    row %= len(tokens)
    names = _labels(prompts, row, labels, tokens.shape[1])
    chosen = range(n_layers(model)) if layers is None else layers
    one = tokens[row : row + 1].to(device_of(model))
    views = [
        _part(model, one, layer, part, names)
        for layer in chosen
        for part in _showable(model, layer)
    ]
    if not views:
        raise ValueError(
            "none of these layers is a weighted sum of values, so there is nothing to show: a "
            "short convolution looks at fixed places"
        )
    return beside(views, "attention")


def attention_matrix(
    model: nn.Module, tokens: Int[Tensor, "batch position"], layer: int, part: str = "full"
) -> Float[Tensor, "batch head query key"]:
    """The pattern of a softmax layer; of a linear layer of a `HookedStack` the effective attention.

    Args:
        part: kind of the mixer, where two stand side by side or the model is a `HookedStack`.

    Raises:
        ValueError: a layer with neither.
    """
    if part not in SOFTMAX_KINDS:
        assert isinstance(model, HookedStack)
        return effective_attention(model, tokens, layer)
    # Sites put the position first: back to [batch, head, query, key].
    return read(model, tokens, [Site("pattern", layer)])[0].transpose(1, 2)


def _part(model: nn.Module, tokens: Tensor, layer: int, kind: str, labels: Sequence[str]) -> View:
    weights = attention_matrix(model, tokens, layer, kind)[0].double().cpu().numpy()
    if not np.isfinite(weights).all():
        raise ValueError(f"attention of layer {layer} is not finite: the model's numbers overflow")
    linear = kind not in SOFTMAX_KINDS
    largest = float(np.abs(weights).max()) or 1.0
    scale = largest if linear else 1.0
    what = "effective attention" if linear else "attention pattern"
    title = f"layer {layer + 1}, {kind}: {what}"
    words = f"{title}. {_reading(weights, labels)}"
    names = [f"Head {head}" for head in range(len(weights))]
    properties = {
        "attention": np.round(weights, 4).tolist(),
        "attentionHeadNames": names,
        "maxValue": scale,
        "minValue": -scale,
        "negativeColor": ORANGE,
        "positiveColor": BLUE,
        "tokens": list(labels),
        "maskUpperTri": True,
    }
    picture = to_png(heads_picture(weights, names, scale), words, dpi=80)
    note = f"Scale: −{scale:.2f} … {scale:.2f}, orange below 0." if linear else "Scale: 0 … 1."
    drawn = viewer_html("AttentionHeads", properties, picture=picture, words=words)
    return View(
        f'<figure style="margin:0"><figcaption><strong>{title[0].upper()}{title[1:]}</strong>. '
        f"{note} {_reading(weights, labels, markup=True)}</figcaption>{drawn}</figure>"
    )


def _reading(
    weights: Float[np.ndarray, "head query key"], labels: Sequence[str], markup: bool = False
) -> str:
    """What every head looks at most from the last position, in words."""
    said = []
    for head, pattern in enumerate(weights):
        key = int(np.abs(pattern[-1]).argmax())
        label = escape(labels[key]) if markup else labels[key]
        said.append(f"head {head} at {label} ({pattern[-1, key]:.2f})")
    return "The last position looks most: " + ", ".join(said) + "."


def _showable(model: nn.Module, layer: int) -> list[str]:
    """Kinds of a layer's mixers that are a weighted sum of values; a convolution is none."""
    if not isinstance(model, HookedStack):
        return ["full"]
    model.check_layer(layer)
    return [part for part in parts(model.config.schedule[layer]) if part != "short-conv"]


def _labels(
    prompts: Prompts | Tensor, row: int, labels: Sequence[str] | None, length: int
) -> Sequence[str]:
    if length > LONGEST:
        raise ValueError(
            f"the prompt has {length} positions, and a viewer draws {LONGEST} at most: show a "
            "shorter one, or look at attention_matrix"
        )
    if labels is None:
        if not isinstance(prompts, Prompts):
            raise ValueError("tokens alone have no labels: give labels, or prompts of a task")
        return prompts.labels(row)
    if len(labels) != length:
        raise ValueError(f"{len(labels)} labels for {length} tokens: give one each")
    return labels
