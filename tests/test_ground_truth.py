"""On models whose mechanism is written down, every tool finds it and nothing else."""

import pytest
import torch

from architectures import HookedStack, hand_set_model
from probes.attribution import agreement, attribution
from probes.back_patching import back_patch
from probes.interchange import interchange, interchange_pairs
from probes.lens import fit_tuned_lens, lens_accuracy, logit_lens
from probes.mechanisms import carry_or_look_up, entry_contents, first_hop, interchange_controls
from probes.metrics import logit_difference
from probes.patching import patch_sweep
from probes.paths import path_sweep
from probes.sites import Site, grid
from probes.subspace import align, subspace_interchange
from tests.conftest import TASKS

TASK = TASKS["L=2"]
FIRST = {
    "full": "answer",
    "full-twin": "start",
    "early-linear": "start",
    "linear-first": "answer",
}


@pytest.mark.parametrize("construction", FIRST)
@pytest.mark.parametrize("name", ["L=2", "L=3"])
def test_mechanism_tests_find_how_each_hop_is_made(name, construction, generator):
    task, model = TASKS[name], hand_set_model(TASKS[name], construction)
    swaps = interchange(model, task, interchange_pairs(task, 100, generator))
    assert first_hop(swaps).position == FIRST[construction]
    at_start = FIRST[construction] == "start"
    found = [carry_or_look_up(model, task, layer, pairs=100) for layer in range(task.hops + 1)]
    first_two = [(None, 1), (1, None)] if at_start else [(0, None), (None, 1)]
    later = [(None, hop) for hop in range(2, task.hops + 1)]
    assert [(layer.carries, layer.looks_up) for layer in found] == first_two + later
    for hop in range(1, task.hops + 1):
        contents = entry_contents(model, task, hop, pairs=100)
        assert contents.fetched == 0
        read_by = hop + (1 if hop > 1 or not at_start else 0)
        held = [1.0] * read_by + [0.0] * (task.hops + 2 - read_by)
        assert contents.follows[:, 0].tolist() == held


def test_a_hop_made_in_another_layer_is_told_from_the_right_one(generator):
    pairs = interchange_pairs(TASK, 50, generator)
    hops = {}
    for layers in [(0, 1, 2, None), (0, None, 1, 2)]:
        model = hand_set_model(TASK, "full", layers=layers)
        assert (model(pairs.base.tokens)[:, -1].argmax(-1) == pairs.base.answer).all()
        hops[layers] = interchange(model, TASK, pairs).follows["answer"][1:].argmax(1).tolist()
    assert hops == {(0, 1, 2, None): [0, 1, 2, 2], (0, None, 1, 2): [0, 0, 1, 2]}


def test_patching_finds_the_path_of_a_changed_entry(generator):
    model = hand_set_model(TASK, "full")
    pairs = TASK.counterfactual(TASK.sample(64, generator), 0, generator)
    metric = logit_difference(pairs.clean.answer, pairs.corrupted.answer)
    sites = [s for c in ("resid_pre", "v", "q") for s in grid(model, pairs.clean.tokens, c)]
    sweep = patch_sweep(model, pairs.clean.tokens, pairs.corrupted.tokens, sites, metric)
    start, answer = TASK.start_position, TASK.answer_position
    path = {("resid_pre", 0, start), ("resid_pre", 1, answer), ("resid_pre", 2, answer)}
    path |= {("v", 0, start), ("q", 1, answer), ("q", 2, answer)}
    for site, effect in zip(sweep.sites, sweep.effect.tolist(), strict=True):
        on_path = (site.component, site.layer, site.position) in path
        assert effect == pytest.approx(1.0 if on_path else 0.0, abs=1e-4), str(site)
    guess = attribution(model, pairs.clean.tokens, pairs.corrupted.tokens, sites, metric)
    assert agreement(sweep, guess).missed  # saturated softmaxes have no gradient, and it says so


def test_path_patching_finds_who_reads_whom(generator):
    model = hand_set_model(TASK, "early-linear")
    pairs = TASK.counterfactual(TASK.sample(64, generator), 1, generator)
    metric = logit_difference(pairs.clean.answer, pairs.corrupted.answer)
    receivers = [
        Site(part, layer, position, 0)
        for layer in (1, 2)
        for part in "qkv"
        for position in (TASK.start_position, TASK.answer_position)
    ]
    sender = Site("z", 0, TASK.start_position, 0)
    base, donor = pairs.corrupted.tokens, pairs.clean.tokens
    sweep = path_sweep(model, base, donor, sender, receivers, metric)
    for site, effect in zip(sweep.sites, sweep.effect.tolist(), strict=True):
        reads = (site.component, site.layer, site.position) == ("v", 1, TASK.start_position)
        assert effect == pytest.approx(1.0 if reads else 0.0, abs=1e-4), str(site)
    with pytest.raises(ValueError, match="not above"):
        path_sweep(model, base, donor, Site("attn_out", 1), [Site("q", 0)], metric)


def test_back_patching_tells_out_of_layers_from_never_computed(generator):
    prompts = TASK.sample(200, generator)
    cut_off = back_patch(
        hand_set_model(TASK, "full", layers=(0, 2, 1)), prompts.tokens, prompts.answer
    )
    assert cut_off.rescued == 1.0
    assert cut_off.best[0] == 2
    never = hand_set_model(TASK, "full", layers=(0, 1, None))
    assert back_patch(never, prompts.tokens, prompts.answer).rescued == 0.0


def test_lenses_see_the_answer_where_it_is_kept_as_the_answer(generator):
    model = hand_set_model(TASK, "full")
    fit, test = TASK.sample(2000, generator), TASK.sample(300, generator)
    plain = lens_accuracy(logit_lens(model, test.tokens, [-1]), TASK, test)[:, 0, 2]
    tuned = lens_accuracy(fit_tuned_lens(model, fit.tokens).logits(model, test.tokens), TASK, test)
    for answers in (plain, tuned[:, 2]):
        assert answers[3] == 1.0
        assert (answers[:3] < 0.15).all()


def test_alignment_finds_the_carried_value_and_no_other(generator):
    model, site = hand_set_model(TASK, "full"), Site("resid_post", 1, -1)
    fit, test = (interchange_pairs(TASK, count, generator) for count in (1024, 200))
    for hop in range(3):
        basis = align(model, fit, site, hop, 5, steps=60).basis
        found = subspace_interchange(model, test, site, hop, basis)
        assert found.random < 0.1
        assert found.accuracy == 1.0 if hop == 1 else found.accuracy < 0.3


def test_controls_of_interchange_stay_at_the_floor(generator):
    model = hand_set_model(TASK, "full")
    pairs = interchange_pairs(TASK, 100, generator)
    controls = interchange_controls(model, HookedStack(model.config), TASK, pairs)
    for floor in (controls.random_direction, controls.untrained):
        assert floor.follows["answer"].max() < 0.15
    assert all((shares == 1).all() for shares in controls.off_path.values())
    assert torch.isfinite(controls.random_direction.unchanged["start"]).all()
