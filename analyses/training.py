"""Training: fresh prompts every step, the answer as the only label, exact resume.

At level k of the active-hops curriculum each prompt makes 1 … k of its functions uniform and
the rest the identity; the level after the last is the task itself. The model and the loss
never change, so the layers divide the hops among themselves as they like.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from analyses.devices import Devices
from analyses.differences import first_difference
from analyses.frames import history_frame
from analyses.progress_bar import training_bar
from analyses.recipe import Progress, TrainingRecipe
from analyses.training_run import TrainingRun
from architectures import HookedStack, ModelConfig
from composition import CompositionTask

if TYPE_CHECKING:
    import pandas as pd

Outcome = Literal["reached", "steps spent", "time spent"]

STOPPING_STREAM, RESULT_STREAM = 2**32, 2**33
"""Seeds, far from training's, of the prompts that decide when to stop and of the final ones."""

CHECKPOINT_FILE = "checkpoint.safetensors"

EVALUATE_EVERY, MARGIN = 10, 0.005
"""Steps between evaluations, once the running accuracy is within this margin of the target."""


@dataclass(frozen=True)
class TrainingResult:
    """A trained model and why training ended.

    Attributes:
        model: with the final weights.
        recipe: what was asked for.
        outcome: "reached" the target, "steps spent" or "time spent".
        accuracy: exact accuracy on held-out prompts of the task at the end.
        progress: where training ended.
        history: the progress at every 25th step.
    """

    model: HookedStack
    recipe: TrainingRecipe
    outcome: Outcome
    accuracy: float
    progress: Progress
    history: list[Progress] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """A row for every entry of the history, and one for where training ended.

        Columns: `step`, `level`, `accuracy`; `accuracy_hops_1` … `accuracy_hops_L`, on prompts with
        so many uniform functions, missing before any was seen; `loss`, `seconds`.
        """
        return history_frame(self.history, self.progress)


def train(
    config: ModelConfig,
    task: CompositionTask | None = None,
    recipe: TrainingRecipe | None = None,
    *,
    directory: str | Path | None = None,
    report: Callable[[Progress], None] | None = None,
    devices: Devices | None = None,
) -> TrainingResult:
    """Train a `HookedStack` until it answers exactly or its budget is spent.

    Args:
        config: the model.
        task: what to train on; must be the config's own, which None stands for.
        recipe: how to train; the defaults if None.
        directory: where checkpoints go. If it holds a checkpoint of the same run, training
            goes on from there and ends, on one thread, with the same weights bit for bit as
            a run that was never interrupted.
        report: called with the progress after every step, in place of the progress bar.
        devices: where to train; the CPU if None. The model that is returned is on the CPU.

    Raises:
        ValueError: a task other than the config's, or a batch that does not divide among the
            devices.
        CheckpointError: the directory's checkpoint is of another run, or not whole.
    """
    check_task(config, task)
    devices = devices or Devices()
    run = TrainingRun.begin(config, recipe or TrainingRecipe(), devices)
    checkpoint = None if directory is None else Path(directory) / CHECKPOINT_FILE
    if checkpoint is not None and devices.agreed(checkpoint.exists()):
        run.load(checkpoint)  # each process: they need to see the same directory
    with _bar(run.recipe.steps, report, devices) as tell:
        while (outcome := devices.agreed(_outcome(run))) is None:
            run.step()
            tell(run.progress)
            if run.progress.step % run.recipe.checkpoint_every == 0:
                _save(run, checkpoint)
    _save(run, checkpoint)
    model = run.model.cpu().eval()
    accuracy = held_out_accuracy(model, run.recipe, RESULT_STREAM)
    return TrainingResult(model, run.recipe, outcome, accuracy, run.progress, run.history)


def _bar(
    steps: int, report: Callable[[Progress], None] | None, devices: Devices
) -> AbstractContextManager[Callable[[Progress], None]]:
    """What is told the progress: `report`, or a bar; nothing beside the main process."""
    if not devices.is_main:
        return nullcontext(lambda progress: None)
    return training_bar(steps) if report is None else nullcontext(report)


def _save(run: TrainingRun, checkpoint: Path | None) -> None:
    if checkpoint is not None and run.devices.is_main:
        run.save(checkpoint)


def check_task(config: ModelConfig, task: CompositionTask | None) -> CompositionTask:
    """The config's task, if `task` is None or the same.

    Raises:
        ValueError: another task; the first field that differs is named.
    """
    name = None if task is None else first_difference(task, config.task)
    if name is not None:
        raise ValueError(
            f"the model is made for another task: its {name} is {getattr(config.task, name)!r}, "
            f"not {getattr(task, name)!r}; give a ModelConfig for this task"
        )
    return config.task


@torch.no_grad()
def exact_accuracy(model: HookedStack, prompts: int, generator: torch.Generator) -> float:
    """Share of `prompts` fresh prompts of the model's task that it answers right."""
    correct = 0
    for begin in range(0, prompts, 1024):
        drawn = model.config.task.sample(min(1024, prompts - begin), generator)
        drawn = drawn.to(model.unembed.device)
        correct += int((model.answers(drawn.tokens).argmax(-1) == drawn.answer).sum())
    return correct / prompts


def held_out_accuracy(model: HookedStack, recipe: TrainingRecipe, stream: int) -> float:
    """Exact accuracy on prompts that the recipe's seed and `stream` fix, apart from training's.

    The stream that decides when to stop is not the one the result is measured on: stopping at
    the first good evaluation favours the prompts it was made on.
    """
    generator = torch.Generator().manual_seed(stream + recipe.seed)
    return exact_accuracy(model, recipe.evaluation_prompts, generator)


def _outcome(run: TrainingRun) -> Outcome | None:
    """Why training is over, or None while it goes on."""
    recipe, progress = run.recipe, run.progress
    promising = run.on_task and progress.accuracy >= recipe.target - MARGIN
    if (
        promising
        and progress.step % EVALUATE_EVERY == 0
        and held_out_accuracy(run.model, recipe, STOPPING_STREAM) >= recipe.target
    ):
        return "reached"
    if progress.step >= recipe.steps:
        return "steps spent"
    if recipe.max_seconds is not None and progress.seconds >= recipe.max_seconds:
        return "time spent"
    return None
