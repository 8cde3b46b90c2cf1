"""A residual sweep against `transformer_lens.patching`, turn by turn in one process.

    python -m benchmarks.patching [--rounds 3]

Six full layers, d_model 64, T = 128, donor prompts that differ everywhere. The causal limit counts
token-layers: a cell at (layer, position) can change the positions from its own on in its layer and
those above, and of the last layer only the answer.
"""

from __future__ import annotations

import argparse
import os

import torch

from architectures import HookedStack, ModelConfig
from benchmarks.timing import interleaved, machine, milliseconds, ratio
from composition import CompositionTask
from probes.metrics import logit_difference
from probes.patching import patch_sweep
from probes.sites import grid

LAYERS = 6


def causal_limit(layers: int, length: int) -> float:
    """Token-layers of whole forward passes over those that the cells can change."""
    cells = [(layer, position) for layer in range(layers) for position in range(length)]
    changed = sum((layers - 1 - layer) * (length - position) + 1 for layer, position in cells)
    return len(cells) * layers * length / changed


def main() -> None:
    """Print the table."""
    os.environ["TQDM_DISABLE"] = "1"
    import transformer_lens.patching as peer

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    task = CompositionTask(start_domain=14, branching=(8,))
    model = HookedStack(ModelConfig(task=task, schedule=("full",) * LAYERS, d_model=64)).eval()
    print(f"{machine()}; causal limit {causal_limit(LAYERS, task.length):.2f}\n")
    print("| batch | transformer_lens, ms | ours, ms | ratio | largest difference |")
    print("|---|---|---|---|---|")
    generator = torch.Generator().manual_seed(0)
    for batch in (4, 64):
        clean, corrupted = task.sample(batch, generator), task.sample(batch, generator)
        metric = logit_difference(clean.answer, corrupted.answer)
        everything = slice(0, batch)
        with torch.no_grad():
            _, cache = model.run_with_cache(clean.tokens)
        sites = grid(model, clean.tokens, "resid_pre")

        @torch.no_grad()
        def theirs(corrupted=corrupted, cache=cache, metric=metric, rows=everything):
            return peer.get_act_patch_resid_pre(
                model, corrupted.tokens, cache, lambda logits: metric(logits[:, -1], rows).mean()
            )

        def ours(clean=clean, corrupted=corrupted, metric=metric, sites=sites):
            sweep = patch_sweep(model, clean.tokens, corrupted.tokens, sites, metric)
            return sweep.table(sweep.values.mean(1))

        difference = (theirs() - ours()).abs().max().item()
        times = interleaved({"theirs": theirs, "ours": ours}, rounds)
        print(
            f"| {batch} | {milliseconds(times['theirs'])} | {milliseconds(times['ours'])} | "
            f"{ratio(times['theirs'], times['ours'])} | {difference:.0e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
