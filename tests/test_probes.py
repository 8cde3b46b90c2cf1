"""Probes and interchange: exact where the truth is known.

On hand-set models, whose mechanism is written down, interchange finds the carried hop in every
pair and no other hop in any.
"""

import pytest
import torch

from analyses import load_trained
from architectures import HookedStack, ModelConfig, hand_set_model
from composition import CompositionTask
from composition.sampling import visited_position
from probes import (
    folded,
    gate,
    gated_attention,
    interchange,
    interchange_pairs,
    probe_hops,
    residual_stream,
)
from probes.activations import residual_sites
from probes.running import added_hooks
from tests.conftest import TASKS

TASK = TASKS["L=2"]


def test_residual_stream_is_what_the_hooks_see(generator):
    model = HookedStack(ModelConfig(task=TASK, schedule=("full", "deltanet"), d_model=16))
    tokens = TASK.sample(10, generator).tokens
    _, cache = model.run_with_cache(tokens)
    streams = residual_stream(model, tokens, {"there": 5}, batch=3)
    expected = [cache["blocks.0.hook_resid_pre"], cache["blocks.0.hook_resid_post"]]
    expected.append(cache["blocks.1.hook_resid_post"])
    torch.testing.assert_close(
        streams["there"], torch.stack([x[:, 5] for x in expected]), atol=1e-5, rtol=1e-5
    )


def test_hooks_are_taken_away_and_others_left(generator):
    model = hand_set_model(TASK, "full")
    seen = []
    model.add_hook("blocks.0.hook_resid_post", lambda value, hook: seen.append(hook.name))

    def fail(value, hook):
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        added_hooks(model, [("blocks.1.hook_resid_post", fail)]),
    ):
        model(TASK.sample(2, generator).tokens)
    pairs = interchange_pairs(TASK, 20, generator)
    interchange(model, TASK, pairs)
    assert sum(len(handles) for handles in model.list_hooks().values()) == 1
    seen.clear()
    model(TASK.sample(2, generator).tokens)
    assert seen == ["blocks.0.hook_resid_post"]


def test_a_model_without_the_hooks_is_refused():
    from transformer_lens import HookedRootModule

    model = HookedRootModule()
    model.setup()
    with pytest.raises(ValueError, match=r"blocks\.0\.hook_resid_pre"):
        residual_sites(model, 0)


@pytest.mark.parametrize("name", TASKS)
def test_pairs_differ_in_tables_and_tell_hypotheses_apart(name, generator):
    task = TASKS[name]
    pairs = interchange_pairs(task, 300, generator)
    assert len(pairs) == 300
    query = task.positions["query"]
    assert torch.equal(pairs.base.tokens[:, query], pairs.donor.tokens[:, query])
    assert (pairs.base.tokens != pairs.donor.tokens).any(1).all()
    for row in pairs.predictions.tolist():
        assert len(set(row)) == task.hops + 2
    assert torch.equal(pairs.predictions[:, -1], pairs.base.answer)
    assert torch.equal(pairs.predictions[:, -2], pairs.donor.answer)


def test_a_task_too_small_for_interchange_is_refused(generator):
    with pytest.raises(ValueError, match="answers are too few"):
        interchange_pairs(CompositionTask(start_domain=2, branching=(1,)), 10, generator)
    with pytest.raises(ValueError, match="count is 0"):
        interchange_pairs(TASK, 0, generator)


def test_interchange_of_a_prompt_with_itself_changes_nothing(generator):
    from dataclasses import replace

    model = hand_set_model(TASK, "early-linear")
    pairs = interchange_pairs(TASK, 50, generator)
    result = interchange(model, TASK, replace(pairs, donor=pairs.base))
    for position in ("start", "answer"):
        assert (result.unchanged[position] == 1).all()
        assert (result.follows[position] == 0).all()


def test_interchange_does_not_depend_on_the_batch(generator):
    model = HookedStack(ModelConfig(task=TASK, schedule=("full", "deltanet"), d_model=16))
    pairs = interchange_pairs(TASK, 30, generator)
    one, many = (interchange(model, TASK, pairs, batch=size) for size in (7, 1000))
    for position in ("start", "answer"):
        assert torch.equal(one.follows[position], many.follows[position])


CARRIED = {
    # construction: what each layer leaves at (start, answer); None where nothing matters
    "full": ([0, None, None, None], [None, 0, 1, 2]),
    "full-twin": ([0, 1, None, None], [None, None, 1, 2]),
    "early-linear": ([0, 1, None, None], [None, None, 1, 2]),
    "linear-first": ([0, None, None, None], [None, 0, 1, 2]),
}


@pytest.mark.parametrize("construction", CARRIED)
@pytest.mark.parametrize("name", TASKS)
def test_interchange_finds_the_known_mechanism_and_nothing_else(name, construction, generator):
    task = TASKS[name]
    model = hand_set_model(task, construction)
    result = interchange(model, task, interchange_pairs(task, 200, generator))
    start, answer = CARRIED[construction]
    later = list(range(3, task.hops + 1))
    expected = {"start": start + [None] * len(later), "answer": answer + later}
    for position, hops in expected.items():
        for layer, carried in enumerate(hops):
            row = result.follows[position][layer].tolist()
            truth = [1.0 if hop == carried else 0.0 for hop in range(task.hops + 1)]
            assert row == truth, (position, layer)
            assert result.unchanged[position][layer] == (1.0 if carried is None else 0.0)


def test_probes_read_what_is_there_and_not_what_is_not(generator):
    model = hand_set_model(TASK, "full")
    # Enough that the 32 answers are about equally frequent: ridge favours frequent classes.
    fit_on, test_on = TASK.sample(10_000, generator), TASK.sample(1000, generator)
    probes = probe_hops(model, TASK, fit_on, test_on)
    answer = probes.accuracy["answer"]
    for layer in range(4):
        for hop in range(3):
            if hop < layer:
                assert answer[layer, hop] == 1.0
            else:
                assert answer[layer, hop] < TASK.chance(hop) + 0.05
    assert (probes.shuffled["answer"][:, 2] < 0.1).all()
    assert (probes.accuracy["start"][:, 0] == 1).all()
    with pytest.raises(ValueError, match="10 prompts to fit probes on, but 32 values"):
        probe_hops(model, TASK, fit_on[:10], test_on)


def gated(pattern, hook, gates):
    """Head h attends from the answer to the entry of start value h, if it is the start."""
    tokens_start, entries = gates
    pattern[:, :, -1] = 0
    for head in range(pattern.shape[1]):
        mine = tokens_start == head
        pattern[:, head, -1, entries[head]] = mine.float()
        pattern[:, head, -1, TASK.start_position] = (~mine).float()
    return pattern


def test_gated_heads_are_found_where_they_are_and_nowhere_else(generator):
    """Two heads, each gated for one start value; the constructions have none."""
    config = ModelConfig(task=TASK, schedule=("full", "full"), d_model=16, n_heads=2)
    model = HookedStack(config)
    place = TASK.positions["z1"]
    prompts = TASK.sample(1024, torch.Generator().manual_seed(0))
    visited = visited_position(TASK, prompts, 1)
    start = prompts.tokens[:, TASK.start_position]
    entries = [int(visited[start == value][0]) for value in range(TASK.start_domain)]
    assert all(place.start <= entry < place.stop for entry in entries)
    model.blocks[0].attn.hook_pattern.add_perma_hook(
        lambda pattern, hook: gated(pattern.clone(), hook, (start, entries))
    )
    found = gated_attention(model, TASK)
    expected = torch.zeros(2, TASK.start_domain)
    expected[0, 0] = expected[1, 1] = 1
    torch.testing.assert_close(found, expected)
    assert gate(found) == pytest.approx(2 / TASK.start_domain)
    for name in ("full", "early-linear"):
        assert gate(gated_attention(hand_set_model(TASK, name), TASK)) < 1e-6
    with pytest.raises(ValueError, match="no attention pattern"):
        gated_attention(hand_set_model(TASK, "early-linear"), TASK, layer=1)
    with pytest.raises(ValueError, match="draw more"):
        gated_attention(model, TASK, prompts=1)


def test_a_chain_that_is_folded_is_found_in_the_states():
    """A trained stack of three linear layers in forward order; and weights as they begin."""
    model = load_trained("linear-forward-L3")
    shares = folded(model, model.config.task, pairs=100)
    assert (shares.diagonal() > 0.95).all()  # layer k holds i_k once z_k has passed
    assert (shares - torch.diag(shares.diagonal()) < 0.05).all()
    untrained = HookedStack(model.config)
    assert folded(untrained, model.config.task, pairs=100).max() < 0.3
    with pytest.raises(ValueError, match='give a task with order="forward"'):
        folded(hand_set_model(TASK, "early-linear"), TASK)
