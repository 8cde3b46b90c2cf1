"""A residual sweep against `transformer_lens.patching`, turn by turn in one process.

    python -m benchmarks.patching [--rounds 3] [--only sweep,growth,interchange]

Full layers, d_model 64, donor prompts that differ everywhere. The causal limit counts
token-layers: a cell at (layer, position) can change the positions from its own on in its layer and
those above, and of the last layer only the answer. Beside it stands a second limit, for small
batches: the same, times what a prompt costs in a forward of that batch over what it costs in one of
64. A cell of the answer position is timed as what one more cost: a sweep with every cell 21 times
less a sweep with every cell once, over 20 times the cells.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
from importlib.metadata import version

import torch

from architectures import HookedStack, ModelConfig
from benchmarks.timing import interleaved, machine, milliseconds, ratio
from composition import CompositionTask
from probes.metrics import logit_difference
from probes.patching import patch_sweep
from probes.sites import grid


class Case:
    """A model and prompts, with the same sweep done twice.

    Args:
        layers: full layers of the model.
        start_domain: of a task with branching 8: T is about nine times as much.
        batch: prompts.
    """

    def __init__(self, layers: int, start_domain: int, batch: int) -> None:
        task = CompositionTask(start_domain=start_domain, branching=(8,))
        config = ModelConfig(task=task, schedule=("full",) * layers, d_model=64)
        self.layers, self.length, self.batch = layers, task.length, batch
        self.model = HookedStack(config).eval()
        generator = torch.Generator().manual_seed(0)
        self.clean, self.corrupted = task.sample(batch, generator), task.sample(batch, generator)
        self.metric = logit_difference(self.clean.answer, self.corrupted.answer)
        self.sites = grid(self.model, self.clean.tokens, "resid_pre")
        with torch.no_grad():
            _, self.cache = self.model.run_with_cache(self.clean.tokens)

    @torch.no_grad()
    def theirs(self) -> torch.Tensor:
        """transformer_lens.patching, its progress bar out of the way."""
        import transformer_lens.patching as peer

        rows = slice(0, self.batch)
        with contextlib.redirect_stderr(io.StringIO()):
            return peer.get_act_patch_resid_pre(
                self.model,
                self.corrupted.tokens,
                self.cache,
                lambda logits: self.metric(logits[:, -1], rows).mean(),
            )

    def ours(self) -> torch.Tensor:
        """The same table."""
        clean, corrupted = self.clean.tokens, self.corrupted.tokens
        sweep = patch_sweep(self.model, clean, corrupted, self.sites, self.metric)
        return sweep.table(sweep.values.mean(1))

    def both(self, rounds: int) -> str:
        """Cells of a table: their milliseconds, ours, and the ratio."""
        times = interleaved({"theirs": self.theirs, "ours": self.ours}, rounds)
        theirs, ours = times["theirs"], times["ours"]
        return f"{milliseconds(theirs)} | {milliseconds(ours)} | {ratio(theirs, ours)}"

    @torch.no_grad()
    def forward(self) -> None:
        """One run of the prompts."""
        self.model(self.corrupted.tokens)

    def answer_cells(self, times: int) -> None:
        """Every layer's cell at the answer position, several times over."""
        sites = grid(self.model, self.clean.tokens, "resid_pre", positions=[-1]) * times
        patch_sweep(self.model, self.clean.tokens, self.corrupted.tokens, sites, self.metric)

    def causal_limit(self) -> float:
        """Token-layers of whole forward passes over those that the cells can change."""
        cells = [(layer, at) for layer in range(self.layers) for at in range(self.length)]
        changed = sum((self.layers - 1 - layer) * (self.length - at) + 1 for layer, at in cells)
        return len(cells) * self.layers * self.length / changed


def against_the_peer(rounds: int) -> None:
    """The issue's two sizes, with both limits."""
    print(
        "| batch | transformer_lens, ms | ours, ms | ratio | limit | at this batch | difference |"
    )
    print("|---|---|---|---|---|---|---|")
    cases = {batch: Case(6, 14, batch) for batch in (4, 64)}
    forwards = {str(batch): cases[batch].forward for batch in cases}
    times = {batch: statistics.median(t) for batch, t in interleaved(forwards, 30).items()}
    for batch, case in cases.items():
        difference = (case.theirs() - case.ours()).abs().max().item()
        limit = case.causal_limit()
        dearer = times[str(batch)] / batch / (times["64"] / 64)
        print(
            f"| {batch} | {case.both(rounds)} | {limit:.2f} | {limit * dearer:.2f} | "
            f"{difference:.0e} |",
            flush=True,
        )


def growth(rounds: int) -> None:
    """How both grow with the layers and with T."""
    print("\n| layers | T | transformer_lens, ms | ours, ms | ratio | limit |")
    print("|---|---|---|---|---|---|")
    for layers, start_domain in [(2, 7), (4, 7), (8, 7), (16, 7), (4, 3), (4, 14), (4, 28)]:
        case = Case(layers, start_domain, 16)
        print(
            f"| {layers} | {case.length} | {case.both(rounds)} | {case.causal_limit():.2f} |",
            flush=True,
        )


def answer_interchange(rounds: int) -> None:
    """A cell of the answer position against a forward pass, and how both grow."""
    print("\n| layers | T | batch | forward, ms | one more cell, ms | ratio |")
    print("|---|---|---|---|---|---|")
    for layers, start_domain, batch in [(6, 14, 64), (12, 14, 64), (6, 7, 64), (6, 28, 64)]:
        case = Case(layers, start_domain, batch)
        timed = {
            "forward": case.forward,
            "once": lambda case=case: case.answer_cells(1),
            "often": lambda case=case: case.answer_cells(21),
        }
        times = interleaved(timed, rounds * 5)
        pairs = zip(times["often"], times["once"], strict=True)
        cell = [(often - once) / (20 * layers) for often, once in pairs]
        print(
            f"| {layers} | {case.length} | {batch} | {milliseconds(times['forward'])} | "
            f"{1e3 * statistics.median(cell):.3f} | {ratio(times['forward'], cell)} |",
            flush=True,
        )


def main() -> None:
    """Print the tables."""
    sections = {"sweep": against_the_peer, "growth": growth, "interchange": answer_interchange}
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(sections))
    arguments = parser.parse_args()
    print(f"{machine()}, transformer-lens {version('transformer-lens')}\n")
    for name in arguments.only.split(","):
        sections[name](arguments.rounds)


if __name__ == "__main__":
    main()
