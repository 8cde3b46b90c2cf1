"""The command line: quick where no model is needed, and one clear line for bad input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from analyses.cli import app
from architectures import HookedStack, ModelConfig, hand_set_model, save_model
from composition import (
    LINEAR_KINDS,
    PUBLIC_HYBRIDS,
    CompositionTask,
    named_schedule,
    read_schedule,
)
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


@pytest.mark.parametrize("name", PUBLIC_HYBRIDS)
def test_theory_shows_the_whole_staircase_of_a_public_hybrid(name):
    hybrid = PUBLIC_HYBRIDS[name]
    answer = json.loads(call("theory", "--schedule", name, "--json").stdout)
    layers = answer["layers"]
    assert [layer["kind"] for layer in layers] == list(named_schedule(name))
    assert answer["size_condition"]["size"] == hybrid.heads * hybrid.head_dimension * 32
    uncapped = json.loads(call("theory", "--schedule", name, "--json", "--hops", "100").stdout)
    assert layers == uncapped["layers"]
    result = call("theory", "--schedule", name)
    assert result.exit_code == 0
    assert " ".join(f"{hybrid.title}. {hybrid.note}".rstrip(" .").split()) in " ".join(
        result.output.split()
    )


def test_a_long_schedule_prints_one_row_a_step():
    lines = call("theory", "--schedule", "qwen3-next").output.splitlines()
    assert any("│ 44-47 │ full, 3 gated-deltanet │ 11       │ 12      │" in line for line in lines)
    assert any("│ 48    │ full                   │ 12       │ 13      │" in line for line in lines)
    short = call("theory", "--schedule", "jamba", "--layers", "8").output
    assert "│ 8     │ mamba2 │ 1        │ 2       │" in short
    assert "Jamba-v0.1, at 8 layers instead of 32." in short
    windows = call("theory", "--schedule", "recurrent-gemma").output
    assert "│ 3-26  │ 8 sliding, 16 gla │ 0        │ 1       │" in windows


def test_theory_takes_the_sizes_and_hops_given_for_a_public_hybrid():
    words = ["--hops", "2", "--heads", "3", "--head-dimension", "5", "--precision", "7"]
    answer = json.loads(call("theory", "--schedule", "qwen3-next", "--json", *words).stdout)
    assert answer["size_condition"]["size"] == 3 * 5 * 7
    assert answer["layers"][-1]["upper"] == 2
    deep = call("theory", "--schedule", "qwen3-next", "--layers", "1000")
    assert "hops at the answer position, of 100" in deep.output


def test_theory_may_let_a_window_reach_the_table():
    words = ["theory", "--schedule", "recurrent-gemma", "--json"]
    reach = json.loads(call(*words, "--window-reaches-table").stdout)["layers"][-1]
    assert (reach["lower"], reach["upper"]) == (0, 9)


def test_the_page_on_public_hybrids_has_the_table_that_the_command_prints():
    page = (Path(__file__).parent.parent / "docs" / "public_hybrids.md").read_text()
    first_words = next(line for line in page.splitlines() if line.startswith("`hoptrace"))
    command = first_words.split("`")[1].split()
    assert command == ["hoptrace", "theory", "--public", "--markdown"]
    table = call(*command[1:]).stdout
    assert [line for line in page.splitlines() if line.startswith("|")] == table.splitlines()
    assert len(table.splitlines()) == 2 + len(PUBLIC_HYBRIDS)
    for name, hybrid in PUBLIC_HYBRIDS.items():
        assert name in call("theory", "--public").output
        assert hybrid.note in table


def test_train_reads_names_as_theory_does():
    assert read_schedule("full, kda,full") == ("full", "kda", "full")
    assert read_schedule("qwen3-next") == named_schedule("qwen3-next")
    assert read_schedule("jamba", 5) == ("mamba2",) * 4 + ("full",)


def test_help_and_theory_load_neither_torch_nor_transformer_lens():
    check = (
        "import sys; from typer.testing import CliRunner; from analyses.cli import app\n"
        "for words in (['--help'], ['theory', '--schedule', 'full,kda,full'],"
        " ['theory', '--schedule', 'full', '--json'], ['theory', '--schedule', 'falcon-h1'],"
        " ['theory', '--public', '--markdown']):\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0\n"
        "heavy = ('torch', 'transformer_lens', 'transformers', 'matplotlib')\n"
        "print([name for name in heavy if name in sys.modules])"
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


@pytest.mark.slow
def test_train_takes_a_public_hybrid(tmp_path):
    out = str(tmp_path / "run")
    small = ["--d-model", "16", "--start-domain", "3", "--branching", "3", "--steps", "2"]
    words = ["train", "--schedule", "jamba", "--layers", "5", "--out", out, *small]
    result = call(*words)
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["schedule"] == ["mamba2"] * 4 + ["full"]


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
        (["train", "--schedule", "full,kda+full", "--out", "x"], ["'kda+full'", "full+mamba2"]),
        (["train", "--schedule", "qwen4", "--out", "x"], ["unknown layer 'qwen4'", "qwen3-next"]),
        (["train", "--schedule", "zamba2", "--layers", "6", "--out", "x"], ["zamba2 with 6", "54"]),
        (["theory", "--schedule", "full", "--layers", "3"], ["--layers 3", "public", "qwen3-next"]),
        (["theory", "--schedule", "jamba", "--layers", "0"], ["jamba with 0 layers", "own 32"]),
        (["theory"], ["--schedule", "--public"]),
        (["theory", "--schedule", "full", "--public"], ["give one of", "--public"]),
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
