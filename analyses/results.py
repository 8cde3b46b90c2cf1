"""What a run comes to, as one row of a table: settings, sizes, and what was measured by layer."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from analyses.grid import Point
from analyses.runs import RunResult
from analyses.tracing import ProgressTrace
from analyses.workers import Failure
from architectures import HookedStack, ModelConfig
from architectures.checkpoints import write_atomically
from composition import SOFTMAX_KINDS, parts

STATE_BITS = 32
"""Bits of every number in a recurrent state."""


def row_of(point: Point, result: RunResult | Failure) -> dict[str, Any]:
    """A run as a row.

    Columns: `name`, `arm`; every setting of task, model and recipe by its own name; `hops`,
    `length` (tokens), `parameters`, `state_bits`; `error` (None for a finished run); `accuracy`
    and `frequency_baseline`; `outcome`, `steps_taken`, `level`, `seconds`; then lists with an
    entry a layer, the embedding first: `causal_hop`, `probe_hop`, `lower`, `upper`, and lists of
    accuracies by hop `0 … L`: `answer_interchange`, `start_interchange`, `answer_probe`,
    `answer_probe_floor`, `start_probe`, `start_probe_floor`; last `size_exponent`, the theorem's
    size condition as `log10` of the prompt length that it asks for.
    """
    settings = {
        **point.config.task.model_dump(),
        **point.config.model_dump(exclude={"task"}),
        **point.recipe.model_dump(),
    }
    task = point.config.task
    row = {
        "name": point.name,
        "arm": point.arm,
        **{name: _plain(value) for name, value in settings.items()},
        "hops": task.hops,
        "length": task.length,
        "parameters": parameters(point.config),
        "state_bits": state_bits(point.config),
    }
    if isinstance(result, Failure):
        return {**row, "error": result.message}
    return {
        **row,
        "error": None,
        "accuracy": result.accuracy,
        "frequency_baseline": result.trace.frequency_baseline,
        "outcome": result.outcome,
        "steps_taken": result.progress.step,
        "level": result.progress.level,
        "seconds": result.progress.seconds,
        **_by_layer(result.trace),
    }


def parameters(config: ModelConfig) -> int:
    """Numbers that training sets."""
    return sum(parameter.numel() for parameter in HookedStack(config).parameters())


@torch.no_grad()
def state_bits(config: ModelConfig) -> int:
    """Bits that the layers without attention carry from one position to the next, at 32 a number.

    Counted in the state that a run leaves: recurrent states, normalisers, convolutions' tails.
    """
    model = HookedStack(config)
    tokens = config.task.sample(1, torch.Generator().manual_seed(0)).tokens
    _, state = model(tokens, return_state=True)
    return STATE_BITS * sum(
        tensor.numel()
        for kind, kept in zip(config.schedule, state.layers, strict=True)
        if not any(part in SOFTMAX_KINDS for part in parts(kind))
        for tensor in kept.values()
    )


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """The whole file or none."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    write_atomically(path, buffer.getvalue())


def _by_layer(trace: ProgressTrace) -> dict[str, Any]:
    layers = trace.layers
    row: dict[str, Any] = {
        name: [getattr(layer, name) for layer in layers]
        for name in ("causal_hop", "probe_hop", "lower", "upper")
    }
    for position in ("answer", "start"):
        for measure in ("interchange", "probe", "probe_floor"):
            row[f"{position}_{measure}"] = [
                list(getattr(getattr(layer, position), measure)) for layer in layers
            ]
    row["size_exponent"] = trace.size_condition.log10_length_needed
    return row


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
