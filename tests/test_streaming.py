"""Streaming: a prompt in pieces gives what the whole prompt gives, whatever the layers.

Key-value caches, windows, recurrent states, convolution tails and token shifts are all carried;
a state of another model, batch or place is refused.
"""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from architectures import HookedStack, ModelConfig
from architectures.mixers import MIXERS
from composition import CompositionTask

TASK = CompositionTask(start_domain=3, branching=(4,))
OPTIONS = {
    "full": dict(schedule=("full", "full")),
    "rotary, shared keys": dict(schedule=("full", "full"), positions="rotary", n_kv_heads=2),
    "one key-value head": dict(schedule=("full", "full"), n_kv_heads=1),
    "sliding": dict(schedule=("sliding", "full"), window=5, positions="rotary"),
    "window of one": dict(schedule=("sliding", "sliding"), window=1),
    "short-conv": dict(schedule=("short-conv", "full")),
    "side by side": dict(schedule=("full+mamba2", "sliding+kda"), window=4, short_conv=4),
    "short-conv beside full": dict(schedule=("full+short-conv",)),
    **{kind: dict(schedule=("full", kind)) for kind in MIXERS},
    **{
        f"{kind}, convolutions": dict(schedule=(kind, kind), short_conv=4)
        for kind in MIXERS
        if kind != "rwkv7"
    },
}


def stack(name: str) -> HookedStack:
    sizes = dict(d_model=16, n_heads=4, d_mlp=8, linear_heads=2, d_key=4, d_value=3)
    return HookedStack(ModelConfig(task=TASK, **sizes, **OPTIONS[name])).eval()


@torch.no_grad()
def in_pieces(model: HookedStack, tokens: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    edges = [0, *sorted(set(cuts) - {0, TASK.length}), TASK.length]
    state, outputs = None, []
    for begin, end in pairwise(edges):
        out, state = model(tokens[:, begin:end], state=state, return_state=True)
        assert state.position == end
        outputs.append(out)
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("name", OPTIONS)
def test_one_token_at_a_time(name, generator):
    model, tokens = stack(name), TASK.sample(3, generator).tokens
    whole = model(tokens).detach()
    pieces = in_pieces(model, tokens, list(range(TASK.length)))
    torch.testing.assert_close(pieces, whole, atol=1e-5, rtol=1e-5)


@given(cuts=st.lists(st.integers(0, TASK.length), max_size=6), name=st.sampled_from(list(OPTIONS)))
@settings(max_examples=60, deadline=None)
def test_cut_anywhere(cuts, name):
    model = stack(name)
    tokens = TASK.sample(2, torch.Generator().manual_seed(0)).tokens
    whole = model(tokens).detach()
    torch.testing.assert_close(in_pieces(model, tokens, cuts), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["gated-deltanet, convolutions", "rwkv7", "mlstm", "sliding"])
def test_gradients_flow_through_the_state(name, generator):
    model, tokens = stack(name).double(), TASK.sample(2, generator).tokens

    def gradients(logits):
        loss = logits[:, -1].logsumexp(-1).sum()
        return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)

    whole = gradients(model(tokens))
    _, state = model(tokens[:, :7], return_state=True)
    resumed = gradients(model(tokens[:, 7:], state=state))
    for got, expected in zip(resumed, whole, strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            torch.testing.assert_close(got, expected, atol=1e-9, rtol=1e-7)


def test_one_state_may_be_gone_on_with_twice(generator):
    """A state is never written into: two continuations of one prefix do not meet."""
    model, tokens = stack("kda, convolutions"), TASK.sample(2, generator).tokens
    with torch.no_grad():
        _, state = model(tokens[:, :9], return_state=True)
        first = model(tokens[:, 9:], state=state)
        model(tokens[:, 9:].flip(0), state=state)
        again = model(tokens[:, 9:], state=state)
    torch.testing.assert_close(again, first, atol=0, rtol=0)


def test_hooks_see_the_pieces(generator):
    model, tokens = stack("full"), TASK.sample(2, generator).tokens
    _, state = model(tokens[:, :-1], return_state=True)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens[:, -1:], state)
        _, whole = model.run_with_cache(tokens)
    pattern = cache["blocks.1.attn.hook_pattern"]
    assert pattern.shape == (2, 4, 1, TASK.length)
    torch.testing.assert_close(pattern, whole["blocks.1.attn.hook_pattern"][:, :, -1:])


def test_what_does_not_go_on_is_refused(generator):
    model, tokens = stack("gated-deltanet"), TASK.sample(2, generator).tokens
    _, state = model(tokens[:, :9], return_state=True)
    with pytest.raises(ValueError, match=r"shape \(2, 9\) after the 9 positions before"):
        model(tokens[:, :9], state=state)
    with pytest.raises(ValueError, match=r"give a piece of a prompt with return_state=True"):
        model(tokens[:, :9])
    with pytest.raises(ValueError, match=r"prompts are \[batch, 17\]"):
        model(torch.cat([tokens, tokens], dim=1), return_state=True)
    with pytest.raises(ValueError, match=r"the state's key has shape .* does not go before"):
        model(tokens[:1, 9:], state=state)
    other = HookedStack(ModelConfig(task=TASK, schedule=("full",) * 3, d_model=16))
    with pytest.raises(ValueError, match="a model with 2 layers, but this one has 3"):
        other(tokens[:, 9:], state=state)
    wider = HookedStack(model.config.model_copy(update={"d_key": 5}))
    with pytest.raises(
        ValueError, match=r"state has shape \(2, 2, 4, 3\), but q .* \(2, 2, 5, 3\)"
    ):
        wider(tokens[:, 9:], state=state)
