"""The recurrence engine: chunkwise equals stepwise, and both equal a loop written apart.

Values to 1e-5 and gradients to 1e-4 (relative, float32), for every rule that a mixer uses, over
lengths around the chunk, several chunk sizes, a nonzero initial state and K != V; and each trap
that shared keys, strong decay, resets and padding set. Gated DeltaNet, KDA, Mamba-2 and mLSTM
also equal transformers' own functions.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from architectures.effective_attention import recurrence_matrix
from architectures.recurrence import RecurrenceInputs, chunkwise, stepwise

RULES = {
    "additive": (),
    "additive + decay": ("decay",),  # RetNet, Mamba-2
    "additive + channel decay": ("channel decay",),  # GLA
    "delta": ("delta",),
    "delta + decay": ("delta", "decay"),  # Gated DeltaNet
    "delta + channel decay": ("delta", "channel decay"),  # KDA
    "removal": ("removal",),
    "removal + decay": ("removal", "decay"),
    "removal + channel decay": ("removal", "channel decay"),  # RWKV-7
    "sum": ("sum",),  # Katharopoulos
    "floor": ("floor", "decay", "input"),  # mLSTM
    "input": ("input",),
}
LENGTHS = [1, 2, 63, 64, 65, 127, 200]


def draw(
    rule: str, length: int, *, batch=2, heads=3, key=5, value=7, dtype=torch.float32, seed=0
) -> tuple[RecurrenceInputs, torch.Tensor]:
    """Random inputs for a rule, and a nonzero initial state."""
    g, parts = torch.Generator().manual_seed(seed), RULES[rule]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=dtype)

    q, k = normal(batch, length, heads, key), F.normalize(normal(batch, length, heads, key), dim=-1)
    v = normal(batch, length, heads, value)
    more: dict = {}
    if "delta" in parts:
        more["beta"] = normal(batch, length, heads).sigmoid()
    if "decay" in parts:
        more["log_decay"] = -normal(batch, length, heads).abs()
    if "channel decay" in parts:
        more["log_decay"] = -normal(batch, length, heads, key).abs()
    if "removal" in parts:
        more["removal_key"] = F.normalize(normal(batch, length, heads, key), dim=-1)
        more["removal_rate"] = normal(batch, length, heads, key).sigmoid()
    if "input" in parts:
        more["log_input"] = normal(batch, length, heads)
    if "sum" in parts:
        q, k, more["normaliser"] = q.abs(), k.abs(), "sum"
    if "floor" in parts:
        more["normaliser"] = "floor"
    state = normal(batch, heads, key, value + ("normaliser" in more))
    return RecurrenceInputs(q, k, v, **more), state.abs() if "sum" in parts else state


def gradients(form, inputs, state, **options):
    """Outputs, final state, and gradients of a fixed random function of both."""
    leaves = {n: t.clone().requires_grad_() for n, t in inputs.tensors.items()}
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


def same(one, other, values: float = 1e-5, grads: float = 1e-4) -> bool:
    """Two results of `gradients`."""
    return (
        close(one[0], other[0], values)
        and close(one[1], other[1], values)
        and all(close(a, b, grads) for a, b in zip(one[2], other[2], strict=True))
    )


def by_hand(inputs: RecurrenceInputs, S: np.ndarray, b: int, h: int) -> tuple[list, np.ndarray]:
    """The rule for one batch row and head, in NumPy, without stabiliser or chunks."""
    x = {name: tensor[b, :, h].numpy() for name, tensor in inputs.tensors.items()}
    normalised, outputs = inputs.normaliser != "none", []
    for t in range(inputs.q.shape[1]):
        q, k, v = x["q"][t], x["k"][t], x["v"][t]
        v = np.append(v, 1.0) if normalised else v
        before = S
        if "log_decay" in x:
            S = np.exp(x["log_decay"][t]).reshape(-1, 1) * S
        if "beta" in x:
            v = x["beta"][t] * (v - S.T @ k)
        if "removal_key" in x:
            removal = x["removal_key"][t]
            S = S - np.outer(x["removal_rate"][t] * removal, before.T @ removal)
        S = S + np.exp(x["log_input"][t] if "log_input" in x else 0.0) * np.outer(k, v)
        out = S.T @ q / np.sqrt(len(q))
        if inputs.normaliser == "sum":
            out = out[:-1] / (out[-1] + 1e-6)
        if inputs.normaliser == "floor":
            out = out[:-1] / max(abs(out[-1]), 1.0)
        outputs.append(out)
    return outputs, S


@pytest.mark.parametrize("form", [stepwise, chunkwise])
@pytest.mark.parametrize("rule", RULES)
def test_both_forms_are_the_equation(rule, form):
    """Against NumPy, one batch row and head at a time."""
    inputs, state = draw(rule, 9, dtype=torch.float64)
    out, final = form(inputs, state)
    for b in range(2):
        for h in range(3):
            expected, S = by_hand(inputs, state[b, h].numpy(), b, h)
            assert np.abs(out[b, :, h].numpy() - np.stack(expected)).max() < 1e-10
            assert np.abs(final[b, h].numpy() - S).max() < 1e-10


@pytest.mark.parametrize("chunk", [16, 32, 64])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rule", RULES)
def test_chunkwise_equals_stepwise(rule, length, chunk):
    inputs, state = draw(rule, length, batch=1 if length == 65 else 2)
    expected = gradients(stepwise, inputs, state)
    assert same(gradients(chunkwise, inputs, state, chunk=chunk), expected)


@given(
    rule=st.sampled_from(list(RULES)),
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
            some = inputs.positions(piece.start, piece.stop)
            out, carried = chunkwise(some, carried, chunk=chunk)
            parts.append(out)
    assert close(torch.cat(parts, dim=1), whole, 1e-11)
    assert close(carried, final, 1e-11)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", [stepwise, chunkwise])
def test_gradcheck(form, rule):
    inputs, state = draw(rule, 5, batch=1, heads=1, key=2, value=2, dtype=torch.float64)
    names = list(inputs.tensors)
    options = {"chunk": 2} if form is chunkwise else {}

    def call(state, *values):
        return form(replace(inputs, **dict(zip(names, values, strict=True))), state, **options)

    leaves = [t.clone().requires_grad_() for t in (state, *inputs.tensors.values())]
    assert torch.autograd.gradcheck(call, leaves)


def test_gated_deltanet_equals_transformers():
    """As transformers computes it for Qwen3-Next, chunked and recurrent."""
    from transformers.models.qwen3_next import modeling_qwen3_next as peer

    inputs, state = draw("delta + decay", 150)
    args = dict(g=inputs.log_decay, beta=inputs.beta, initial_state=state, output_final_state=True)
    for function in (peer.torch_chunk_gated_delta_rule, peer.torch_recurrent_gated_delta_rule):
        expected = function(inputs.q, inputs.k, inputs.v, **args)
        assert equals_peer(inputs, state, expected)


def test_kda_equals_transformers():
    """As transformers computes it for Kimi Linear, chunked and recurrent."""
    from transformers.models.kimi_linear import modeling_kimi_linear as peer

    inputs, state = draw("delta + channel decay", 150)
    args = dict(g=inputs.log_decay, beta=inputs.beta, initial_state=state, output_final_state=True)
    for function in (peer.chunk_kimi_delta_attention, peer.recurrent_kimi_delta_attention):
        expected = function(inputs.q, inputs.k, inputs.v, **args)
        assert equals_peer(inputs, state, expected)


def test_mamba2_equals_transformers():
    """C for queries, dt · B for keys, x for values, dt · A for the log-decay, no scale."""
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    inputs, state = draw("additive + decay", 150)
    dt = torch.rand(inputs.q.shape[:3], generator=torch.Generator().manual_seed(1))
    A = -torch.tensor([0.3, 1.0, 4.0])
    expected, expected_final = mamba2_chunk_scan(
        inputs.v,
        dt,
        A,
        inputs.k,
        inputs.q,
        chunk_size=64,
        initial_states=state.mT,
        return_final_states=True,
    )
    mamba = replace(inputs, k=inputs.k * dt[..., None], log_decay=A * dt, scale=1.0)
    assert equals_peer(mamba, state, (expected, expected_final.mT))


def test_mlstm_equals_transformers():
    """Chunked and recurrent, states of transformers' stabilised ones times e^m."""
    from transformers.models.xlstm import modeling_xlstm as peer

    inputs, state = draw("floor", 128)
    gates = 3 * torch.randn(2, 2, 128, 3, generator=torch.Generator().manual_seed(1))
    inputs = replace(inputs, log_decay=F.logsigmoid(gates[0] + 2), log_input=gates[1])
    m = torch.tensor(0.7).expand(2, 3, 1)  # any stabiliser will do: the state is S e^-m
    arguments = dict(
        query=inputs.q.transpose(1, 2),
        key=inputs.k.transpose(1, 2),
        value=inputs.v.transpose(1, 2),
        igate=gates[1].transpose(1, 2),
        fgate=(gates[0] + 2).transpose(1, 2),
        c_initial=state[..., :-1] * torch.exp(-m)[..., None],
        n_initial=state[..., -1] * torch.exp(-m),
        m_initial=m,
        return_last_states=True,
        eps=0.0,
    )
    for function, more in (
        (peer.mlstm_chunkwise_native_autograd, dict(chunk_size=64, autocast_kernel_dtype=None)),
        (peer.mlstm_recurrent_sequence_native, dict()),
    ):
        if more:
            more["autocast_kernel_dtype"] = torch.float32
        out, (C, n, last_m) = function(**arguments, **more)
        final = torch.cat([C, n[..., None]], dim=-1) * last_m[..., None].exp()
        assert equals_peer(inputs, state, (out.transpose(1, 2), final))


def equals_peer(inputs: RecurrenceInputs, state: torch.Tensor, expected) -> bool:
    """Both forms give the peer's outputs and final state, to 1e-4 and mostly far less."""
    results = [form(inputs, state) for form in (stepwise, chunkwise)]
    return all(
        close(out, expected[0], 1e-4) and close(final, expected[1], 1e-4) for out, final in results
    )


def test_repeated_keys_keep_their_digits():
    """Composition prompts repeat keys; a Neumann series for (I + A)^-1 loses everything here."""
    inputs, state = draw("delta", 64)
    inputs = replace(
        inputs, k=inputs.k[:, :1].expand_as(inputs.k), beta=torch.full_like(inputs.beta, 0.99)
    )
    exact, _ = stepwise(
        replace(inputs, **{n: t.double() for n, t in inputs.tensors.items()}), state.double()
    )
    out, _ = chunkwise(inputs, state)
    assert close(out.double(), exact, 2e-5)


DECAYED = [rule for rule, parts in RULES.items() if "decay" in parts or "channel decay" in parts]


@pytest.mark.parametrize("rule", DECAYED)
@pytest.mark.parametrize("per_step", [-27.6 / 64, -4.0, -50.0])
def test_strong_decay_stays_finite_and_exact(rule, per_step):
    """1e-12 over 64 tokens and far stronger, where e^c underflows and e^-c would overflow."""
    inputs, state = draw(rule, 64)
    inputs = replace(inputs, log_decay=torch.full_like(inputs.log_decay, per_step))
    got = gradients(chunkwise, inputs, state, chunk=64)
    assert all(tensor.isfinite().all() for tensor in (*got[:2], *got[2]))
    assert same(got, gradients(stepwise, inputs, state))


@pytest.mark.parametrize("rule", [rule for rule in DECAYED if rule != "floor"])
@pytest.mark.parametrize("reset", [-200.0, float("-inf")])
def test_a_reset_takes_no_digits_from_what_follows(rule, reset):
    """One step that forgets everything, even e^-inf, among steps that hardly decay."""
    inputs, state = draw(rule, 64)
    log_decay = inputs.log_decay * 1e-2
    log_decay[:, 20] = reset
    inputs = replace(inputs, log_decay=log_decay)
    out, final = chunkwise(inputs, state)
    expected, expected_final = stepwise(inputs, state)
    assert close(out, expected, 1e-5)
    assert close(final, expected_final, 1e-5)


@pytest.mark.parametrize("rule", ["additive", "delta", "removal"])
@pytest.mark.parametrize("broad", ["a head", "a channel"])
def test_no_decay_is_decay_of_nothing(rule, broad):
    """Values and gradients of the gated rule with gate 0 are the ungated rule's."""
    inputs, state = draw(rule, 40)
    shape = inputs.q.shape[:3] if broad == "a head" else inputs.q.shape
    still = replace(inputs, log_decay=torch.zeros(shape))
    ungated, gated = gradients(chunkwise, inputs, state), gradients(chunkwise, still, state)
    names = list(still.tensors)
    without = [g for n, g in zip([*names, "state"], gated[2], strict=True) if n != "log_decay"]
    assert same((*gated[:2], without), ungated, 1e-6, 1e-6)


@pytest.mark.parametrize("rule", ["additive", "delta", "removal"])
def test_one_decay_a_head_is_the_same_on_every_channel(rule):
    inputs, state = draw(f"{rule} + decay", 70)
    broad = replace(inputs, log_decay=inputs.log_decay[..., None].expand_as(inputs.q))
    out, final = chunkwise(inputs, state)
    broad_out, broad_final = chunkwise(broad, state)
    assert close(broad_out, out, 1e-5)
    assert close(broad_final, final, 1e-5)


def test_the_delta_rule_reads_the_decayed_state_and_removal_the_undecayed():
    """One position, empty write: what is taken out is read after, or before, the decay by 1/2."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    half = torch.full((1, 1, 1), 0.5, dtype=torch.float64).log()
    state = torch.full((1, 1, 1, 1), 8.0, dtype=torch.float64)
    delta = RecurrenceInputs(one, one, 0 * one, beta=one[..., 0], log_decay=half)
    removal = RecurrenceInputs(one, one, 0 * one, log_decay=half, removal_key=one, removal_rate=one)
    for form in (stepwise, chunkwise):
        assert form(delta, state)[1].item() == pytest.approx(4 - 4)
        assert form(removal, state)[1].item() == pytest.approx(4 - 8)


def test_removal_with_the_same_key_is_the_delta_rule():
    """Without decay, taking out what k reads and writing β v is one delta step."""
    inputs, state = draw("delta", 50, dtype=torch.float64)
    as_removal = replace(
        inputs,
        beta=None,
        v=inputs.v * inputs.beta[..., None],
        removal_key=inputs.k,
        removal_rate=inputs.beta[..., None].expand_as(inputs.k),
    )
    for got, expected in zip(chunkwise(as_removal, state), chunkwise(inputs, state), strict=True):
        assert close(got, expected, 1e-12)


def test_exponential_gates_beyond_float32_cancel():
    """e^i for i near 200 is no float32 number, but weights relative to each other are."""
    inputs, state = draw("floor", 70)
    state = torch.zeros_like(state)
    huge = replace(inputs, log_input=inputs.log_input + 200.0)
    exact = huge.map(torch.Tensor.double)
    for form in (stepwise, chunkwise):
        out, _ = form(huge, state)
        expected, _ = stepwise(exact, state.double())
        assert close(out.double(), expected, 1e-3)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("rule", RULES)
def test_padding_of_the_last_chunk_never_enters_a_state(rule, batch):
    """The state after 33 positions, one past a chunk, is that of one position after 32."""
    inputs, state = draw(rule, 33, batch=batch, dtype=torch.float64)
    whole = chunkwise(inputs, state, chunk=32)[1]
    first = chunkwise(inputs.positions(0, 32), state, chunk=32)[1]
    assert close(whole, chunkwise(inputs.positions(32, 33), first)[1], 1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_gradients_flow_through_a_carried_state(rule):
    inputs, state = draw(rule, 40, dtype=torch.float64)

    def in_pieces(inputs, state):
        outputs = []
        for begin, end in ((0, 7), (7, 8), (8, 40)):
            out, state = chunkwise(inputs.positions(begin, end), state)
            outputs.append(out)
        return torch.cat(outputs, dim=1), state

    assert same(
        gradients(in_pieces, inputs, state), gradients(chunkwise, inputs, state), 1e-10, 1e-10
    )


@pytest.mark.parametrize("rule", RULES)
def test_the_matrix_is_the_recurrence(rule):
    """O = M V to 1e-5, and moving one value moves every output by what M says."""
    inputs, _ = draw(rule, 70)
    M = recurrence_matrix(inputs)
    out, _ = chunkwise(inputs)
    assert close(torch.einsum("bhts,bshv->bthv", M, inputs.v), out, 1e-5)
    source, push = 31, torch.randn(inputs.v.shape[-1], generator=torch.Generator().manual_seed(4))
    moved = inputs.v.clone()
    moved[:, source] += push
    change = chunkwise(replace(inputs, v=moved))[0] - out
    expected = M[..., source].transpose(1, 2)[..., None] * push
    assert close(change, expected, 1e-5)
    assert (M.triu(1) == 0).all()
    ones = torch.ones_like(inputs.v)
    assert close(
        M.sum(-1).transpose(1, 2)[..., None].expand_as(ones),
        chunkwise(replace(inputs, v=ones))[0],
        1e-5,
    )
    if inputs.normaliser == "sum":
        assert close(M.sum(-1), torch.ones(M.shape[:-1]), 1e-4)


def test_delta_rule_with_unit_keys_and_full_strength_overwrites():
    """β = 1: after writing (k, v), the state answers k with v, whatever it held before."""
    inputs, state = draw("delta", 1, dtype=torch.float64)
    inputs = replace(inputs, beta=torch.ones_like(inputs.beta), q=inputs.k, scale=1.0)
    out, _ = chunkwise(inputs, state)
    assert close(out, inputs.v, 1e-12)


def test_states_are_float32_whatever_the_inputs():
    inputs, _ = draw("delta + decay", 20)
    half = replace(inputs, **{n: t.bfloat16() for n, t in inputs.tensors.items()})
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(removal_key="k"), "removal_key and removal_rate go together"),
        (dict(removal_key="k", removal_rate="k"), "give one of them"),
        (dict(log_input="beta"), "log_input weighs the additive update"),
    ],
)
def test_rules_that_do_not_go_together_are_refused(change, message):
    inputs, state = draw("delta", 6)
    more = {name: getattr(inputs, source) for name, source in change.items()}
    with pytest.raises(ValueError, match=message):
        chunkwise(replace(inputs, **more), state)


def test_no_positions_are_refused():
    inputs, state = draw("delta", 3)
    with pytest.raises(ValueError, match="got 0 positions"):
        chunkwise(inputs.positions(0, 0), state)
