"""The stack: TransformerLens' hooks and tools work on it, and seeing changes no number.

Full attention is compared with torch's own multi-head attention, linear attention and
DeltaNet with their recurrences written out position by position.
"""

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from transformer_lens import patching
from transformer_lens.ActivationCache import ActivationCache

from architectures import HookedStack, ModelConfig
from architectures.mixers import MIXERS, FullAttention, RecurrentLayer
from composition import LINEAR_KINDS, CompositionTask
from tests.conftest import TASKS

TASK = CompositionTask(start_domain=3, branching=(4,))
SCHEDULE = ("full", "deltanet", "linear", "full")
CONFIG = ModelConfig(
    task=TASK,
    schedule=SCHEDULE,
    d_model=24,
    n_heads=3,
    d_mlp=16,
    linear_heads=2,
    d_key=3,
    d_value=5,
)


def test_logits_are_over_values_at_every_position(generator):
    ablations = (
        CompositionTask(start_domain=3, branching=(1, 1), query=False),
        CompositionTask(start_domain=3, branching=(2,), order="forward"),
        CompositionTask(start_domain=3, branching=(2, 2), constant_range=True),
    )
    for task in (*TASKS.values(), *ablations):
        model = HookedStack(ModelConfig(task=task, schedule=("full", "deltanet"), d_model=16))
        logits = model(task.sample(5, generator).tokens)
        assert logits.shape == (5, task.length, task.n_values)
        assert logits.isfinite().all()


def test_no_position_sees_a_later_one(generator):
    model, prompts = HookedStack(CONFIG), TASK.sample(4, generator)
    logits = model(prompts.tokens)
    for position in range(TASK.length):
        changed = prompts.tokens.clone()
        entry = TASK.entries[position]
        base = TASK.n_values if entry.role == "query" else 0
        changed[:, position] = base + (changed[:, position] - base + 1) % 3
        difference = (model(changed) - logits).abs().amax(dim=(0, 2))
        assert (difference[:position] == 0).all()
        assert difference[position] > 0


def test_hooks_have_the_names_and_shapes_of_transformer_lens(generator):
    model = HookedStack(CONFIG)
    _, cache = model.run_with_cache(TASK.sample(2, generator).tokens)
    n, full, linear = TASK.length, "blocks.0.attn", "blocks.1.linear_attn"
    shapes = {
        "hook_embed": (2, n, 24),
        "blocks.0.hook_resid_pre": (2, n, 24),
        "blocks.0.hook_attn_out": (2, n, 24),
        "blocks.0.hook_resid_mid": (2, n, 24),
        "blocks.0.hook_mlp_out": (2, n, 24),
        "blocks.0.mlp.hook_post": (2, n, 16),
        "blocks.3.hook_resid_post": (2, n, 24),
        f"{full}.hook_q": (2, n, 3, 8),
        f"{full}.hook_z": (2, n, 3, 8),
        f"{full}.hook_attn_scores": (2, 3, n, n),
        f"{full}.hook_pattern": (2, 3, n, n),
        f"{linear}.hook_q": (2, n, 2, 3),
        f"{linear}.hook_k": (2, n, 2, 3),
        f"{linear}.hook_v": (2, n, 2, 5),
        f"{linear}.hook_beta": (2, n, 2),
        f"{linear}.hook_recurrence_out": (2, n, 2, 5),
    }
    for name, shape in shapes.items():
        assert tuple(cache[name].shape) == shape, name
    assert "blocks.2.linear_attn.hook_beta" not in cache, "linear attention has no beta"
    attn_only = HookedStack(CONFIG.model_copy(update={"d_mlp": 0}))
    assert "blocks.0.hook_mlp_out" not in attn_only.hook_dict
    assert "blocks.0.hook_resid_mid" in attn_only.hook_dict
    torch.testing.assert_close(cache[f"{full}.hook_pattern"].sum(-1), torch.ones(2, 3, n))


def test_watching_changes_no_number(generator):
    """Fused kernel and explicit pattern agree, so looking at a pattern is not an intervention."""
    model, tokens = HookedStack(CONFIG), TASK.sample(8, generator).tokens
    fused = model(tokens)
    seen, _ = model.run_with_cache(tokens)
    torch.testing.assert_close(seen, fused, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(model(tokens), fused, atol=0, rtol=0)


def test_a_patched_pattern_takes_effect(generator):
    model, tokens = HookedStack(CONFIG), TASK.sample(2, generator).tokens

    def attend_to_oneself(pattern, hook):
        return torch.eye(pattern.shape[-1]).expand_as(pattern)

    name = "blocks.0.attn.hook_pattern"
    _, cache = model.run_with_cache(tokens)
    values = {}
    model.run_with_hooks(
        tokens,
        fwd_hooks=[
            (name, attend_to_oneself),
            ("blocks.0.attn.hook_z", lambda z, hook: values.update(z=z)),
        ],
    )
    torch.testing.assert_close(values["z"], cache["blocks.0.attn.hook_v"])


def test_full_attention_equals_torch(generator):
    attn = FullAttention(d_model=12, n_heads=3, d_head=4)
    for parameter in attn.parameters():
        torch.nn.init.normal_(parameter)
    peer = torch.nn.MultiheadAttention(12, 3, bias=False, batch_first=True)
    with torch.no_grad():
        stacked = [W.transpose(1, 2).flatten(0, 1) for W in (attn.W_Q, attn.W_K, attn.W_V)]
        peer.in_proj_weight.copy_(torch.cat(stacked))
        peer.out_proj.weight.copy_(attn.W_O.flatten(0, 1).T)
    x = torch.randn(2, 9, 12, generator=generator)
    mask = torch.ones(9, 9, dtype=torch.bool).triu(1)
    expected, _ = peer(x, x, x, attn_mask=mask, need_weights=False)
    torch.testing.assert_close(attn(x), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", MIXERS)
def test_linear_layers_equal_their_equations(kind, generator):
    layer = RecurrentLayer(MIXERS[kind], 12, 2, 3, 5).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(1, 9, 12, generator=generator, dtype=torch.float64)
    W = {name: p.detach() for name, p in layer.named_parameters()}
    expected = torch.zeros(9, 12, dtype=torch.float64)
    for h in range(2):
        S, z = torch.zeros(3, 5, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        for t in range(9):
            q, k, v = (x[0, t] @ W[f"mixer.W_{name}"][h] for name in "QKV")
            if kind == "linear":
                q, k = F.elu(q) + 1, F.elu(k) + 1
                S, z = S + torch.outer(k, v), z + k
                out = S.T @ q / (z @ q)
            else:
                q, k, v = F.silu(q), F.silu(k), F.silu(v)
                q, k = q / q.norm(), k / k.norm()
                beta = torch.sigmoid(x[0, t] @ W["mixer.W_beta"] + W["mixer.b_beta"])[h]
                S = S + torch.outer(k, beta * (v - S.T @ k))
                o = S.T @ q / 3**0.5
                out = o / (o.square().mean() + 1e-5).sqrt() * W["mixer.scale_out"]
            expected[t] += out @ W["W_O"][h]
    torch.testing.assert_close(layer(x)[0].detach(), expected, atol=1e-5, rtol=1e-5)


def test_transformer_lens_patching_works_unchanged(generator):
    model = HookedStack(CONFIG).eval()  # TransformerLens insists
    pairs = TASK.counterfactual(TASK.sample(6, generator), 1, generator)
    clean, corrupted = pairs.clean.tokens, pairs.corrupted.tokens
    clean_logits, cache = model.run_with_cache(clean)

    def metric(logits):
        return (logits[:, -1] - clean_logits[:, -1]).square().mean()

    result = patching.get_act_patch_resid_pre(
        model, corrupted, ActivationCache(cache, model), metric
    )
    assert result.shape == (4, TASK.length)
    with torch.no_grad():
        unpatched = metric(model(corrupted)).item()
    before = min(TASK.positions["z1"].start, *(pairs.clean.tokens != corrupted).nonzero()[:, 1])
    # Positions before the changed entry hold nothing to restore.
    torch.testing.assert_close(
        torch.as_tensor(result[:, : int(before)]), torch.full((4, int(before)), unpatched)
    )
    assert abs(float(result[3, -1]) - unpatched) > 1e-6


def test_weights_follow_the_seed_and_leave_torchs_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, same, other = HookedStack(CONFIG, seed=1), HookedStack(CONFIG, seed=1), HookedStack(CONFIG)
    assert torch.equal(torch.rand(1), expected)
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, same.state_dict()[name])
    assert not torch.equal(one.unembed, other.unembed)
    assert all(weight.isfinite().all() for weight in one.state_dict().values())


def test_config_goes_through_json():
    assert ModelConfig.model_validate_json(CONFIG.model_dump_json()) == CONFIG


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(schedule=("full", "fulll")), "unknown layer 'fulll'.*use one of full"),
        (dict(schedule=("full", "kda")), "no mixer of that name is built yet"),
        (dict(schedule=()), "schedule is empty"),
        (dict(d_model=25), "n_heads=3 does not divide d_model=25"),
        (dict(d_key=0), "greater than or equal to 1"),
        (dict(width=3), "Extra inputs"),
    ],
)
def test_impossible_configs_are_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        ModelConfig(**{**CONFIG.model_dump(), **change})


def test_prompts_of_another_task_are_refused(generator):
    model = HookedStack(CONFIG)
    with pytest.raises(ValueError, match=r"prompts are \[batch, 17\]"):
        model(TASKS["L=3"].sample(2, generator).tokens)
    with pytest.raises(ValueError, match="vocabulary is 0 … 15"):
        model(torch.full((1, TASK.length), 16))


def test_every_mixer_is_one_the_theory_knows():
    assert set(MIXERS) <= set(LINEAR_KINDS)
