"""Bars show the same in a terminal, a notebook and a log, and leave no more than they should."""

import io
import os
import re
import time

import pytest
from rich.console import Console

from analyses import TrainingRecipe, train
from analyses.progress_bar import family_bars
from analyses.recipe import Progress
from architectures import ModelConfig
from composition import CompositionTask
from probes.bars import Bars, hide_bars, is_terminal, shown_on
from tests.terminal import drained, screen

TASK = CompositionTask(start_domain=3, branching=(3,))
SMALL = ModelConfig(task=TASK, schedule=("full",), d_model=16)


class Terminal:
    """A pseudo-terminal, and a console that writes to it."""

    def __init__(self, monkeypatch):
        monkeypatch.setenv("TERM", "xterm")
        self._read, write = os.openpty()
        self._file = os.fdopen(write, "w")
        self.console = Console(file=self._file, width=100)

    def written(self) -> str:
        """All of it; the terminal is closed."""
        self._file.close()
        return drained(self._read)


def test_bars_of_a_terminal_are_drawn_over_in_place_and_stay(monkeypatch):
    terminal = Terminal(monkeypatch)
    assert is_terminal(terminal.console)
    with Bars(terminal.console, time_left=False) as bars:
        bars.add("one [/]", 40)
        bars.add("two", 40)
        for step in range(1, 41):
            bars.tell("one [/]", step, f"news [{step}]")
        time.sleep(0.15)  # longer than a drawing
        terminal.console.print("said on the way")
        bars.tell("two", 7)
    written = terminal.written()
    assert "\x1b[" in written
    said, one, two = screen(written)
    assert said == "said on the way"
    assert re.fullmatch(r"one \[/\] ━+ 40/40 news \[40\]", one)
    assert re.fullmatch(r"two +[━╸╺ ]+ +7/40", two)


def test_bars_that_are_not_to_stay_leave_nothing_in_a_terminal(monkeypatch):
    terminal = Terminal(monkeypatch)
    with Bars(terminal.console, leave=False) as bars:
        bars.add("patching", 2)
        bars.tell("patching", 1)
    assert screen(terminal.written()) == []


def test_nothing_is_shown_before_the_delay():
    log, now = Console(file=io.StringIO()), [0.0]
    with Bars(log, delay=2.0, clock=lambda: now[0]) as bars:
        bars.add("patching", 4)
        bars.tell("patching", 1)
        now[0] = 1.9
        bars.tell("patching", 2)
    assert log.file.getvalue() == ""


@pytest.mark.parametrize("colours", [False, True])
def test_a_log_gets_a_line_at_every_tenth_but_not_more_often_than_every_ten_seconds(colours):
    log, now = Console(file=io.StringIO(), force_terminal=colours, width=20), [0.0]
    with Bars(log, clock=lambda: now[0]) as bars:
        bars.add("training", 1000)
        for step in range(1, 701):
            now[0] = step * (0.05 if step <= 400 else 1.0)
            bars.tell("training", step, f"some [news] of step {step}")
    # Fast at first: ten seconds are 200 steps. Slow later: a tenth is 100 steps.
    steps = [200, 400, 500, 600, 700]
    lines = [f"training: {step} of 1000, some [news] of step {step}\n" for step in steps]
    assert log.file.getvalue() == "".join(lines)


@pytest.mark.parametrize(("leave", "last"), [(True, ["b: 1 of 2"]), (False, [])])
def test_a_log_gets_no_line_twice_and_no_last_one_of_bars_that_are_not_to_stay(leave, last):
    log, now = Console(file=io.StringIO()), [0.0]
    with Bars(log, leave=leave, clock=lambda: now[0]) as bars:
        bars.add("a", 2)
        bars.add("b", 2)
        bars.tell("a", 1)
        bars.tell("b", 1)
        now[0] = 10.0
        bars.tell("a", 2)
    assert log.file.getvalue().splitlines() == ["a: 2 of 2", *last]


def test_bars_within_bars_are_part_of_them():
    outer, inner = Console(file=io.StringIO()), Console(file=io.StringIO())
    with Bars(outer) as whole:
        whole.add("whole", 1)
        whole.tell("whole", 1)
        with Bars(inner) as part:
            part.add("part", 1)
            part.tell("part", 1)
    with Bars(inner) as later:
        later.add("later", 1)
        later.tell("later", 1)
    assert outer.file.getvalue() == "whole: 1 of 1\n"
    assert inner.file.getvalue() == "later: 1 of 1\n"


def test_a_process_that_reports_to_another_one_shows_nothing(capfd):
    with shown_on(Console(stderr=True)):
        hide_bars()
        with Bars() as bars:
            bars.add("part", 1)
            bars.tell("part", 1)
    assert capfd.readouterr() == ("", "")


def test_training_is_shown_where_one_says_and_nowhere_if_one_says_so(capfd):
    log = Console(file=io.StringIO())
    with shown_on(log):
        train(SMALL, recipe=TrainingRecipe(steps=12))
    assert re.fullmatch(
        r"training: 12 of 12, level 1, accuracy by hops 1:\d\.\d\d\n", log.file.getvalue()
    )
    with shown_on(None):
        train(SMALL, recipe=TrainingRecipe(steps=2))
    assert capfd.readouterr() == ("", "")
    train(SMALL, recipe=TrainingRecipe(steps=3))
    out, err = capfd.readouterr()
    assert out == ""  # a script's output is its own
    assert err.startswith("training: 3 of 3, level 1")
    assert err.count("\n") == 1


def test_runs_of_a_family_have_a_bar_each_and_a_line_if_there_is_news():
    log = Console(file=io.StringIO())
    with shown_on(log), family_bars(["full", "early-linear"], 100) as tell:
        tell("early-linear", Progress(step=10, level=2, by_hops=(0.5, None)))
    assert log.file.getvalue().splitlines() == [
        "early-linear: 10 of 100, level 2, accuracy by hops 1:0.50",
    ]


IMPORTS = "import transformer_lens"  # of others, who may have something to say about notebooks

CELL = """
from analyses import TrainingRecipe, train
from architectures import ModelConfig
from composition import CompositionTask
task = CompositionTask(start_domain=3, branching=(3,))
config = ModelConfig(task=task, schedule=("full",), d_model=16)
result = train(config, recipe=TrainingRecipe(steps=120))
"""

PATCHING = """
import torch
from probes import grid, logit_difference, patch_sweep
pairs = task.counterfactual(task.sample(64, torch.Generator()), 1, torch.Generator())
metric = logit_difference(pairs.clean.answer, pairs.corrupted.answer)
sites = grid(result.model, pairs.clean.tokens, "resid_pre")
swept = patch_sweep(result.model, pairs.clean.tokens, pairs.corrupted.tokens, sites, metric)
"""


@pytest.mark.slow
def test_a_notebook_gets_one_output_that_ends_as_one_line():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(code) for code in (IMPORTS, CELL, PATCHING)]
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    _, training, patching = notebook.cells
    (shown,) = training.outputs
    assert shown.output_type == "display_data"
    line = shown.data["text/plain"]
    assert re.fullmatch(r"training: 120 of 120, .*accuracy by hops 1:\d\.\d\d", line)
    assert shown.data["text/html"] == f"<div>{line}</div>"
    assert patching.outputs == []  # too quick for a bar
