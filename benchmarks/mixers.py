"""Speed and memory of the recurrences and of attention, as ratios.

    python -m benchmarks.mixers [--rounds 15] [--only recurrences,attention,hooks,compile,memory]

Everything that is compared runs in this process, turn by turn, forward and backward; a ratio is
the median over rounds with its quartiles. Memory is the peak of a fresh process, less what it
had before. Peers are transformers' own torch functions (do not install `fla` beside them: they
would dispatch to it).
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from architectures import HookedStack, ModelConfig
from architectures.mixers import MIXERS, FullAttention, MixerSizes
from architectures.mixers.projections import from_heads, to_heads
from architectures.past import Past
from architectures.recurrence import RecurrenceInputs, chunkwise, stepwise
from benchmarks.timing import interleaved, machine, milliseconds, ratio
from composition import CompositionTask

SIZES = [(16, 64, 4, 16, 16), (8, 256, 4, 32, 32), (4, 1024, 4, 32, 32)]
"""(batch, T, heads, K, V)."""

LENGTHS = (512, 2048, 8192)


def draw(kind: str, batch: int, length: int, heads: int, key: int, value: int) -> RecurrenceInputs:
    """What a freshly made mixer of this kind makes of a normal residual stream."""
    generator = torch.Generator().manual_seed(0)
    mixer = MIXERS[kind](MixerSizes(64, heads, key, value))
    assert isinstance(mixer, nn.Module)
    for name, parameter in mixer.named_parameters():
        if name.rpartition(".")[2].startswith("W_"):
            parameter.data.normal_(0.0, parameter.shape[-2] ** -0.5, generator=generator)
    x = torch.randn(batch, length, 64, generator=generator)
    return mixer.inputs(x, Past()).map(lambda tensor: tensor.detach().requires_grad_())


def forward_and_backward(
    run: Callable[[], Tensor], leaves: list[Tensor], weight: Tensor
) -> Callable[[], object]:
    """A pass through `run` and the gradients of a fixed function of its output."""
    return lambda: torch.autograd.grad((run() * weight).sum(), leaves)


def peers(kind: str, x: RecurrenceInputs) -> dict[str, Callable[[], Tensor]]:
    """transformers' function for this kind, on the same numbers."""
    from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule
    from transformers.models.xlstm.modeling_xlstm import mlstm_chunkwise_native_autograd

    if kind == "gated-deltanet":
        return {"peer": lambda: torch_chunk_gated_delta_rule(x.q, x.k, x.v, x.log_decay, x.beta)[0]}
    if kind == "kda":
        return {"peer": lambda: chunk_kimi_delta_attention(x.q, x.k, x.v, x.log_decay, x.beta)[0]}
    if kind == "mamba2":
        # The peer multiplies by dt itself: with A = 1 its dt is our log-decay, its x the rest.
        return {
            "peer": lambda: mamba2_chunk_scan(
                x.v / x.log_decay[..., None],
                x.log_decay,
                torch.ones(x.q.shape[2]),
                x.k,
                x.q,
                chunk_size=64,
                dt_limit=(-float("inf"), 0.0),
            )
        }
    if kind == "mlstm":
        # It takes the gate before logsigmoid.
        gate = (x.log_decay - torch.log(-torch.expm1(x.log_decay))).detach().requires_grad_()
        return {
            "peer": lambda: mlstm_chunkwise_native_autograd(
                *(part.transpose(1, 2) for part in (x.q, x.k, x.v, x.log_input, gate)),
                chunk_size=64,
                autocast_kernel_dtype=torch.float32,
            ).transpose(1, 2)
        }
    return {}


def recurrences(rounds: int) -> None:
    """Chunkwise against transformers and against the stepwise loop, for every kind."""
    print("| kind | (batch, T, heads, K, V) | ours, ms | transformers / ours | stepwise / ours |")
    print("|---|---|---|---|---|")
    for kind in MIXERS:
        for size in SIZES:
            x = draw(kind, *size)
            leaves = [tensor for tensor in x.tensors.values() if tensor.requires_grad]
            weight = torch.randn(size[0], size[1], size[2], size[4])
            runs = {"ours": lambda x=x: chunkwise(x)[0], **peers(kind, x)}
            differentiable = {
                name: forward_and_backward(run, used(run, leaves), weight)
                for name, run in runs.items()
            }
            times = interleaved(differentiable, rounds)
            step = forward_and_backward(lambda x=x: stepwise(x)[0], leaves, weight)
            slow = interleaved({"ours": differentiable["ours"], "stepwise": step}, 3)
            peer = ratio(times["peer"], times["ours"]) if "peer" in times else "no peer"
            print(
                f"| {kind} | {size} | {milliseconds(times['ours'])} | {peer} | "
                f"{ratio(slow['stepwise'], slow['ours'])} |",
                flush=True,
            )


def used(run: Callable[[], Tensor], leaves: list[Tensor]) -> list[Tensor]:
    """The leaves that the run's output depends on."""
    out = run()
    grads = torch.autograd.grad(out.sum(), leaves, allow_unused=True)
    return [leaf for leaf, grad in zip(leaves, grads, strict=True) if grad is not None]


def attention(rounds: int) -> None:
    """The hooked layer, fused and explicit, against the same layer around bare SDPA."""
    print("| (batch, T, heads, d_head) | bare, ms | fused / bare | explicit / bare |")
    print("|---|---|---|---|")
    for batch, length, heads, d_head, _ in SIZES:
        layer = FullAttention(heads * d_head, heads, d_head)
        watched = FullAttention(heads * d_head, heads, d_head)
        for parameter in (*layer.parameters(), *watched.parameters()):
            parameter.data.normal_(0.0, 0.1)
        watched.hook_pattern.add_hook(lambda pattern, hook: None, is_permanent=True)
        x = torch.randn(batch, length, heads * d_head, requires_grad=True)
        weight = torch.randn_like(x)

        def bare(x: Tensor = x, layer: FullAttention = layer) -> Tensor:
            q, k, v = (to_heads(x, W).transpose(1, 2) for W in (layer.W_Q, layer.W_K, layer.W_V))
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return from_heads(z.transpose(1, 2), layer.W_O)

        runs = {
            "bare": (bare, layer),
            "fused": (lambda x=x, layer=layer: layer(x, Past()), layer),
            "explicit": (lambda x=x, layer=watched: layer(x, Past()), watched),
        }
        times = interleaved(
            {
                name: forward_and_backward(run, [x, *of.parameters()], weight)
                for name, (run, of) in runs.items()
            },
            4 * rounds,
        )
        print(
            f"| {(batch, length, heads, d_head)} | {milliseconds(times['bare'])} | "
            f"{ratio(times['fused'], times['bare'])} | {ratio(times['explicit'], times['bare'])} |",
            flush=True,
        )


def training_step(model: HookedStack, tokens: Tensor) -> Callable[[], object]:
    """Forward, backward and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        model(tokens)[:, -1].logsumexp(-1).mean().backward()
        optimizer.step()

    return step


def default_model(d_model: int = 64) -> tuple[HookedStack, Tensor]:
    """The default family's (full, deltanet, full) and a batch of its prompts."""
    task = CompositionTask(start_domain=8, branching=(4,))
    schedule = ("full", "deltanet", "full")
    config = ModelConfig(task=task, schedule=schedule, linear_heads=2, d_key=2, d_model=d_model)
    return HookedStack(config), task.sample(64, torch.Generator().manual_seed(0)).tokens


def without_hook_points(model: HookedStack) -> HookedStack:
    """The same stack with the identity in place of every hook point."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, HookPoint):
                setattr(module, name, nn.Identity())
    return model


def hooks(rounds: int) -> None:
    """A training step with hook points, without hooks, against one with the points removed."""
    print("| d_model | step, ms | with hook points / removed |")
    print("|---|---|---|")
    for d_model in (64, 128):
        (hooked, tokens), (removed, _) = default_model(d_model), default_model(d_model)
        without_hook_points(removed)
        times = interleaved(
            {"hooked": training_step(hooked, tokens), "removed": training_step(removed, tokens)},
            20 * rounds,
        )
        print(
            f"| {d_model} | {milliseconds(times['hooked'])} | "
            f"{ratio(times['hooked'], times['removed'])} |",
            flush=True,
        )


def compiled(rounds: int) -> None:
    """A training step of a stack after `model.compile()`, against the same stack as it is."""
    print("| layers | step, ms | as it is / compiled |")
    print("|---|---|---|")
    (plain, tokens), (fast, _) = default_model(), default_model()
    fast.compile()
    times = interleaved(
        {"plain": training_step(plain, tokens), "compiled": training_step(fast, tokens)},
        10 * rounds,
    )
    print(
        f"| {', '.join(plain.config.schedule)} | {milliseconds(times['plain'])} | "
        f"{ratio(times['plain'], times['compiled'])} |",
        flush=True,
    )


def memory(rounds: int) -> None:
    """Peak memory of a forward and backward pass at (1, T, 4, 32, 32), in MiB, over inputs."""
    print("| kind | " + " | ".join(f"T = {length}" for length in LENGTHS) + " |")
    print("|---|" + "---|" * len(LENGTHS))
    for kind in MIXERS:
        peaks = []
        for length in LENGTHS:
            command = [
                sys.executable,
                "-m",
                "benchmarks.mixers",
                "--peak",
                json.dumps([kind, length]),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peaks.append(done.stdout.strip())
        print(f"| {kind} | " + " | ".join(peaks) + " |", flush=True)


def peak(kind: str, length: int) -> None:
    """Print the peak of one pass at (1, length, 4, 32, 32)."""
    chunkwise(draw(kind, 1, 64, 4, 32, 32))[0].square().sum().backward()  # loads what all need
    x = draw(kind, 1, length, 4, 32, 32)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak so far is forgotten
    before = _resident("VmRSS")
    chunkwise(x)[0].square().sum().backward()
    print(f"{(_resident('VmHWM') - before) / 2**10:.0f}")


def _resident(field: str) -> int:
    """KiB that Linux says this process holds, now (VmRSS) or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


PARTS = {
    "recurrences": recurrences,
    "attention": attention,
    "hooks": hooks,
    "compile": compiled,
    "memory": memory,
}


def main() -> None:
    """Run the parts asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)  # it warns that fla is not there
    if arguments.peak:
        peak(*json.loads(arguments.peak))
        return
    print(f"{machine()}\n")
    for name in arguments.only.split(","):
        if name not in PARTS:
            parser.error(f"no part {name!r}; use some of {', '.join(PARTS)}")
        print(f"## {name}\n\n{PARTS[name].__doc__}\n")
        PARTS[name](arguments.rounds)
        print()


if __name__ == "__main__":
    main()
