"""Recurrent states are open: read at any position, replaced, and what follows, follows.

A state read through a hook is the one that stepwise recurrence has there; a replaced one changes
every later position and nothing before; effective attention is the layer's exact matrix.
"""

import warnings

import pytest
import torch
from transformer_lens.hook_points import HookPoint

from architectures import HookedStack, ModelConfig, effective_attention
from architectures.mixers import MIXERS
from architectures.past import Past
from architectures.recurrence import stepwise
from composition import CompositionTask

TASK = CompositionTask(start_domain=6, branching=(6,))  # 44 tokens: more than one chunk
POSITIONS = [0, 7, 31, 32, 42]


def stack(kind: str) -> HookedStack:
    config = ModelConfig(
        task=TASK,
        schedule=("full", kind, "full"),
        d_model=16,
        n_heads=2,
        linear_heads=2,
        d_key=4,
        d_value=3,
    )
    return HookedStack(config).eval()


@pytest.fixture
def tokens(generator):
    return TASK.sample(3, generator).tokens


@pytest.mark.parametrize("kind", MIXERS)
def test_states_read_are_those_of_the_recurrence(kind, tokens):
    model = stack(kind)
    names = model.open_states(1, POSITIONS)
    unwatched = model(tokens).detach()
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens)
        x = cache["blocks.1.ln1.hook_normalized"]
        inputs = model.blocks[1].linear_attn.recurrence_inputs(x, Past())
        for name, position in zip(names, POSITIONS, strict=True):
            _, expected = stepwise(inputs.positions(0, position + 1))
            assert cache[name].shape == inputs.state_shape
            torch.testing.assert_close(cache[name], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits, unwatched, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("position", [0, 20, 32])
def test_a_replaced_state_changes_everything_after_and_nothing_before(kind, position, tokens):
    model = stack(kind)
    (name,) = model.open_states(1, [position])
    out = "blocks.1.linear_attn.hook_recurrence_out"

    def replaced(state, hook):
        return state + 1.0

    seen = []
    with torch.no_grad():
        model.run_with_hooks(
            tokens,
            fwd_hooks=[(name, replaced), (out, lambda x, hook: seen.append(x))],
        )
        _, cache = model.run_with_cache(tokens, names_filter=out)
    difference = (seen[0] - cache[out]).abs().amax(dim=(0, 2, 3))
    assert (difference[: position + 1] <= 1e-6).all()
    assert (difference[position + 1 :] > 1e-6).all()


def test_a_donors_state_makes_the_rest_the_donors(tokens):
    """Replace the state at p by that of another prompt: a layer that sees the other prompt's
    queries from then on gives the other prompt's outputs.
    """
    model, position = stack("gated-deltanet"), 20
    (name,) = model.open_states(1, [position])
    with torch.no_grad():
        _, donor = model.run_with_cache(tokens.flip(0))
        inputs = [f"blocks.1.linear_attn.hook_{part}" for part in ("q", "k", "v", "beta")]
        inputs += ["blocks.1.linear_attn.hook_log_decay"]

        def from_donor(tensor, hook: HookPoint):
            if hook.name == name:
                return donor[name]
            return torch.cat([tensor[:, : position + 1], donor[hook.name][:, position + 1 :]], 1)

        out = "blocks.1.linear_attn.hook_recurrence_out"
        seen = []
        model.run_with_hooks(
            tokens,
            fwd_hooks=[(each, from_donor) for each in (*inputs, name)]
            + [(out, lambda x, hook: seen.append(x))],
        )
    torch.testing.assert_close(
        seen[0][:, position + 1 :], donor[out][:, position + 1 :], atol=1e-5, rtol=1e-5
    )


def test_states_are_read_in_a_streamed_prompt(tokens):
    model = stack("kda")
    names = model.open_states(1, [5, 20])
    with torch.no_grad():
        _, whole = model.run_with_cache(tokens)
        _, first = model.run_with_cache(tokens[:, :12], return_state=True)
        _, state = model(tokens[:, :12], return_state=True)
        _, second = model.run_with_cache(tokens[:, 12:], state)
    torch.testing.assert_close(first[names[0]], whole[names[0]])
    torch.testing.assert_close(second[names[1]], whole[names[1]], atol=1e-5, rtol=1e-5)
    assert names[1] not in first
    assert names[0] not in second


def test_all_states_come_with_a_warning_of_their_memory(tokens):
    model = stack("deltanet")
    with pytest.warns(UserWarning, match="all 44 states of layer 1 take 4 KiB a prompt"):
        names = model.open_states(1)
    _, cache = model.run_with_cache(tokens)
    assert len(names) == sum("hook_state" in name for name in cache) == TASK.length
    model.open_states(1, [])
    assert not any("hook_state" in name for name in model.hook_dict)


def test_unwatched_states_cost_nothing(tokens, monkeypatch):
    """Open, but without a hook: the run is not split."""
    from architectures.mixers import recurrent_layer

    calls = []
    real = recurrent_layer.chunkwise
    monkeypatch.setattr(
        recurrent_layer, "chunkwise", lambda *a: calls.append(1) or real(*a), raising=True
    )
    model = stack("deltanet")
    (name, _) = model.open_states(1, [5, 9])
    model(tokens)
    assert len(calls) == 1
    model.run_with_cache(tokens, names_filter=name)
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("layer", "positions", "message"),
    [
        (1, [44], "position 44 is outside the task's prompts of 44 tokens, 0 … 43"),
        (1, [-1], "position -1 is outside"),
        (0, [1], "layer 0 is 'full' and has no recurrent state"),
        (3, [1], "layer 3 is outside the stack's 0 … 2"),
    ],
)
def test_states_that_are_not_there_are_refused(layer, positions, message):
    with pytest.raises(ValueError, match=message):
        stack("deltanet").open_states(layer, positions)


@pytest.mark.parametrize("kind", [*MIXERS, "full", "sliding"])
def test_effective_attention_reconstructs_the_layer(kind, tokens, generator):
    """M V is the layer's output, and moving one source's value moves it by what M says."""
    model = stack(kind).double()
    full = kind in ("full", "sliding")
    part, out = ("attn", "hook_z") if full else ("linear_attn", "hook_recurrence_out")
    with torch.no_grad():
        M = effective_attention(model, tokens, 1)
        _, cache = model.run_with_cache(tokens)
        v, got = cache[f"blocks.1.{part}.hook_v"], cache[f"blocks.1.{part}.{out}"]
        assert M.shape == (3, 2, TASK.length, TASK.length)
        rebuilt = torch.einsum("bhts,bshv->bthv", M, v)
        torch.testing.assert_close(rebuilt, got, atol=1e-12, rtol=1e-9)

        source, push, seen = 11, torch.randn(v.shape[-1], generator=generator), []

        def moved(value, hook):
            value = value.clone()
            value[:, source] += push
            return value

        model.run_with_hooks(
            tokens,
            fwd_hooks=[
                (f"blocks.1.{part}.hook_v", moved),
                (f"blocks.1.{part}.{out}", lambda x, hook: seen.append(x)),
            ],
        )
    change = M[..., source].transpose(1, 2)[..., None] * push
    size = max(1.0, got.abs().max().item())  # a difference keeps the digits of its terms
    torch.testing.assert_close(seen[0] - got, change, atol=1e-12 * size, rtol=1e-9)
    if kind in ("linear", "full", "sliding"):
        torch.testing.assert_close(M.sum(-1), torch.ones_like(M[..., 0]), atol=1e-4, rtol=0)


def test_effective_attention_counts_the_models_hooks(tokens):
    model = stack("deltanet")
    plain = effective_attention(model, tokens, 1)
    model.blocks[1].linear_attn.hook_beta.add_hook(lambda beta, hook: 0 * beta, is_permanent=True)
    assert (effective_attention(model, tokens, 1) == 0).all()
    assert (plain != 0).any()


def test_effective_attention_of_layers_without_one_is_refused(tokens):
    model = HookedStack(ModelConfig(task=TASK, schedule=("full", "short-conv"), d_model=16))
    with warnings.catch_warnings(), pytest.raises(ValueError, match="'short-conv' and has no"):
        effective_attention(model, tokens, 1)
