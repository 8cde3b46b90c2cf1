"""Who moves which hop where: a circuit whose edges are path patches.

Nodes are the outputs of mixers and MLPs, and the embedding, at the positions that the chain visits.
An edge says how much of the answer comes back when only what its sender tells its receiver
directly is put right, after one entry of the chain was changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from composition import CompositionTask
from composition.sampling import CounterfactualPairs, Prompts, redraw_unvisited, visited_position
from probes.metrics import Metric, logit_difference
from probes.patching import patch_sweep
from probes.paths import path_sweep
from probes.running import answer_logits, device_of, hook_point
from probes.sites import Site, n_layers

if TYPE_CHECKING:
    import pandas as pd


ALMOST = 0.8
"""Share of a path's largest weight from which on another hop's is as large."""

TRIES = 100
"""Chains drawn anew before it is given up that a change of them shows."""


@dataclass(frozen=True, order=True)
class Node:
    """A component at a position of the chain.

    Attributes:
        layer: 1 for the first; 0 is the embedding, one past the last the logits.
        part: "embedding", "mixer", "mlp" or "logits".
        role: "z1" … "zL" for the entry that the chain visits, "start", or "answer".
    """

    layer: int
    part: str
    role: str

    def __str__(self) -> str:
        place = f"entry of {self.role}" if self.role.startswith("z") else f"the {self.role}"
        if self.part == "logits":
            return "the logits"
        if self.part == "embedding":
            return f"embedding at {place}"
        return f"{self.part} {self.layer} at {place}"


@dataclass(frozen=True)
class Edge:
    """A direct path, and what it is worth when the entry that gives `i_hop` was changed.

    Attributes:
        weight: share of the change of the logit difference that the path alone undoes, all chains
            together; 0 for nothing, 1 for all of it.
        low, high: the middle 95 % of the weight, chains drawn anew with replacement.
    """

    sender: Node
    receiver: Node
    hop: int
    weight: float
    low: float
    high: float


@dataclass(frozen=True)
class Circuit:
    """Edges above a threshold, and how the answer depends on their nodes.

    Attributes:
        schedule: kinds of the layers.
        roles: what positions nodes can stand at, in prompt order.
        edges: every path whose weight reaches the threshold, for every hop.
        effects: by node and hop, what putting the whole node right is worth.
        threshold: below it, nodes and edges are left out.
        chains, prompts: how many chains the means are over, and prompts a chain.
    """

    schedule: tuple[str, ...]
    roles: tuple[str, ...]
    edges: tuple[Edge, ...]
    effects: dict[tuple[Node, int], float]
    threshold: float
    chains: int
    prompts: int

    def moved(self) -> dict[tuple[Node, Node], Edge]:
        """Each path once, with the hop whose value goes along it, as far as one can tell.

        A change of an early value changes all that follow, so a path that carries `i_l` alone is
        worth as much for every hop up to l and nothing for later ones: of the hops that are worth
        at least `ALMOST` of the path's most, the last is taken. Where a path carries several
        values, that is one of them; `edges` has all.
        """
        by_path: dict[tuple[Node, Node], list[Edge]] = defaultdict(list)
        for edge in self.edges:
            by_path[edge.sender, edge.receiver].append(edge)
        moved = {}
        for path, edges in by_path.items():
            most = max(edge.weight for edge in edges)
            near = [edge for edge in edges if edge.weight >= ALMOST * most]
            moved[path] = max(near, key=lambda edge: edge.hop)
        return moved

    def sentences(self) -> list[str]:
        """The paths in words, layer by layer."""
        ordered = sorted(self.moved().values(), key=lambda edge: (edge.receiver, edge.sender))
        return [
            f"i_{edge.hop} from {edge.sender} to {edge.receiver} ({edge.weight:.2f})"
            for edge in ordered
        ]

    def to_frame(self) -> pd.DataFrame:
        """A row an edge: sender, receiver, hop, weight, low, high."""
        import pandas as pd

        rows = [
            (str(edge.sender), str(edge.receiver), edge.hop, edge.weight, edge.low, edge.high)
            for edge in self.edges
        ]
        return pd.DataFrame(rows, columns=["sender", "receiver", "hop", "weight", "low", "high"])


def circuit(
    model: nn.Module,
    task: CompositionTask,
    *,
    chains: int = 16,
    prompts: int = 16,
    threshold: float = 0.1,
    seed: int = 0,
) -> Circuit:
    """Path patching between all nodes that matter, for a change of every hop's entry.

    All prompts of a chain visit the same entries and differ in all others. Of each, a twin has
    the entry that gives `i_hop` changed; clean activations are put into the twin's run. The query
    is never changed, so what depends on it alone does not show.

    Args:
        model: `blocks.{i}.hook_attn_out` is needed, `…hook_mlp_out` used where it is.
        chains: prompts whose chains are followed.
        prompts: how many redraw what a chain does not visit, for each.
        threshold: shares of the effect below which nodes and paths are left out.
        seed: of all prompts.

    Raises:
        ValueError: chains or prompts below 1, a task in which no change shows, or a model without
            the hooks.
    """
    if chains < 1 or prompts < 1:
        raise ValueError(f"{chains} chains of {prompts} prompts: at least one of each is needed")
    generator = torch.Generator().manual_seed(seed)
    device = device_of(model)
    nodes = _nodes(model, task)
    drawn = [_pinned(task, prompts, generator) for _ in range(chains)]
    edges: list[Edge] = []
    effects: dict[tuple[Node, int], float] = {}
    for hop in range(task.hops + 1):
        pairs = [_changed(task, drawn, chain, hop, generator).to(device) for chain in range(chains)]
        whole = torch.stack([_whole(model, pair) for pair in pairs])
        totals = torch.stack([_total(model, task, pair, nodes) for pair in pairs])
        shares = (totals.sum(0) / whole.sum()).tolist()
        kept = [node for node, share in zip(nodes, shares, strict=True) if share >= threshold]
        effects |= {
            (node, hop): share
            for node, share in zip(nodes, shares, strict=True)
            if share >= threshold
        }
        for (sender, receiver), changes in _paths(model, task, pairs, kept).items():
            weight = (changes.sum() / whole.sum()).item()
            if weight >= threshold:
                low, high = _interval(changes, whole, generator)
                edges.append(Edge(sender, receiver, hop, weight, low, high))
    schedule = _schedule(model)
    return Circuit(schedule, _roles(task), tuple(edges), effects, threshold, chains, prompts)


def _pinned(task: CompositionTask, count: int, generator: torch.Generator) -> Prompts:
    """Prompts that visit the same entries, and differ everywhere else."""
    one = task.sample(1, generator)
    return redraw_unvisited(task, one[torch.zeros(count, dtype=torch.int64)], generator)


def _changed(
    task: CompositionTask, drawn: list[Prompts], chain: int, hop: int, generator: torch.Generator
) -> CounterfactualPairs:
    """A chain's pairs; one of which no change of the hop shows is replaced by another chain."""
    for _ in range(TRIES):
        try:
            return task.counterfactual(drawn[chain], hop, generator)
        except ValueError:
            drawn[chain] = _pinned(task, len(drawn[chain]), generator)
    return task.counterfactual(drawn[chain], hop, generator)  # which says what is wrong


def _nodes(model: nn.Module, task: CompositionTask) -> list[Node]:
    roles = _roles(task)
    nodes = [Node(0, "embedding", role) for role in roles]
    for layer in range(1, n_layers(model) + 1):
        for part, hook in (("mixer", "attn_out"), ("mlp", "mlp_out")):
            if hook_point(model, f"blocks.{layer - 1}.hook_{hook}") is not None:
                nodes += [Node(layer, part, role) for role in roles]
    return nodes


def _roles(task: CompositionTask) -> tuple[str, ...]:
    """Positions of the chain, in prompt order; the answer is read at the last."""
    roles = [role for role in task.roles if role == "start" or role.startswith("z")]
    # Without a query the answer is read at the start: one position is one node.
    if task.start_position == task.answer_position:
        roles.remove("start")
    return (*roles, "answer")


def _position(task: CompositionTask, prompts: Prompts, role: str) -> int:
    """Where a role stands in prompts that visit the same entries."""
    if role in task.traced_positions:
        return task.traced_positions[role]
    return int(visited_position(task, prompts[:1], int(role[1:])))


def _site(model: nn.Module, task: CompositionTask, prompts: Prompts, node: Node) -> Site:
    if node.part == "logits":
        return Site("resid_post", n_layers(model) - 1, task.answer_position)
    position = _position(task, prompts, node.role)
    if node.part == "embedding":
        return Site("resid_pre", 0, position)
    return Site({"mixer": "attn_out", "mlp": "mlp_out"}[node.part], node.layer - 1, position)


def _metric(pair: CounterfactualPairs) -> Metric:
    return logit_difference(pair.clean.answer, pair.corrupted.answer)


@torch.no_grad()
def _whole(model: nn.Module, pair: CounterfactualPairs) -> Float[Tensor, ""]:
    """How far the logit difference of the two runs is apart, on average."""
    metric, rows = _metric(pair), slice(None)
    clean, corrupted = (
        metric(answer_logits(model, side.tokens), rows) for side in (pair.clean, pair.corrupted)
    )
    return (clean - corrupted).double().mean().cpu()


def _total(
    model: nn.Module, task: CompositionTask, pair: CounterfactualPairs, nodes: Iterable[Node]
) -> Float[Tensor, " node"]:
    """The change that putting each whole node right makes."""
    sites = [_site(model, task, pair.clean, node) for node in nodes]
    clean, corrupted = pair.clean.tokens, pair.corrupted.tokens
    return patch_sweep(model, clean, corrupted, sites, _metric(pair)).change.double().cpu()


def _paths(
    model: nn.Module,
    task: CompositionTask,
    pairs: Sequence[CounterfactualPairs],
    nodes: Sequence[Node],
) -> dict[tuple[Node, Node], Float[Tensor, " chain"]]:
    """The change that every direct path between nodes and to the logits makes, chain by chain."""
    logits = Node(n_layers(model) + 1, "logits", "answer")
    found: dict[tuple[Node, Node], list[float]] = defaultdict(list)
    for pair in pairs:
        for sender in nodes:
            receivers = [
                node for node in (*nodes, logits) if _hears(task, pair.clean, node, sender)
            ]
            if not receivers:
                continue
            swept = path_sweep(
                model,
                pair.corrupted.tokens,
                pair.clean.tokens,
                _site(model, task, pair.clean, sender),
                [_site(model, task, pair.clean, receiver) for receiver in receivers],
                _metric(pair),
            )
            for receiver, change in zip(receivers, swept.change.tolist(), strict=True):
                found[sender, receiver].append(change)
    return {path: torch.tensor(changes).double() for path, changes in found.items()}


def _hears(task: CompositionTask, prompts: Prompts, receiver: Node, sender: Node) -> bool:
    """Whether anything can go from sender to receiver without another component."""
    order = ("embedding", "mixer", "mlp", "logits")
    if (receiver.layer, order.index(receiver.part)) <= (sender.layer, order.index(sender.part)):
        return False
    here, there = (_position(task, prompts, node.role) for node in (receiver, sender))
    return there <= here if receiver.part == "mixer" else there == here


def _interval(changes: Tensor, whole: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """The middle 95 % of the weight over chains drawn anew with replacement."""
    rows = torch.randint(len(whole), (1000, len(whole)), generator=generator)
    shares = changes[rows].sum(1) / whole[rows].sum(1)
    return shares.quantile(0.025).item(), shares.quantile(0.975).item()


def _schedule(model: nn.Module) -> tuple[str, ...]:
    config = getattr(model, "config", None)
    return getattr(config, "schedule", None) or ("full",) * n_layers(model)
