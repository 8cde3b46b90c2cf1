"""Traces and bounds as tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:  # a table of bounds needs no torch
    from analyses.runs import RunResult
    from analyses.tracing import LayerTrace, ProgressTrace
    from composition import ProgressBound

COLORS = {"inside": "green", "below": "yellow", "above": "red"}


def verdict_table(runs: Mapping[str, RunResult]) -> Table:
    """One line a run: what it reached, hops by layer, and whether the theory allows them."""
    title = "hops made at the answer position, after each layer"
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("run", width=18)  # all columns together fit into 80 characters
    for heading in ("exact accuracy", "causal", "probe", "allowed", "verdict"):
        table.add_column(heading)
    for name, run in runs.items():
        layers = run.trace.layers[1:]
        table.add_row(
            f"{name}\n[dim]{' '.join(run.trace.config.schedule)}[/]",
            f"{run.accuracy:.4f}\n{run.outcome}\nat step {run.progress.step}",
            *_hops_by_layer(layers),
            _verdict(layers),
        )
    return table


def verdict_markdown(families: Sequence[Mapping[str, RunResult]]) -> str:
    """The verdict tables of several families as one, in Markdown."""
    lines = [
        "| run | seed | layers | exact accuracy | training ended "
        "| causal hop | probe hop | allowed | verdict |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(name for runs in families for name in runs):
        for run in (runs[name] for runs in families if name in runs):
            layers = run.trace.layers[1:]
            cells = (
                name,
                run.recipe.seed,
                ", ".join(run.trace.config.schedule),
                f"{run.accuracy:.4f}",
                f"{run.outcome}, step {run.progress.step}",
                *_hops_by_layer(layers),
                _verdict(layers, markup=False).replace("\n", " "),
            )
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def trace_table(trace: ProgressTrace, hop: int | None = None) -> Table:
    """One line a layer; the accuracies are those of `hop`, or of all hops in order."""
    hops = range(trace.hops + 1) if hop is None else [trace.config.task.check_hop(hop)]
    shown = ", ".join(f"i_{index}" for index in hops)
    table = Table(
        title=f"accuracies from top to bottom: {shown}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_lines=True,
    )
    for heading in ("after layer", "causal", "probe", "allowed"):
        table.add_column(heading, no_wrap=True)
    for position in ("start", "answer"):
        table.add_column(f"patch\n{position}")
        table.add_column(f"probe\n{position}")
    for layer in trace.layers:
        accuracies = [
            "\n".join(f"{values[index]:.2f}" for index in hops)
            for measured in (layer.start, layer.answer)
            for values in (measured.interchange, measured.probe)
        ]
        table.add_row(
            f"{layer.layer} {layer.kind}",
            str(layer.causal_hop),
            str(layer.probe_hop),
            f"{_allowed(layer.lower, layer.upper)} [{COLORS[layer.verdict]}]{layer.verdict}[/]",
            *accuracies,
        )
    return table


def bounds_table(bounds: Sequence[ProgressBound], hops: int) -> Table:
    """The theory's bounds for a schedule."""
    table = Table(title=f"hops at the answer position, of {hops}", title_justify="left")
    for heading in ("layer", "kind", "at least", "at most", "source"):
        table.add_column(heading)
    for bound in bounds:
        table.add_row(
            str(bound.layer), bound.kind, str(bound.lower), str(bound.upper), bound.source
        )
    return table


def _hops_by_layer(layers: Sequence[LayerTrace]) -> tuple[str, str, str]:
    """Causal hops, probe hops and what is allowed, each as one cell."""
    return (
        " ".join(str(layer.causal_hop) for layer in layers),
        " ".join(str(layer.probe_hop) for layer in layers),
        " ".join(_allowed(layer.lower, layer.upper) for layer in layers),
    )


def _allowed(lower: int, upper: int) -> str:
    return str(lower) if lower == upper else f"{lower}-{upper}"


def _verdict(layers: Sequence[LayerTrace], *, markup: bool = True) -> str:
    """ "inside", or after which layers the causal hop is below or above what is allowed."""
    lines = []
    for verdict in ("below", "above"):
        where = [str(layer.layer) for layer in layers if layer.verdict == verdict]
        if where:
            lines.append((verdict, f"{verdict}\nafter {', '.join(where)}"))
    lines = lines or [("inside", "inside")]
    return "\n".join(f"[{COLORS[v]}]{text}[/]" if markup else text for v, text in lines)
