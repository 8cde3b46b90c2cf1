"""One run on disk: a model trained, saved and traced in a directory of its own.

config.json, model.safetensors    the trained model
checkpoint.safetensors            the state of training, to go on from
result.json                       how training ended, and the trace; written last, so a
                                  directory that has it is a finished run
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from pydantic import BaseModel, ConfigDict

from analyses.devices import Devices
from analyses.differences import first_difference
from analyses.frames import history_frame
from analyses.lock import alone_in
from analyses.recipe import Progress, TrainingRecipe, check_version
from analyses.tracing import ProgressTrace, trace
from analyses.training import CHECKPOINT_FILE, Outcome, check_task, train
from architectures import CheckpointError, ModelConfig, save_model
from architectures.checkpoints import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    read_json,
    visible_files,
    write_json,
)
from composition import CompositionTask
from probes import interchange_pairs

if TYPE_CHECKING:
    import pandas as pd

RESULT_FILE = "result.json"


class Machine(BaseModel):
    """Where numbers were measured."""

    model_config = ConfigDict(frozen=True)

    python: str
    torch: str
    hoptrace: str
    processor: str
    threads: int

    @classmethod
    def here(cls) -> Machine:
        """This process."""
        return cls(
            python=platform.python_version(),
            torch=torch.__version__,
            hoptrace=version("hoptrace"),
            processor=f"{platform.system()} {platform.machine()}",
            threads=torch.get_num_threads(),
        )


class RunResult(BaseModel):
    """How a run ended: fields as in `TrainingResult`, the trace, and the machine."""

    model_config = ConfigDict(frozen=True)

    recipe: TrainingRecipe
    outcome: Outcome
    accuracy: float
    progress: Progress
    history: tuple[Progress, ...]
    trace: ProgressTrace
    machine: Machine

    def to_frame(self) -> pd.DataFrame:
        """A row for every entry of the history, and one for where training ended.

        Columns: `step`, `level`, `accuracy`; `accuracy_hops_1` … `accuracy_hops_L`, on prompts with
        so many uniform functions, missing before any was seen; `loss`, `seconds`.
        """
        return history_frame(self.history, self.progress)


def run(
    config: ModelConfig,
    task: CompositionTask | None = None,
    recipe: TrainingRecipe | None = None,
    *,
    directory: str | Path,
    report: Callable[[Progress], None] | None = None,
    devices: Devices | None = None,
) -> RunResult:
    """Train, save and trace a model in `directory`; go on where an earlier try was cut off.

    A finished run of the same config and recipe is read, not repeated. Of several processes that
    train together, the main one writes.

    Raises:
        CheckpointError: the directory holds another run, or something that is not a run, or
            another process is at work there.
    """
    recipe, devices = recipe or TrainingRecipe(), devices or Devices()
    task = check_task(config, task)
    directory = Path(directory)
    if devices.agreed((directory / RESULT_FILE).exists()):
        return read_finished(directory, config, recipe)
    check_usable(directory)
    interchange_pairs(task, 1, torch.Generator().manual_seed(0))  # refuse now, not after training
    with alone_in(directory) if devices.is_main else nullcontext():
        return _train_and_trace(config, task, recipe, directory, report, devices)


def _train_and_trace(
    config: ModelConfig,
    task: CompositionTask,
    recipe: TrainingRecipe,
    directory: Path,
    report: Callable[[Progress], None] | None,
    devices: Devices,
) -> RunResult:
    trained = train(config, task, recipe, directory=directory, report=report, devices=devices)
    if devices.is_main:
        save_model(trained.model, directory)
    result = RunResult(
        recipe=recipe,
        outcome=trained.outcome,
        accuracy=trained.accuracy,
        progress=trained.progress,
        history=tuple(trained.history),
        trace=trace(trained.model, seed=recipe.seed),
        machine=Machine.here(),
    )
    if devices.is_main:
        write_json(directory / RESULT_FILE, result)
    devices.wait()
    return result


def read_result(directory: str | Path) -> RunResult:
    """The result of a finished run.

    Raises:
        CheckpointError: the directory has none, it is not whole, or an older version wrote it.
    """
    path = Path(directory) / RESULT_FILE
    try:
        result = read_json(RunResult, path)
    except CheckpointError as error:
        way_out = "; remove it, and the run goes on from its checkpoint" if path.exists() else ""
        raise CheckpointError(f"{error}{way_out}") from None
    check_version(result.recipe, path)
    return result


def read_finished(directory: Path, config: ModelConfig, recipe: TrainingRecipe) -> RunResult:
    """The result in `directory`, if it is of this config and recipe.

    Raises:
        CheckpointError: it is not, or `read_result` refuses it.
    """
    finished = read_result(directory)
    different = first_difference(finished.trace.config, config)
    different = different or first_difference(finished.recipe, recipe)
    if different is not None:
        raise CheckpointError(
            f"{directory} holds a finished run of another config or recipe ({different} differs); "
            "use another directory, or remove this one"
        )
    return finished


def check_usable(directory: Path) -> None:
    """Refuse a directory with files in it that no run of ours has put there.

    Raises:
        CheckpointError: it has some, or it is a file.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is a file; give a directory")
    present = {path.name for path in visible_files(directory)}
    foreign = sorted(present - {CHECKPOINT_FILE, CONFIG_FILE, WEIGHTS_FILE, RESULT_FILE})
    if WEIGHTS_FILE in present and CHECKPOINT_FILE not in present:
        raise CheckpointError(
            f"{directory} holds a saved model that no run of ours has left; "
            "use a new or empty directory, so that it is not overwritten"
        )
    if foreign:
        raise CheckpointError(
            f"{directory} is not empty and not a run (it holds {foreign[0]!r}); "
            "use a new or empty directory"
        )
