"""The command about bounds alone: it answers in a blink, since it loads no torch."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from analyses.cli_options import SCHEDULE, Layers, json_option
from analyses.cli_output import Output, one_document, one_line_errors, one_of


def theory(
    schedule: Annotated[str | None, SCHEDULE] = None,
    layers: Layers = None,
    public: Annotated[bool, typer.Option("--public", help="All public hybrids instead.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a table to paste.")] = False,
    hops: Annotated[
        int | None, typer.Option(help="L, the length of the chain; 2, or a public hybrid's stairs.")
    ] = None,
    heads: Annotated[
        int | None, typer.Option(help="H, for the size condition; 4, or the public hybrid's.")
    ] = None,
    head_dimension: Annotated[
        int | None, typer.Option(help="d, for the size condition; 16, or the public hybrid's.")
    ] = None,
    precision: Annotated[int, typer.Option(help="p in bits, for the size condition.")] = 32,
    length: Annotated[int, typer.Option(help="n, tokens in a prompt.")] = 42,
    window_reaches_table: Annotated[
        bool, typer.Option("--window-reaches-table", help="A sliding window may hold a table.")
    ] = False,
    as_json: Annotated[
        bool, json_option("layers and size_condition, or with --public a list of hybrids")
    ] = False,
) -> None:
    """Bounds on the hops known at the answer position after every layer of a schedule."""
    with one_line_errors():
        from composition import (
            PUBLIC_HYBRIDS,
            predict_progress,
            read_schedule,
            size_condition,
        )
        from composition.schedules import attention_layers
        from composition.theory import LONGEST_CHAIN

        if public == (schedule is not None):
            raise ValueError(
                "give one of --schedule, such as full,kda,full or qwen3-next, and --public"
            )
        one_of("--markdown", "--json", markdown and as_json)
        say = Output(as_json=as_json)
        if schedule is None:
            from analyses.public_hybrids import public_markdown, public_rows, public_table

            if markdown:
                typer.echo(public_markdown())
            else:
                rows = public_rows()
                say.answer(lambda: one_document([asdict(row) for row in rows]), public_table())
            return
        kinds, hybrid = read_schedule(schedule, layers), PUBLIC_HYBRIDS.get(schedule.strip())
        if hops is None:
            hops = min(attention_layers(kinds) + 1, LONGEST_CHAIN) if hybrid else 2
        own_heads, own_dimension = (hybrid.heads, hybrid.head_dimension) if hybrid else (4, 16)
        bounds = predict_progress(kinds, hops, window_reaches_table=window_reaches_table)
        condition = size_condition(
            hops,
            heads=own_heads if heads is None else heads,
            head_dimension=own_dimension if head_dimension is None else head_dimension,
            precision=precision,
            length=length,
        )
        from analyses.tables import bounds_table

        note = []
        if hybrid:
            own = layers in (None, hybrid.n_layers)
            depth = "" if own else f", at {layers} layers instead of {hybrid.n_layers}"
            note = [Text(f"{hybrid.title}{depth}. {hybrid.note}".rstrip(" ."))]
        layered = {
            "layers": [asdict(bound) for bound in bounds],
            "size_condition": asdict(condition),
        }
        say.answer(lambda: one_document(layered), bounds_table(bounds, hops), *note, str(condition))
