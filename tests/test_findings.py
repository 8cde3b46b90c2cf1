"""Findings: docs/findings.md is what the command writes from the results that are kept, and the
sentences turn where the rows do.
"""

from pathlib import Path

import pandas as pd
import pytest

from analyses.findings import FINDINGS
from analyses.findings.capacity import crossing
from analyses.findings.columns import is_above
from analyses.findings.depth import DEPTH
from analyses.findings.one_hop_a_layer import first_hop_position, idle_layers
from analyses.findings.page import FIGURES, PAGE, load, render, told
from analyses.findings.placement import PLACEMENT
from analyses.findings.words import coverage, out_of, spread, wilson

DOCS = Path("docs")


@pytest.fixture(scope="module")
def frames():
    return load(DOCS, FINDINGS)


def test_the_page_is_what_the_results_say(frames):
    """Regenerated whole: `hoptrace findings` mends it."""
    answers = told(FINDINGS, frames)
    assert render(FINDINGS, answers, frames) == (DOCS / PAGE).read_text(encoding="utf-8")
    for name in answers:
        assert (DOCS / FIGURES / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_every_grid_of_a_finding_is_shipped():
    for finding in FINDINGS:
        for grid in finding.grids:
            assert Path(f"grids/{grid}.toml").exists(), (finding.name, grid)


def test_results_are_those_of_the_grids_as_shipped(frames):
    """Every row belongs to its grid, with the settings that the grid gives it today."""
    from analyses.grid import Grid

    for name, frame in frames.items():
        points = {point.name: point for point in Grid.read(f"grids/{name}.toml").points()}
        for row in frame.to_dict("records"):
            point = points[row["name"]]
            assert tuple(row["schedule"]) == point.config.schedule
            assert tuple(row["branching"]) == point.config.task.branching
            for setting in ("d_model", "n_heads", "d_key", "linear_heads"):
                assert row[setting] == getattr(point.config, setting)
            for setting in ("steps", "seed", "batch", "questions", "learning_rate"):
                assert row[setting] == getattr(point.recipe, setting)


def test_sentences_turn_where_the_rows_do(frames):
    """Nobody has to remember to rewrite them: change what was measured, and they say otherwise."""
    frame = frames["depth-L2"]
    as_predicted = DEPTH.tell({"depth-L2": frame})
    assert not as_predicted.words.startswith("Against")
    turned = frame.copy()
    turned.loc[turned["arm"] == "full-2", "accuracy"] = 0.999
    against = DEPTH.tell({"depth-L2": turned})
    assert against.words.startswith("Against the prediction, at L = 2 5 runs")
    assert "5 of 5" in against.table.iloc[1].iloc[-1]

    late = frames["placement-L2"].copy()
    assert PLACEMENT.tell({"placement-L2": late}).words.startswith("Against the prediction")
    late["causal_hop"] = late["upper"]
    assert PLACEMENT.tell({"placement-L2": late}).words.startswith("At L = 2")


def test_a_run_that_failed_is_left_out(frames):
    frame = frames["depth-L2"].copy()
    frame.loc[0, "error"] = "its process ended"
    frame.loc[0, "accuracy"] = None
    table = DEPTH.tell({"depth-L2": frame}).table
    assert table.iloc[0].iloc[-1].startswith("0 of 4")


def test_spreads_and_intervals():
    assert spread([0.5]) == "0.500"
    assert spread([0.25, 1.0, 0.5]) == "0.500 (0.250 … 1.000)"
    assert coverage(5) == "94 %"
    assert coverage(3) == "75 %"
    # Wilson 1927 by hand: (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)
    assert wilson(4, 5) == pytest.approx((0.3755, 0.9638), abs=1e-4)
    assert wilson(0, 5)[0] == 0
    assert out_of(5, 5) == "5 of 5 (57 … 100 %)"


def test_what_is_read_off_a_staircase():
    row = pd.Series({"causal_hop": [0, 0, 1, 1, 2], "upper": [0, 0, 1, 2, 2]})
    assert not is_above(row)
    assert is_above(pd.Series({"causal_hop": [0, 1], "upper": [0, 0]}))
    assert idle_layers(row) == 1  # layer 1 brings i_0, layer 3 has got no further
    start = pd.Series(
        {
            "start_interchange": [[1.0, 0.0], [0.1, 0.9]],
            "answer_interchange": [[0.0, 0.0], [0.2, 0.0]],
        }
    )
    assert first_hop_position(start) == "start"
    start["answer_interchange"] = [[0.0, 0.0], [0.95, 0.0]]
    assert first_hop_position(start) == "answer"
    start["answer_interchange"] = start["start_interchange"] = [[0.0, 0.0], [0.2, 0.2]]
    assert first_hop_position(start) is None


def test_where_looking_up_switches_on():
    rows = pd.DataFrame(
        {
            "ratio": [4.0, 2.0, 1.0, 0.5],
            "accuracy": [0.2, 0.2, 1.0, 1.0],
            "frequency_baseline": [0.2] * 4,
        }
    )
    assert crossing(rows) == pytest.approx(2**0.5)  # half-way between 2 and 1, on a log scale
    assert crossing(rows.assign(accuracy=0.2)) is None
