"""Every linear mixer: whole layers equal transformers', or their equation written out by hand.

The layers of Qwen3-Next (Gated DeltaNet), Kimi Linear (KDA), Mamba-2 and xLSTM, with our weights
put into them, convolutions and gates included, give the same numbers to 1e-4; the other mixers
equal a float64 loop over positions. Options do what they say; decays are float32 in bfloat16.
"""

import pytest
import torch
import torch.nn.functional as F

from architectures import HookedStack, ModelConfig
from architectures.mixers import MIXERS, MixerSizes, RecurrentLayer, ShortConvLayer
from architectures.past import Past
from composition import LINEAR_KINDS, CompositionTask

HEADS, KEY, VALUE, WIDTH = 3, 4, 6, 18
TASK = CompositionTask(start_domain=3, branching=(4,))


def random_layer(kind: str, **options) -> RecurrentLayer:
    """A layer with every parameter drawn at random, those that begin at a constant too."""
    sizes = MixerSizes(**{**dict(d_model=WIDTH, heads=HEADS, d_key=KEY, d_value=VALUE), **options})
    layer = RecurrentLayer(MIXERS[kind], sizes)
    generator = torch.Generator().manual_seed(3)
    for parameter in layer.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator)
    return layer


def rows(W: torch.Tensor) -> torch.Tensor:
    """`[head, d_model, d]` as the weight of a torch Linear, `[head · d, d_model]`."""
    return W.transpose(1, 2).flatten(0, 1)


def taps(convolutions) -> torch.Tensor:
    """Convolutions on q, k, v as the weight of one grouped torch Conv1d."""
    weights = (convolutions.W_q, convolutions.W_k, convolutions.W_v)
    return torch.cat([W.T for W in weights])[:, None]


@torch.no_grad()
def qwen3_next(layer: RecurrentLayer) -> torch.nn.Module:
    from transformers.models.qwen3_next import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    config = Qwen3NextConfig(
        hidden_size=WIDTH,
        linear_num_value_heads=HEADS,
        linear_num_key_heads=HEADS,
        linear_key_head_dim=KEY,
        linear_value_head_dim=VALUE,
        linear_conv_kernel_dim=4,
        rms_norm_eps=1e-5,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    peer, mixer = Qwen3NextGatedDeltaNet(config, 0), layer.mixer
    delta = mixer.delta
    by_head = torch.cat([delta.W_Q, delta.W_K, delta.W_V, mixer.W_G], dim=-1)
    peer.in_proj_qkvz.weight.copy_(rows(by_head))
    ba = torch.stack([delta.W_beta, mixer.W_dt], dim=-1)  # [d_model, head, 2]
    peer.in_proj_ba.weight.copy_(ba.flatten(1).T)
    delta.b_beta.zero_()  # transformers' β has no bias
    peer.conv1d.weight.copy_(taps(delta.convolutions))
    peer.dt_bias.copy_(mixer.b_dt)
    peer.A_log.copy_(mixer.A_log)
    peer.norm.weight.copy_(delta.scale_out)
    peer.out_proj.weight.copy_(layer.W_O.flatten(0, 1).T)
    return peer


@torch.no_grad()
def kimi_linear(layer: RecurrentLayer) -> torch.nn.Module:
    from transformers.models.kimi_linear import KimiLinearConfig
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

    config = KimiLinearConfig(
        hidden_size=WIDTH,
        linear_num_heads=HEADS,
        linear_head_dim=VALUE,
        linear_conv_kernel_dim=4,
        rms_norm_eps=1e-5,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    peer, mixer = KimiLinearDeltaAttention(config, 0), layer.mixer
    delta = mixer.delta
    for projection, W in ((peer.q_proj, delta.W_Q), (peer.k_proj, delta.W_K)):
        projection.weight.copy_(rows(W))
    peer.v_proj.weight.copy_(rows(delta.W_V))
    peer.b_proj.weight.copy_(delta.W_beta.T)
    delta.b_beta.zero_()
    peer.conv1d.weight.copy_(taps(delta.convolutions))
    peer.forget_gate.f_a_proj.weight.copy_(mixer.W_F_down.T)
    peer.forget_gate.f_b_proj.weight.copy_(mixer.W_F_up.T)
    peer.forget_gate.dt_bias.copy_(mixer.b_dt.flatten())
    peer.forget_gate.A_log.copy_(mixer.A_log.view(1, 1, -1, 1))
    peer.g_a_proj.weight.copy_(mixer.W_G_down.T)
    peer.g_b_proj.weight.copy_(mixer.W_G_up.T)
    peer.o_norm.weight.copy_(delta.scale_out)
    peer.o_proj.weight.copy_(layer.W_O.flatten(0, 1).T)
    return peer


@torch.no_grad()
def mamba2(layer: RecurrentLayer) -> torch.nn.Module:
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    config = Mamba2Config(
        hidden_size=WIDTH,
        num_heads=HEADS,
        head_dim=VALUE,
        expand=1,
        state_size=KEY,
        n_groups=HEADS,
        conv_kernel=4,
        layer_norm_epsilon=1e-5,
        chunk_size=16,
        num_hidden_layers=1,
    )
    peer, mixer = Mamba2Mixer(config, 0), layer.mixer
    parts = [rows(mixer.W_G), rows(mixer.W_V), rows(mixer.W_K), rows(mixer.W_Q), mixer.W_dt.T]
    peer.in_proj.weight.copy_(torch.cat(parts))
    conv = mixer.convolutions
    peer.conv1d.weight.copy_(torch.cat([conv.W_v.T, conv.W_k.T, conv.W_q.T])[:, None])
    peer.conv1d.bias.copy_(torch.cat([conv.b_v, conv.b_k, conv.b_q]))
    peer.dt_bias.copy_(mixer.b_dt)
    peer.A_log.copy_(mixer.A_log)
    peer.D.copy_(mixer.D)
    peer.norm.weight.copy_(mixer.scale_out.flatten())
    peer.out_proj.weight.copy_(layer.W_O.flatten(0, 1).T)
    return peer


@torch.no_grad()
def xlstm(layer: RecurrentLayer) -> torch.nn.Module:
    from transformers import xLSTMConfig
    from transformers.models.xlstm.modeling_xlstm import xLSTMLayer

    config = xLSTMConfig(
        hidden_size=WIDTH,
        num_heads=HEADS,
        qk_dim_factor=HEADS * KEY / WIDTH,
        v_dim_factor=HEADS * VALUE / WIDTH,
        autocast_kernel_dtype="float32",
        norm_eps=1e-6,
        eps=1e-12,
        mode="inference",
        num_hidden_layers=1,
    )
    peer, mixer = xLSTMLayer(config), layer.mixer
    for projection, W in (
        (peer.q, mixer.W_Q),
        (peer.k, mixer.W_K),
        (peer.v, mixer.W_V),
        (peer.ogate_preact, mixer.W_G),
    ):
        projection.weight.copy_(rows(W))
    peer.igate_preact.weight.copy_(mixer.W_i.T)
    peer.igate_preact.bias.copy_(mixer.b_i)
    peer.fgate_preact.weight.copy_(mixer.W_f.T)
    peer.fgate_preact.bias.copy_(mixer.b_f)
    peer.multihead_norm.weight.copy_(mixer.scale_out.flatten())
    peer.out_proj.weight.copy_(layer.W_O.flatten(0, 1).T)
    return peer


PEERS = {
    "gated-deltanet": (qwen3_next, dict(short_conv=4)),
    "kda": (kimi_linear, dict(short_conv=4, d_key=VALUE)),  # Kimi's keys are as wide as its values
    "mamba2": (mamba2, dict(short_conv=4)),
    "mlstm": (xlstm, dict()),
}


@pytest.mark.parametrize("kind", PEERS)
@pytest.mark.parametrize("length", [1, 5, 70])
def test_layers_equal_transformers(kind, length, generator):
    make_peer, options = PEERS[kind]
    layer = random_layer(kind, **options)
    peer = make_peer(layer).eval()
    x = torch.randn(2, length, WIDTH, generator=generator)
    with torch.no_grad():
        expected = peer(x)
        expected = expected[0] if isinstance(expected, tuple) else expected
        got = layer(x, Past())
    scale = expected.abs().max().item()
    assert scale > 1e-2, "a comparison of zeros would show nothing"
    assert (got - expected).abs().max().item() <= 1e-4 * max(1.0, scale)


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm()


def rms(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean() + 1e-5).sqrt()


def turned(x: torch.Tensor, position: int) -> torch.Tensor:
    """Rotary positions, one pair of channels after the other, as complex numbers."""
    half = len(x) // 2
    pairs = torch.complex(x[:half], x[half:])
    angle = torch.tensor([position * 10_000.0 ** (-2 * i / len(x)) for i in range(half)])
    pairs = pairs * torch.polar(torch.ones(half, dtype=torch.float64), angle.double())
    return torch.cat([pairs.real, pairs.imag])


def by_hand(kind: str, W: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The layer's equation for one prompt `[position, d_model]`, a head and position at a time."""
    result = torch.zeros(len(x), WIDTH, dtype=torch.float64)
    for h in range(HEADS):
        S = torch.zeros(KEY, VALUE, dtype=torch.float64)
        z = torch.zeros(KEY, dtype=torch.float64)
        for t in range(len(x)):
            if kind == "rwkv7":
                out, S = rwkv7_step(W, x, t, h, S)
                result[t] += out @ W["W_O"][h]
                continue
            q, k, v = (x[t] @ W[f"W_{name}"][h] for name in "QKV")
            if kind == "linear":
                q, k = F.elu(q) + 1, F.elu(k) + 1
                S, z = S + torch.outer(k, v), z + k
                out = S.T @ q / (z @ q)
            elif kind == "retnet":
                S = (1 - 2.0 ** (-5 - h)) * S + torch.outer(turned(k, t), v)
                out = rms(S.T @ turned(q, t) / KEY**0.5) * W["scale_out"]
                out = out * F.silu(x[t] @ W["W_G"][h])
            elif kind == "gla":
                gate = (x[t] @ W["W_F_down"] @ W["W_F_up"]).view(HEADS, KEY)[h] + W["b_F"][h]
                S = torch.sigmoid(gate)[:, None] ** (1 / 16) * S + torch.outer(k, v)
                out = rms(S.T @ q / KEY**0.5) * W["scale_out"] * F.silu(x[t] @ W["W_G"][h])
            else:
                q, k, v = unit(F.silu(q)), unit(F.silu(k)), F.silu(v)
                beta = torch.sigmoid(x[t] @ W["W_beta"] + W["b_beta"])[h]
                S = S + torch.outer(k, beta * (v - S.T @ k))
                out = rms(S.T @ q / KEY**0.5) * W["scale_out"]
            result[t] += out @ W["W_O"][h]
    return result


def rwkv7_step(W, x, t, h, S):
    before = x[t - 1] if t else torch.zeros_like(x[0])
    r, k, v, f, a, g = (x[t] + (before - x[t]) * share for share in W["mix"])
    r, k, v = r @ W["W_Q"][h], k @ W["W_K"][h], v @ W["W_V"][h]
    gate = (torch.tanh(f @ W["W_F_down"]) @ W["W_F_up"]).view(HEADS, KEY)[h] + W["b_F"][h]
    w = torch.exp(-(torch.tensor(-0.5).exp().double()) * torch.sigmoid(gate))
    rate = torch.sigmoid((a @ W["W_A_down"] @ W["W_A_up"]).view(HEADS, KEY)[h] + W["b_A"][h])
    removal = unit(k * W["removal_gain"][h])
    k = k * (1 + (rate - 1) * W["rate_gain"][h])
    # The removal key reads the state before it decays.
    S = w[:, None] * S - torch.outer(rate * removal, removal @ S) + torch.outer(k, v)
    out = S.T @ r
    out = (out - out.mean()) / (out.var(correction=0) + 1e-5 * VALUE).sqrt()
    out = out * W["scale_out"][h] + W["shift_out"][h] + (r * k * W["bonus"][h]).sum() * v
    out_gate = (torch.sigmoid(g @ W["W_G_down"]) @ W["W_G_up"]).view(HEADS, VALUE)[h]
    return out * out_gate, S


@pytest.mark.parametrize("kind", ["linear", "retnet", "gla", "deltanet", "rwkv7"])
def test_layers_equal_their_equations(kind, generator):
    layer = random_layer(kind).double()
    W = {name.removeprefix("mixer."): p.detach() for name, p in layer.named_parameters()}
    x = torch.randn(1, 37, WIDTH, generator=generator, dtype=torch.float64)
    got = layer(x, Past())[0].detach()
    expected = by_hand(kind, W, x[0])
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_every_kind_has_a_reference():
    assert set(PEERS) | {"linear", "retnet", "gla", "deltanet", "rwkv7"} == set(MIXERS)
    assert set(MIXERS) <= set(LINEAR_KINDS)


@pytest.mark.parametrize("kind", MIXERS)
def test_permuting_heads_permutes_outputs_and_nothing_else(kind, generator):
    """A head reads its own weights only: with W_O's rows swapped along, the layer is the same."""
    layer = random_layer(kind)
    x = torch.randn(2, 12, WIDTH, generator=generator)
    with torch.no_grad():
        inputs = layer.mixer.inputs(x, Past())
        order = torch.tensor([2, 0, 1])
        from architectures.recurrence import chunkwise

        out, state = chunkwise(inputs)
        swapped, swapped_state = chunkwise(inputs.map(lambda tensor: tensor[:, :, order]))
    torch.testing.assert_close(swapped, out[:, :, order])
    torch.testing.assert_close(swapped_state, state[:, order])


@pytest.mark.parametrize("kind", ["deltanet", "gated-deltanet", "kda"])
def test_negative_eigenvalues_double_beta(kind, generator):
    x = torch.randn(2, 12, WIDTH, generator=generator)
    once = random_layer(kind).mixer.inputs(x, Past())
    twice = random_layer(kind, negative_eigenvalues=True).mixer.inputs(x, Past())
    torch.testing.assert_close(twice.beta, 2 * once.beta)
    assert twice.beta.max() > 1
    # With β near 2 a unit key is reflected: writing the same thing twice undoes the first.
    torch.testing.assert_close(twice.q, once.q)


@pytest.mark.parametrize("kind", sorted(set(MIXERS) - {"rwkv7"}))
def test_short_convolutions_see_their_width_and_no_more(kind, generator):
    layer = random_layer(kind, short_conv=3)
    x = torch.randn(1, 9, WIDTH, generator=generator)
    changed = x.clone()
    changed[:, 4] += 1
    with torch.no_grad():
        before, after = (layer.mixer.inputs(each, Past()).k for each in (x, changed))
    moved = (after - before).abs().amax(dim=(0, 2, 3)) > 0
    assert moved.tolist() == [4 <= t < 7 for t in range(9)]


def test_short_conv_layer_equals_lfm2(generator):
    from transformers import Lfm2Config
    from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

    config = Lfm2Config(hidden_size=WIDTH, conv_L_cache=3, conv_bias=False, num_hidden_layers=1)
    peer, layer = Lfm2ShortConv(config, 0), ShortConvLayer(WIDTH, 3)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    with torch.no_grad():
        peer.in_proj.weight.copy_(torch.cat([layer.W_B, layer.W_C, layer.W_V], dim=1).T)
        peer.conv.weight.copy_(layer.W_conv.T[:, None])
        peer.out_proj.weight.copy_(layer.W_O.T)
        x = torch.randn(2, 11, WIDTH, generator=generator)
        torch.testing.assert_close(layer(x, Past()), peer(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", MIXERS)
def test_bfloat16_trains_with_float32_states_and_decays(kind, generator):
    config = ModelConfig(
        task=TASK, schedule=("full", kind), d_model=16, n_heads=2, linear_heads=2, d_key=4
    )
    model = HookedStack(config).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(5):
        prompts = TASK.sample(16, generator)
        loss = F.cross_entropy(model(prompts.tokens)[:, -1].float(), prompts.answer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
    _, state = model(prompts.tokens, return_state=True)
    assert state.layers[1]["state"].dtype == torch.float32
    _, cache = model.run_with_cache(prompts.tokens)
    for name in ("hook_log_decay", "hook_log_input"):
        decay = cache.get(f"blocks.1.linear_attn.{name}")
        assert decay is None or decay.dtype == torch.float32


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("retnet", dict(d_key=3), "d_key is 3, but must be even"),
        ("rwkv7", dict(short_conv=4), "short_conv is 4.*use 0 with it"),
    ],
)
def test_sizes_a_mixer_cannot_have_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        HookedStack(ModelConfig(task=TASK, schedule=("full", kind), **options))
