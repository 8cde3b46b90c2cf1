"""The bounds at the end of every public hybrid: as rows, on the terminal, in Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from composition import (
    FULL_KINDS,
    PUBLIC_HYBRIDS,
    WINDOWED_KINDS,
    named_schedule,
    parts,
    predict_progress,
)
from composition.schedules import attention_layers

HEADINGS = (
    "name",
    "model",
    "layers",
    "full",
    "first full",
    "linear before second full",
    "hops at least",
    "hops at most",
    "note",
)


@dataclass(frozen=True)
class PublicRow:
    """A public hybrid at its own depth.

    Attributes:
        name, model, note: as in `PUBLIC_HYBRIDS`.
        layers, full, sliding: how many there are, of all kinds and of these.
        first_full: the first full layer, counted from 1; None if there is none.
        side_by_side: whether full layers have a linear one beside them.
        linear_before_second_full: layers between the first full layer and the second; None if
            there are not two, or they stand side by side with linear ones.
        lower, upper: the bounds on the hops after the last layer.
    """

    name: str
    model: str
    layers: int
    full: int
    sliding: int
    first_full: int | None
    side_by_side: bool
    linear_before_second_full: int | None
    lower: int
    upper: int
    note: str


def public_rows() -> list[PublicRow]:
    """All of them, in the order of `PUBLIC_HYBRIDS`."""
    rows = []
    for name, hybrid in PUBLIC_HYBRIDS.items():
        schedule = named_schedule(name)
        end = predict_progress(schedule, attention_layers(schedule) + 1)[-1]
        full = [layer for layer, kind in enumerate(schedule) if parts(kind)[0] in FULL_KINDS]
        beside = any(len(parts(schedule[layer])) > 1 for layer in full)
        rows.append(
            PublicRow(
                name=name,
                model=hybrid.title,
                layers=hybrid.n_layers,
                full=len(full),
                sliding=sum(parts(kind)[0] in WINDOWED_KINDS for kind in schedule),
                first_full=full[0] + 1 if full else None,
                side_by_side=beside,
                linear_before_second_full=(
                    full[1] - full[0] - 1 if len(full) > 1 and not beside else None
                ),
                lower=end.lower,
                upper=end.upper,
                note=hybrid.note,
            )
        )
    return rows


def public_table() -> Table:
    """The rows on the terminal, with the notes below."""
    rows = [_cells(row) for row in public_rows()]
    table = Table(
        title="hops at the answer position after the last layer",
        title_justify="left",
        caption="\n".join(f"{row[0]}: {row[-1]}" for row in rows if row[-1]),
        caption_justify="left",
    )
    name, _, *numbers, _ = HEADINGS
    table.add_column(name, no_wrap=True)
    for heading in numbers:
        table.add_column(heading)
    for name, model, *numbers, _ in rows:
        table.add_row(f"{name}\n[dim]{model}[/]", *numbers)
    return table


def public_markdown() -> str:
    """The same in Markdown, as docs/public_hybrids.md has it."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *map(_cells, public_rows())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(row: PublicRow) -> tuple[str, ...]:
    between = row.linear_before_second_full
    return (
        row.name,
        row.model,
        str(row.layers),
        f"{row.full}, {row.sliding} sliding" if row.sliding else str(row.full),
        str(row.first_full or "none"),
        "side by side" if row.side_by_side else str("none" if between is None else between),
        str(row.lower),
        str(row.upper),
        row.note,
    )
