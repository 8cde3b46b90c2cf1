"""The zoo: every model loads, answers as its result says, and has the trace that lies beside it."""

import json

import pytest
import torch
from typer.testing import CliRunner

from analyses import load_trained, trained_models
from analyses.cli import app
from analyses.training import exact_accuracy
from analyses.zoo import HOME, trained_names, trained_result
from probes import interchange, interchange_pairs


@pytest.mark.parametrize("name", trained_names())
def test_a_model_is_what_its_result_says(name):
    model, result = load_trained(name), trained_result(name)
    assert model.config == result.trace.config
    accuracy = exact_accuracy(model, 2048, torch.Generator().manual_seed(7))
    sigma = max(result.accuracy * (1 - result.accuracy), 1e-3) ** 0.5 / 2048**0.5
    assert abs(accuracy - result.accuracy) < 6 * sigma  # other prompts, the same share
    generator = torch.Generator().manual_seed(11)
    swaps = interchange(
        model, model.config.task, interchange_pairs(model.config.task, 256, generator)
    )
    for layer in result.trace.layers:
        then = torch.tensor(layer.answer.interchange)
        now = swaps.follows["answer"][layer.layer]
        assert (then - now).abs().max() < 0.16, layer.layer  # 256 pairs: five sigma at one half


@pytest.mark.parametrize(
    "name", ["full-L2", "early-linear-L2", "full-L3", "early-linear-L3", "full-L4"]
)
def test_those_that_learned_are_above_099(name):
    assert trained_result(name).accuracy > 0.99


def test_the_zoo_is_small_and_listed():
    files = [path for path in HOME.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < 6 * 2**20
    listed = json.loads(CliRunner().invoke(app, ["models", "--json"]).stdout)
    assert [model["name"] for model in listed] == [model.name for model in trained_models()]
    assert {"name", "hops", "schedule", "accuracy"} <= listed[0].keys()
    table = CliRunner().invoke(app, ["models"]).stdout
    for name in trained_names():
        assert name in table


def test_a_wrong_name_is_told_the_nearest():
    with pytest.raises(ValueError, match=r"no trained model is called 'full-L5'; there is full-L"):
        load_trained("full-L5")
    with pytest.raises(ValueError, match="no trained model"):
        load_trained("../zoo/full-L2")
