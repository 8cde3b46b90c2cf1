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
    assert html.count("background:rgb(11, 92, 173);color:#fff") == 1
    assert html.count("background:rgb(216, 167, 134);color:#000") == 1
    assert html.count("background") == 2
    with pytest.raises(ValueError, match="2 shades for"):
        prompt_html(task, tokens, chain, [0.0, 1.0])
    with pytest.raises(ValueError, match="1 tokens are no prompt"):
        prompt_html(task, tokens[:1], chain)


@given(st.floats(-1, 1))
def test_shaded_cells_can_be_read(shade):
    """WCAG's contrast of 4.5, whatever the page around it looks like."""
    task = TASKS[0]
    prompts = task.sample(1, torch.Generator().manual_seed(0))
    shades = [shade] + [0.0] * (task.length - 1)
    html = prompt_html(task, prompts.tokens[0].tolist(), prompts.chain[0].tolist(), shades)
    found = re.findall(r"background:rgb\((\d+), (\d+), (\d+)\);color:#(fff|000)", html)
    assert len(found) == (abs(shade) > 0.02)
    for *color, text in found:
        on = luminance([int(part) for part in color])
        written = luminance([255] * 3 if text == "fff" else [0] * 3)
        assert (max(on, written) + 0.05) / (min(on, written) + 0.05) > 4.5


def luminance(color: list[int]) -> float:
    parts = [part / 255 for part in color]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


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
    assert "A stack of full, deltanet, sliding+mamba2, short-conv" in html


def test_a_trace_shows_its_staircase_with_words():
    html = trained_result("early-linear-L2").trace._repr_html_()
    assert html.count("<img") == 1
    assert "causal hop after each layer 0, 1, 2; probe hop 0, 1, 2; allowed 0, 1, 2." in html
