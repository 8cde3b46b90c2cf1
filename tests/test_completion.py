"""TAB completes what a command takes, by the shells' own protocol, without waiting for torch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from analyses.cli_completion import devices, models, schedules
from analyses.zoo import trained_names
from composition import LINEAR_KINDS, PUBLIC_HYBRIDS, SOFTMAX_KINDS, check_schedule, named_schedule

HOPTRACE = "from analyses.cli import app; app(prog_name='hoptrace')"
ROOT = Path(__file__).parent.parent


def hoptrace(*words, code=HOPTRACE, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        timeout=60,
    )


def completed(line: str) -> list[str]:
    """What bash is offered at the end of the line."""
    words = line.split(" ")
    answer = hoptrace(
        _HOPTRACE_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


def test_commands_and_options_and_values():
    assert completed("hoptrace th") == ["theory"]
    assert {"--json", "--quiet"} <= set(completed("hoptrace train --"))
    assert completed("hoptrace theory --schedule full,delt") == ["full,deltanet"]
    assert completed("hoptrace theory --schedule qwen") == ["qwen3-next", "qwen3.5"]
    assert completed("hoptrace train --schedule jam") == ["jamba"]
    assert completed("hoptrace train --device cu") == ["cuda"]
    assert set(trained_names()) <= set(completed("hoptrace trace "))


def test_completing_loads_no_torch():
    code = (
        "import atexit, sys\n"
        "heavy = ('torch', 'transformer_lens', 'pandas', 'matplotlib', 'numpy')\n"
        "atexit.register(lambda: print([n for n in heavy if n in sys.modules], file=sys.stderr))\n"
    ) + HOPTRACE
    for line in ("hoptrace trace ", "hoptrace theory --schedule q", "hoptrace train --device "):
        answer = hoptrace(
            code=code,
            _HOPTRACE_COMPLETE="complete_bash",
            COMP_WORDS=line,
            COMP_CWORD=str(line.count(" ")),
        )
        assert answer.stdout.splitlines()
        assert answer.stderr == "[]\n"


@pytest.mark.parametrize("shell", ["zsh", "fish", "pwsh"])
def test_the_other_shells_are_answered_too(shell):
    answer = hoptrace(
        _HOPTRACE_COMPLETE=f"complete_{shell}",
        _TYPER_COMPLETE_ARGS="hoptrace theory --schedule kimi",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
        _TYPER_COMPLETE_WORD_TO_COMPLETE="kimi",
    )
    assert "kimi-linear" in answer.stdout


def test_the_script_works_in_bash(tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    command = tmp_path / "hoptrace"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{HOPTRACE}" "$@"\n')
    command.chmod(0o755)
    script = hoptrace("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert script.returncode == 0, script.stderr
    (tmp_path / "completion").write_text(script.stdout)
    lines = [
        f"source {tmp_path}/completion",
        "complete -p hoptrace",
        "COMP_WORDS=(hoptrace theory --schedule full,full+mamb) COMP_CWORD=3",
        "_hoptrace_completion hoptrace",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    path = f"{tmp_path}:{os.environ['PATH']}"
    answer = subprocess.run(
        [bash, "--norc", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert answer.stdout.splitlines() == [
        "complete -o default -F _hoptrace_completion hoptrace",
        "full,full+mamba2",
    ]


def test_completion_installs_itself(tmp_path):
    answer = hoptrace(
        "--install-completion",
        "bash",
        HOME=str(tmp_path),
        _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1",
    )
    assert answer.returncode == 0, answer.stderr
    assert "bash completion installed" in answer.stdout
    sourced = (tmp_path / ".bashrc").read_text().split("'")[1]
    assert "_HOPTRACE_COMPLETE=complete_bash" in Path(sourced).read_text()


def test_all_that_is_offered_for_a_schedule_is_one():
    for offered in [*schedules("full,"), *schedules("sliding+"), *schedules("kda,full+")]:
        assert check_schedule(tuple(offered.split(",")))
    assert schedules("full+") == [f"full+{kind}" for kind in LINEAR_KINDS]
    assert schedules("kda+") == schedules("full,qwen") == []
    first = schedules("")
    assert first == [*SOFTMAX_KINDS, *LINEAR_KINDS, *PUBLIC_HYBRIDS]
    assert all(named_schedule(name) for name in first if name in PUBLIC_HYBRIDS)
    assert devices("c") == ["cpu", "cuda"]


def test_models_are_those_that_are_shipped_and_those_that_lie_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert models("") == trained_names()
    for directory in ("full-mine", "family/full", "family/late", "empty/deep/er"):
        (tmp_path / directory).mkdir(parents=True)
    for directory in ("full-mine", "family/full", "family/late", "empty/deep/er"):
        (tmp_path / directory / "config.json").write_text("{}")
    shipped = [name for name in trained_names() if name.startswith("full-")]
    assert models("full-") == [*shipped, "full-mine"]
    assert models("fam") == ["family/full", "family/late"]
    assert models("family/") == ["family/full", "family/late"]
    assert models("family/l") == ["family/late"]
    assert models("empty/") == ["empty/deep/er"]
    assert models("nothing") == []
    assert models(f"{tmp_path}/full") == [f"{tmp_path}/full-mine"]
