"""Still pictures: heads side by side, hop maps, circuits. Figures are returned, never shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from analyses.figures import CAUSAL, PROBE, SHADES, Picture
from probes.circuit import Circuit, Edge, Node
from probes.hop_map import HopMap

TWO_ENDS = LinearSegmentedColormap.from_list("two ends", [PROBE, "#ffffff", CAUSAL])
HOP_COLORS = ("#5b5b5b", "#0b5cad", "#b04f0c", "#2a7f3f", "#8a3ea8", "#a8323e")
"""Of `i_0`, `i_1`, …; told apart in print too, since every line says its hop."""


COLUMN, ROW = 1.9, 1.05
"""Inches between positions and between layers in the picture of a circuit."""


def heads_picture(
    weights: Float[np.ndarray, "head query key"], names: Sequence[str], scale: float
) -> Picture:
    """One small heat map a head, queries downwards, keys to the right."""
    figure = Picture(figsize=(1.6 * len(names) + 0.2, 1.9), layout="constrained")
    for axes, name, head in zip(
        np.atleast_1d(figure.subplots(1, len(names))), names, weights, strict=True
    ):
        axes.imshow(head, cmap=TWO_ENDS, vmin=-scale, vmax=scale, interpolation="nearest")
        axes.set_title(name, fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


def hop_map_figure(found: HopMap) -> Picture:
    """Where is `i_l` now? A panel a hop: layers upwards, positions in prompt order.

    Shading is the share of pairs that go on from the donor's `i_l`; what was not measured is
    grey.
    """
    task = found.task
    hops, layers, length = found.follows.shape
    width = min(14.0, 2.2 + 0.14 * length)
    figure = Picture(figsize=(width, 0.75 + hops * (0.32 + 0.2 * layers)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(hops, 1, sharex=True))
    for hop, axes in enumerate(panels):
        axes.set_facecolor("#eeeeee")
        image = axes.imshow(
            found.follows[hop].numpy(), cmap=SHADES, vmin=0, vmax=1, aspect="auto", origin="lower",
            interpolation="nearest",
        )  # fmt: skip
        axes.set_ylabel(f"$i_{hop}$", rotation=0, ha="right", va="center", fontsize=11)
        names = ["emb", *(str(layer) for layer in range(1, layers))]
        axes.set_yticks(range(layers), names, fontsize=7)
        for place in task.positions.values():
            axes.axvline(place.stop - 0.5, color="#555555", lw=0.6)
    middles, names = [], []
    for role in task.roles:
        place = task.positions[role]
        middles.append((place.start + place.stop - 1) / 2)
        if role.startswith("z"):
            names.append(f"${role[0]}_{{{role[1:]}}}$")
        else:
            names.append("answer" if place.stop == task.length else role)
    panels[-1].set_xticks(middles, names, fontsize=9)
    for label, role in zip(panels[-1].get_xticklabels(), task.roles, strict=True):
        if not role.startswith("z"):
            label.set_rotation(90)
    figure.colorbar(image, ax=list(panels), shrink=0.8, aspect=20, label="share of pairs")
    return figure


def describe_hop_map(found: HopMap) -> str:
    """Where most pairs have each hop's value, layer by layer, in words."""
    said = []
    for hop in range(found.task.hops + 1):
        places = []
        for layer in range(found.follows.shape[1]):
            at = [
                name
                for name, position in found.task.traced_positions.items()
                if found.carried(layer, position) == hop
            ]
            at += [
                f"the entry of z_{function}"
                for function in range(1, hop + 1)
                if found.visited(function)[hop, layer] > 0.5
            ]
            if at:
                after = f"after layer {layer}" if layer else "in the embedding"
                places.append(f"{after} at {' and '.join(at)}")
        said.append(f"i_{hop} is {'; '.join(places) or 'nowhere in most pairs'}.")
    return " ".join(said)


def circuit_figure(found: Circuit) -> Picture:
    """The circuit as a graph: positions across, layers upwards, an arrow for each path.

    An arrow's number and width are its weight, its colour and label the hop whose value goes along
    it, as `Circuit.moved` says.
    """
    moved = list(found.moved().values())
    nodes = sorted({node for edge in moved for node in (edge.sender, edge.receiver)})
    roles = sorted({node.role for node in nodes}, key=found.roles.index)
    top = max((node.layer for node in nodes), default=0)
    size = 2.4 + COLUMN * max(len(roles), 1), 1.2 + ROW * (top + 1)
    figure = Picture(figsize=size, layout="constrained")
    axes = figure.subplots()
    place = {node: (roles.index(node.role), _height(node)) for node in nodes}
    for edge in moved:
        begin, end = place[edge.sender], place[edge.receiver]
        _arrow(axes, edge, begin, end, _bend(begin, end, place.values()))
    for node, (x, y) in place.items():
        axes.text(
            x, y, _node_name(node, found), ha="center", va="center", fontsize=8.5, zorder=6,
            bbox={"boxstyle": "round,pad=0.35", "fc": "white", "ec": "#444444", "lw": 0.8},
        )  # fmt: skip
    axes.set_xlim(-0.6, len(roles) - 0.4)
    axes.set_ylim(-0.5, top + 0.5)
    axes.set_xticks(range(len(roles)), [_role_name(role) for role in roles], fontsize=9)
    axes.set_yticks(range(top + 1), ["embedding", *map(str, range(1, top)), "logits"], fontsize=8)
    axes.set_ylabel("layer")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def _height(node: Node) -> float:
    return node.layer + (0.35 if node.part == "mlp" else 0.0)


def _role_name(role: str) -> str:
    return f"visited entry\nof $z_{{{role[1:]}}}$" if role.startswith("z") else role


def _node_name(node: Node, found: Circuit) -> str:
    if node.part == "mixer":
        return f"{node.layer} {found.schedule[node.layer - 1]}"
    return node.part if node.part != "mlp" else f"{node.layer} MLP"


def _arrow(
    axes: Axes, edge: Edge, begin: tuple[float, float], end: tuple[float, float], bend: float
) -> None:
    color = HOP_COLORS[edge.hop % len(HOP_COLORS)]
    axes.annotate(
        "", end, begin,
        arrowprops={
            "arrowstyle": "-|>", "color": color, "lw": 0.6 + 2.4 * min(edge.weight, 1.0),
            "shrinkA": 14, "shrinkB": 14, "connectionstyle": f"arc3,rad={bend}",
        },
    )  # fmt: skip
    # The middle of matplotlib's arc, whose bend is measured on paper.
    across, up = (end[0] - begin[0]) * COLUMN, (end[1] - begin[1]) * ROW
    axes.text(
        (begin[0] + end[0]) / 2 + bend / 2 * up / COLUMN,
        (begin[1] + end[1]) / 2 - bend / 2 * across / ROW,
        f"$i_{edge.hop}$ {edge.weight:.2f}",
        color=color, fontsize=8, ha="center", va="center", zorder=5,
        bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.9},
    )  # fmt: skip


def _bend(
    begin: tuple[float, float], end: tuple[float, float], places: Iterable[tuple[float, float]]
) -> float:
    """How far an arrow bends: around nodes that stand in its way, else not at all."""
    a, b = np.array(begin), np.array(end)
    way = b - a
    for place in places:
        along = np.dot(np.array(place) - a, way) / np.dot(way, way)
        if 0.01 < along < 0.99 and np.linalg.norm(a + along * way - place) < 0.25:
            return 0.4 if way[0] == 0 else -0.22
    return 0.0
