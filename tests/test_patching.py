"""Patching sweeps are exact.

Every cell is what one hook and one whole run give, written out here, whatever the model's layers;
on attention it is what TransformerLens' own sweeps give; and what is made of the cells — effects,
intervals, tables, ablations — is what it says.
"""

from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_lens import patching

from architectures import HookedStack, ModelConfig
from composition import CompositionTask
from probes.metrics import correctness, log_probability, logit_difference
from probes.patched_runs import patched_once
from probes.patches import Patch
from probes.patching import PatchSweep, ablation_sweep, patch_sweep
from probes.sites import Site, grid, read

TASK = CompositionTask(start_domain=2, branching=(2,))  # prompts of 8 positions
OF_THE_BLOCK = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
WITH_HEADS = ("q", "k", "v", "z", "attn_scores", "pattern")
PLACES = (0, 4, -1, (6, 1), None)

PROMPTS = [TASK.sample(4, torch.Generator().manual_seed(seed)) for seed in (0, 1)]
CLEAN, CORRUPTED = (prompts.tokens for prompts in PROMPTS)
RIGHT, WRONG = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 0])
METRIC = logit_difference(RIGHT, WRONG)


def stack(*schedule, **options):
    sizes = dict(d_model=16, d_mlp=24, window=4, linear_heads=2, d_key=4, d_value=4)
    return HookedStack(ModelConfig(task=TASK, schedule=schedule, **sizes | options)).eval()


def where(model, site):
    """The hook's name and the site's index in the tensor that the hook sees."""
    mixer = "attn" if hasattr(model.blocks[site.layer], "attn") else "linear_attn"
    place = slice(None) if site.position is None else site.position
    place = list(place) if isinstance(place, tuple) else place
    head = slice(None) if site.head is None else site.head
    inside = f"blocks.{site.layer}."
    if site.component == "state":
        return f"{inside}linear_attn.hook_state.{place % TASK.length}", (slice(None), head)
    if site.component in ("pattern", "attn_scores"):
        return f"{inside}attn.hook_{site.component}", (slice(None), head, place)
    if site.component in OF_THE_BLOCK:
        return f"{inside}hook_{site.component}", (slice(None), place)
    component = site.component if "." in site.component else f"{mixer}.hook_{site.component}"
    return inside + component, (slice(None), place) + (() if site.head is None else (head,))


@torch.no_grad()
def run_with(model, tokens, name, function):
    """The answer's logits, with one torch hook in one whole run."""
    handle = model.get_submodule(name).register_forward_hook(function)
    logits = model(tokens)[:, -1]
    handle.remove()
    return logits


def naive(model, base, site, donor=None, new=0.0):
    """The metric in the base run with what the site has in the donor run, or with `new`."""
    if site.component == "state":
        model.open_states(site.layer, [site.position])
    name, index = where(model, site)
    seen = [new]
    if donor is not None:
        run_with(model, donor, name, lambda module, args, value: seen.append(value[index]))

    def write(module, args, value):
        value = value.clone()
        value[index] = seen[-1]
        return value

    logits = run_with(model, base, name, write)
    if site.component == "state":
        model.open_states(site.layer, [])
    return METRIC(logits, slice(0, len(base)))


def naive_sweep(model, base, donor, sites):
    """`[site, prompt]`."""
    return torch.stack([naive(model, base, site, donor) for site in sites])


def close(left, right):
    torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5, check_dtype=False)


BY_HEAD = {"positions": [None]}
THEIRS = {
    # what is patched: component, options of `grid`, the same sweep of TransformerLens
    "resid_pre": ("resid_pre", {}, patching.get_act_patch_resid_pre),
    "resid_mid": ("resid_mid", {}, patching.get_act_patch_resid_mid),
    "attn_out": ("attn_out", {}, patching.get_act_patch_attn_out),
    "mlp_out": ("mlp_out", {}, patching.get_act_patch_mlp_out),
    "z by head": ("z", BY_HEAD, patching.get_act_patch_attn_head_out_all_pos),
    "q by head": ("q", BY_HEAD, patching.get_act_patch_attn_head_q_all_pos),
    "k by head": ("k", BY_HEAD, patching.get_act_patch_attn_head_k_all_pos),
    "v by head": ("v", BY_HEAD, patching.get_act_patch_attn_head_v_all_pos),
    "pattern by head": ("pattern", BY_HEAD, patching.get_act_patch_attn_head_pattern_all_pos),
    "z": ("z", {}, patching.get_act_patch_attn_head_out_by_pos),
    "q": ("q", {}, patching.get_act_patch_attn_head_q_by_pos),
    "k": ("k", {}, patching.get_act_patch_attn_head_k_by_pos),
    "v": ("v", {}, patching.get_act_patch_attn_head_v_by_pos),
    "pattern": ("pattern", {}, patching.get_act_patch_attn_head_pattern_by_pos),
}
ON = {
    "full": (("full", "full"), {}),
    "grouped": (("sliding", "full"), dict(n_kv_heads=2, positions="rotary")),
    "hybrid": (("full", "deltanet"), dict(short_conv=3)),
}
BY_BOTH = [(case, on) for case in THEIRS for on in ON if on != "hybrid" or case in OF_THE_BLOCK]


@pytest.mark.parametrize(("case", "on"), BY_BOTH)
def test_sweeps_equal_those_of_transformer_lens(case, on, monkeypatch):
    monkeypatch.setenv("TQDM_DISABLE", "1")
    component, options, their_sweep = THEIRS[case]
    model = stack(*ON[on][0], **ON[on][1])
    _, cache = model.run_with_cache(CLEAN)
    metric = lambda logits: METRIC(logits[:, -1], slice(0, 4)).mean()  # noqa: E731
    theirs = their_sweep(model, CORRUPTED, cache, metric)
    if case == "pattern":
        theirs = theirs.transpose(1, 2)  # theirs has the destination after the head
    every = grid(model, CLEAN, component, **options)
    sweep = patch_sweep(model, CLEAN, CORRUPTED, every, METRIC)
    close(sweep.table(sweep.values.mean(1)), theirs)
    if not options:
        some = grid(model, CLEAN, component, layers=[1], positions=[2, -1])
        part = patch_sweep(model, CLEAN, CORRUPTED, some, METRIC)
        close(part.values.mean(1), theirs[1, [2, -1]].flatten())


ROTARY = dict(short_conv=3, positions="rotary")
SCHEDULES = {
    "deltanet between": (("full", "deltanet", "full"), dict(n_kv_heads=2)),
    "side by side": (("sliding", "mamba2", "full+gla", "short-conv"), ROTARY),
    "rwkv7": (("full", "rwkv7"), {}),
    "recurrent": (("mlstm", "linear"), {}),
    "linear last": (("sliding", "gated-deltanet"), dict(short_conv=3, d_mlp=0)),
}
INSIDE = ("attn.hook_q", "linear_attn.hook_v", "linear_attn.hook_log_decay", "state")


def all_sites(model, positions=PLACES):
    """Every component of every layer that has it, by head and for all heads at once."""
    found = []
    for component in (*OF_THE_BLOCK, *WITH_HEADS, *INSIDE):
        places = [0, 4, TASK.length - 1] if component == "state" else positions
        for heads in (None, [None]):
            with suppress(ValueError):
                found += grid(model, CLEAN, component, positions=places, heads=heads)
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_cell_is_one_hook_and_one_run(name):
    model = stack(*SCHEDULES[name][0], **SCHEDULES[name][1])
    sites = all_sites(model)
    assert len(sites) > 100
    sweep = patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC)
    expected = naive_sweep(model, CORRUPTED, CLEAN, sites)
    for site, ours, theirs in zip(sites, sweep.values, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5), site
    assert sweep.change.abs().max() > 1e-3


def test_a_key_that_takes_or_loses_all_of_the_attention():
    """Where a share close to one is exchanged, nothing cancels."""
    model = stack("full", "full", n_kv_heads=2)
    with torch.no_grad():
        model.blocks[0].attn.W_Q.mul_(50.0)
        shares = model.run_with_cache(CLEAN)[1]["blocks.0.attn.hook_pattern"].amax(-1)
    assert (shares[..., 1:] > 0.999).float().mean() > 0.5
    sites = [site for part in ("resid_pre", "k", "v") for site in grid(model, CLEAN, part)]
    sweep = patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC)
    close(sweep.values, naive_sweep(model, CORRUPTED, CLEAN, sites))


@pytest.mark.parametrize("site", [Site("z", 2, 3), Site("resid_mid", 2, 0), Site("state", 1, -1)])
def test_a_single_patch_that_the_answer_cannot_hear_is_still_run(site):
    model = stack("full", "deltanet", "full").double()
    value = read(model, CORRUPTED, [site])[0]
    for rows, answer in patched_once(model, CLEAN, site, batch=3):
        with torch.no_grad():
            close(answer(Patch(site, value[rows])), model(CLEAN[rows])[:, -1])


def test_noising_is_denoising_with_the_runs_exchanged():
    model = stack("full", "deltanet")
    sites = all_sites(model, [3, None])
    noise = patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC, direction="noise")
    close(noise.values, naive_sweep(model, CLEAN, CORRUPTED, sites))


KINDS = ("full", "sliding", "linear", "retnet", "gla", "kda", "mamba2", "short-conv", "full+linear")


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    schedule=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    short_conv=st.integers(0, 4),
    window=st.integers(1, 9),
    batch=st.integers(1, 6),
    memory=st.sampled_from([1, 2**16, 2**28]),
    data=st.data(),
)
def test_any_sites_of_any_stack_together(schedule, short_conv, window, batch, memory, data):
    model = stack(*schedule, short_conv=short_conv, window=window)
    every = all_sites(model, range(TASK.length))
    sites = data.draw(st.lists(st.sampled_from(every), min_size=1, max_size=12))
    sweep = patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC, batch=batch, memory=memory)
    close(sweep.values, naive_sweep(model, CORRUPTED, CLEAN, sites))


@pytest.mark.parametrize("reference", [None, PROMPTS[0].tokens[:3]], ids=["zero", "mean"])
def test_ablations_put_in_zero_or_the_mean(reference):
    model = stack("sliding", "deltanet", "full", n_kv_heads=2)
    sites = all_sites(model, [3, 6, -1, None])
    sweep = ablation_sweep(model, CORRUPTED, sites, METRIC, reference=reference)
    for site, values in zip(sites, sweep.values, strict=True):
        new = 0.0 if reference is None else read(model, reference, [site])[0].mean(0)
        if (
            reference is not None
            and site.component in ("pattern", "attn_scores")
            and site.position is site.head is None
        ):
            new = new.transpose(0, 1)  # read with the position in front
        assert torch.allclose(values, naive(model, CORRUPTED, site, new=new), atol=1e-5), site
    assert sweep.change.abs().max() > 1e-3
    with pytest.raises(ValueError, match="use change instead"):
        _ = sweep.effect


def test_metrics_are_computed_of_the_rows_asked_for(generator):
    logits, rows = torch.randn(2, 4, generator=generator), slice(1, 3)
    direct = {
        logit_difference(RIGHT, WRONG): [logits[0, 1] - logits[0, 2], logits[1, 2] - logits[1, 3]],
        log_probability(RIGHT): logits.log_softmax(-1)[[0, 1], [1, 2]].tolist(),
        correctness(RIGHT): [float(logits[0].argmax() == 1), float(logits[1].argmax() == 2)],
    }
    for metric, expected in direct.items():
        close(metric(logits, rows), torch.tensor(expected))


def test_a_metric_gives_one_number_a_prompt():
    one = torch.zeros(1, dtype=torch.int64)
    scalar = lambda logits, rows: METRIC(logits, rows).mean()  # noqa: E731
    for metric in (scalar, lambda logits, rows: 0.5, log_probability(one), correctness(one)):
        with pytest.raises(ValueError, match="a prompt"):
            patch_sweep(stack("full"), CLEAN, CORRUPTED, [Site("resid_pre", 0, 3)], metric)


def made_up(count, sites, generator):
    """Site `i` of `n` restores about `i / n` of what the runs differ by."""
    base = torch.randn(count, generator=generator)
    donor = base + 2 + torch.randn(count, generator=generator)
    share = torch.arange(len(sites))[:, None] / len(sites)
    values = base + share * (donor - base)
    values[1:] += 0.3 * torch.randn(len(sites) - 1, count, generator=generator)
    done = torch.ones(len(sites), count, dtype=torch.bool)
    return PatchSweep(tuple(sites), values, done.long(), base, donor, done)


def test_effects_from_all_to_nothing_on_a_model():
    model = stack("full", "deltanet")
    sites = [Site("resid_pre", 0), Site("resid_post", 1, -1), Site("resid_post", 1, 0)]
    sweep = patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC)
    close(sweep.effect, torch.tensor([1.0, 1.0, 0.0]))
    assert sweep.change[2] == 0
    assert (replace(sweep, donor=sweep.base).effect == 0).all()
    logits = model(CLEAN)[:, -1].detach()
    close(sweep.donor, METRIC(logits, slice(0, 4)))
    answer = logits.argmax(-1)
    half = torch.where(torch.tensor([True, False, True, False]), answer, -1)
    assert [sweep.accuracy(each)[0].item() for each in (answer, half)] == [1, 0.5]


def test_intervals_hold_the_effect_and_narrow_with_more_prompts(generator):
    sites = [Site("resid_pre", 0, place) for place in range(4)]
    widths = []
    for count in (20, 200, 2000):
        sweep = made_up(count, sites, generator)
        low, high = sweep.effect_interval()
        assert (low <= sweep.effect).all()
        assert (sweep.effect <= high).all()
        widths.append((high - low)[1:])
    assert (torch.stack(widths[:2]) > 2 * torch.stack(widths[1:])).all()


NAN = float("nan")
TABLES = {  # (layer, position, head) of the sites: the table of 0, 1, 2, … in their order
    "layers": ([(0, None, None), (1, None, None)], [0, 1]),
    "positions": ([(0, 0, None), (0, 4, None), (2, 4, None)], [[0, 1], [NAN, 2]]),
    "heads": ([(0, 7, 0), (0, 7, 1), (1, 7, 1)], [[0, 1], [NAN, 2]]),
    "both": ([(0, 0, 0), (0, 1, 1)], [[[0, NAN], [NAN, 1]]]),
    "all and some": ([(2, 5, None), (2, None, None)], [[1, 0]]),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_laid_out_by_layer_position_and_head(name, generator):
    places, expected = TABLES[name]
    sweep = made_up(2, [Site("z", *place) for place in places], generator)
    table = sweep.table(torch.arange(float(len(places))))
    torch.testing.assert_close(table, torch.tensor(expected).double(), equal_nan=True)


def test_a_table_is_of_one_component(generator):
    sweep = made_up(2, [Site("q", 0, 1, 0), Site("z", 0, 1, 0)], generator)
    assert sweep.table(torch.tensor([3.0, 4.0]), "z").tolist() == [4.0]
    with pytest.raises(ValueError, match="no 'k' among the swept components q, z"):
        sweep.table(sweep.effect, "k")
    with pytest.raises(ValueError, match="q, z"):
        sweep.table(sweep.effect)
