"""What patching leaves behind, refuses, and does not depend on.

No hook of ours outlives a sweep, however it ends, and the caller's are left alone; what cannot be
patched is an error that names the site; batches, memory, padding and interruptions do not change a
number; and where two runs do not differ the effect is exactly zero.
"""

import gc

import psutil
import pytest
import torch
from torch import nn
from transformer_lens import TransformerBridge

from probes.metrics import log_probability
from probes.patched_runs import run_patched
from probes.patches import Patch
from probes.patching import SweepInterrupted, patch_sweep, sweep_values
from probes.sites import Site, grid, read
from tests.test_patching import (
    CLEAN,
    CORRUPTED,
    METRIC,
    RIGHT,
    all_sites,
    close,
    naive_sweep,
    stack,
)


@pytest.fixture(params=[False, True], ids=["unwatched", "watched"])
def watched(request):
    return request.param


def hooks_on(model):
    """All hooks there are, as torch and as TransformerLens count them."""
    of_torch = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    return of_torch, sum(len(handles) for handles in model.list_hooks().values())


def watch(model, name="blocks.1.hook_attn_out", function=lambda x, hook: x * 0.5, when=True):
    """A hook of the caller's, with which no run starts in the middle."""
    if when:
        model.add_hook(name, function)
    return model


class Stopping:
    """The metric, which stops at a call."""

    def __init__(self, at=None, error=KeyboardInterrupt):
        self.calls, self.at, self.error = 0, at, error

    def __call__(self, logits, rows):
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return METRIC(logits, rows)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_no_hook_outlives_an_error_in_the_metric(watched, at, error):
    model = stack("full", "linear")
    watch(model, when=watched)
    before = hooks_on(model)
    sites = [*grid(model, CLEAN, "state", positions=[2]), *grid(model, CLEAN, "resid_pre")]
    with pytest.raises(error):
        patch_sweep(model, CLEAN, CORRUPTED, sites, Stopping(at, error))
    assert hooks_on(model) == before
    assert len(model.blocks[1].linear_attn.hook_state) == 0


@pytest.mark.parametrize("at", [1, 2, 4, 6])
def test_no_hook_outlives_an_interrupt_inside_a_run(at):
    runs = []

    def stop(value, hook):
        runs.append(1)
        if len(runs) == at:
            raise KeyboardInterrupt

    model = watch(stack("linear", "full"), "blocks.1.hook_resid_post", stop)
    before = hooks_on(model)
    sites = [Site("state", 0, 2), Site("z", 0, 3, 0), Site("pattern", 1, -1)]
    with pytest.raises(KeyboardInterrupt):
        patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC)
    assert hooks_on(model) == before


def test_a_metric_may_sweep_itself(watched):
    model = stack("full", "linear")
    watch(model, when=watched)
    before = hooks_on(model)
    sites = [Site("state", 1, 2), Site("z", 0, 3, 0), Site("resid_post", 1, -1)]
    plain = patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC)

    def nested(logits, rows):
        inner = patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC)
        assert torch.equal(inner.values, plain.values)
        return METRIC(logits, rows)

    assert torch.equal(patch_sweep(model, CLEAN, CORRUPTED, sites, nested).values, plain.values)
    assert hooks_on(model) == before


def test_hooks_of_the_caller_stay_and_are_applied():
    model = stack("full", "linear", "full")
    sites = all_sites(model, [3, -1, None])
    without = patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC)
    watch(model)
    before = hooks_on(model)
    sweep = patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC)
    assert hooks_on(model) == before == (1, 1)
    close(sweep.values, naive_sweep(model, CORRUPTED, CLEAN, sites))
    assert (sweep.values - without.values).abs().max() > 1e-3


def test_states_of_the_caller_stay_open_with_their_hooks():
    model = stack("linear", "gla")
    model.open_states(0, [2, 5])
    names, seen, name = sorted(model.hook_dict), [], "blocks.0.linear_attn.hook_state.2"
    watch(model, name, lambda value, hook: seen.append(hook.name))
    sites = [Site("state", layer, position) for layer in (0, 1) for position in (2, 4, -1)]
    sweep = patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC)
    assert sorted(model.hook_dict) == names
    seen.clear()
    model(CLEAN)
    assert seen == [name]
    model.reset_hooks()
    close(patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC).values, sweep.values)
    assert sorted(model.hook_dict) == names


def test_tensors_once_read_do_not_change():
    model = stack("full", "linear", d_mlp=0)  # without an MLP, mid and post are one tensor
    site = Site("resid_mid", 0)
    expected = read(model, CLEAN, [site])[0]
    _, cache = model.run_with_cache(CLEAN)
    cached = {name: tensor.clone() for name, tensor in cache.items()}
    watch(model, "blocks.0.hook_resid_post", lambda value, hook: value.zero_())
    there = read(model, CLEAN, [site])[0]
    patch_sweep(model, CLEAN, CORRUPTED, all_sites(model, [3, None]), METRIC)
    model.reset_hooks()
    sweep_values(model, CORRUPTED, [site], [cache["blocks.0.hook_resid_mid"]], METRIC)
    assert torch.equal(there, expected)
    assert all(torch.equal(cache[name], tensor) for name, tensor in cached.items())


def test_memory_stays_flat():
    model = stack("full", "linear")
    sites = [*grid(model, CLEAN, "z"), Site("state", 1, 2)]
    sizes, hooks = [], hooks_on(model)
    for _ in range(5):
        for _ in range(20):
            patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC)
        gc.collect()
        sizes.append(psutil.Process().memory_info().rss)
    assert sizes[-1] - sizes[0] < 8 * 2**20
    assert hooks_on(model) == hooks == (0, 0)


ROW = torch.zeros(4, 16)
HALF = torch.zeros(4, 2)
REFUSED = {
    # the patch, on a stack "full", "linear", "full+gla" with two key-value heads: what is said
    "no layer": (Site("resid_pre", 3, 7), ROW, "resid_pre of layer 3, position 7"),
    "layer from the end": (Site("resid_pre", -1, 7), ROW, "resid_pre of layer -1"),
    "position": (Site("z", 0, 8, 1), HALF, "z of layer 0, position 8, head 1 is outside prompts"),
    "no heads": (Site("attn_out", 0, 3, 1), ROW, "attn_out has no heads"),
    "query head": (Site("q", 0, 7, 4), HALF, "head 4 is outside the 4 heads"),
    "key-value head": (Site("k", 0, 3, 2), HALF, "head 2 is outside the 2 heads"),
    "no state": (Site("state", 0, 3), ROW, "layer 0 is 'full' and has no recurrent state"),
    "all states": (Site("state", 1), ROW, "state of layer 1: .* give that position"),
    "two mixers": (Site("q", 2, 7, 0), HALF, "attn.hook_q or linear_attn.hook_q"),
    "one row": (Site("attn_out", 0, 3), ROW[:1], "1 rows, but there are 4 prompts"),
    "shape": (Site("attn_out", 0, 3), HALF, r"\(4, 2\) cannot replace \(4, 16\) at attn_out"),
    "broadcast": (Site("attn_out", 0), ROW[:, None], r"\(4, 1, 16\) cannot replace \(4, 8, 16\)"),
    "unheard shape": (Site("attn_out", 2, 3), HALF, r"\(4, 2\) cannot replace \(4, 16\)"),
    "unheard head": (Site("z", 2, 3, 9), HALF, "z of layer 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_patched_is_refused_in_a_line(name, watched):
    site, value, message = REFUSED[name]
    model = stack("full", "linear", "full+gla", n_heads=4, n_kv_heads=2, d_head=2)
    watch(model, when=watched)
    with pytest.raises(ValueError, match=message) as refusal:
        list(run_patched(model, CORRUPTED, [Patch(site, value)]))
    assert "\n" not in str(refusal.value)


def test_a_hook_that_never_fires_is_an_error():
    model = stack("full", "linear")
    site = Site("linear_attn.hook_beta", 1, 3)
    with pytest.raises(ValueError, match="hook_beta of layer 1, position 3 was never computed"):
        read(model, CLEAN, [site])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="hook_beta of layer 1, position 3 never took place"):
            list(run_patched(model, CORRUPTED, [Patch(site, torch.zeros(4, 2))]))
        watch(model)


def test_runs_that_do_not_match_are_refused():
    model = stack("full", "linear")
    sites = [Site("resid_pre", 0, 3)]
    with pytest.raises(ValueError, match="row by row"):
        patch_sweep(model, CLEAN[:1], CORRUPTED, sites, METRIC)
    with pytest.raises(ValueError, match=r"\(1, 16\) cannot replace \(4, 16\)"):
        sweep_values(model, CORRUPTED, sites, read(model, CLEAN[:1], sites), METRIC)
    for batch in (0, -1):
        with pytest.raises(ValueError, match=f"batch is {batch}"):
            patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC, batch=batch)
    model.blocks[0].dropout = nn.Dropout(0.1).eval()
    patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC)
    with pytest.raises(ValueError, match=r"call model\.eval\(\) first"):
        patch_sweep(model.train(), CLEAN, CORRUPTED, sites, METRIC)


def test_key_value_heads_are_fewer_and_mixers_side_by_side_are_named():
    model = stack("full", "full+gla", n_kv_heads=2)
    heads = {name: len(grid(model, CLEAN, name, layers=[0], positions=[3])) for name in "qkvz"}
    assert heads == {"q": 4, "k": 2, "v": 2, "z": 4}
    with pytest.raises(ValueError, match=r"attn\.hook_q or linear_attn\.hook_q"):
        grid(model, CLEAN, "q", layers=[1])
    assert len(grid(model, CLEAN, "attn.hook_q", layers=[1], positions=[3])) == 4
    assert len(grid(model, CLEAN, "linear_attn.hook_q", positions=[3])) == 2


def test_runs_that_do_not_differ_have_no_effect_at_all(watched):
    model = stack("sliding", "deltanet", "full", short_conv=3)
    watch(model, when=watched)
    sweep = patch_sweep(model, CLEAN, CLEAN.clone(), all_sites(model), METRIC)
    assert (sweep.effect == 0).all()
    some = torch.cat([CORRUPTED[:2], CLEAN[2:]])
    sweep = patch_sweep(model, CLEAN, some, all_sites(model), METRIC)
    assert (sweep.values[:, 2:] == sweep.base[2:]).all()
    assert (sweep.values[:, :2] != sweep.base[:2]).any()


def test_batches_memory_and_keyword_inputs_do_not_matter():
    model = stack("full", "deltanet", "full+gla", short_conv=3)
    sites = all_sites(model, [0, 3, None])
    expected = patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC)
    for options in (dict(batch=1), dict(batch=3), dict(memory=1), dict(batch=3, memory=2**17)):
        close(
            patch_sweep(model, CLEAN, CORRUPTED, sites, METRIC, **options).values, expected.values
        )
    inputs = ({"tokens": CLEAN}, {"tokens": CORRUPTED})
    close(patch_sweep(model, *inputs, sites, METRIC, batch=3).values, expected.values)


def test_an_interrupted_sweep_goes_on_where_it_stopped():
    model = stack("full", "linear")
    sites = [*grid(model, CLEAN, "z"), Site("state", 1, 2), Site("mlp.hook_post", 0, 3)]
    counted = Stopping()
    whole = patch_sweep(model, CLEAN, CORRUPTED, sites, counted)
    with pytest.raises(SweepInterrupted, match="resume=") as stop:
        patch_sweep(model, CLEAN, CORRUPTED, sites, Stopping(at=12))
    partial = stop.value.partial
    before = partial.done.clone()
    assert 0 < before.sum() < before.numel()
    assert torch.equal(partial.values[before], whole.values[before])
    rest = Stopping()
    resumed = patch_sweep(model, CLEAN, CORRUPTED, sites, rest, resume=partial)
    assert resumed.done.all()
    close(resumed.values, whole.values)
    assert torch.equal(resumed.answers, whole.answers)
    assert rest.calls == counted.calls - 9  # of the 11 calls before, two were of the plain runs


@pytest.mark.parametrize("other", ["sites", "base", "donor", "metric"])
def test_a_sweep_goes_on_only_from_one_of_its_own(other):
    model, sites = stack("full", "linear"), [Site("resid_pre", 0, 3), Site("resid_pre", 1, 3)]
    with pytest.raises(SweepInterrupted) as stop:
        patch_sweep(model, CLEAN, CORRUPTED, sites, Stopping(at=4))
    clean = CLEAN.flip(0) if other == "donor" else CLEAN
    corrupted = CORRUPTED.flip(0) if other == "base" else CORRUPTED
    metric = log_probability(RIGHT) if other == "metric" else METRIC
    sites = sites[::-1] if other == "sites" else sites
    with pytest.raises(ValueError, match="resume is of other"):
        patch_sweep(model, clean, corrupted, sites, metric, resume=stop.value.partial)


def test_padding_on_the_left_does_not_matter(generator):
    sizes = dict(n_layers=2, d_model=32, n_ctx=32, d_head=8, n_heads=4, d_vocab=50, d_mlp=64)
    model = TransformerBridge.boot_native(sizes | dict(act_fn="gelu")).eval()
    runs = torch.randint(1, 50, (2, 3, 6), generator=generator)
    mask = torch.tensor([0] * 4 + [1] * 6).repeat(3, 1)
    padded = [dict(input=nn.functional.pad(run, (4, 0)), attention_mask=mask) for run in runs]
    metric = log_probability(torch.tensor([1, 2, 3]))
    sites = []
    for component in ("resid_pre", "attn_out", "mlp_out", "z", "q"):
        sites += grid(model, runs[0], component, positions=[-1, -3])
    expected = patch_sweep(model, *runs, sites, metric)
    close(patch_sweep(model, *padded, sites, metric).values, expected.values)
