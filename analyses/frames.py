"""Traces, families and histories of training as tidy pandas frames: one row an observation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # pandas waits until somebody asks for a frame
    import pandas as pd

    from analyses.recipe import Progress
    from analyses.runs import RunResult
    from analyses.tracing import ProgressTrace

OF_A_LAYER = ("causal_hop", "probe_hop", "lower", "upper", "verdict", "probe_verdict", "source")
"""Columns of a trace that are the same for all rows of a layer."""


def trace_frame(trace: ProgressTrace) -> pd.DataFrame:
    """See `ProgressTrace.to_frame`."""
    import pandas as pd

    return pd.DataFrame(
        {
            "layer": layer.layer,
            "kind": layer.kind,
            "position": position,
            "hop": hop,
            "interchange": measured.interchange[hop],
            "probe": measured.probe[hop],
            "probe_floor": measured.probe_floor[hop],
            "unchanged": measured.unchanged,
            **{name: getattr(layer, name) for name in OF_A_LAYER},
        }
        for layer in trace.layers
        for position, measured in (("start", layer.start), ("answer", layer.answer))
        for hop in range(len(measured.interchange))
    )


def family_frame(runs: Mapping[str, RunResult]) -> pd.DataFrame:
    """See `FamilyResult.to_frame`."""
    import pandas as pd

    frames = [pd.DataFrame({"run": pd.Series(dtype="str")})]
    for name, run in runs.items():
        frame = trace_frame(run.trace)
        of_the_run = (name, run.recipe.seed, run.accuracy, run.outcome, run.progress.step)
        for place, heading in enumerate(("run", "seed", "accuracy", "outcome", "step")):
            frame.insert(place, heading, of_the_run[place])
        frames.append(frame)
    return pd.concat(frames[1:] or frames, ignore_index=True)


def history_frame(history: Sequence[Progress], last: Progress) -> pd.DataFrame:
    """See `TrainingResult.to_frame`."""
    import pandas as pd

    entries = [*history, *([] if history and history[-1] == last else [last])]
    hops = range(1, len(last.by_hops) + 1)
    columns = {
        name: [getattr(entry, name) for entry in entries] for name in ("step", "level", "accuracy")
    }
    for hop in hops:
        columns[f"accuracy_hops_{hop}"] = [entry.by_hops[hop - 1] for entry in entries]
    columns |= {name: [getattr(entry, name) for entry in entries] for name in ("loss", "seconds")}
    of_floats = [name for name in columns if name not in ("step", "level")]
    return pd.DataFrame(columns).astype(dict.fromkeys(of_floats, "float64"))
