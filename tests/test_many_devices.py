"""More than one process: a real local Ray, and two gloo processes through accelerate.

The results are those of this machine's own processes: on Ray bit for bit, and where processes
share every batch to 1e-5.
"""

import os
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from analyses.cli import app
from analyses.devices import Devices
from analyses.ray_runner import on_ray
from analyses.recipe import TrainingRecipe
from analyses.runs import read_result
from analyses.sweep import run_sweep
from analyses.training import train
from architectures import ModelConfig, load_model
from composition import CompositionTask
from tests.test_sweep import GRID, comparable, swept  # noqa: F401

slow = pytest.mark.slow


@slow
def test_ray_gives_the_table_of_local_processes(swept, tmp_path):  # noqa: F811
    """On a cluster of this machine, with a run that fails; started again, it makes that one."""
    told = set()
    blocked = tmp_path / "out" / "runs" / "early_seed=1"
    run_sweep(GRID.model_copy(update={"cross": {"seed": [0]}}), tmp_path / "out")
    blocked.mkdir()
    (blocked / "notes.txt").write_text("somebody's")
    runner = on_ray()
    frame = run_sweep(
        GRID, tmp_path / "out", runner=runner, report=lambda name, progress: told.add(name)
    )
    assert list(frame[frame["error"].notna()]["name"]) == ["early_seed=1"]
    assert "notes.txt" in (tmp_path / "out" / "errors" / "early_seed=1.txt").read_text()
    assert told == {"late_seed=1"}
    (blocked / "notes.txt").unlink()
    assert comparable(run_sweep(GRID, tmp_path / "out", runner=runner)) == comparable(swept[1])
    assert load_model(blocked).config == GRID.points()[1].config


def test_resources_are_set_in_the_grid_and_impossible_ones_refused(tmp_path):
    arms = {"small": GRID.arms["early"], "large": {**GRID.arms["late"], "cpus": 2, "gpus": 0.5}}
    mixed = GRID.model_copy(update={"cross": {}, "arms": arms})
    small, large = (point.resources for point in mixed.points())
    assert (small.cpus, small.gpus, small.threads, small.device) == (1, 0, 1, "cpu")
    assert (large.cpus, large.gpus, large.threads, large.device) == (2, 0.5, 2, "cuda")
    with pytest.raises(ValueError, match=r"large asks for 0\.5 GPUs.*--ray"):
        run_sweep(mixed, tmp_path / "out")
    nothing = GRID.model_copy(update={"base": {**GRID.base, "cpus": 0}})
    with pytest.raises(ValueError, match="nothing to compute on"):
        nothing.points()
    for words, way_out in (
        (["--address", "auto"], "add --ray"),
        (["--ray", "--workers", "3"], "--workers is for"),
    ):
        result = CliRunner().invoke(app, ["sweep", "grids/small.toml", *words])
        assert result.exit_code == 2
        assert way_out in result.stderr


@slow
def test_two_processes_train_what_one_does(tmp_path):
    words = ["train", "--schedule", "full,gated-deltanet", "--steps", "30", "--branching", "3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launch = "accelerate.commands.launch --cpu --num_processes 2 --num_machines 1 -m analyses.cli"
    for name, how in {"one": "analyses.cli", "two": launch}.items():
        device = ["--device", "accelerate"] if name == "two" else []
        command = [sys.executable, "-m", *how.split(), *words, "--out", str(tmp_path / name)]
        ended = subprocess.run(
            [*command, *device], capture_output=True, text=True, timeout=300, env=environment
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.count("exact accuracy") == 1
    one, two = (load_model(tmp_path / name).state_dict() for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=1e-5, rtol=0, msg=name)
    results = [read_result(tmp_path / name) for name in ("one", "two")]
    assert results[0].progress.step == results[1].progress.step == 30
    assert abs(results[0].progress.loss - results[1].progress.loss) < 1e-5
    assert results[0].progress.by_hops == pytest.approx(results[1].progress.by_hops, abs=1e-5)


def test_a_batch_must_divide_among_the_processes(monkeypatch):
    monkeypatch.setattr(Devices, "count", 3)
    config = ModelConfig(
        task=CompositionTask(start_domain=3, branching=(2,)), schedule=("full",), d_model=16
    )
    with pytest.raises(ValueError, match="a batch of 64 does not divide among 3 processes"):
        train(config, recipe=TrainingRecipe(steps=1))


def test_a_device_that_is_not_there_is_refused():
    for name in ("cuda:99", "abacus"):
        with pytest.raises(ValueError, match=f"device '{name}' cannot be used here"):
            Devices(name)
