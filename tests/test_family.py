"""A family of runs: workers, files, resuming, and one failing arm that takes no other with it."""

import json
import os
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from analyses import Family, TrainingRecipe, default_family, run, run_family
from analyses.cli import app
from analyses.family import FamilyResult
from architectures import CheckpointError, ModelConfig, load_model
from architectures.checkpoints import read_tensors
from composition import CompositionTask

pytestmark = pytest.mark.slow

TASK = CompositionTask(start_domain=3, branching=(3,))
RECIPE = TrainingRecipe(steps=12, batch=16, checkpoint_every=4, evaluation_prompts=100)


def small_family(**change) -> Family:
    arms = {
        name: ModelConfig(task=TASK, schedule=schedule, d_model=16, d_key=2)
        for name, schedule in {"early": ("full", "deltanet"), "late": ("deltanet", "full")}.items()
    }
    return Family(arms=arms, recipe=RECIPE.model_copy(update=change))


def test_a_family_leaves_models_traces_figure_and_report(tmp_path):
    told = []
    result = run_family(
        small_family(), tmp_path / "out", report=lambda name, progress: told.append(name)
    )
    assert list(result.runs) == ["early", "late"]
    assert result.failed == {}
    assert set(told) == {"early", "late"}
    text = (tmp_path / "out" / "progress.json").read_text()
    assert FamilyResult.model_validate_json(text) == result
    assert (tmp_path / "out" / "staircase.png").read_bytes().startswith(b"\x89PNG")
    for name, config in small_family().arms.items():
        assert load_model(tmp_path / "out" / name).config == config
    page = (tmp_path / "out" / "report.html").read_text()
    for needed in ("early", "late", "data:image/png;base64,", "size condition", "(Hdp)^1024"):
        assert needed in page
    assert "http" not in page, "the report asks nothing of the network"

    shown = CliRunner().invoke(app, ["show", str(tmp_path / "out"), "--markdown"])
    assert shown.exit_code == 0
    assert "| early | 0 | full, deltanet | " in shown.stdout
    assert shown.stdout.count("\n") == 4

    # The same again reads what is there; it trains nothing.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "early").iterdir()}
    assert run_family(small_family(), tmp_path / "out") == result
    assert before == {
        path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "early").iterdir()
    }


def test_a_failing_arm_leaves_the_others_alone(tmp_path):
    (tmp_path / "late").mkdir(parents=True)
    (tmp_path / "family.json").write_text(small_family().model_dump_json())
    (tmp_path / "late" / "thesis.tex").write_text("mine")
    result = run_family(small_family(), tmp_path)
    assert list(result.runs) == ["early"]
    assert "holds 'thesis.tex'" in result.failed["late"]
    assert "thesis.tex" in (tmp_path / "report.html").read_text()
    (tmp_path / "late" / "thesis.tex").unlink()
    assert list(run_family(small_family(), tmp_path).runs) == ["early", "late"]


def test_nothing_is_overwritten_silently(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="is not a family of runs"):
        run_family(small_family(), tmp_path)
    out = tmp_path / "out"
    run_family(small_family(), out)
    with pytest.raises(CheckpointError, match="seed is 0 there and 1 here"):
        run_family(small_family(seed=1), out)
    with pytest.raises(CheckpointError, match="holds a finished run of another"):
        run(
            small_family().arms["late"], recipe=RECIPE, directory=out / "early",
            report=lambda progress: None,
        )  # fmt: skip


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_family_goes_on_and_ends_the_same(tmp_path):
    """SIGKILL to the parent once both arms have a checkpoint; its workers leave by themselves."""
    family = small_family(steps=4000, checkpoint_every=10)
    script = (
        "import sys; from analyses import Family, run_family\n"
        "if __name__ == '__main__':\n"
        "    run_family(Family.model_validate_json(sys.argv[1]), sys.argv[2])"
    )
    (tmp_path / "script.py").write_text(script)
    process = subprocess.Popen(
        [sys.executable, "script.py", family.model_dump_json(), str(tmp_path / "out")],
        cwd=tmp_path,
        start_new_session=True,
    )
    checkpoints = [tmp_path / "out" / name / "checkpoint.safetensors" for name in family.arms]
    deadline = time.monotonic() + 120
    while not all(path.exists() for path in checkpoints):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()  # the parent alone: its workers have to notice
    process.wait()
    while _group_lives(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not (tmp_path / "out" / "progress.json").exists()
    assert not list((tmp_path / "out").glob("*/result.json"))

    # The budget is part of the family; to end soon, both directories get a smaller one, which
    # training's checkpoints allow: a little more than the faster arm had done when it was killed.
    done = [json.loads(read_tensors(path)[1]["progress"])["step"] for path in checkpoints]
    short = small_family(steps=max(done) + 15, checkpoint_every=10)
    for directory in (tmp_path / "out", tmp_path / "fresh"):
        directory.mkdir(exist_ok=True)
        (directory / "family.json").write_text(short.model_dump_json())
    resumed, fresh = (run_family(short, tmp_path / name) for name in ("out", "fresh"))
    for name in short.arms:
        assert resumed.runs[name].trace == fresh.runs[name].trace
        assert resumed.runs[name].accuracy == fresh.runs[name].accuracy


def test_the_default_family_separates_the_bounds():
    family = default_family()
    assert list(family.arms) == ["full", "early-linear", "late-linear", "linear-only"]
    tasks = {config.task for config in family.arms.values()}
    assert len(tasks) == 1
    assert json.loads(family.model_dump_json())["recipe"]["steps"] == family.recipe.steps
