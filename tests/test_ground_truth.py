"""On models whose mechanism is written down, every tool finds it and nothing else.

`analyses/ground_truth.py` lists what follows from each mechanism; docs/ground_truth.md has all of
it for L = 2, 3, 4. Here every tool is held to it on a part that is quick to run.
"""

import re
from pathlib import Path

import pytest
import torch

from analyses.ground_truth import TOOLS, told_apart
from analyses.hand_set_mechanisms import Mechanism, models
from architectures import hand_set_model
from architectures.hand_set import _Fields, _set_attention
from composition import CompositionTask
from probes.back_patching import back_patch
from probes.mechanisms import entry_contents
from probes.metrics import logit_difference
from probes.paths import path_sweep
from probes.sites import Site
from tests.conftest import TASKS

PAGE = Path(__file__).parents[1] / "docs" / "ground_truth.md"
TASK = TASKS["L=2"]


def test_back_patching_tells_out_of_layers_from_never_computed(generator):
    prompts = TASK.sample(200, generator)
    cut_off = back_patch(
        hand_set_model(TASK, "full", layers=(0, 2, 1)), prompts.tokens, prompts.answer
    )
    assert cut_off.rescued == 1.0
    assert cut_off.best[0] == 2
    never = hand_set_model(TASK, "full", layers=(0, 1, None))
    assert back_patch(never, prompts.tokens, prompts.answer).rescued == 0.0


SMALL = CompositionTask(start_domain=3, branching=(4,))
QUICK = ("full", "early-linear", "full, a layer late")


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", QUICK)
def test_a_tool_finds_what_follows_from_the_mechanism_and_nothing_else(tool, name):
    mechanism = models(SMALL)[name]
    found = TOOLS[tool](mechanism, mechanism.model())
    assert [what for what, holds in found if not holds] == []
    has_a_state = name == "early-linear"
    assert bool(found) == (has_a_state or tool != "interchange, recurrent state")


OF_LAYERS = ("probes", "lenses", "interchange, residual", "interchange, head output")
OF_LAYERS += ("mechanism tests", "activation patching", "path patching", "ablation")


@pytest.mark.parametrize("tool", OF_LAYERS)
def test_a_model_that_makes_its_hops_elsewhere_is_told_from_the_right_one(tool, generator):
    late = models(SMALL)["full, a layer late"]
    prompts = SMALL.sample(500, generator)
    assert (late.model()(prompts.tokens)[:, -1].argmax(-1) == prompts.answer).all()
    with_room = Mechanism(SMALL, "full", (0, 1, 2, None))  # as many layers, hops as early as can be
    assert told_apart(with_room, late, tool)


def test_the_page_has_every_tool_and_model_and_no_wrong_cell():
    text = PAGE.read_text()
    assert re.findall(r"^## L = (\d)", text, flags=re.M) == ["2", "3", "4"]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    tables = [rows[begin : begin + len(TOOLS) + 1] for begin in range(0, len(rows), len(TOOLS) + 1)]
    for (head, *body), hops in zip(tables, (2, 3, 4), strict=True):
        assert head == ["tool", *models(TASKS[f"L={hops}"])]
        assert [row[0] for row in body] == list(TOOLS)
        for cell in (cell for row in body for cell in row[1:]):
            held, _, of = cell.partition("/")
            assert cell == "—" or (held == of and int(of) > 0)


def test_entries_that_have_fetched_their_successors_are_recognised(generator):
    """Pointer doubling by hand: z_1's entries fetch z_2 at their value, the start reads both."""
    task = CompositionTask(start_domain=4, branching=(1,))
    model = hand_set_model(task, "full", layers=(None, None, None))
    fields = _Fields.of(task)
    z1, z2, start, query = (fields.roles[role] for role in ("z1", "z2", "start", "query"))
    by_value, fetched, last = [fields.value], fields.hop(1), fields.hop(2)
    attentions = [block.attn for block in model.blocks]
    with torch.no_grad():  # the query's own position holds nothing: it looks there to stay empty
        _set_attention(attentions[0], fields, {z1: z2, query: query}, fields.value, 1, by_value)
        _set_attention(attentions[1], fields, {start: z1, query: query}, fetched, 2, by_value)
        _set_attention(attentions[2], fields, {query: start}, last, 2)
    prompts = task.sample(200, generator)
    assert (model(prompts.tokens)[:, -1].argmax(-1) == prompts.answer).all()
    contents = entry_contents(model, task, 1, pairs=100)
    assert contents.fetched == 1.0
    # Their own value until they fetch, then what comes after it.
    assert contents.follows[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert contents.follows[:, 1].tolist() == [0.0, 1.0, 0.0, 0.0]


def test_a_receiver_has_to_stand_above_its_sender(generator):
    model = hand_set_model(TASK, "full")
    pairs = TASK.counterfactual(TASK.sample(4, generator), 1, generator)
    metric = logit_difference(pairs.clean.answer, pairs.corrupted.answer)
    tokens = pairs.corrupted.tokens, pairs.clean.tokens
    with pytest.raises(ValueError, match="not above"):
        path_sweep(model, *tokens, Site("attn_out", 1), [Site("q", 0)], metric)
