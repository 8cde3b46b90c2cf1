"""Findings: docs/findings.md is what the command writes from the results that are kept, and the
sentences turn where the rows do.
"""

from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from analyses.findings import FINDINGS
from analyses.findings.capacity import crossing
from analyses.findings.columns import is_ahead, is_past, shares_beyond
from analyses.findings.depth import DEPTH
from analyses.findings.one_hop_a_layer import first_hop_position, idle_layers, skipped
from analyses.findings.page import FIGURES, PAGE, load, render, told
from analyses.findings.placement import PLACEMENT
from analyses.findings.recurrences import RECURRENCES
from analyses.findings.words import coverage, out_of, spread, wilson
from analyses.grid import Grid
from analyses.results import row_of
from analyses.workers import Failure

DOCS = Path("docs")


@pytest.fixture(scope="module")
def frames():
    return load(DOCS, FINDINGS)


def test_the_page_is_what_the_results_say(frames):
    """Regenerated whole: `hoptrace findings` mends it."""
    answers = told(FINDINGS, frames)
    assert render(FINDINGS, answers, frames) == (DOCS / PAGE).read_text(encoding="utf-8")
    for name in answers:
        with Image.open(DOCS / FIGURES / f"{name}.png") as figure:  # its text is inside
            assert figure.info["Description"] == answers[name].alt


def test_every_grid_of_a_finding_is_shipped():
    for finding in FINDINGS:
        for grid in finding.grids:
            assert Path(f"grids/{grid}.toml").exists(), (finding.name, grid)


def test_results_are_those_of_the_grids_as_shipped(frames):
    """The same runs in the same order, each with every setting that the grid gives it today."""
    for name, frame in frames.items():
        points = Grid.read(f"grids/{name}.toml").points()
        assert list(frame["name"]) == [point.name for point in points], name
        for row, point in zip(frame.to_dict("records"), points, strict=True):
            settings = row_of(point, Failure("not needed here"))
            for setting in settings.keys() - {"error"}:
                there, here = row[setting], settings[setting]
                same = list(there) == here if isinstance(here, list) else there == here
                assert same or (here is None and pd.isna(there)), (name, point.name, setting)


def test_sentences_turn_where_the_rows_do(frames):
    """Nobody has to remember to rewrite them: change what was measured, and they say otherwise."""
    frame = frames["depth-L2"]
    as_predicted = DEPTH.tell({"depth-L2": frame})
    assert as_predicted.words.startswith("As predicted, none of 15 runs")
    turned = frame.copy()
    turned.loc[turned["arm"] == "full-2", "accuracy"] = 0.999
    against = DEPTH.tell({"depth-L2": turned})
    assert against.words.startswith("Against the prediction, at L = 2 5 of 15 (15 … 58 %) runs")
    assert "5 of 5" in against.table.iloc[1].iloc[-1]

    placed = frames["placement-L2"].copy()
    assert PLACEMENT.tell({"placement-L2": placed}).words.startswith("As predicted, no run")
    placed.loc[placed["arm"] == "late-linear", "accuracy"] = 0.999
    against = PLACEMENT.tell({"placement-L2": placed})
    assert against.words.startswith(
        "Against the prediction, at L = 2 5 of 5 (57 … 100 %) runs with full, full, deltanet are"
    )

    mixed = frames["recurrences"].copy()
    assert RECURRENCES.tell({"recurrences": mixed}).words.startswith("As predicted, all")
    mixed["causal_hop"] = [[0, 0, 0, 2]] * len(mixed)
    assert RECURRENCES.tell({"recurrences": mixed}).words.startswith("Against the prediction,")


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.name)
def test_a_finding_can_be_told_of_whatever_a_sweep_leaves(finding, frames):
    """Runs that failed are left out; nothing learned, or nothing measured beyond, is no error."""
    there = {grid: frames[grid] for grid in finding.grids if grid in frames}
    if finding.grids[0] not in there:
        pytest.skip("its sweep has not been run")
    for change in (nothing_learned, mechanisms_not_measured, last_runs_failed):
        said = finding.tell({grid: change(frame) for grid, frame in there.items()})
        assert said.words[0].isupper(), change


def nothing_learned(frame):
    return frame.assign(accuracy=frame["accuracy"].clip(upper=0.4))


def mechanisms_not_measured(frame):
    return frame.drop(columns=["fetched", "fetched_by", "gate"], errors="ignore")


def last_runs_failed(frame):
    kept = 2 * len(frame) // 3
    failed = ["its process ended" if index >= kept else None for index in range(len(frame))]
    return frame.assign(error=failed)


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
    assert idle_layers(row) == 1  # layer 1 brings i_0, layer 3 has got no further
    jump = pd.Series(
        {
            "causal_hop": [0, 0, 2],
            "answer_interchange": [[0.0, 0.0, 0.0], [0.5, 0.3, 0.1], [0, 0, 1]],
        }
    )
    assert skipped(jump) == [pytest.approx(0.3)]  # i_1 was carried before, in three of ten pairs
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


def test_a_bound_is_passed_where_all_pairs_are_and_not_where_most_are():
    """After the last layer the exact accuracy decides, before it interchange does."""
    row = pd.Series(
        {
            "upper": [0, 0, 1],
            "hops": 2,
            "accuracy": 0.8,
            "answer_interchange": [[0.0, 0.0, 0.0], [0.9, 0.06, 0.04], [0.0, 0.1, 0.75]],
        }
    )
    assert shares_beyond(row) == pytest.approx([0.0, 0.1, 0.8])
    assert is_ahead(row)
    assert not is_past(row)
    assert is_past(row.replace(0.8, 0.995))
    row["answer_interchange"] = [[0.0, 0.0, 0.0], [0.0, 0.995, 0.0], [0.0, 0.1, 0.75]]
    assert is_past(row)


def test_where_looking_up_switches_on():
    rows = pd.DataFrame(
        {
            "ratio": [4.0, 2.0, 1.0, 0.5],
            "accuracy": [0.2, 0.2, 1.0, 1.0],
            "frequency_baseline": [0.2] * 4,
        }
    )
    assert crossing(rows) == pytest.approx(2**0.5)  # half-way between 2 and 1, on a log scale
    assert crossing(rows.assign(accuracy=0.2)) == 0  # never
    assert crossing(rows.assign(accuracy=0.9)) == float("inf")  # always
