"""The trace equals the predicted staircase on models whose mechanism is known."""

import io
import json

import pytest
from matplotlib import image

from analyses import ProgressTrace, staircase, trace
from analyses.figures import to_png
from analyses.tracing import Measured
from architectures import HookedStack, ModelConfig, hand_set_model
from composition import CompositionTask, predict_progress
from tests.conftest import TASKS


@pytest.mark.parametrize("construction", ["full", "full-twin", "early-linear", "linear-first"])
@pytest.mark.parametrize("name", TASKS)
def test_hand_set_models_give_the_predicted_staircase(name, construction):
    task = TASKS[name]
    model = hand_set_model(task, construction)
    traced = trace(model, task, prompts=1500, pairs=200)
    assert traced.accuracy == 1.0
    bounds = predict_progress(model.config.schedule, task.hops)
    assert len(traced.layers) == 1 + len(bounds)
    for layer, bound in zip(traced.layers[1:], bounds, strict=True):
        assert layer.kind == bound.kind
        assert bound.lower == layer.causal_hop == layer.probe_hop
        assert bound.lower == bound.upper or construction == "linear-first"
        assert layer.verdict == layer.probe_verdict == "inside"
        carried = layer.answer.interchange
        for hop, accuracy in enumerate(carried):
            if accuracy:
                assert accuracy == 1.0
                assert hop == bound.lower
            if hop > bound.lower:
                assert accuracy <= task.chance(hop) + 0.05
    assert not traced.size_condition.holds


def test_an_untrained_model_makes_no_hop():
    task = TASKS["L=2"]
    model = HookedStack(ModelConfig(task=task, schedule=("full", "deltanet", "full")))
    traced = trace(model, prompts=1000, pairs=200)
    assert [layer.causal_hop for layer in traced.layers] == [0] * 4
    assert [layer.probe_hop for layer in traced.layers] == [0] * 4
    assert [layer.verdict for layer in traced.layers] == ["inside", "inside", "below", "below"]
    assert traced.accuracy < 0.2


def test_a_hop_counts_where_half_of_the_gap_to_its_floor_is_closed():
    measured = Measured(
        probe=(1.0, 0.74, 0.8),
        probe_floor=(0.9, 0.5, 0.6),
        interchange=(0.9, 0.6, 0.5),
        unchanged=0.0,
    )
    assert measured.probe_hop == 0
    assert measured.causal_hop == 1
    better = measured.model_copy(update={"probe": (1.0, 0.76, 0.79)})
    assert better.probe_hop == 1


def test_json_round_trip(tmp_path):
    traced = trace(hand_set_model(TASKS["L=2"], "early-linear"), prompts=200, pairs=20)
    text = traced.to_json(tmp_path / "trace.json")
    assert ProgressTrace.model_validate_json(text) == traced
    assert json.loads((tmp_path / "trace.json").read_text()) == json.loads(text)


def test_the_same_seed_gives_the_same_trace():
    model = HookedStack(ModelConfig(task=TASKS["L=2"], schedule=("full", "full"), d_model=16))
    one, same, other = (trace(model, prompts=200, pairs=20, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other


@pytest.mark.parametrize(
    "task",
    [
        CompositionTask(start_domain=8, branching=(1,), query=False),
        CompositionTask(start_domain=4, branching=(4,), order="forward"),
    ],
)
def test_ablations_are_not_judged_by_bounds_that_do_not_hold_there(task):
    model = HookedStack(ModelConfig(task=task, schedule=("full", "deltanet"), d_model=16))
    if not task.query:
        task = None  # start and answer are one position there
    traced = trace(model, task, prompts=200, pairs=20)
    assert [(layer.lower, layer.upper) for layer in traced.layers[1:]] == [(0, 2), (0, 2)]
    assert all("do not speak of" in layer.source for layer in traced.layers[1:])


def test_another_task_is_refused():
    model = hand_set_model(TASKS["L=2"], "full")
    other = CompositionTask(start_domain=4, branching=(7,))
    with pytest.raises(ValueError, match=r"its branching is \(8,\), not \(7,\)"):
        trace(model, other)


def test_the_figure_shows_every_layer_and_is_not_blank():
    traces = {
        name: trace(hand_set_model(TASKS["L=2"], name), prompts=200, pairs=20)
        for name in ("full", "early-linear")
    }
    figure = staircase(traces)
    pixels = image.imread(io.BytesIO(to_png(figure)))
    assert (pixels[..., :3] < 0.98).any(-1).mean() > 0.05
    assert len(figure.axes) == 4
    steps = figure.axes[0].lines[0]
    assert list(steps.get_ydata()) == [0, 0, 1, 2]
    labels = [tick.get_text() for tick in figure.axes[1].get_xticklabels()]
    assert labels == ["embed", "1\nfull", "2\ndeltanet", "3\nfull"]
