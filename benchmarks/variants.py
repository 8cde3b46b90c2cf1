"""The table of docs/variants.md: every linear layer, and what it was checked against.

    python -m benchmarks.variants > docs/variants.md

Errors are the largest difference divided by the largest number expected, or by 1 where all are
smaller. What each layer learns is a finding: `grids/recurrences.toml`.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from architectures import HookedStack, ModelConfig, effective_attention
from architectures.mixers import MIXERS
from architectures.past import Past
from architectures.recurrence import RecurrenceInputs, chunkwise, stepwise
from benchmarks.timing import machine
from composition import CompositionTask
from tests.test_mixers import PEERS, by_hand, random_layer

LENGTHS, CHUNKS = (1, 2, 63, 64, 65, 127, 200), (16, 32, 64)


def error(got: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest number expected, or to 1."""
    return (got - expected).abs().max().item() / max(1.0, expected.abs().max().item())


def of_the_forms(kind: str) -> tuple[float, float]:
    """Chunkwise against stepwise: worst error of outputs and states, and of gradients."""
    layer, generator = random_layer(kind), torch.Generator().manual_seed(0)
    values, gradients = [], []
    for length in LENGTHS:
        x = torch.randn(2, length, layer.W_O.shape[-1], generator=generator)
        inputs = layer.mixer.inputs(x, Past()).map(Tensor.detach)
        state = torch.randn(inputs.state_shape, generator=generator)
        state = state.abs() if inputs.normaliser == "sum" else state
        out, final, grads = _with_gradients(inputs, state, None)
        for chunk in CHUNKS:
            got, got_final, got_grads = _with_gradients(inputs, state, chunk)
            values += [error(got, out), error(got_final, final)]
            gradients += [error(a, b) for a, b in zip(got_grads, grads, strict=True)]
    return max(values), max(gradients)


def _with_gradients(
    inputs: RecurrenceInputs, state: Tensor, chunk: int | None
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    leaves = inputs.map(lambda tensor: tensor.clone().requires_grad_())
    state = state.clone().requires_grad_()
    out, final = stepwise(leaves, state) if chunk is None else chunkwise(leaves, state, chunk)
    weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
    loss = (out * weight).sum() + final.square().sum() / 2
    return out, final, torch.autograd.grad(loss, [*leaves.tensors.values(), state])


@torch.no_grad()
def of_the_reference(kind: str) -> tuple[str, float]:
    """What the layer was compared with, and the error at 70 positions."""
    generator = torch.Generator().manual_seed(0)
    if kind in PEERS:
        make_peer, options = PEERS[kind]
        layer = random_layer(kind, **options)
        peer = make_peer(layer).eval()
        x = torch.randn(2, 70, layer.W_O.shape[-1], generator=generator)
        expected = peer(x)
        expected = expected[0] if isinstance(expected, tuple) else expected
        return f"transformers' {type(peer).__name__}", error(layer(x, Past()), expected)
    layer = random_layer(kind)
    x = torch.randn(1, 70, layer.W_O.shape[-1], generator=generator)
    weights = {name.removeprefix("mixer."): p for name, p in layer.double().named_parameters()}
    expected = by_hand(kind, weights, x[0].double())
    return "a float64 loop", error(layer.float()(x, Past())[0], expected)


@torch.no_grad()
def of_the_stack(kind: str) -> tuple[float, float]:
    """A prompt one token at a time against the whole, and M V against the layer's output."""
    task = CompositionTask(start_domain=6, branching=(6,))
    config = ModelConfig(
        task=task,
        schedule=("full", kind, "full"),
        d_model=16,
        n_heads=2,
        linear_heads=2,
        d_key=4,
        d_value=3,
        short_conv=0 if kind == "rwkv7" else 4,
    )
    model = HookedStack(config).eval()
    tokens = task.sample(4, torch.Generator().manual_seed(0)).tokens
    pieces, state = [], None
    for token in tokens.split(1, dim=1):
        out, state = model(token, state=state, return_state=True)
        pieces.append(out)
    streamed = error(torch.cat(pieces, dim=1), model(tokens))
    _, cache = model.run_with_cache(tokens)
    M = effective_attention(model, tokens, 1)
    rebuilt = torch.einsum("bhts,bshv->bthv", M, cache["blocks.1.linear_attn.hook_v"])
    return streamed, error(rebuilt, cache["blocks.1.linear_attn.hook_recurrence_out"])


def main() -> None:
    """Print the page."""
    logging.getLogger("transformers").setLevel(logging.ERROR)  # it warns that fla is not there
    print("# Linear layers: what was checked\n")
    print(
        "Made by `python -m benchmarks.variants > docs/variants.md`. What each layer\n"
        "learns between two full ones is in "
        "[findings.md](findings.md#does-it-matter-which-recurrence).\n"
    )
    print(f"{machine()}.\n")
    print("## Exactness\n")
    print(
        f"Errors relative to the largest number expected, or to 1; float32. Forms: T in {LENGTHS}, "
        f"chunks of {', '.join(map(str, CHUNKS))}, a nonzero state, K = 4, V = 6. The tests demand "
        "1e-5 of values, 1e-4 of gradients and of references.\n"
    )
    print(
        "| kind | chunkwise - stepwise | its gradients | reference | layer - reference | "
        "a token at a time - whole | M V - output |\n|---|---|---|---|---|---|---|"
    )
    for kind in MIXERS:
        values, gradients = of_the_forms(kind)
        reference, distance = of_the_reference(kind)
        streamed, rebuilt = of_the_stack(kind)
        print(
            f"| {kind} | {values:.0e} | {gradients:.0e} | {reference} | {distance:.0e} | "
            f"{streamed:.0e} | {rebuilt:.0e} |"
        )


if __name__ == "__main__":
    main()
