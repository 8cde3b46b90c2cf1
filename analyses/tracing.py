"""The trace: how far along the chain each layer gets, by probe and by patch, beside the theory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import BaseModel, ConfigDict

from analyses.frames import trace_frame
from analyses.training import check_task, exact_accuracy
from architectures import HookedStack, ModelConfig
from architectures.checkpoints import write_json
from composition import (
    CompositionTask,
    ProgressBound,
    SizeCondition,
    can_look_up,
    counting_bound,
    predict_progress,
    size_condition,
)
from probes import interchange, interchange_pairs, probe_hops

if TYPE_CHECKING:
    import pandas as pd

HALF = 0.5
"""A hop counts as made where a measure covers this share of the way from its floor to 1."""

PRECISION = 32
"""Bits of the numbers that a model computes with."""

Verdict = Literal["inside", "below", "above"]
"""Of a measured hop against [lower, upper]."""


class Measured(BaseModel):
    """Accuracies at one layer and position, by hop `0 … L`, from 0 to 1.

    Attributes:
        probe: of a linear probe for `i_hop`, on held-out prompts.
        probe_floor: the best of chance, guessing the most frequent value in sight, shuffled
            labels and the same probe on untrained weights.
        interchange: share of pairs that continue the base's functions from the donor's `i_hop`.
        unchanged: share of pairs that answer as if nothing had been patched.
    """

    model_config = ConfigDict(frozen=True)

    probe: tuple[float, ...]
    probe_floor: tuple[float, ...]
    interchange: tuple[float, ...]
    unchanged: float

    @property
    def probe_hop(self) -> int:
        """The largest hop the probe reads well above its floor; 0 if none."""
        return _largest(self.probe, self.probe_floor)

    @property
    def causal_hop(self) -> int:
        """The largest hop that this site carries for most pairs; 0 if none."""
        return _largest(self.interchange, (0.0,) * len(self.interchange))


class LayerTrace(BaseModel):
    """What is known after one layer, and what the theory allows.

    Attributes:
        layer: 1 for the first layer; 0 is the embedding.
        kind: of the layer.
        start, answer: what was measured at the two positions.
        probe_hop, causal_hop: hops made at the answer position; 0 also where not even `i_0`
            has arrived there.
        lower, upper: the bounds on them, and where those come from.
        verdict: of the causal hop against the bounds.
        probe_verdict: of the probe hop.
    """

    model_config = ConfigDict(frozen=True)

    layer: int
    kind: str
    start: Measured
    answer: Measured
    probe_hop: int
    causal_hop: int
    lower: int
    upper: int
    source: str
    verdict: Verdict
    probe_verdict: Verdict


class ProgressTrace(BaseModel):
    """A model's progress along the chain, layer by layer.

    Attributes:
        config: the model traced.
        accuracy: exact accuracy on `prompts` fresh prompts.
        frequency_baseline: accuracy of guessing the most frequent value in sight.
        layers: from the embedding to the last layer.
        prompts: prompts that accuracy was measured and probes were tested on; as many more
            were used to fit the probes.
        pairs: interchange pairs.
        seed: of the prompts and pairs.
        size_condition: by how much the theorem's condition is missed.
    """

    model_config = ConfigDict(frozen=True)

    config: ModelConfig
    accuracy: float
    frequency_baseline: float
    layers: tuple[LayerTrace, ...]
    prompts: int
    pairs: int
    seed: int
    size_condition: SizeCondition

    def to_json(self, path: str | Path | None = None) -> str:
        """The trace as JSON, written to `path` too if one is given."""
        if path is not None:
            write_json(Path(path), self)
        return self.model_dump_json(indent=2)

    def _repr_html_(self) -> str:
        """The staircase, for notebooks."""
        import base64
        from html import escape

        from analyses.figures import describe_staircase, staircase, to_png

        words = describe_staircase({"": self}).removeprefix(": ")
        picture = base64.b64encode(to_png(staircase(self), words)).decode()
        alt = escape(f"Staircase: {words}")
        return f'<img alt="{alt}" style="max-width:100%" src="data:image/png;base64,{picture}">'

    def to_frame(self) -> pd.DataFrame:
        """A row for each layer, position and hop.

        Columns: `layer` (0 is the embedding), `kind`, `position` ("start", "answer"), `hop`;
        `interchange`, `probe`, `probe_floor` of that hop; `unchanged`, the same for all hops; and
        of the layer `causal_hop`, `probe_hop`, `lower`, `upper`, `verdict`, `probe_verdict`,
        `source`.
        """
        return trace_frame(self)

    @property
    def hops(self) -> int:
        """L."""
        return self.config.task.hops


def trace(
    model: HookedStack,
    task: CompositionTask | None = None,
    *,
    prompts: int = 4096,
    pairs: int = 1024,
    seed: int = 0,
) -> ProgressTrace:
    """Measure how many hops are made after every layer, and lay them beside the bounds.

    Args:
        model: the model, trained or hand-set.
        task: must be the model's own, which None stands for.
        prompts: how many to fit probes on, and how many more to test them on.
        pairs: how many interchange pairs, on which all hypotheses predict other answers.
        seed: of all that is drawn.

    Raises:
        ValueError: another task than the model's, or too few prompts or pairs.
    """
    config = model.config
    task = check_task(config, task)
    generator = torch.Generator().manual_seed(seed)
    fit_on, test_on = task.sample(prompts, generator), task.sample(prompts, generator)
    untrained = HookedStack(config, seed=seed + 1)
    probes = probe_hops(model, task, fit_on, test_on, seed=seed)
    floor_probes = probe_hops(untrained, task, fit_on, test_on, seed=seed)
    swaps = interchange(model, task, interchange_pairs(task, pairs, generator))
    guesses = torch.tensor(
        [max(task.chance(hop), task.frequency_baseline(hop)) for hop in range(task.hops + 1)]
    )

    def measured(position: str, layer: int) -> Measured:
        floors = [guesses, probes.shuffled[position][layer], floor_probes.accuracy[position][layer]]
        return Measured(
            probe=_numbers(probes.accuracy[position][layer]),
            probe_floor=_numbers(torch.stack(floors).amax(0)),
            interchange=_numbers(swaps.follows[position][layer]),
            unchanged=round(swaps.unchanged[position][layer].item(), 4),
        )

    bounds = _bounds(config)
    before = ProgressBound(0, "embedding", 0, 0, "no layer yet")
    return ProgressTrace(
        config=config,
        accuracy=exact_accuracy(model, prompts, generator),
        frequency_baseline=task.frequency_baseline(),
        layers=tuple(
            _layer_trace(bound, measured("start", bound.layer), measured("answer", bound.layer))
            for bound in (before, *bounds)
        ),
        prompts=prompts,
        pairs=pairs,
        seed=seed,
        size_condition=size_condition(
            task.hops,
            heads=config.n_heads,
            head_dimension=config.head_dimension,
            precision=PRECISION,
            length=task.length,
        ),
    )


def _layer_trace(bound: ProgressBound, start: Measured, answer: Measured) -> LayerTrace:
    return LayerTrace(
        layer=bound.layer,
        kind=bound.kind,
        start=start,
        answer=answer,
        probe_hop=answer.probe_hop,
        causal_hop=answer.causal_hop,
        lower=bound.lower,
        upper=bound.upper,
        source=bound.source,
        verdict=_verdict(answer.causal_hop, bound.lower, bound.upper),
        probe_verdict=_verdict(answer.probe_hop, bound.lower, bound.upper),
    )


def _bounds(config: ModelConfig) -> tuple[ProgressBound, ...]:
    """The theory's bounds, or the trivial ones for ablations of the task."""
    task = config.task
    if not task.query or task.order != "backward":
        source = "trivial: the theorems do not speak of this ablation"
        return tuple(
            ProgressBound(layer, kind, 0, task.hops, source)
            for layer, kind in enumerate(config.schedule, start=1)
        )
    return predict_progress(
        config.schedule,
        task.hops,
        linear_lookup=_linear_lookup_possible(config),
        # From the start position, which the N_0 entries of z_1 stand right in front of.
        window_reaches_table=config.window > task.domains[0],
    )


def _linear_lookup_possible(config: ModelConfig) -> bool:
    """Whether neither counting argument keeps the linear layers from holding `z_1`'s table."""
    impossible = counting_bound(
        config.n_layers,
        heads=config.linear_heads,
        head_dimension=max(config.d_key, config.d_value),
        precision=PRECISION,
        length=config.task.length,
    )
    roomy = can_look_up(config.task.domains[0], config.linear_heads, config.d_key)
    return roomy and not impossible


def _largest(accuracies: tuple[float, ...], floors: tuple[float, ...]) -> int:
    """The largest hop whose accuracy covers half of the way from its floor to 1; 0 if none."""
    made = [
        hop
        for hop, (accuracy, floor) in enumerate(zip(accuracies, floors, strict=True))
        if accuracy > floor + HALF * (1 - floor)
    ]
    return max(made, default=0)


def _verdict(hop: int, lower: int, upper: int) -> Verdict:
    if hop < lower:
        return "below"
    return "above" if hop > upper else "inside"


def _numbers(row: torch.Tensor) -> tuple[float, ...]:
    """Rounded to what the number of prompts can tell apart."""
    return tuple(round(value, 4) for value in row.tolist())
