"""Sweeps: killed and gone on with they end with the same table; a failing run ends alone."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import pandas as pd
import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from analyses.cli import app
from analyses.grid import Grid
from analyses.lock import alone_in
from analyses.recipe import Progress
from analyses.results import parameters, state_bits
from analyses.runs import read_result
from analyses.sweep import read_sweep, run_sweep
from analyses.sweep_progress import SweepProgress
from analyses.workers import Failure, Job, run_all
from architectures import CheckpointError, HookedStack, ModelConfig
from composition import CompositionTask
from probes.bars import shown_on

GRID = Grid(
    base={
        "start_domain": 3,
        "branching": [3],
        "d_model": 16,
        "steps": 12,
        "batch": 16,
        "checkpoint_every": 4,
        "evaluation_prompts": 100,
    },
    cross={"seed": [0, 1]},
    arms={"early": {"schedule": "full,deltanet"}, "late": {"schedule": "deltanet,full"}},
)


def comparable(frame: pd.DataFrame) -> list[dict]:
    """The rows without the time they took."""
    return json.loads(frame.drop(columns="seconds").to_json(orient="records"))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sweep") / "out"
    return directory, run_sweep(GRID, directory)


@pytest.mark.slow
def test_a_sweep_has_a_row_a_run_with_all_that_was_measured(swept):
    directory, frame = swept
    assert list(frame["name"]) == ["early_seed=0", "early_seed=1", "late_seed=0", "late_seed=1"]
    assert frame["error"].isna().all()
    assert comparable(read_sweep(directory)) == comparable(frame)
    for row in frame.to_dict("records"):
        result = read_result(directory / "runs" / row["name"])
        layers = result.trace.layers
        assert row["accuracy"] == result.accuracy
        assert row["seed"] == result.recipe.seed
        assert tuple(row["schedule"]) == result.trace.config.schedule
        assert list(row["causal_hop"]) == [layer.causal_hop for layer in layers]
        assert list(row["upper"]) == [layer.upper for layer in layers]
        assert [tuple(hops) for hops in row["answer_interchange"]] == [
            layer.answer.interchange for layer in layers
        ]
        assert row["length"] == 3 + 9 + 2
        assert row["size_exponent"] == result.trace.size_condition.log10_length_needed


@pytest.mark.slow
def test_a_sweep_that_nobody_follows_shows_a_bar(swept):
    directory, _ = swept
    log = a_log()
    with shown_on(log):
        run_sweep(GRID, directory)
        run_sweep(GRID, directory, ended=lambda *_: None)
    assert re.fullmatch(r"runs: 4 of 4, (early|late)_seed=[01]\n", log.file.getvalue())


@pytest.mark.slow
def test_finished_runs_are_never_made_again_and_runs_may_be_added(swept):
    directory, frame = swept
    before = {path: path.stat().st_mtime_ns for path in (directory / "runs").rglob("*.*")}
    told = []
    larger = GRID.model_copy(update={"cross": {"seed": [0, 1, 2]}})
    again = run_sweep(larger, directory, ended=lambda name, _, found: told.append((name, found)))
    assert sorted(told) == sorted((name, not name.endswith("2")) for name in again["name"])
    kept = again[again["seed"] < 2]
    assert comparable(kept) == comparable(frame)
    assert (
        before.items()
        <= {path: path.stat().st_mtime_ns for path in (directory / "runs").rglob("*.*")}.items()
    )

    changed = GRID.model_copy(update={"base": {**GRID.base, "d_model": 32}})
    with pytest.raises(CheckpointError, match="holds another run named early_seed=0"):
        run_sweep(changed, directory)


@pytest.mark.slow
def test_a_killed_sweep_ends_with_the_same_table(swept, tmp_path):
    """SIGKILL to the command while runs are under way, then the same command again."""
    path, out = tmp_path / "grid.toml", tmp_path / "out"
    path.write_text(
        "\n".join(
            ["[base]", *(f"{name} = {value}" for name, value in GRID.base.items())]
            + ["[cross]", "seed = [0, 1]"]
            + [
                f'[arms.{arm}]\nschedule = "{settings["schedule"]}"'
                for arm, settings in GRID.arms.items()
            ]
        )
    )
    command = [sys.executable, "-m", "analyses.cli", "sweep", str(path), "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--workers", "1"], start_new_session=True, stdout=subprocess.DEVNULL
    )
    checkpoint = out / "runs" / "early_seed=1" / "checkpoint.safetensors"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert checkpoint.exists()
    assert not (out / "results.parquet").exists()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
    assert comparable(read_sweep(out)) == comparable(swept[1])


@pytest.mark.slow
def test_a_failing_run_keeps_its_error_and_takes_no_other_with_it(tmp_path):
    blocked = tmp_path / "out" / "runs" / "early_seed=1"
    run_sweep(GRID.model_copy(update={"cross": {"seed": [0]}}), tmp_path / "out")
    blocked.mkdir()
    (blocked / "notes.txt").write_text("somebody's")
    frame = run_sweep(GRID, tmp_path / "out").set_index("name")
    assert list(frame[frame["error"].notna()].index) == ["early_seed=1"]
    assert "notes.txt" in frame.loc["early_seed=1", "error"]
    assert frame["accuracy"].notna().sum() == 3
    report = (tmp_path / "out" / "errors" / "early_seed=1.txt").read_text()
    assert "CheckpointError" in report
    assert "Traceback" in report

    (blocked / "notes.txt").unlink()
    frame = run_sweep(GRID, tmp_path / "out")
    assert frame["error"].isna().all()
    assert list((tmp_path / "out" / "errors").iterdir()) == []


@pytest.mark.slow
def test_a_worker_that_is_killed_takes_no_other_run_with_it(tmp_path):
    """The process at work on the first run gets SIGKILL, as the kernel does without memory."""
    config = ModelConfig(task=CompositionTask(start_domain=3, branching=(3,)), schedule=("full",))
    long, short = GRID.points()[0].recipe, GRID.points()[1].recipe
    jobs = {
        "victim": Job(config, long.model_copy(update={"steps": 100_000}), tmp_path / "victim"),
        "other": Job(config, short, tmp_path / "other"),
    }

    def kill(name, progress):
        if name == "victim" and progress.step == 20:
            for child in psutil.Process().children():
                if "spawn_main" in " ".join(child.cmdline()):
                    child.kill()

    ended = dict(run_all(jobs, workers=1, report=kill))
    assert isinstance(ended["victim"], Failure)
    assert "signal 9" in ended["victim"].message
    assert ended["other"].accuracy >= 0


@pytest.mark.slow
def test_results_are_never_those_of_another_run(swept, tmp_path):
    """Not even where the grid in between has forgotten the run, and its name comes back."""
    directory = tmp_path / "out"
    one = GRID.model_copy(update={"cross": {"seed": [0]}})
    run_sweep(one, directory)
    only_early = one.model_copy(update={"arms": {"early": one.arms["early"]}})
    run_sweep(only_early, directory)
    wider = {"late": {**one.arms["late"], "d_model": 32}}
    frame = run_sweep(one.model_copy(update={"arms": wider}), directory)
    assert "another config or recipe (d_model differs)" in frame["error"][0]

    torn = directory / "runs" / "early_seed=0" / "result.json"
    torn.write_text("{")
    frame = run_sweep(only_early, directory)
    assert "remove it, and the run goes on from its checkpoint" in frame["error"][0]
    torn.unlink()
    frame = run_sweep(only_early, directory)
    assert comparable(frame) == comparable(swept[1])[:1]


@pytest.mark.slow
def test_a_sweep_that_was_extended_is_not_at_its_end_before_it_is(tmp_path):
    run_sweep(GRID.model_copy(update={"cross": {"seed": [0]}}), tmp_path / "out")

    def cut_off(name, result, found):
        if not found:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(GRID, tmp_path / "out", ended=cut_off)
    with pytest.raises(CheckpointError, match=r"not at its end \(early_seed=1 and 1 more"):
        read_sweep(tmp_path / "out")


def test_two_sweeps_in_one_directory_take_turns(tmp_path, monkeypatch):
    monkeypatch.setattr("analyses.lock.PATIENCE", 0.1)
    with alone_in(tmp_path / "out"), pytest.raises(CheckpointError, match="another process"):
        run_sweep(GRID, tmp_path / "out")


def test_another_directory_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="is not a sweep"):
        run_sweep(GRID, tmp_path)
    with pytest.raises(CheckpointError, match=r"is no sweep: it has no grid\.json"):
        read_sweep(tmp_path)


def test_the_command_refuses_in_one_line(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text("[base]\nstart_domain = 0\n")
    for words in (["sweep", str(path)], ["sweep", str(tmp_path / "none.toml")]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1


def test_parameters_and_state_bits_are_counted():
    task = CompositionTask(start_domain=3, branching=(3,))
    sizes = dict(task=task, d_model=16, linear_heads=2, d_key=3, d_value=5)
    full = ModelConfig(schedule=("full",), **sizes)
    assert parameters(full) == sum(p.numel() for p in HookedStack(full).parameters())
    assert state_bits(full) == 0
    delta = ModelConfig(schedule=("full", "deltanet", "deltanet"), **sizes)
    assert state_bits(delta) == 2 * 2 * 3 * 5 * 32
    linear = ModelConfig(schedule=("linear",), **sizes)
    assert state_bits(linear) == 2 * 3 * (5 + 1) * 32  # the normaliser is one more column


def a_log() -> Console:
    return Console(file=io.StringIO())


def test_the_time_left_follows_the_runs_shares_of_their_budgets():
    now = [0.0]
    console = a_log()
    with SweepProgress({"a": 100, "b": 100, "c": 100}, console, clock=lambda: now[0]) as bar:
        assert bar.left() == ""
        bar.ended("a", Failure("earlier"), found=True)  # cost this sweep nothing
        bar.tell("b", Progress(step=10, by_hops=(None,)))
        now[0] = 60.0
        bar.tell("b", Progress(step=50, by_hops=(None,)))
        assert bar.left() == "about 3 min left"  # half a run in one minute, one and a half to go
        bar.ended("b", Failure("no memory"))
        bar.tell("b", Progress(step=60, by_hops=(None,)))  # a message that came late
        assert bar.left() == "about 1 min left"
    assert console.file.getvalue() == "2 of 3  b: failed: no memory, about 1 min left\n"


def test_what_a_checkpoint_brings_along_is_not_counted_as_work_of_now():
    now = [0.0]
    with SweepProgress({"a": 1000}, a_log(), clock=lambda: now[0]) as bar:
        bar.tell("a", Progress(step=810, by_hops=(None,)))  # goes on where it was cut off
        now[0] = 10.0
        bar.tell("a", Progress(step=820, by_hops=(None,)))
        assert bar.left() == "about 3 min left"  # ten steps took ten seconds, 180 are to be done
