"""What several questions of one set of functions save, and what computing only the answer saves.

    python -m benchmarks.questions

Prints two tables, on one thread: a training step's passes forward and backward, taking turns in one
process; and steps and seconds to the default target with 1, 4 and 16 questions a set, seeds 0 to 2.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from analyses.recipe import TrainingRecipe
from analyses.training import train
from architectures import HookedStack, ModelConfig
from benchmarks.timing import interleaved, machine, milliseconds, ratio
from composition import CompositionTask
from composition.sampling import Prompts, ask

TASK = CompositionTask(start_domain=8, branching=(4,))
SCHEDULES = (("full", "full", "full"), ("full", "deltanet", "full"))
BATCH, ROUNDS, SEEDS = 64, 40, (0, 1, 2)


def whole(model: HookedStack, prompts: Prompts) -> None:
    """Every prompt by itself, at every position."""
    F.cross_entropy(model(prompts.tokens)[:, -1], prompts.answer).backward()


def answers(model: HookedStack, prompts: Prompts, questions: int) -> None:
    """Only what the answer hears, the functions once for all questions of a set."""
    F.cross_entropy(model.answers(prompts.tokens, questions), prompts.answer).backward()


def passes() -> None:
    """Time of a step for each way, per 64 sets of functions."""
    print("| stack | questions | whole prompts, ms | answers, ms | ratio |\n|---|---|---|---|---|")
    for schedule in SCHEDULES:
        model = HookedStack(ModelConfig(task=TASK, schedule=schedule, linear_heads=2, d_key=2))
        generator = torch.Generator().manual_seed(0)
        for questions in (1, 4, 16):
            prompts = ask(TASK, TASK.sample(BATCH, generator), questions, generator)
            times = interleaved(
                {
                    "whole": partial(whole, model, prompts),
                    "answers": partial(answers, model, prompts, questions),
                },
                ROUNDS,
            )
            cells = (
                ", ".join(schedule),
                questions,
                milliseconds(times["whole"]),
                milliseconds(times["answers"]),
                ratio(times["whole"], times["answers"]),
            )
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def to_target() -> None:
    """Steps and seconds to 0.998, for each number of questions and seed."""
    print("\n| stack | questions | steps, seeds 0 to 2 | seconds |\n|---|---|---|---|")
    for schedule in SCHEDULES:
        config = ModelConfig(task=TASK, schedule=schedule, linear_heads=2, d_key=2)
        for questions in (1, 4, 16):
            steps, seconds = [], []
            for seed in SEEDS:
                recipe = TrainingRecipe(questions=questions, seed=seed)
                result = train(config, recipe=recipe, report=lambda progress: None)
                short = "" if result.outcome == "reached" else f" ({result.accuracy:.3f})"
                steps.append(f"{result.progress.step}{short}")
                seconds.append(f"{result.progress.seconds:.0f}")
            cells = (", ".join(schedule), questions, ", ".join(steps), ", ".join(seconds))
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(machine() + "\n")
    passes()
    to_target()
