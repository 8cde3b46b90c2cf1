"""The task is Definition 2.5 of arXiv 2602.01763: sizes, order, chains, labels, baselines.

An independent reading of the definition, in plain Python over one prompt at a time, has to
agree with the vectorised code for every variant and many sizes.
"""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from composition import CompositionTask
from composition.sampling import ask, follow_chain, visited_position

VARIANTS = [
    dict(start_domain=4, branching=(8,)),
    dict(start_domain=3, branching=(2, 3)),
    dict(start_domain=2, branching=(2, 1, 3)),
    dict(start_domain=5, branching=(3, 2), constant_range=True),
    dict(start_domain=6, branching=(1, 1), query=False),
    dict(start_domain=3, branching=(2, 3), order="forward"),
    dict(start_domain=4, branching=(1,), query=False, order="forward"),
]

tasks = st.one_of(
    st.builds(
        CompositionTask,
        start_domain=st.integers(1, 4),
        branching=st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
        order=st.sampled_from(["backward", "forward"]),
        constant_range=st.booleans(),
    ),
    st.builds(
        CompositionTask,
        start_domain=st.integers(1, 5),
        branching=st.integers(1, 3).map(lambda hops: (1,) * hops),
        query=st.just(False),
        order=st.sampled_from(["backward", "forward"]),
    ),
)


def chain_by_definition(task: CompositionTask, tokens: list[int]) -> list[int]:
    """i_0 … i_L of one prompt, read off the tokens as the definition says."""
    blocks = {}
    sizes = [("start", 1)] + [(f"z{hop}", task.domains[hop - 1]) for hop in range(1, task.hops + 1)]
    if task.order == "backward":
        order = [*reversed(sizes[1:]), sizes[0]] + [("query", 1)] * task.query
    else:
        order = [("query", 1)] * task.query + sizes + [("end", 1)]
    begin = 0
    for name, size in order:
        blocks[name] = tokens[begin : begin + size]
        begin += size
    assert begin == len(tokens)
    parts = [0] * len(task.branching)
    if task.query:
        rest = blocks["query"][0] - task.n_values
        for index in reversed(range(len(parts))):
            rest, parts[index] = divmod(rest, task.branching[index])
    chain = [blocks["start"][0], blocks["z1"][blocks["start"][0]]]
    for hop in range(2, task.hops + 1):
        previous_range = task.ranges[hop - 1]
        chain.append(blocks[f"z{hop}"][parts[hop - 2] * previous_range + chain[-1]])
    return chain


@given(task=tasks, seed=st.integers(0, 1000))
@settings(max_examples=80, deadline=None)
def test_chains_are_those_of_the_definition(task, seed):
    prompts = task.sample(5, torch.Generator().manual_seed(seed))
    assert prompts.tokens.shape == (5, task.length)
    for tokens, chain in zip(prompts.tokens.tolist(), prompts.chain.tolist(), strict=True):
        assert chain == chain_by_definition(task, tokens)
    assert torch.equal(prompts.answer, prompts.chain[:, -1])


def test_sizes_are_those_of_the_definition():
    task = CompositionTask(start_domain=4, branching=(3, 2))
    assert task.hops == 3
    assert task.domains == (4, 12, 24)
    assert task.ranges == (4, 4, 12, 24)
    assert task.length == 2 + 4 + 12 + 24
    names = [entry.role for entry in task.entries]
    assert names == ["z3"] * 24 + ["z2"] * 12 + ["z1"] * 4 + ["start", "query"]
    assert task.positions["z1"] == slice(36, 40)
    assert task.start_position == 40
    assert task.answer_position == 41
    assert task.n_queries == 6
    assert task.vocabulary == 24 + 6


def test_labels_say_what_a_token_means():
    task = CompositionTask(start_domain=4, branching=(3, 2))
    prompts = task.sample(1, torch.Generator().manual_seed(1))
    labels = [task.token_label(p, t) for p, t in enumerate(prompts.tokens[0].tolist())]
    assert labels[0].startswith("z3[w2=0,i=0] -> ")
    assert labels[24 + 4 + 3].startswith("z2[w1=1,i=3] -> ")
    assert labels[36].startswith("z1[i=0] -> ")
    assert labels[40] == f"z0 = {prompts.chain[0, 0]}"
    query = int(prompts.tokens[0, 41]) - task.n_values
    assert labels[41] == f"w1={query // 2},w2={query % 2}"
    forward = CompositionTask(start_domain=2, branching=(2,), order="forward")
    assert forward.token_label(forward.length - 1, forward.vocabulary - 1) == "="


@pytest.mark.parametrize(
    ("position", "token", "message"),
    [(99, 0, "position 99 is outside"), (0, 30, "token 30 cannot stand"), (6, 1, "4 … 5")],
)
def test_labels_refuse_what_cannot_be(position, token, message):
    task = CompositionTask(start_domain=2, branching=(2,))
    with pytest.raises(ValueError, match=message):
        task.token_label(7 if position == 6 else position, token)


@pytest.mark.parametrize("sizes", VARIANTS)
def test_active_hops_leaves_the_other_functions_the_identity(sizes, generator):
    task = CompositionTask(**sizes)
    for level in range(1, task.hops + 1):
        prompts = task.sample(400, generator, active_hops=level)
        assert set(prompts.active.tolist()) <= set(range(1, level + 1))
        identities = torch.zeros(len(prompts), dtype=torch.int64)
        for hop in range(1, task.hops + 1):
            place = task.positions[f"z{hop}"]
            arguments = [task.entries[p].argument for p in range(place.start, place.stop)]
            same = (prompts.tokens[:, place] == torch.tensor(arguments)).all(1)
            identities += same
        # A uniform function may happen to be the identity, so there are at least that many.
        assert (identities >= task.hops - prompts.active).all()
    assert (task.sample(10, generator).active == task.hops).all()


def test_active_functions_are_chosen_uniformly(generator):
    task = CompositionTask(start_domain=8, branching=(4, 4))
    prompts = task.sample(6000, generator, active_hops=3)
    shares = torch.bincount(prompts.active, minlength=4)[1:] / 6000
    assert (shares - 1 / 3).abs().max() < 0.03  # 4 standard errors


@pytest.mark.parametrize("order", ["backward", "forward"])
def test_questions_share_their_functions_and_nothing_else(order, generator):
    task = CompositionTask(start_domain=5, branching=(3, 2), order=order)
    prompts = task.sample(200, generator)
    asked = ask(task, prompts, 4, generator)
    assert torch.equal(asked.chain, follow_chain(task, asked.tokens))
    by_question = asked.tokens.unflatten(0, (4, 200))
    assert torch.equal(by_question[0], prompts.tokens)
    for position, entry in enumerate(task.entries):
        here = by_question[:, :, position]
        if entry.role not in ("start", "query"):
            assert torch.equal(here, here[:1].expand(4, -1))
            continue
        values = task.start_domain if entry.role == "start" else task.n_queries
        counts = (here[1:] - here.min()).flatten().bincount(minlength=values)
        assert len(counts) == values
        assert (counts - 600 / values).abs().max() < 5 * (600 / values) ** 0.5
    with pytest.raises(ValueError, match="questions is 0"):
        ask(task, prompts, 0, generator)


@pytest.mark.parametrize("sizes", VARIANTS)
def test_continuing_the_own_chain_gives_the_own_answer(sizes, generator):
    task = CompositionTask(**sizes)
    prompts = task.sample(200, generator)
    for hop in range(task.hops + 1):
        assert torch.equal(task.continue_chain(prompts, hop, prompts.chain[:, hop]), prompts.answer)
    last = torch.randint(task.ranges[-1], (200,))
    assert torch.equal(task.continue_chain(prompts, task.hops, last), last)


@pytest.mark.parametrize("sizes", VARIANTS)
def test_counterfactuals_are_minimal(sizes, generator):
    task = CompositionTask(**sizes)
    prompts = task.sample(300, generator)
    for hop in range(task.hops + 1):
        pairs = task.counterfactual(prompts, hop, generator)
        clean, corrupted, off_path = pairs.clean, pairs.corrupted, pairs.off_path
        assert torch.equal(clean.tokens, prompts.tokens[pairs.rows])
        changed = clean.tokens != corrupted.tokens
        assert (changed.sum(1) == 1).all()
        assert torch.equal(changed.nonzero()[:, 1], visited_position(task, clean, hop))
        assert (clean.chain[:, :hop] == corrupted.chain[:, :hop]).all()
        assert (clean.chain[:, hop] != corrupted.chain[:, hop]).all()
        assert (clean.answer != corrupted.answer).all()
        assert ((clean.tokens != off_path.tokens).sum(1) == 1).all()
        assert torch.equal(clean.chain, off_path.chain)
        for pair in (corrupted, off_path):
            for tokens, chain in zip(
                pair.tokens[:20].tolist(), pair.chain[:20].tolist(), strict=True
            ):
                assert chain == chain_by_definition(task, tokens)


def test_counterfactual_keeps_every_row_that_can_change(generator):
    task = CompositionTask(start_domain=2, branching=(2,))
    prompts = task.sample(500, generator)
    kept = set(task.counterfactual(prompts, 0, generator).rows.tolist())
    for row, chain in enumerate(prompts.chain):
        other = task.continue_chain(prompts[row : row + 1], 0, 1 - chain[:1])
        assert (row in kept) == bool(other != chain[-1])


@pytest.mark.parametrize(("balls", "bins"), [(8, 8), (6, 6), (4, 32), (1, 5), (3, 1)])
def test_frequency_baseline_is_what_the_guess_gets(balls, bins):
    sizes = dict(start_domain=balls, branching=(1,))
    if balls == bins:
        got = CompositionTask(**sizes, constant_range=True).frequency_baseline(2)
    elif bins % balls == 0:
        got = CompositionTask(start_domain=balls, branching=(bins // balls,)).frequency_baseline(2)
    else:
        from composition.task import _expected_largest_count

        got = _expected_largest_count(balls, bins) / balls
    draw = random.Random(0)
    right = []
    for _ in range(20_000):
        table = [draw.randrange(bins) for _ in range(balls)]
        right.append(max(table.count(value) for value in table) / balls)
    mean = sum(right) / len(right)
    error = math.sqrt(sum((x - mean) ** 2 for x in right)) / len(right)
    assert got == pytest.approx(mean, abs=4 * error + 1e-9)


def test_the_same_seed_draws_the_same_prompts():
    task = CompositionTask(start_domain=4, branching=(3,))
    draws = [task.sample(50, torch.Generator().manual_seed(3)).tokens for _ in range(2)]
    assert torch.equal(*draws)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (dict(start_domain=4, branching=(0,)), "greater than or equal to 1"),
        (dict(start_domain=0, branching=(2,)), "greater than or equal to 1"),
        (dict(start_domain=4, branching=()), "at least 1 item"),
        (dict(start_domain=4, branching=(2,), query=False), r"use branching=\(1,\)"),
        (dict(start_domain=4, branching=(2,), order="sideways"), "backward"),
        (dict(start_domain=4, branching=(2,), colour="red"), "Extra inputs"),
    ],
)
def test_impossible_tasks_are_refused(sizes, message):
    with pytest.raises(ValidationError, match=message):
        CompositionTask(**sizes)


def test_impossible_questions_are_refused(generator):
    task = CompositionTask(start_domain=4, branching=(3,))
    prompts = task.sample(5, generator)
    with pytest.raises(ValueError, match="hop 3 is not on a chain of 2 hops: use 0 … 2"):
        task.continue_chain(prompts, 3, prompts.answer)
    with pytest.raises(ValueError, match="i_1 takes the values 0 … 3"):
        task.continue_chain(prompts, 1, torch.full((5,), 4))
    with pytest.raises(ValueError, match="5 prompts"):
        task.continue_chain(prompts, 1, torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="active_hops is 3"):
        task.sample(5, generator, active_hops=3)
    with pytest.raises(ValueError, match="batch is 0"):
        task.sample(0, generator)
    with pytest.raises(ValueError, match="hop 7"):
        task.frequency_baseline(7)
    with pytest.raises(ValueError, match="single entry"):
        CompositionTask(start_domain=1, branching=(3,)).counterfactual(prompts, 1, generator)
