"""Pictures of traces. Figures are returned, never shown; save or display them as you like."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from analyses.tracing import LayerTrace, ProgressTrace

CAUSAL, PROBE, THEORY = "#0b5cad", "#d1661a", "#c9d6e6"
SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", "#9cc3ea", CAUSAL])


class Picture(Figure):
    """A figure that notebooks show whether or not pyplot has been loaded there, and only once."""

    def _repr_png_(self) -> bytes:
        return to_png(self)


def staircase(traces: ProgressTrace | Mapping[str, ProgressTrace]) -> Picture:
    """Hops made after every layer against the bounds, and below it who carries what.

    Above: the causal hop and the probe hop at the answer position on the band that the theory
    allows. Below: interchange accuracy of every hop at the start and answer positions.

    Args:
        traces: one trace, or several by name, one column each.
    """
    if isinstance(traces, ProgressTrace):
        traces = {"": traces}
    columns = len(traces)
    figure = Picture(figsize=(max(3.4 * columns, 4.6), 6.6), layout="constrained")
    axes = figure.subplots(
        2, columns, squeeze=False, sharey="row", gridspec_kw={"height_ratios": [1.0, 1.15]}
    )
    for column, (name, trace) in enumerate(traces.items()):
        _steps(axes[0, column], trace)
        _carriers(axes[1, column], trace, "interchange")
        schedule = ", ".join(trace.config.schedule)
        axes[0, column].set_title(
            f"{name}\n{schedule}\nanswers right: {trace.accuracy:.1%}".strip(), fontsize=10
        )
    axes[0, 0].set_ylabel("hops made at the answer position")
    axes[1, 0].set_ylabel("hop whose value the site carries")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=3 if columns > 1 else 1,
        frameon=False, fontsize=9,
    )  # fmt: skip
    return figure


def steps(trace: ProgressTrace) -> Picture:
    """The upper half of the staircase alone: hops against the bounds, for one trace."""
    figure = Picture(figsize=(4.2, 3.6), layout="constrained")
    axes = figure.subplots()
    _steps(axes, trace)
    axes.set_ylabel("hops made at the answer position", fontsize=9)
    figure.legend(loc="outside lower center", ncols=1, frameon=False, fontsize=8)
    return figure


def heatmaps(trace: ProgressTrace) -> Picture:
    """Probe accuracy beside interchange accuracy, of every hop at the start and the answer."""
    rows, columns = 2 * (trace.hops + 1), len(trace.layers)
    figure = Picture(figsize=(2.0 + 1.15 * columns, 1.2 + 0.33 * rows), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _carriers(left, trace, "probe")
    _carriers(right, trace, "interchange")
    return figure


def to_png(figure: Figure, description: str = "", dpi: int = 110) -> bytes:
    """The figure as a PNG file, with what it shows in words inside, for those who cannot see it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Description": description})
    return buffer.getvalue()


def describe_staircase(traces: Mapping[str, ProgressTrace]) -> str:
    """The upper half of the staircase in words, for those who cannot see it."""
    return " ".join(describe_steps(name, trace) for name, trace in traces.items())


def describe_steps(name: str, trace: ProgressTrace) -> str:
    """One trace's steps in words."""
    layers = trace.layers[1:]
    return (
        f"{name}: causal hop after each layer {_listed(layer.causal_hop for layer in layers)}; "
        f"probe hop {_listed(layer.probe_hop for layer in layers)}; allowed "
        f"{_listed(_bounds(layer) for layer in layers)}."
    )


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _bounds(layer: LayerTrace) -> str:
    one = layer.lower == layer.upper
    return str(layer.lower) if one else f"{layer.lower} to {layer.upper}"


def describe_heatmaps(trace: ProgressTrace) -> str:
    """What is above a half in the heatmaps, in words."""
    said = []
    for measure in ("probe", "interchange"):
        places = [
            f"i_{hop} at the {position} after layer {layer.layer} ({value:.2f})"
            for layer in trace.layers
            for position in ("start", "answer")
            for hop, value in enumerate(getattr(getattr(layer, position), measure))
            if value > 0.5
        ]
        said.append(f"{measure} accuracy above a half: {', '.join(places) or 'nowhere'}.")
    return " ".join(said)


def _steps(axes: Axes, trace: ProgressTrace) -> None:
    layers = trace.layers
    x = [layer.layer for layer in layers]
    for layer in layers:
        axes.fill_between(
            [layer.layer - 0.5, layer.layer + 0.5],
            layer.lower - 0.18,
            layer.upper + 0.18,
            color=THEORY,
            linewidth=0,
            label="theory: from lower to upper bound" if layer is layers[0] else None,
        )
    causal = [layer.causal_hop for layer in layers]
    probe = [layer.probe_hop for layer in layers]
    axes.plot(
        x,
        causal,
        "s-",
        drawstyle="steps-mid",
        color=CAUSAL,
        lw=2,
        ms=8,
        label="causal hop (patching)",
    )
    axes.plot(
        x, probe, "o", color=PROBE, mfc="none", ms=15, mew=2, label="probe hop (linear probe)"
    )
    for layer in layers:
        if layer.verdict != "inside":
            axes.annotate(
                layer.verdict, (layer.layer, layer.causal_hop), textcoords="offset points",
                xytext=(0, 14), ha="center", fontsize=8, color="#9c1c1c",
            )  # fmt: skip
    _layer_ticks(axes, layers)
    axes.set_yticks(range(trace.hops + 1))
    axes.set_ylim(-0.5, trace.hops + 0.5)
    axes.grid(axis="y", alpha=0.25)


def _carriers(axes: Axes, trace: ProgressTrace, measure: Literal["probe", "interchange"]) -> None:
    """Rows: hops at the answer position above hops at the start position."""
    rows, labels = [], []
    for position in ("start", "answer"):
        for hop in range(trace.hops + 1):
            rows.append([getattr(getattr(layer, position), measure)[hop] for layer in trace.layers])
            labels.append(f"$i_{hop}$ at {position}")
    values = np.array(rows)
    axes.imshow(values, cmap=SHADES, vmin=0, vmax=1, aspect="auto", origin="lower")
    for (row, column), value in np.ndenumerate(values):
        if value >= 0.05:
            color = "white" if value > 0.6 else "#222222"
            axes.text(
                column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=color
            )
    axes.axhline(trace.hops + 0.5, color="#444444", lw=1)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    _layer_ticks(axes, trace.layers)
    axes.set_xlabel(f"{measure} accuracy after the layer", fontsize=9)


def _layer_ticks(axes: Axes, layers: tuple[LayerTrace, ...]) -> None:
    names = ["embed" if layer.layer == 0 else f"{layer.layer}\n{layer.kind}" for layer in layers]
    axes.set_xticks(range(len(layers)), names, fontsize=8)
    axes.set_xlim(-0.5, len(layers) - 0.5)
