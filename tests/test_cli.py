"""The command line: quick where no model is needed, and one clear line for bad input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from analyses.cli import app
from architectures import HookedStack, ModelConfig, hand_set_model, save_model
from composition import LINEAR_KINDS, CompositionTask
from tests.conftest import TASKS


def call(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def bounds(schedule: str, hops: int = 2) -> list[tuple[int, int]]:
    result = call("theory", "--schedule", schedule, "--hops", str(hops), "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert set(answer) == {"layers", "size_condition"}
    for number, layer in enumerate(answer["layers"], start=1):
        assert set(layer) == {"layer", "kind", "lower", "upper", "source"}
        assert layer["layer"] == number
    return [(layer["lower"], layer["upper"]) for layer in answer["layers"]]


@pytest.mark.parametrize("linear", LINEAR_KINDS)
def test_theory_gives_the_bounds_of_the_three_arms(linear):
    assert bounds("full,full,full") == [(0, 0), (1, 1), (2, 2)]
    assert bounds(f"full,{linear},full") == [(0, 0), (1, 1), (2, 2)]
    assert bounds(f"full,full,{linear}") == [(0, 0), (1, 1), (1, 1)]


def test_theory_prints_a_table_and_the_size_condition():
    result = call("theory", "--schedule", "full,linear,full", "--hops", "2")
    assert result.exit_code == 0
    assert "early-linear construction" in " ".join(result.output.split())
    assert "does not hold" in result.output


def test_help_and_theory_load_neither_torch_nor_transformer_lens():
    check = (
        "import sys; from typer.testing import CliRunner; from analyses.cli import app\n"
        "for words in (['--help'], ['theory', '--schedule', 'full,kda,full'],"
        " ['theory', '--schedule', 'full', '--json']):\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0\n"
        "print([m for m in ('torch', 'transformer_lens', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_model(hand_set_model(TASKS["L=2"], "early-linear"), tmp_path / "model")


def test_trace_prints_the_staircase_and_writes_the_figure(saved, tmp_path):
    figure = tmp_path / "figure.png"
    result = call("trace", str(saved), "--pairs", "50", "--json", "--figure", str(figure))
    assert result.exit_code == 0, result.output
    layers = json.loads(result.stdout)["layers"]
    assert [layer["causal_hop"] for layer in layers] == [0, 0, 1, 2]
    assert figure.read_bytes().startswith(b"\x89PNG")
    result = call("trace", str(saved), "--pairs", "50", "--hop", "1")
    assert result.exit_code == 0
    assert "exact accuracy 1.0000" in result.output


@pytest.mark.slow
def test_train_then_trace(tmp_path):
    out = str(tmp_path / "run")
    small = ["--d-model", "16", "--start-domain", "3", "--branching", "3", "--steps", "5"]
    result = call("train", "--schedule", "full,linear", "--out", out, *small)
    assert result.exit_code == 0, result.output
    assert "steps spent at step 5" in result.output
    assert call("trace", out, "--pairs", "20").exit_code == 0
    other = ["--start-domain", "4", *small[:2], *small[4:]]
    result = call("train", "--schedule", "full,linear", "--out", out, *other)
    assert_one_line(result, "holds a finished run of another config")


def assert_one_line(result, *needed: str) -> None:
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output
    for words in needed:
        assert words in result.stderr


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["theory", "--schedule", "full,fulll"], ["unknown layer 'fulll'", "use one of full"]),
        (["theory", "--schedule", ""], ["unknown layer ''"]),
        (["theory", "--schedule", "full", "--hops", "0"], ["hops is 0", "at least 1"]),
        (["theory", "--schedule", "full", "--hops", "300"], ["hops is 300", "up to 100"]),
        (["theory", "--schedule", "full,[/]"], ["unknown layer '[/]'"]),
        (["train", "--schedule", "full,[/]", "--out", "x"], ["unknown layer '[/]'"]),
        (["run", "--out", "x", "--workers", "0"], ["workers is 0"]),
        (
            ["train", "--schedule", "full", "--out", "x", "--start-domain", "1"],
            ["answers are too few"],
        ),
        (["theory", "--schedule", "full", "--heads", "0"], ["heads is 0"]),
        (["train", "--schedule", "full", "--out", "x", "--branching", "0"], ["branching", "1"]),
        (["train", "--schedule", "full", "--out", "x", "--branching", "a"], ["'a' is not a list"]),
        (["train", "--schedule", "full,kda", "--out", "x"], ["'kda'", "use one of full, linear"]),
        (["train", "--schedule", "full", "--out", "x", "--steps", "0"], ["steps"]),
        (["train", "--schedule", "full", "--out", "x", "--n-heads", "5"], ["n_heads=5", "divide"]),
        (["trace", "nowhere"], ["nowhere/config.json is missing"]),
    ],
)
def test_bad_input_gets_one_line(words, needed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_one_line(call(*words), *needed)
    assert list(tmp_path.iterdir()) == []


def test_a_hop_past_the_chain_and_broken_files_get_one_line(saved, tmp_path):
    assert_one_line(call("trace", str(saved), "--hop", "3"), "hop 3", "use 0 … 2")
    assert_one_line(call("trace", str(saved), "--pairs", "0"), "count is 0")
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    assert_one_line(call("trace", str(saved)), "not a whole safetensors file", "train again")
    other = CompositionTask(start_domain=5, branching=(2,))
    save_model(HookedStack(ModelConfig(task=other, schedule=("full",))), tmp_path / "other")
    (tmp_path / "other" / "config.json").replace(saved / "config.json")
    assert_one_line(call("trace", str(saved)), "not a whole safetensors file")


def test_train_does_not_overwrite_a_saved_model(saved):
    before = (saved / "model.safetensors").read_bytes()
    result = call("train", "--schedule", "full", "--out", str(saved), "--steps", "1")
    assert_one_line(result, "holds a saved model", "not overwritten")
    assert (saved / "model.safetensors").read_bytes() == before


def test_tracing_a_family_says_which_runs_it_holds(saved):
    (saved.parent / "family.json").write_text("{}")
    assert_one_line(call("trace", str(saved.parent)), "holds several runs; trace one of model")


def test_run_refuses_a_directory_that_is_not_its_own(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    result = call("run", "--out", str(tmp_path))
    assert_one_line(result, "not a family of runs", "new or empty directory")
    (tmp_path / "file").write_text("")
    assert_one_line(call("run", "--out", str(tmp_path / "file")), "is there already")
