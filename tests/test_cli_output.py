"""Commands say what they should where they should: JSON alone, notes beside it, or nothing."""

import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from analyses import family as families
from analyses.cli import app
from analyses.cli_output import one_document, rows_of_frame
from analyses.family import Family, FamilyResult
from analyses.recipe import TrainingRecipe
from analyses.runs import RunResult
from analyses.setting import of_a_sweep, setting
from analyses.tracing import ProgressTrace
from analyses.zoo import TrainedModel, trained_models, trained_result
from architectures import ModelConfig, hand_set_model, save_model
from architectures.checkpoints import write_json
from composition import PUBLIC_HYBRIDS, CompositionTask, named_schedule, predict_progress
from composition.schedules import attention_layers
from tests.conftest import TASKS
from tests.terminal import in_a_terminal, screen

SETTING = re.compile(r"^seeds? .*, cpu, .*1 thread.*, torch [\d.]+$", re.MULTILINE)
SMALL = ["--d-model", "16", "--start-domain", "3", "--branching", "3", "--steps", "6"]
TRAIN = ["train", "--schedule", "full,linear", *SMALL]
GRID = """
[base]
start_domain = 3
branching = [3]
d_model = 16
steps = 4
batch = 16
evaluation_prompts = 100
[cross]
seed = [0, 1]
[arms.early]
schedule = "full,deltanet"
"""


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def document(result, exit_code=0):
    """The one JSON document that standard output is."""
    assert result.exit_code == exit_code, result.output
    assert not re.search("NaN|Infinity", result.stdout)
    return json.loads(result.stdout)


def check_three_ways(words, exit_code=0, stderr=""):
    """Plain, with --json, and quiet; gives the plain result and the document.

    The setting stands there once, in front, beside the result; with --json on standard error.
    """
    plain, as_json, quiet, both = (
        call(*words, *more) for more in ([], ["--json"], ["-q"], ["--json", "--quiet"])
    )
    assert plain.exit_code == exit_code, plain.output
    assert len(SETTING.findall(plain.stdout)) == 1
    assert SETTING.match(plain.stdout)
    assert plain.stderr == stderr
    answer = document(as_json, exit_code)
    assert len(SETTING.findall(as_json.stderr)) == 1
    assert SETTING.match(as_json.stderr)
    assert as_json.stderr.endswith(stderr)
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (exit_code, "", stderr)
    assert document(both, exit_code) == answer
    assert both.stderr == stderr
    return plain, answer


@pytest.mark.slow
def test_a_trace_three_ways(tmp_path):
    saved = save_model(hand_set_model(TASKS["L=2"], "early-linear"), tmp_path / "model")
    plain, answer = check_three_ways(["trace", saved, "--pairs", "50"])
    traced = ProgressTrace.model_validate(answer)
    assert [layer.causal_hop for layer in traced.layers] == [0, 0, 1, 2]
    assert plain.stdout.startswith("seed 0, cpu, 1 thread, torch")


def test_a_shipped_model_is_traced_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    traced = ProgressTrace.model_validate(
        document(call("trace", "full-L2", "--pairs", "20", "--json"))
    )
    assert traced.config == trained_result("full-L2").trace.config
    (tmp_path / "full-L2").mkdir()  # what is there comes first
    assert "full-L2/config.json is missing" in call("trace", "full-L2").stderr


@pytest.mark.slow
def test_training_three_ways(tmp_path):
    plain, answer = check_three_ways([*TRAIN, "--out", tmp_path / "run"])
    assert answer == json.loads((tmp_path / "run" / "result.json").read_bytes())
    assert RunResult.model_validate(answer).progress.step == 6
    assert "steps spent at step 6" in plain.stdout
    assert "training: 6 of 6" in plain.stdout


@pytest.mark.slow
def test_a_family_three_ways_with_a_run_that_fails(tmp_path, monkeypatch):
    task = CompositionTask(start_domain=3, branching=(3,))
    config = ModelConfig(task=task, schedule=("full",), d_model=16)
    recipe = TrainingRecipe(steps=10, evaluation_prompts=100)
    family = Family(arms={"fine": config, "blocked": config}, recipe=recipe)
    monkeypatch.setattr(families, "default_family", lambda **_: family)
    out = tmp_path / "out"
    (out / "blocked").mkdir(parents=True)
    (out / "blocked" / "notes.txt").write_text("somebody's")
    write_json(out / "family.json", family)
    reason = (
        f"CheckpointError: {out}/blocked is not empty and not a run (it holds 'notes.txt'); "
        "use a new or empty directory"
    )
    words = ["run", "--out", out, "--workers", "1"]
    plain, answer = check_three_ways(words, 1, f"blocked failed: {reason}\n")
    assert "\nfine: 10 of 10, level 1" in plain.stdout
    result = FamilyResult.model_validate(answer)
    assert list(result.runs) == ["fine"]
    assert result.failed == {"blocked": reason}
    assert answer == json.loads((out / "progress.json").read_bytes())
    assert f"Figure: {out}/staircase.png   report: {out}/report.html\n" in plain.stdout

    shown = call("show", out, out, "--json")
    assert document(shown, 1) == [answer, answer]
    assert shown.stderr == f"blocked failed: {reason}\n" * 2


@pytest.mark.slow
def test_a_sweep_and_its_mechanisms_three_ways(tmp_path):
    grid, out = tmp_path / "grid.toml", tmp_path / "sweep"
    grid.write_text(GRID)
    plain, answer = check_three_ways(["sweep", grid, "--out", out, "--workers", "1"])
    assert plain.stdout.startswith("seeds 0 and 1, cpu, 1 thread, torch")
    assert f"Results: {out}/results.parquet\n" in plain.stdout
    same_rows(answer, pd.read_parquet(out / "results.parquet"))

    plain, answer = check_three_ways(["mechanisms", out, "--pairs", "20"])
    assert plain.stdout.endswith(f"Mechanisms: {out}/mechanisms.parquet\n")
    assert "mechanisms: 2 of 2, early_seed=1\n" in plain.stdout
    same_rows(answer, pd.read_parquet(out / "mechanisms.parquet"))


def same_rows(rows, frame):
    """Exactly what the frame has, number by number."""
    assert [list(row) for row in rows] == [list(frame)] * len(frame)
    for row, there in zip(rows, frame.to_dict("records"), strict=True):
        for name, value in there.items():
            if isinstance(value, np.ndarray):
                assert row[name] == [v.tolist() if hasattr(v, "tolist") else v for v in value]
            else:
                assert (pd.isna(value) and row[name] is None) or row[name] == value


def test_rows_of_a_frame_keep_every_digit_and_know_what_is_missing():
    nested = np.array([np.array([1.0]), np.array([])], dtype=object)
    frame = pd.DataFrame(
        {
            "number": [0.1 + 0.2, float("nan")],
            "count": np.array([2**62 + 1, 3]),
            "list": [np.array([0.1 + 0.2]), nested],
            "text": ["a", None],
            "flag": [True, False],
        }
    )
    rows = json.loads(one_document(rows_of_frame(frame)))
    assert rows == [
        {"number": 0.1 + 0.2, "count": 2**62 + 1, "list": [0.1 + 0.2], "text": "a", "flag": True},
        {"number": None, "count": 3, "list": [[1.0], []], "text": None, "flag": False},
    ]


def test_models_and_public_hybrids_as_json():
    models = [TrainedModel.model_validate(row) for row in document(call("models", "--json"))]
    assert models == trained_models()

    rows = document(call("theory", "--public", "--json"))
    assert [row["name"] for row in rows] == list(PUBLIC_HYBRIDS)
    for row in rows:
        schedule = named_schedule(row["name"])
        bound = predict_progress(schedule, attention_layers(schedule) + 1)[-1]
        assert (row["lower"], row["upper"]) == (bound.lower, bound.upper)
        first = next((i for i, kind in enumerate(schedule, 1) if "full" in kind.split("+")), None)
        assert row["first_full"] == first
        assert row["note"] == PUBLIC_HYBRIDS[row["name"]].note
    by_name = {row["name"]: row for row in rows}
    assert by_name["qwen3-next"]["linear_before_second_full"] == 3
    assert by_name["falcon-h1"]["side_by_side"]
    assert by_name["falcon-h1"]["linear_before_second_full"] is None
    assert by_name["recurrent-gemma"]["sliding"] == 8
    assert by_name["recurrent-gemma"]["full"] == 0


@pytest.mark.parametrize("words", [["theory", "--public"], ["show", "nowhere"]])
def test_markdown_and_json_exclude_each_other(words):
    result = call(*words, "--json", "--markdown")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: give one of --markdown and --json: each is all of the output\n"


@pytest.mark.parametrize("how", ["--json", "--quiet"])
@pytest.mark.parametrize(
    "words",
    [
        ["run", "--out", "x", "--workers", "0"],
        ["train", "--schedule", "fulll", "--out", "x"],
        ["trace", "nowhere"],
        ["sweep", "nowhere.toml"],
        ["mechanisms", "nowhere", "--pairs", "1"],
    ],
)
def test_errors_stay_one_line_on_standard_error(words, how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(*words, how)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert len(result.stderr.splitlines()) == 1 + len(SETTING.findall(result.stderr))


def test_findings_may_be_quiet(tmp_path):
    result = call("findings", "--docs", tmp_path, "--quiet")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")


def test_the_setting_is_one_short_line():
    torch_version = f"torch {torch.__version__.split('+')[0]}"
    assert setting([3]) == f"seed 3, cpu, 1 thread, {torch_version}"
    assert setting([0, 2, 1], "cuda:0", 2) == f"seeds 0 … 2, cuda:0, 2 threads, {torch_version}"
    work = "4 processes with 1 thread each"
    assert setting([7, 7, 0, 2], threads=1, processes=4) == (
        f"seeds 0, 2 and 7, cpu, {work}, {torch_version}"
    )


def test_the_setting_of_a_sweep_is_that_of_its_runs(tmp_path):
    from analyses.grid import Grid

    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    points = Grid.read(path).points()
    assert of_a_sweep(points, 8, on_ray=False).startswith(
        "seeds 0 and 1, cpu, 2 processes with 1 thread each, "
    )
    assert of_a_sweep(points, None, on_ray=True).startswith("seeds 0 and 1, cpu on Ray, 1 thread, ")
    with pytest.raises(ValueError, match="workers is 0"):
        of_a_sweep(points, 0, on_ray=False)


@pytest.mark.slow
def test_training_in_a_terminal_and_into_a_file(tmp_path):
    command = [sys.executable, "-m", "analyses.cli", *TRAIN, "--out"]
    code, written = in_a_terminal([*command, str(tmp_path / "terminal")])
    assert code == 0, written
    assert "\x1b[" in written
    lines = screen(written)
    assert SETTING.match(lines[0])
    (bar,) = [line for line in lines if line.startswith("training")]
    assert re.fullmatch(r"training ━+ 6/6 0:00:00 level 1, accuracy by hops 1:\d\.\d\d", bar)
    assert lines[-1].endswith("steps spent at step 6")

    with (tmp_path / "log").open("w") as log:
        subprocess.run([*command, str(tmp_path / "file")], stdout=log, stderr=log, check=True)
    said = (tmp_path / "log").read_bytes().decode()
    assert not re.search("[\x1b\r]", said)
    assert len(re.findall("^training: 6 of 6, .*$", said, re.MULTILINE)) == 1
    assert said.count("training") == 1
