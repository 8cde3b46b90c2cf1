"""A prompt as a person reads it: its functions as tables, the entries that its chain visits marked.

HTML without scripts or colours of its own for text, so that it stands on light pages and dark ones,
in notebooks and in print.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from composition.task import CompositionTask, Entry

BLUE, ORANGE = (11, 92, 173), (176, 79, 12)
"""Of positive and negative shades: told apart by people who confuse red and green."""

CELL = "padding:1px 5px;text-align:center;min-width:1.6em;border:1px solid rgba(128,128,128,.35);"
VISITED = "outline:2px solid currentColor;outline-offset:-2px;font-weight:700;"
HEAD = "padding:1px 6px;text-align:right;font-weight:400;white-space:nowrap;opacity:.75;"


def prompt_html(
    task: CompositionTask,
    tokens: Sequence[int],
    chain: Sequence[int],
    shades: Sequence[float] | None = None,
    *,
    title: str = "",
) -> str:
    """One prompt as tables: a row for each part of a function that the query can select.

    Every cell has the label of its token ("z2[w1=1,i=3] -> 4") and, where shaded, its shade as a
    tooltip; what the chain visits has a frame.

    Args:
        tokens: `[position]`.
        chain: `i_0 … i_L`.
        shades: `[position]`, from -1 to 1, such as the effect of patching each position: blue
            above 0, orange below, stronger the further away; none if None.
        title: stands above.

    Raises:
        ValueError: not one token a position, or not one shade a token.
    """
    if len(tokens) != task.length:
        raise ValueError(
            f"{len(tokens)} tokens are no prompt of this task, which has {task.length}"
        )
    if shades is not None and len(shades) != task.length:
        raise ValueError(f"{len(shades)} shades for {task.length} tokens: give one each")
    visited = _visited(task, tokens, chain)
    rows = []
    widest = task.start_domain
    for (role, part), group in groupby(enumerate(task.entries), key=_row_of):
        places = [place for place, _ in group]
        span = widest if len(places) == 1 else 1  # a lone wide cell would widen its column
        cells = "".join(
            _cell(
                task.token_label(place, tokens[place]),
                place in visited,
                None if shades is None else shades[place],
                span,
            )
            for place in places
        )
        name = role if part is None else f"{role}, w{int(role[1:]) - 1}={part}"
        rows.append(f'<tr><th scope="row" style="{HEAD}">{name}</th>{cells}</tr>')
    path = " → ".join(f"i<sub>{hop}</sub> = {value}" for hop, value in enumerate(chain))
    heading = f"<div><strong>{escape(title)}</strong></div>" if title else ""
    return (
        f'{heading}<div tabindex="0" role="group" aria-label="a prompt as tables" '
        f'style="overflow-x:auto"><table style="border-collapse:collapse;font-size:.85em;'
        f'font-variant-numeric:tabular-nums">{"".join(rows)}</table></div>'
        f'<div style="font-size:.9em">{path}, the answer</div>'
    )


def _row_of(numbered: tuple[int, Entry]) -> tuple[str, int | None]:
    _, entry = numbered
    return entry.role, entry.query_part


def _visited(task: CompositionTask, tokens: Sequence[int], chain: Sequence[int]) -> set[int]:
    """Positions of the start, the query and the entries that give `i_1 … i_L`."""
    parts: tuple[int, ...] = ()
    if task.query:
        parts = task.query_parts(tokens[task.positions["query"].start] - task.n_values)
    found = {task.start_position}
    if task.query:
        found.add(task.positions["query"].start)
    for place, entry in enumerate(task.entries):
        if entry.function is None or entry.argument != chain[entry.function - 1]:
            continue
        selected = parts[entry.function - 2] if entry.function > 1 and parts else 0
        if entry.query_part in (None, selected):
            found.add(place)
    return found


def _shaded(color: tuple[int, int, int], strength: float) -> str:
    """The colour on white, and text on it that is read on light pages and on dark ones."""
    mixed = [round(255 + (part - 255) * strength) for part in color]
    # WCAG's relative luminance; at 0.18 black and white text have the same contrast, 4.6.
    linear = [((part / 255 + 0.055) / 1.055) ** 2.4 for part in mixed]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    text = "#000" if light > 0.18 else "#fff"
    return f"background:rgb({mixed[0]}, {mixed[1]}, {mixed[2]});color:{text};"


def _cell(label: str, visited: bool, shade: float | None, span: int) -> str:
    if " -> " in label:
        shown = label.rpartition(" -> ")[2]
    elif label.startswith("z0 = "):
        shown = label.removeprefix("z0 = ")
    else:
        shown = label
    tip, style = label, CELL + (VISITED if visited else "")
    if shade is not None:
        strength = min(abs(shade), 1.0)
        tip += f": {shade:+.2f}"
        if strength > 0.02:
            style += _shaded(BLUE if shade >= 0 else ORANGE, strength)
    return f'<td colspan="{span}" style="{style}" title="{escape(tip)}">{escape(shown)}</td>'
