"""A stack as a small diagram: a box a layer, first at the bottom, full and linear told apart."""

from __future__ import annotations

from html import escape

from architectures.config import ModelConfig
from composition import SOFTMAX_KINDS, parts

FULL, LINEAR, EDGE = "#0b5cad", "#d1661a", "rgba(128,128,128,.45)"

BOX = "padding:2px 10px;margin:2px 0;border:1px solid {edge};border-left:6px solid {color};"


def stack_html(config: ModelConfig, parameters: int) -> str:
    """The layers from the unembedding down to the embedding, each with what it is made of.

    A blue bar is a layer with softmax attention, an orange one a layer without.
    """
    boxes = [_box("unembedding", EDGE, f"{config.task.n_values} values")]
    for layer in reversed(range(config.n_layers)):
        kind = config.schedule[layer]
        full = any(part in SOFTMAX_KINDS for part in parts(kind))
        made_of = "; ".join(_made_of(config, part) for part in parts(kind))
        if config.d_mlp:
            made_of += f"; MLP {config.d_mlp}"
        color = FULL if full else LINEAR
        boxes.append(_box(f"layer {layer + 1}: {kind}", color, f"{made_of} (blocks.{layer})"))
    boxes.append(_box("embedding", EDGE, f"width {config.d_model}"))
    task = config.task
    words = (
        f"{parameters:,} parameters; L = {task.hops}, m = {task.start_domain}, "
        f"n = {', '.join(map(str, task.branching))}; prompts of {task.length} tokens"
    )
    return (
        f'<div role="group" aria-label="A stack of {escape(", ".join(config.schedule))}" '
        f'style="display:inline-block;font-size:.9em">{"".join(boxes)}'
        f'<div style="opacity:.8">{escape(words)}</div></div>'
    )


def _made_of(config: ModelConfig, kind: str) -> str:
    if kind == "short-conv":
        return f"width {config.short_conv}"
    if kind in SOFTMAX_KINDS:
        heads = f"{config.n_heads} heads of {config.head_dimension}"
        shared = f", {config.n_kv_heads} of keys and values" if config.n_kv_heads else ""
        seen = f", {config.window} positions" if kind == "sliding" else ""
        return heads + shared + seen
    return f"{config.linear_heads} heads, state {config.d_key} × {config.d_value}"


def _box(name: str, color: str, made_of: str) -> str:
    style = BOX.format(edge=EDGE, color=color)
    return f'<div style="{style}"><strong>{escape(name)}</strong> {escape(made_of)}</div>'
