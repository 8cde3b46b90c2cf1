"""What notebooks show of prompts, models and traces: the right tokens, layers and steps."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from analyses import trained_result
from architectures import HookedStack, ModelConfig
from composition import CompositionTask
from composition.display import prompt_html
from composition.sampling import visited_position

TASKS = [
    CompositionTask(start_domain=4, branching=(3,)),
    CompositionTask(start_domain=2, branching=(2, 3)),
    CompositionTask(start_domain=5, branching=(1, 1), query=False),
    CompositionTask(start_domain=3, branching=(2,), order="forward"),
]


@given(st.sampled_from(TASKS), st.integers(0, 10_000))
def test_every_token_is_there_and_the_chain_is_framed(task, seed):
    prompts = task.sample(1, torch.Generator().manual_seed(seed))
    html = prompts._repr_html_()
    cells = re.findall(r'<td colspan="\d+" style="([^"]*)" title="([^"]*)">', html)
    labels = [label.replace("&gt;", ">") for _, label in cells]
    assert labels == prompts.labels()
    framed = {place for place, (style, _) in enumerate(cells) if "outline" in style}
    expected = {int(visited_position(task, prompts, hop)) for hop in range(task.hops + 1)}
    if task.query:
        expected.add(task.positions["query"].start)
    assert framed == expected


def test_shades_are_what_is_given(generator):
    task = TASKS[0]
    prompts = task.sample(1, generator)
    tokens, chain = prompts.tokens[0].tolist(), prompts.chain[0].tolist()
    shades = [0.0] * task.length
    shades[0], shades[1] = 1.0, -0.5
    html = prompt_html(task, tokens, chain, shades)
    assert ": +1.00" in html
    assert ": -0.50" in html
    assert html.count("rgba(11, 92, 173, 0.80)") == 1
    assert html.count("rgba(209, 102, 26, 0.40)") == 1
    with pytest.raises(ValueError, match="2 shades for"):
        prompt_html(task, tokens, chain, [0.0, 1.0])
    with pytest.raises(ValueError, match="1 tokens are no prompt"):
        prompt_html(task, tokens[:1], chain)


def test_a_batch_shows_its_first_prompts_and_how_many_follow(generator):
    html = TASKS[0].sample(7, generator)._repr_html_()
    assert "prompt 0 of 7" in html
    assert "prompt 2 of 7" not in html
    assert "and 5 more" in html


def test_a_stack_shows_its_layers_from_the_last_to_the_first():
    schedule = ("full", "deltanet", "sliding+mamba2", "short-conv")
    config = ModelConfig(task=TASKS[0], schedule=schedule, d_mlp=8, window=5)
    model = HookedStack(config)
    html = model._repr_html_()
    assert re.findall(r"layer (\d): ([^<]+)</strong>", html) == [
        (str(layer + 1), schedule[layer]) for layer in (3, 2, 1, 0)
    ]
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in html
    assert "5 positions" in html
    assert "state 16 × 16" in html
    assert "MLP 8" in html


def test_a_trace_shows_its_staircase_with_words():
    html = trained_result("early-linear-L2").trace._repr_html_()
    assert html.count("<img") == 1
    assert "causal hop after each layer [0, 1, 2]" in html
