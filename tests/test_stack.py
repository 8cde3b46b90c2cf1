"""The stack: TransformerLens' hooks and tools work on it, and seeing changes no number.

Full attention is compared with torch's own multi-head attention and, grouped and rotated, with
transformers' Llama; the linear layers have tests/test_mixers.py. Compiled models never pass over
a hook.
"""

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from transformer_lens import patching
from transformer_lens.ActivationCache import ActivationCache

from architectures import HookedStack, ModelConfig
from architectures.mixers import FullAttention
from architectures.past import Past
from composition import CompositionTask
from composition.sampling import ask
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
    torch.testing.assert_close(attn(x, Past()), expected, atol=1e-4, rtol=1e-4)


def test_shared_keys_and_rotary_positions_equal_transformers(generator):
    """Against the attention of transformers' Llama: grouped heads, and rotated q and k."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=24,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=4,
        num_hidden_layers=1,
    )
    config._attn_implementation = "eager"
    peer, turn = LlamaAttention(config, 0), LlamaRotaryEmbedding(config)
    attn = FullAttention(24, 6, 4, n_kv_heads=2, rotary=True)
    for parameter in attn.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    with torch.no_grad():
        for projection, W in ((peer.q_proj, attn.W_Q), (peer.k_proj, attn.W_K)):
            projection.weight.copy_(W.transpose(1, 2).flatten(0, 1))
        peer.v_proj.weight.copy_(attn.W_V.transpose(1, 2).flatten(0, 1))
        peer.o_proj.weight.copy_(attn.W_O.flatten(0, 1).T)
        x = torch.randn(2, 9, 24, generator=generator)
        mask = torch.full((9, 9), -torch.inf).triu(1)[None, None]
        expected, pattern = peer(x, turn(x, torch.arange(9)[None]), mask)
        torch.testing.assert_close(attn(x, Past()), expected, atol=1e-4, rtol=1e-4)
        seen = []
        attn.hook_pattern.add_hook(lambda x, hook: seen.append(x))
        torch.testing.assert_close(attn(x, Past()), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(seen[0], pattern, atol=1e-5, rtol=1e-4)


def test_a_window_hides_what_is_behind_it(generator):
    model = HookedStack(CONFIG.model_copy(update={"schedule": ("sliding",), "window": 4}))
    tokens = TASK.sample(2, generator).tokens
    fused = model(tokens)
    seen, cache = model.run_with_cache(tokens)
    torch.testing.assert_close(seen, fused, atol=2e-6, rtol=1e-5)
    pattern = cache["blocks.0.attn.hook_pattern"][0, 0]
    distance = torch.arange(TASK.length)[:, None] - torch.arange(TASK.length)
    assert ((pattern > 0) == ((distance >= 0) & (distance < 4))).all()


def test_layers_side_by_side_add_up(generator):
    """Both read the same residual stream, and what they write is the sum."""
    both = HookedStack(CONFIG.model_copy(update={"schedule": ("full+mamba2",), "d_mlp": 0}))
    tokens = TASK.sample(2, generator).tokens
    _, cache = both.run_with_cache(tokens)
    block = both.blocks[0]
    x = cache["blocks.0.ln1.hook_normalized"]
    with torch.no_grad():
        expected = block.attn(x, Past()) + block.linear_attn(x, Past())
    torch.testing.assert_close(cache["blocks.0.hook_attn_out"], expected)


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
        (dict(schedule=("full", "kda+full")), "'kda\\+full'"),
        (dict(n_kv_heads=2), "n_kv_heads=2 does not divide n_heads=3"),
        (dict(d_head=5, positions="rotary"), "odd dimension 5"),
        (dict(window=0), "greater than or equal to 1"),
        (dict(short_conv=-1), "greater than or equal to 0"),
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


def test_an_embedding_that_is_not_finite_is_named(generator):
    model, tokens = HookedStack(CONFIG), TASK.sample(2, generator).tokens
    tokens[0], tokens[1, 3] = 0, 1
    with torch.no_grad():
        model.embed.value[1] = float("nan")
    # Value 1 is an argument of the first table's second entry, whatever the tokens are.
    with pytest.raises(ValueError, match="embedding of prompt 0 is not finite at position 1"):
        model(tokens)


def test_a_compiled_model_gives_the_same_numbers_and_sees_every_hook(generator):
    """With the backend that traces and does not translate. (Not for kinds with elu or softplus:
    torch 2.14 expects other strides of their backward than it makes; inductor is not concerned.)
    """
    compiled = compare_compiled(("full", "deltanet", "full"), generator, "aot_eager")
    tokens = TASK.sample(4, generator).tokens
    logits = compiled(tokens)
    with torch.no_grad():
        _, cache = compiled.run_with_cache(tokens)
        zeroed = compiled.run_with_hooks(
            tokens, fwd_hooks=[("blocks.1.linear_attn.hook_v", lambda v, hook: 0 * v)]
        )
    assert cache["blocks.0.attn.hook_pattern"].shape[-1] == TASK.length
    assert (zeroed - logits).abs().max() > 1e-3
    calls = []
    compiled.blocks[2].register_forward_hook(lambda *_: calls.append(1))
    compiled(tokens)
    assert calls == [1]


@pytest.mark.slow
def test_a_model_compiled_for_this_machine_gives_the_same_numbers(generator):
    compare_compiled(("full", "kda"), generator, "inductor")


def compare_compiled(schedule, generator, backend) -> HookedStack:
    """Logits and gradients of a compiled stack equal those of the same stack as it is."""
    config = CONFIG.model_copy(update={"schedule": schedule})
    plain, compiled = HookedStack(config).double(), HookedStack(config).double()
    compiled.compile(backend=backend)
    tokens = TASK.sample(4, generator).tokens
    asked = ask(TASK, TASK.sample(2, generator), 2, generator)
    results = []
    for model in (plain, compiled):
        logits = model(tokens)
        answers = model.answers(asked.tokens, 2)
        (logits.square().mean() + answers.square().mean()).backward()
        results.append([logits, answers, *(parameter.grad for parameter in model.parameters())])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-9)
    return compiled


def test_compilation_that_would_pass_over_hooks_is_refused(generator):
    outside = torch.compile(HookedStack(CONFIG), backend="eager")
    with pytest.raises(Exception, match=r"call model.compile\(\) instead"):
        outside(TASK.sample(2, generator).tokens)


@pytest.mark.parametrize("positions", ["none", "rotary"])
@pytest.mark.parametrize("questions", [1, 2, 5])
def test_answers_are_those_of_whole_prompts(generator, questions, positions):
    """Whether the functions run once or with every question, values and gradients agree."""
    schedule = ("full", "deltanet", "full+mamba2", "sliding", "short-conv", "full", "mlstm", "full")
    for last in ("full", "gated-deltanet", "sliding", "full+linear"):
        config = ModelConfig(
            task=TASK,
            schedule=(*schedule, last),
            d_model=24,
            n_heads=2,
            n_kv_heads=1,
            window=4,
            d_mlp=8,
            d_key=3,
            short_conv=2,
            positions=positions,
        )
        model = HookedStack(config).double()
        prompts = ask(TASK, TASK.sample(3, generator), questions, generator)
        results = []
        for logits in (model.answers(prompts.tokens, questions), model(prompts.tokens)[:, -1]):
            model.zero_grad()
            F.cross_entropy(logits, prompts.answer).backward()
            results.append([logits, *(p.grad.clone() for p in model.parameters())])
        for shared, whole in zip(*results, strict=True):
            torch.testing.assert_close(shared, whole, atol=1e-9, rtol=1e-7)


def test_a_watched_stack_answers_with_whole_prompts(generator):
    model, seen = HookedStack(CONFIG), []
    prompts = ask(TASK, TASK.sample(3, generator), 2, generator)
    unwatched = model.answers(prompts.tokens, 2)
    with model.hooks([("blocks.0.hook_resid_post", lambda x, hook: seen.append(x.shape))]):
        torch.testing.assert_close(model.answers(prompts.tokens, 2), unwatched)
    assert seen == [(6, TASK.length, 24)]


def test_answers_refuse_rows_that_share_nothing(generator):
    model, forward = (
        HookedStack(CONFIG),
        CompositionTask(start_domain=3, branching=(2,), order="forward"),
    )
    with pytest.raises(ValueError, match="rows 3 apart have different functions"):
        model.answers(TASK.sample(6, generator).tokens, 2)
    with pytest.raises(ValueError, match="7 rows are not 2 questions"):
        model.answers(TASK.sample(7, generator).tokens, 2)
    other = HookedStack(ModelConfig(task=forward, schedule=("full",), d_model=16))
    with pytest.raises(ValueError, match="forward order"):
        other.answers(forward.sample(6, generator).tokens, 2)
