"""The state of a training run: one step at a time, and all of it on disk and back."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from pydantic import BaseModel
from torch import Tensor

from analyses.devices import Devices
from analyses.differences import first_difference
from analyses.recipe import BUDGET, Progress, TrainingRecipe, check_version
from architectures import CheckpointError, HookedStack, ModelConfig
from architectures.checkpoints import load_weights, read_tensors, write_tensors
from composition.sampling import Prompts, ask

MEAN_LIFE = 20
"""Steps over which running accuracies average."""

HISTORY_EVERY = 25
"""Steps between two entries of the history."""


@dataclass
class TrainingRun:
    """Weights, optimiser, random state and progress: all that the next step depends on."""

    config: ModelConfig
    recipe: TrainingRecipe
    model: HookedStack
    optimizer: torch.optim.AdamW
    generator: torch.Generator
    progress: Progress
    history: list[Progress]
    devices: Devices

    @classmethod
    def begin(
        cls, config: ModelConfig, recipe: TrainingRecipe, devices: Devices | None = None
    ) -> TrainingRun:
        """A run at step 0.

        Raises:
            ValueError: a batch that does not divide among the devices.
        """
        devices = devices or Devices()
        devices.check_batch(recipe.batch)
        hops = config.task.hops
        model = HookedStack(config, seed=recipe.seed).to(devices.device)
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=recipe.learning_rate,
            betas=recipe.betas,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        level = 1 if recipe.curriculum == "active-hops" else hops + 1
        progress = Progress(level=level, by_hops=(None,) * hops)
        generator = torch.Generator().manual_seed(recipe.seed)
        return cls(config, recipe, model, optimizer, generator, progress, [], devices)

    @property
    def on_task(self) -> bool:
        """Whether the curriculum is over and prompts are the task itself."""
        return self.progress.level > self.config.task.hops

    def step(self) -> None:
        """One batch of fresh questions, one update, and the level raised where it is due."""
        began = time.perf_counter()
        recipe, before = self.recipe, self.progress
        prompts, shared = self._draw()
        logits = self.model.answers(prompts.tokens, shared)
        loss = F.cross_entropy(logits, prompts.answer)
        self.optimizer.zero_grad()
        loss.backward()
        self.devices.average_gradients(self.model)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        rate = recipe.learning_rate * min(1.0, (before.step + 1) / recipe.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

        right = (logits.argmax(-1) == prompts.answer).float()
        losses = loss.detach().expand_as(right)
        correct, active, losses = self.devices.together(
            torch.stack([right, prompts.active.to(right), losses], dim=1)
        ).T
        accuracy = before.accuracy + (correct.mean().item() - before.accuracy) / MEAN_LIFE
        level = before.level
        if accuracy >= recipe.level_up and not self.on_task:
            level, accuracy = level + 1, 0.0
        self.progress = Progress(
            step=before.step + 1,
            level=level,
            accuracy=accuracy,
            by_hops=_running_by_hops(before.by_hops, correct, active),
            loss=losses.mean().item(),
            seconds=before.seconds + time.perf_counter() - began,
        )
        if self.progress.step % HISTORY_EVERY == 0:
            self.history.append(self.progress)

    def _draw(self) -> tuple[Prompts, int]:
        """This process's share of a batch, and how many questions share their functions."""
        task, recipe = self.config.task, self.recipe
        level = None if self.on_task else self.progress.level
        if task.order == "forward":
            prompts = task.sample(recipe.batch * recipe.questions, self.generator, level)
            return self.devices.share(prompts, 1), 1
        prompts = task.sample(recipe.batch, self.generator, level)
        prompts = ask(task, prompts, recipe.questions, self.generator)
        return self.devices.share(prompts, recipe.questions), recipe.questions

    def save(self, path: Path) -> None:
        """Write the whole state into one safetensors file."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{name}.{key}"] = value
        tensors["generator"] = self.generator.get_state()
        metadata = {
            "config": self.config.model_dump_json(),
            "recipe": self.recipe.model_dump_json(),
            "progress": self.progress.model_dump_json(),
            "history": json.dumps([entry.model_dump() for entry in self.history]),
        }
        write_tensors(path, tensors, metadata)

    def load(self, path: Path) -> None:
        """Go on from the state in `path`.

        Raises:
            CheckpointError: the file is not whole, or of a run with another config or recipe.
        """
        tensors, metadata = read_tensors(path)
        try:
            config = ModelConfig.model_validate_json(metadata["config"])
            recipe = TrainingRecipe.model_validate_json(metadata["recipe"])
            progress = Progress.model_validate_json(metadata["progress"])
            history = [Progress.model_validate(entry) for entry in json.loads(metadata["history"])]
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"{path} is not a training checkpoint: {error}") from None
        check_version(recipe, path)
        self._check_same_run(path, config, recipe)
        weights = _under(tensors, "model.")
        load_weights(self.model, weights, path)
        for name, parameter in self.model.named_parameters():
            self.optimizer.state[parameter] = {
                key: value.to(parameter.device)
                for key, value in _under(tensors, f"optimizer.{name}.").items()
            }
        self.generator.set_state(tensors["generator"])
        self.progress, self.history = progress, history

    def _check_same_run(self, path: Path, config: ModelConfig, recipe: TrainingRecipe) -> None:
        there: BaseModel
        here: BaseModel
        for there, here in ((config, self.config), (recipe, self.recipe)):
            name = first_difference(there, here, ignoring=BUDGET)
            if name is not None:
                raise CheckpointError(
                    f"{path} is of another run: {name} is {getattr(there, name)!r} there and "
                    f"{getattr(here, name)!r} here; use another directory, or remove this one"
                )


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _running_by_hops(
    before: tuple[float | None, ...], correct: Tensor, active: Tensor
) -> tuple[float | None, ...]:
    after: list[float | None] = []
    for hops, old in enumerate(before, start=1):
        mine = correct[active == hops]
        if len(mine) == 0:
            after.append(old)
        else:
            new = mine.mean().item()
            after.append(new if old is None else old + (new - old) / MEAN_LIFE)
    return tuple(after)
