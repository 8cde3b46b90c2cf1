"""The README's Python runs as it stands there, with fewer training steps."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


@pytest.mark.slow
def test_every_python_block_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 3
    code = "\n".join(blocks)
    assert "steps=3000" in code
    names: dict = {}
    exec(compile(code.replace("steps=3000", "steps=3"), "README.md", "exec"), names)
    assert (tmp_path / "staircase.png").exists()
    promised = re.findall(r"^print.*# (\[.*\])$", code, re.MULTILINE)
    assert len(promised) == 2
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line in promised] == promised


def test_the_two_commands_are_on_the_first_screen():
    first_screen = README.split("\n##")[0]
    assert "pip install -e . && hoptrace run" in first_screen
    assert 'pip install -e ".[test]" && pytest' in first_screen
