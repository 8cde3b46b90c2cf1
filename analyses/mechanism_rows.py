"""How the models of a sweep make their hops, a row a run: see `probes.mechanisms`.

mechanisms.parquet, beside a sweep's results.parquet:

    name         of the run
    fetched      by function z_1 … z_L: largest share of pairs, over layers, in which the visited
                 entry holds what comes after its own value
    fetched_by   by function: the layer after which it does, 0 for the embedding
    looked_up    by layer, by function z_1 … z_L: share of pairs in which the layer's values at the
                 entries of the function decide which value the chain goes on from
    carried      by layer, by hop 0 … L: share in which its value at the start position does
    folded       by layer, by function, in forward order: share in which the layer's recurrent state
                 carries i_k once the entries of z_k have passed; empty in backward order
    gate         how much of the first hop gated heads of the first layer can make, 0 … 1; missing
                 where it has no attention pattern
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.results import write_parquet
from analyses.sweep import RUNS, read_sweep
from architectures import HookedStack, load_model
from composition import SOFTMAX_KINDS, parts
from probes import carry_or_look_up, entry_contents, folded, gate, gated_attention

MECHANISMS_FILE = "mechanisms.parquet"


def mechanism_row(model: HookedStack, *, pairs: int = 512, seed: int = 0) -> dict[str, Any]:
    """The columns above, but for the name.

    Layers without values of their own, such as convolutions, have empty lists.
    """
    task = model.config.task
    entries = [
        entry_contents(model, task, hop, pairs=pairs, seed=seed) for hop in range(1, task.hops + 1)
    ]
    layers = [
        carry_or_look_up(model, task, layer, pairs=pairs, seed=seed)
        if kind != "short-conv" and "+" not in kind
        else None
        for layer, kind in enumerate(model.config.schedule)
    ]
    forward = task.order == "forward"
    attends = parts(model.config.schedule[0])[0] in SOFTMAX_KINDS
    return {
        "fetched": [round(entry.fetched, 4) for entry in entries],
        "fetched_by": [int(entry.follows[:, 1:].sum(1).argmax()) for entry in entries],
        "looked_up": [_rounded(layer.looked_up) if layer else [] for layer in layers],
        "carried": [_rounded(layer.carried) if layer else [] for layer in layers],
        "folded": [_rounded(layer) for layer in folded(model, task)] if forward else [],
        "gate": round(gate(gated_attention(model, task)), 4) if attends else None,
    }


def measure_mechanisms(
    directory: str | Path,
    *,
    pairs: int = 512,
    seed: int = 0,
    ended: Callable[[str, int, int], None] | None = None,
) -> pd.DataFrame:
    """Measure every finished run of a sweep, and leave `mechanisms.parquet` beside its results.

    Args:
        ended: told a run's name, how many are measured and how many there are.

    Raises:
        CheckpointError: no sweep, one that is not at its end, or a model that is not whole.
        ValueError: a task too small to tell hypotheses apart.
    """
    directory = Path(directory)
    frame = read_sweep(directory)
    names = list(frame[frame["error"].isna()]["name"])
    rows: list[dict[str, Any]] = []
    for name in names:
        model = load_model(directory / RUNS / name)
        rows.append({"name": name, **mechanism_row(model, pairs=pairs, seed=seed)})
        if ended is not None:
            ended(name, len(rows), len(names))
    measured = pd.DataFrame(rows)
    write_parquet(measured, directory / MECHANISMS_FILE)
    return measured


def _rounded(values: Any) -> list[float]:
    return [round(value, 4) for value in values.tolist()]
