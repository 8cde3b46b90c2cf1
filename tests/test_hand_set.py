"""Hand-set models answer every prompt exactly, in as many layers as the theory says they need.

For L = 2, 3 and 4, each construction and each linear mixer, on 10,000 random prompts; and for
a tiny task on every prompt there is.
"""

import itertools

import pytest
import torch

from analyses.training import exact_accuracy
from architectures import hand_set_model
from composition import CompositionTask
from composition.sampling import follow_chain
from tests.conftest import TASKS

CONSTRUCTIONS = [
    ("full", "deltanet"),
    ("full-twin", "deltanet"),
    ("early-linear", "deltanet"),
    ("early-linear", "linear"),
    ("linear-first", "deltanet"),
    ("linear-first", "linear"),
]


@pytest.mark.parametrize(("construction", "mixer"), CONSTRUCTIONS)
@pytest.mark.parametrize("name", TASKS)
def test_exact_on_random_prompts(name, construction, mixer, generator):
    model = hand_set_model(TASKS[name], construction, mixer=mixer)
    assert exact_accuracy(model, 10_000, generator) == 1.0


@pytest.mark.parametrize(("construction", "mixer"), CONSTRUCTIONS)
def test_exact_on_every_prompt_of_a_tiny_task(construction, mixer):
    task = CompositionTask(start_domain=2, branching=(2,))
    choices = [range(4)] * 4 + [range(2)] * 2 + [range(2)] + [range(4, 6)]
    tokens = torch.tensor(list(itertools.product(*choices)))
    assert len(tokens) == 4**4 * 2**2 * 2 * 2
    model = hand_set_model(task, construction, mixer=mixer)
    with torch.no_grad():
        answers = model(tokens)[:, -1].argmax(-1)
    assert torch.equal(answers, follow_chain(task, tokens)[:, -1])


@pytest.mark.parametrize("name", TASKS)
def test_schedules_are_as_long_as_the_theory_allows(name):
    task = TASKS[name]
    assert hand_set_model(task, "full").config.schedule == ("full",) * (task.hops + 1)
    early = hand_set_model(task, "early-linear").config.schedule
    assert early == ("full", "deltanet", *["full"] * (task.hops - 1))
    first = hand_set_model(task, "linear-first").config.schedule
    assert first == ("deltanet", *["full"] * task.hops)


def test_size_is_polylogarithmic_in_the_prompt():
    """The prompt grows a hundredfold, the sizes as its logarithm: not even threefold."""
    small, large = (CompositionTask(start_domain=4, branching=(n,)) for n in (8, 1000))
    assert large.length > 100 * small.length
    for construction, _ in CONSTRUCTIONS:
        sizes = [hand_set_model(task, construction).config for task in (small, large)]
        for field in ("d_model", "d_head", "d_value"):
            assert getattr(sizes[1], field) < 2.5 * getattr(sizes[0], field)


def test_constant_range_works_too(generator):
    task = CompositionTask(start_domain=5, branching=(3, 2), constant_range=True)
    for construction, mixer in CONSTRUCTIONS:
        model = hand_set_model(task, construction, mixer=mixer)
        assert exact_accuracy(model, 2000, generator) == 1.0


def test_other_requests_are_refused():
    with pytest.raises(ValueError, match="not for its ablations"):
        hand_set_model(CompositionTask(start_domain=2, branching=(1,), query=False), "full")
    with pytest.raises(ValueError, match="unknown construction 'late'; use one of full, full-twin"):
        hand_set_model(TASKS["L=2"], "late")
    with pytest.raises(ValueError, match="no hand-set weights for mixer 'kda'"):
        hand_set_model(TASKS["L=2"], "early-linear", mixer="kda")
