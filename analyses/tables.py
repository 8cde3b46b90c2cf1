"""Traces and bounds as tables on the terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:  # a table of bounds needs no torch
    from pandas import DataFrame

    from analyses.runs import RunResult
    from analyses.tracing import LayerTrace, ProgressTrace
    from analyses.zoo import TrainedModel
    from composition import ProgressBound

COLORS = {"inside": "green", "below": "yellow", "above": "red"}

MANY_LAYERS = 12
"""Longer schedules have layers with the same bounds in one row."""

MANY_RUNS = 8
"""Kinds that alternate more often within a row are counted instead of listed."""


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


def sweep_table(frame: DataFrame) -> Table:
    """One line an arm and crossed setting, over its seeds: accuracy and hops of every layer."""
    table = Table(title="by arm, over seeds: median (lowest … highest)", title_justify="left")
    for heading in ("run", "layers", "seeds", "exact accuracy", "causal hop", "allowed"):
        table.add_column(heading)
    finished = frame[frame["error"].isna()]
    runs = finished["name"].str.replace(r"_seed=[^_]+", "", regex=True)
    for name, rows in finished.groupby(runs, sort=False):
        accuracy, first = rows["accuracy"], rows.iloc[0]
        table.add_row(
            _arm_and_settings(str(name), first["arm"]),
            _run_lengths(list(first["schedule"])),
            str(len(rows)),
            f"{accuracy.median():.3f} ({accuracy.min():.3f} … {accuracy.max():.3f})",
            "\n".join(
                " ".join(map(str, hops[1:])) + (f"  ×{count}" if count > 1 else "")
                for hops, count in Counter(map(tuple, rows["causal_hop"])).most_common()
            ),
            " ".join(map(_allowed, first["lower"][1:], first["upper"][1:])),
        )
    return table


def _arm_and_settings(name: str, arm: str) -> str:
    """A run's name over as many lines as it has crossed settings; a terminal is not that wide."""
    settings = re.findall(r"([^=]+=[^_]*)(?:_|$)", name.removeprefix(arm).removeprefix("_"))
    return "\n  ".join([arm, *settings])


def models_table(models: Sequence[TrainedModel]) -> Table:
    """One line a model of the zoo."""
    table = Table(title="trained models: load_trained(name)", title_justify="left")
    table.add_column("name", no_wrap=True)
    for heading in ("L", "layers", "task", "accuracy", "causal hop"):
        table.add_column(heading)
    for model in models:
        table.add_row(
            model.name,
            str(model.hops),
            _run_lengths(model.schedule),
            model.task,
            f"{model.accuracy:.4f}",
            " ".join(map(str, model.causal_hop)),
        )
    return table


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
    """The theory's bounds for a schedule; a long one has a row for every step of the staircase."""
    table = Table(title=f"hops at the answer position, of {hops}", title_justify="left")
    for heading in ("layer", "kind", "at least", "at most", "source"):
        table.add_column(heading)
    if len(bounds) <= MANY_LAYERS:
        for bound in bounds:
            table.add_row(
                str(bound.layer), bound.kind, str(bound.lower), str(bound.upper), bound.source
            )
        return table
    said = ""
    for (lower, upper, source), step in groupby(bounds, lambda b: (b.lower, b.upper, b.source)):
        layers = list(step)
        first, last = layers[0].layer, layers[-1].layer
        table.add_row(
            str(first) if first == last else f"{first}-{last}",
            _run_lengths([layer.kind for layer in layers]),
            str(lower),
            str(upper),
            source if source != said else "",  # once is enough
        )
        said = source
    return table


def _run_lengths(kinds: Sequence[str]) -> str:
    """ "full, 3 gated-deltanet": neighbours of one kind are counted, or if they alternate, all."""
    runs = [(kind, len(list(run))) for kind, run in groupby(kinds)]
    if len(runs) > MANY_RUNS:
        runs = list(Counter(kinds).items())
    return ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in runs)


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
