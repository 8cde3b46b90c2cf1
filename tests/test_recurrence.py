"""The recurrence engine: chunkwise equals stepwise, and both equal a loop written apart.

Values to 1e-5 and gradients to 1e-4 (relative, float32), for the additive and the delta rule,
with and without decay, over lengths around the chunk, several chunk sizes, a nonzero initial
state and K != V; and each trap that shared keys, strong decay and padding set. The delta rule
with decay also equals transformers' own code.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from architectures.recurrence import RecurrenceInputs, chunkwise, stepwise

RULES = ["additive", "additive + decay", "delta", "delta + decay"]
LENGTHS = [1, 2, 63, 64, 65, 127, 200]


def draw(
    rule: str, length: int, *, batch=2, heads=3, key=5, value=7, dtype=torch.float32, seed=0
) -> tuple[RecurrenceInputs, torch.Tensor]:
    """Random inputs for a rule, and a nonzero initial state."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=dtype)

    inputs = RecurrenceInputs(
        q=normal(batch, length, heads, key),
        k=F.normalize(normal(batch, length, heads, key), dim=-1),
        v=normal(batch, length, heads, value),
        beta=normal(batch, length, heads).sigmoid() if "delta" in rule else None,
        log_decay=-normal(batch, length, heads).abs() if "decay" in rule else None,
    )
    return inputs, normal(batch, heads, key, value)


def tensors(inputs: RecurrenceInputs) -> dict[str, torch.Tensor]:
    named = {n: getattr(inputs, n) for n in ("q", "k", "v", "beta", "log_decay")}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def gradients(form, inputs, state, **options):
    """Outputs, final state, and gradients of a fixed random function of both."""
    leaves = {n: t.clone().requires_grad_() for n, t in tensors(inputs).items()}
    state = state.clone().requires_grad_()
    out, final = form(replace(inputs, **leaves), state, **options)
    g = torch.Generator().manual_seed(9)
    weight = torch.randn(out.shape, generator=g, dtype=out.dtype)
    loss = (out * weight).sum() + final.square().sum() / 2
    return out, final, torch.autograd.grad(loss, [*leaves.values(), state])


def close(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Relative to the largest number expected, or to 1."""
    scale = max(1.0, expected.abs().max().item())
    return (got - expected).abs().max().item() <= tolerance * scale


@pytest.mark.parametrize("rule", RULES)
def test_stepwise_is_the_equation(rule):
    """Against NumPy, one batch row and head at a time."""
    inputs, state = draw(rule, 9, dtype=torch.float64)
    out, final = stepwise(inputs, state)
    arrays = {name: tensor.numpy() for name, tensor in tensors(inputs).items()}
    for b in range(2):
        for h in range(3):
            S = state[b, h].numpy().copy()
            for t in range(9):
                k, v, q = (arrays[name][b, t, h] for name in "kvq")
                if "log_decay" in arrays:
                    S = np.exp(arrays["log_decay"][b, t, h]) * S
                if "beta" in arrays:
                    v = arrays["beta"][b, t, h] * (v - S.T @ k)
                S = S + np.outer(k, v)
                expected = S.T @ q / np.sqrt(len(q))
                assert np.abs(out[b, t, h].numpy() - expected).max() < 1e-12
            assert np.abs(final[b, h].numpy() - S).max() < 1e-12


@pytest.mark.parametrize("chunk", [16, 32, 64])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rule", RULES)
def test_chunkwise_equals_stepwise(rule, length, chunk):
    inputs, state = draw(rule, length)
    out, final, grads = gradients(stepwise, inputs, state)
    chunk_out, chunk_final, chunk_grads = gradients(chunkwise, inputs, state, chunk=chunk)
    assert close(chunk_out, out, 1e-5)
    assert close(chunk_final, final, 1e-5)
    for got, expected in zip(chunk_grads, grads, strict=True):
        assert close(got, expected, 1e-4)


@given(
    rule=st.sampled_from(RULES),
    length=st.integers(1, 40),
    chunk=st.integers(1, 50),
    cut=st.integers(0, 40),
    key=st.integers(1, 6),
    value=st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_a_sequence_resumed_from_its_state_equals_the_whole(rule, length, chunk, cut, key, value):
    inputs, state = draw(rule, length, key=key, value=value, dtype=torch.float64)
    whole, final = chunkwise(inputs, state, chunk=chunk)
    cut = min(cut, length)
    parts, carried = [], state
    for piece in (slice(0, cut), slice(cut, length)):
        if piece.start < piece.stop:
            some = replace(inputs, **{n: t[:, piece] for n, t in tensors(inputs).items()})
            out, carried = chunkwise(some, carried, chunk=chunk)
            parts.append(out)
    assert close(torch.cat(parts, dim=1), whole, 1e-11)
    assert close(carried, final, 1e-11)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", [stepwise, chunkwise])
def test_gradcheck(form, rule):
    inputs, state = draw(rule, 5, batch=1, heads=1, key=2, value=2, dtype=torch.float64)
    names = list(tensors(inputs))
    options = {"chunk": 2} if form is chunkwise else {}

    def call(state, *values):
        return form(replace(inputs, **dict(zip(names, values, strict=True))), state, **options)

    leaves = [t.clone().requires_grad_() for t in (state, *tensors(inputs).values())]
    assert torch.autograd.gradcheck(call, leaves)


def test_delta_rule_with_decay_equals_transformers():
    """Gated DeltaNet as transformers computes it for Qwen3-Next, chunked and recurrent."""
    from transformers.models.qwen3_next import modeling_qwen3_next as peer

    inputs, state = draw("delta + decay", 150)
    args = dict(g=inputs.log_decay, beta=inputs.beta, initial_state=state, output_final_state=True)
    for function in (peer.torch_chunk_gated_delta_rule, peer.torch_recurrent_gated_delta_rule):
        expected, expected_final = function(inputs.q, inputs.k, inputs.v, **args)
        for form in (stepwise, chunkwise):
            out, final = form(inputs, state)
            assert close(out, expected, 1e-5)
            assert close(final, expected_final, 1e-5)


def test_repeated_keys_keep_their_digits():
    """Composition prompts repeat keys; a Neumann series for (I + A)^-1 loses everything here."""
    inputs, state = draw("delta", 64)
    inputs = replace(
        inputs, k=inputs.k[:, :1].expand_as(inputs.k), beta=torch.full_like(inputs.beta, 0.99)
    )
    exact, _ = stepwise(
        replace(inputs, **{n: t.double() for n, t in tensors(inputs).items()}), state.double()
    )
    out, _ = chunkwise(inputs, state)
    assert close(out.double(), exact, 2e-5)


@pytest.mark.parametrize("rule", ["additive + decay", "delta + decay"])
def test_strong_decay_stays_finite_and_exact(rule):
    """1e-12 over 64 tokens and far stronger, where e^c underflows and e^-c would overflow."""
    for per_step in (-27.6 / 64, -4.0, -50.0):
        inputs, state = draw(rule, 64)
        inputs = replace(inputs, log_decay=torch.full_like(inputs.log_decay, per_step))
        out, final, grads = gradients(stepwise, inputs, state)
        chunk_out, chunk_final, chunk_grads = gradients(chunkwise, inputs, state)
        assert close(chunk_out, out, 1e-5)
        assert close(chunk_final, final, 1e-5)
        for got, expected in zip(chunk_grads, grads, strict=True):
            assert got.isfinite().all()
            assert close(got, expected, 1e-4)


@pytest.mark.parametrize("rule", ["additive", "delta"])
def test_no_decay_is_decay_of_nothing(rule):
    inputs, state = draw(rule, 40)
    still = replace(inputs, log_decay=torch.zeros(inputs.q.shape[:3]))
    for got, expected in zip(
        gradients(chunkwise, still, state)[2][:3],
        gradients(chunkwise, inputs, state)[2],
        strict=False,
    ):
        assert close(got, expected, 1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_permuting_heads_permutes_outputs_and_nothing_else(rule):
    inputs, state = draw(rule, 30)
    order = torch.tensor([2, 0, 1])
    out, final = chunkwise(inputs, state, chunk=16)
    permuted = replace(inputs, **{n: t[:, :, order] for n, t in tensors(inputs).items()})
    permuted_out, permuted_final = chunkwise(permuted, state[:, order], chunk=16)
    assert close(permuted_out, out[:, :, order], 1e-6)
    assert close(permuted_final, final[:, order], 1e-6)


def test_delta_rule_with_unit_keys_and_full_strength_overwrites():
    """β = 1: after writing (k, v), the state answers k with v, whatever it held before."""
    inputs, state = draw("delta", 1, dtype=torch.float64)
    inputs = replace(inputs, beta=torch.ones_like(inputs.beta), q=inputs.k, scale=1.0)
    out, _ = chunkwise(inputs, state)
    assert close(out, inputs.v, 1e-12)


def test_states_are_float32_whatever_the_inputs():
    inputs, _ = draw("delta + decay", 20)
    half = replace(inputs, **{n: t.bfloat16() for n, t in tensors(inputs).items()})
    for form in (stepwise, chunkwise):
        out, state = form(half)
        assert out.dtype == torch.bfloat16
        assert state.dtype == torch.float32


@pytest.mark.parametrize("form", [stepwise, chunkwise])
@pytest.mark.parametrize("name", ["k", "beta", "log_decay", "state"])
def test_shapes_that_do_not_fit_are_named(form, name):
    inputs, state = draw("delta + decay", 6)
    if name == "state":
        state = state[:1]
    else:
        inputs = replace(inputs, **{name: getattr(inputs, name)[:, :, :2]})
    with pytest.raises(ValueError, match=f"^{name} has shape .* ask for"):
        form(inputs, state)


def test_chunk_must_be_positive():
    with pytest.raises(ValueError, match="chunk is 0"):
        chunkwise(draw("delta", 4)[0], chunk=0)
