"""The README's first screen has the two commands, and its first Python draws the staircase.

That all of its Python runs, and prints what it says, is in `tests/test_docs.py`.
"""

import pytest

from tests.pages import ROOT
from tests.test_docs import run_page

README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_first_block_draws_the_staircase(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = README[: README.index("```\n", README.index("```python")) + 4]
    assert "steps=3000" in first
    run_page(first, "README.md")
    assert (tmp_path / "staircase.png").stat().st_size > 10_000


def test_the_two_commands_are_on_the_first_screen():
    first_screen = README.split("\n##")[0]
    assert "pip install -e . && hoptrace run" in first_screen
    assert 'pip install -e ".[test]" && pytest' in first_screen
