"""Training stops for the reason it says, and a killed run ends as if it had never been killed."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from analyses import TrainingRecipe, train
from analyses.training import CHECKPOINT_FILE
from analyses.training_run import TrainingRun
from architectures import CheckpointError, HookedStack, ModelConfig
from architectures.checkpoints import read_tensors, write_tensors
from composition import CompositionTask

TASK = CompositionTask(start_domain=2, branching=(2,))
CONFIG = ModelConfig(task=TASK, schedule=("full", "deltanet", "full"), d_model=16, n_heads=2)
QUICK = TrainingRecipe(steps=23, batch=8, checkpoint_every=5, evaluation_prompts=64)


def quiet(progress) -> None:
    """In place of the progress bar."""


def weights(model: HookedStack) -> dict[str, torch.Tensor]:
    return model.state_dict()


def assert_same(left: HookedStack, right: HookedStack) -> None:
    for name, tensor in weights(left).items():
        assert torch.equal(tensor, weights(right)[name]), name


def test_the_same_seed_trains_the_same_model():
    one, same = (train(CONFIG, TASK, QUICK, report=quiet) for _ in range(2))
    assert_same(one.model, same.model)
    other = train(CONFIG, TASK, QUICK.model_copy(update={"seed": 1}), report=quiet)
    assert not torch.equal(one.model.unembed, other.model.unembed)


def test_a_budget_of_steps_is_kept():
    steps = []
    result = train(CONFIG, TASK, QUICK, report=lambda progress: steps.append(progress.step))
    assert steps == list(range(1, 24))
    assert result.outcome == "steps spent"
    assert result.progress.step == 23
    assert 0 <= result.accuracy < 0.9


def test_a_budget_of_seconds_is_kept():
    recipe = QUICK.model_copy(update={"steps": 10**9, "max_seconds": 0.2})
    result = train(CONFIG, TASK, recipe, report=quiet)
    assert result.outcome == "time spent"
    assert result.progress.seconds >= 0.2


def test_the_curriculum_rises_by_accuracy_and_ends_at_the_task():
    """With a threshold that any accuracy passes, each level lasts one step."""
    recipe = QUICK.model_copy(update={"level_up": 1e-9, "steps": 6, "batch": 64})
    levels = []
    train(CONFIG, TASK, recipe, report=lambda progress: levels.append(progress.level))
    assert levels == [2, 3, 3, 3, 3, 3]
    plain = QUICK.model_copy(update={"curriculum": "none", "steps": 2})
    levels.clear()
    train(CONFIG, TASK, plain, report=lambda progress: levels.append(progress.level))
    assert levels == [3, 3]


@pytest.mark.slow
def test_training_reaches_the_target_and_says_so():
    task = CompositionTask(start_domain=2, branching=(3,))
    config = ModelConfig(task=task, schedule=("full",) * 3, d_model=32)
    result = train(config, task, TrainingRecipe(steps=3000, target=0.99), report=quiet)
    assert result.outcome == "reached"
    assert result.accuracy > 0.98
    assert result.progress.step < 3000
    assert result.progress.level == 3
    assert result.history[-1].by_hops[1] > 0.95


KILLED = """
import signal, sys, torch
torch.set_num_threads(1)
from analyses import TrainingRecipe, train
from architectures import ModelConfig

def report(progress):
    if progress.step == int(sys.argv[4]):
        print("there", flush=True)
        signal.pause()

config = ModelConfig.model_validate_json(sys.argv[1])
recipe = TrainingRecipe.model_validate_json(sys.argv[2])
train(config, config.task, recipe, directory=sys.argv[3], report=report)
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [3, 17])
def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path, killed_at):
    """SIGKILL before the first checkpoint and between two; then a fresh process's weights."""
    arguments = [CONFIG.model_dump_json(), QUICK.model_dump_json(), str(tmp_path), str(killed_at)]
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert (tmp_path / CHECKPOINT_FILE).exists() == (killed_at > 5)

    steps = []
    resumed = train(
        CONFIG, TASK, QUICK, directory=tmp_path, report=lambda progress: steps.append(progress.step)
    )
    assert steps[0] == (16 if killed_at > 5 else 1)
    uninterrupted = train(CONFIG, TASK, QUICK, report=quiet)
    assert_same(resumed.model, uninterrupted.model)
    assert resumed.accuracy == uninterrupted.accuracy
    without_time = {"seconds"}
    assert resumed.progress.model_dump(exclude=without_time) == uninterrupted.progress.model_dump(
        exclude=without_time
    )


def test_optimiser_and_random_state_come_back(tmp_path):
    run = TrainingRun.begin(CONFIG, QUICK)
    for _ in range(3):
        run.step()
    run.save(tmp_path / "state")
    again = TrainingRun.begin(CONFIG, QUICK)
    again.load(tmp_path / "state")
    for _ in range(3):
        run.step()
        again.step()
    assert_same(run.model, again.model)
    assert run.progress.loss == again.progress.loss
    for mine, theirs in zip(run.model.parameters(), again.model.parameters(), strict=True):
        for key, value in run.optimizer.state[mine].items():
            assert torch.equal(value, again.optimizer.state[theirs][key])


def test_a_finished_run_is_not_trained_further_and_a_larger_budget_goes_on(tmp_path):
    first = train(CONFIG, TASK, QUICK, directory=tmp_path, report=quiet)
    steps = []
    again = train(CONFIG, TASK, QUICK, directory=tmp_path, report=lambda p: steps.append(p.step))
    assert steps == []
    assert_same(first.model, again.model)
    longer = QUICK.model_copy(update={"steps": 30})
    train(CONFIG, TASK, longer, directory=tmp_path, report=lambda p: steps.append(p.step))
    assert steps == list(range(24, 31))


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    train(CONFIG, TASK, QUICK, directory=tmp_path, report=quiet)
    other_task = CompositionTask(start_domain=3, branching=(2,))
    others = [
        (CONFIG.model_copy(update={"task": other_task}), QUICK, "task is"),
        (CONFIG.model_copy(update={"d_model": 32}), QUICK, "d_model is 16 there and 32 here"),
        (CONFIG, QUICK.model_copy(update={"batch": 9}), "batch is 8 there and 9 here"),
    ]
    for config, recipe, message in others:
        with pytest.raises(CheckpointError, match=f"is of another run: {message}"):
            train(config, None, recipe, directory=tmp_path, report=quiet)


def test_a_checkpoint_of_an_older_version_is_refused(tmp_path):
    """Its recipe lacks a field, whose default today need not be what was done then."""
    train(CONFIG, TASK, QUICK, directory=tmp_path, report=quiet)
    path = tmp_path / CHECKPOINT_FILE
    tensors, metadata = read_tensors(path)
    recipe = json.loads(metadata["recipe"])
    del recipe["questions"]
    write_tensors(path, tensors, {**metadata, "recipe": json.dumps(recipe)})
    with pytest.raises(CheckpointError, match="of an older version, which knew no 'questions'"):
        train(CONFIG, TASK, QUICK, directory=tmp_path, report=quiet)


def test_a_checkpoint_cut_in_half_is_refused(tmp_path):
    train(CONFIG, TASK, QUICK, directory=tmp_path, report=quiet)
    path = tmp_path / CHECKPOINT_FILE
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        train(CONFIG, TASK, QUICK, directory=tmp_path, report=quiet)


def test_another_task_is_refused():
    with pytest.raises(ValueError, match="its start_domain is 2, not 5"):
        train(CONFIG, CompositionTask(start_domain=5, branching=(2,)), QUICK)


def test_the_progress_bar_tells_accuracy_by_hops(capsys):
    train(CONFIG, TASK, QUICK)
    assert "accuracy by hops" in capsys.readouterr().err
