"""Activation patching: which sites an answer depends on.

A sweep puts activations of one run into another, site by site (arXiv 2202.05262; practice in arXiv
2309.16042 and 2404.15255). Denoising puts clean ones into the corrupted run and finds what suffices
to restore the answer; noising puts corrupted ones into the clean run and finds what is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from probes.bars import Bars
from probes.frames import site_columns, tidy
from probes.metrics import Metric
from probes.patched_runs import MEMORY, run_patched
from probes.patches import Patch
from probes.rows import chunks
from probes.running import (
    Inputs,
    answer_logits,
    require_determinism,
    rows_of,
    shape_of,
)
from probes.sites import Site, check_shape, read

if TYPE_CHECKING:
    import pandas as pd

Direction = Literal["denoise", "noise"]


@dataclass(frozen=True)
class PatchSweep:
    """What patching each site did to each prompt's answer.

    Attributes:
        sites: what was patched, one at a time.
        values: `[site, prompt]`, the metric under the patch.
        answers: `[site, prompt]`, the token with the highest logit.
        base: `[prompt]`, the metric of the run that was patched, unpatched.
        donor: `[prompt]`, the metric of the run that the activations came from; None for
            ablations, whose activations come from no run.
        done: `[site, prompt]`; all True unless the sweep was interrupted.
    """

    sites: tuple[Site, ...]
    values: Float[Tensor, "site prompt"]
    answers: Int[Tensor, "site prompt"]
    base: Float[Tensor, " prompt"]
    donor: Float[Tensor, " prompt"] | None
    done: Bool[Tensor, "site prompt"]

    @property
    def change(self) -> Float[Tensor, " site"]:
        """Mean change of the metric that the patch makes; exactly 0 where it changes nothing."""
        return (self.values - self.base).mean(1)

    @property
    def effect(self) -> Float[Tensor, " site"]:
        """The change as a share of that from base to donor: 0 for none, 1 for all of it.

        0 everywhere if the two runs do not differ.

        Raises:
            ValueError: an ablation, which has no donor to go to.
        """
        return _share(self.change, (self._donor - self.base).mean())

    def effect_interval(
        self, level: float = 0.95, resamples: int = 1000, seed: int = 0
    ) -> tuple[Float[Tensor, " site"], Float[Tensor, " site"]]:
        """Bootstrap interval of `effect`, prompts drawn anew with replacement."""
        generator = torch.Generator().manual_seed(seed)
        count = len(self.base)
        drawn = torch.randint(count, (resamples, count), generator=generator)
        weights = torch.zeros(resamples, count).scatter_add_(1, drawn, torch.ones(drawn.shape))
        weights = (weights / count).to(self.values.dtype)
        changes = (self.values - self.base) @ weights.T
        shares = _share(changes, weights @ (self._donor - self.base))
        tail = (1 - level) / 2
        return shares.quantile(tail, dim=1), shares.quantile(1 - tail, dim=1)

    def accuracy(self, answers: Int[Tensor, " prompt"]) -> Float[Tensor, " site"]:
        """Share of prompts that the patched model answers so."""
        return (self.answers == answers).double().mean(1)

    def table(self, of: Float[Tensor, " site"], component: str | None = None) -> Tensor:
        """One number a site, laid out `[layer, position]`, `[layer, head]` or with all three.

        Axes along which the sites do not differ are left out, that of layers never; combinations
        that were not swept are NaN.

        Args:
            of: such as `sweep.effect`.
            component: where several were swept, which.
        """
        chosen = [
            (site, value)
            for site, value in zip(self.sites, of.tolist(), strict=True)
            if component in (None, site.component)
        ]
        known = sorted({site.component for site in self.sites})
        if component is None and len(known) > 1:
            raise ValueError(f"several components were swept, choose one of {', '.join(known)}")
        if not chosen:
            raise ValueError(f"no {component!r} among the swept components {', '.join(known)}")
        axes = [
            sorted({getattr(site, name) for site, _ in chosen}, key=_none_first)
            for name in ("layer", "position", "head")
        ]
        table = torch.full([len(axis) for axis in axes], float("nan"), dtype=torch.float64)
        for site, value in chosen:
            place = [axis.index(getattr(site, name)) for axis, name in zip(axes, AXES, strict=True)]
            table[tuple(place)] = value
        for axis in (2, 1):
            if table.shape[axis] == 1:
                table = table.squeeze(axis)
        return table

    def to_frame(self) -> pd.DataFrame:
        """A row for each site and prompt.

        Columns: `site` (its number in `sites`), `component`, `layer`, `position`, `head` (missing
        where the site means all of them), `prompt`, `value`, `answer`, `base`, `donor` (missing
        for ablations), `done`. `(value - base)` averaged by site is `change`.
        """
        sites, prompts = self.values.shape
        donor = torch.full_like(self.base, float("nan")) if self.donor is None else self.donor
        frame = tidy(
            {"site": range(sites), "prompt": range(prompts)},
            {
                "value": self.values,
                "answer": self.answers,
                "base": self.base,
                "donor": donor,
                "done": self.done,
            },
        )
        where = site_columns(self.sites).take(frame["site"]).reset_index(drop=True)
        for place, name in enumerate(where, start=1):
            frame.insert(place, name, where[name])
        return frame

    @property
    def _donor(self) -> Tensor:
        if self.donor is None:
            raise ValueError("an ablation has no donor run to compare with: use change instead")
        return self.donor


AXES = ("layer", "position", "head")


class SweepInterrupted(KeyboardInterrupt):
    """A sweep was interrupted; `partial` is what it had done, to look at or to go on from."""

    def __init__(self, partial: PatchSweep) -> None:
        share = partial.done.double().mean().item()
        super().__init__(f"interrupted after {share:.0%}; go on with resume=error.partial")
        self.partial = partial


def patch_sweep(
    model: nn.Module,
    clean: Inputs,
    corrupted: Inputs,
    sites: Sequence[Site],
    metric: Metric,
    *,
    direction: Direction = "denoise",
    batch: int = 1024,
    memory: int = MEMORY,
    resume: PatchSweep | None = None,
) -> PatchSweep:
    """Patch every site, one at a time, with what stands there in the other run.

    Prompts whose activation at a site is the same in both runs are not run again: their metric is
    exactly the unpatched one.

    Args:
        model: any model with TransformerLens' hook names; a `HookedStack` runs fast.
        clean, corrupted: as many prompts of one length, row by row to be compared.
        sites: such as `grid(model, clean, "resid_pre")` gives.
        metric: such as `logit_difference(clean_answers, corrupted_answers)`.
        direction: "denoise" patches clean activations into the corrupted run, "noise" the
            other way round.
        batch: prompts a run, at most.
        memory: bytes that the activations of one batch of cells may take, by estimate.
        resume: what an interrupted sweep of the same sites has done.

    Raises:
        ValueError: clean and corrupted of different shapes, a site that the model does not have,
            a metric that does not give one number a prompt, a model with dropout on.
        RuntimeError: a patch that never took place.
        SweepInterrupted: at a keyboard interrupt, with what is done.
    """
    base, donor = base_and_donor(clean, corrupted, direction)
    values = read(model, donor, sites, batch=batch)
    return sweep_values(
        model,
        base,
        sites,
        values,
        metric,
        donor=of_the_plain_run(model, donor, metric, batch)[0],
        batch=batch,
        memory=memory,
        resume=resume,
    )


def base_and_donor(clean: Inputs, corrupted: Inputs, direction: Direction) -> tuple[Inputs, Inputs]:
    """Which run is patched, and which one the activations come from.

    Raises:
        ValueError: prompts of different shapes, or an unknown direction.
    """
    if shape_of(clean) != shape_of(corrupted):
        raise ValueError(
            f"clean has {shape_of(clean)} prompts and positions, corrupted {shape_of(corrupted)}: "
            "patching compares them row by row and position by position"
        )
    if direction not in ("denoise", "noise"):
        raise ValueError(f"direction is {direction!r}; use 'denoise' or 'noise'")
    return (corrupted, clean) if direction == "denoise" else (clean, corrupted)


def ablation_sweep(
    model: nn.Module,
    inputs: Inputs,
    sites: Sequence[Site],
    metric: Metric,
    *,
    reference: Inputs | None = None,
    batch: int = 1024,
    memory: int = MEMORY,
) -> PatchSweep:
    """Replace every site, one at a time, by its mean over reference prompts, or by zero.

    Args:
        reference: prompts whose mean activation is put in; zero if None.
        others: as for `patch_sweep`.
    """
    if reference is None:
        here = read(model, rows_of(inputs, slice(0, 1)), sites)
        values = [torch.zeros_like(value) for value in here]
    else:
        values = [value.mean(0, keepdim=True) for value in read(model, reference, sites)]
    count = shape_of(inputs)[0]
    values = [value.expand(count, *value.shape[1:]) for value in values]
    return sweep_values(model, inputs, sites, values, metric, batch=batch, memory=memory)


@torch.no_grad()
def sweep_values(
    model: nn.Module,
    inputs: Inputs,
    sites: Sequence[Site],
    values: Sequence[Tensor],
    metric: Metric,
    *,
    donor: Float[Tensor, " prompt"] | None = None,
    batch: int = 1024,
    memory: int = MEMORY,
    resume: PatchSweep | None = None,
) -> PatchSweep:
    """Put a given value at every site, one at a time: what all sweeps here come down to.

    Args:
        values: for each site `[prompt, …]`, of the shape that `read` gives.
        donor: the metric that counts as all of the effect.
        others: as for `patch_sweep`.
    """
    require_determinism(model)
    base, answers = of_the_plain_run(model, inputs, metric, batch)
    count = len(base)
    kept = PatchSweep(
        sites=tuple(sites),
        values=base.repeat(len(sites), 1),
        answers=answers.repeat(len(sites), 1),
        base=base,
        donor=donor,
        done=torch.zeros(len(sites), count, dtype=torch.bool, device=base.device),
    )
    if resume is not None:
        if (
            resume.sites != kept.sites
            or not _same(resume.base, base)
            or not _same(resume.donor, donor)
        ):
            raise ValueError("resume is of other sites, prompts, metric or model: leave it out")
        kept = replace(
            resume,
            values=resume.values.clone(),
            answers=resume.answers.clone(),
            done=resume.done.clone(),
        )
    unpatched = read(model, inputs, sites, batch=batch)
    todo = []
    for index, (there, new) in enumerate(zip(unpatched, values, strict=True)):
        check_shape(sites[index], new, there.shape)
        same = (there == new).reshape(len(there), -1).all(1)
        kept.done[index] |= same.to(kept.done.device)
        if not kept.done[index].all():
            todo.append(index)
    ran = 0
    with Bars(delay=2.0, leave=False) as bars:
        bars.add("patching", len(todo) * count)
        try:
            patches = [Patch(sites[index], values[index]) for index in todo]
            for number, rows, logits in run_patched(
                model, inputs, patches, batch=batch, memory=memory
            ):
                index = todo[number]
                new = ~kept.done[index, rows]
                kept.values[index, rows] = torch.where(
                    new, _measured(metric, logits, rows), kept.values[index, rows]
                )
                kept.answers[index, rows] = torch.where(
                    new, logits.argmax(-1), kept.answers[index, rows]
                )
                kept.done[index, rows] = True
                ran += len(logits)
                bars.tell("patching", ran)
        except KeyboardInterrupt as stop:
            raise SweepInterrupted(kept) from stop
    return kept


@torch.no_grad()
def of_the_plain_run(
    model: nn.Module, inputs: Inputs, metric: Metric, batch: int
) -> tuple[Tensor, Tensor]:
    """Metric and answer of every prompt, unpatched."""
    values, answers = [], []
    for rows in chunks(shape_of(inputs)[0], batch):
        logits = answer_logits(model, rows_of(inputs, rows))
        values.append(_measured(metric, logits, rows))
        answers.append(logits.argmax(-1))
    return torch.cat(values), torch.cat(answers)


def _measured(metric: Metric, logits: Tensor, rows: slice) -> Tensor:
    values = metric(logits, rows)
    if not isinstance(values, Tensor) or values.shape != logits.shape[:1]:
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"the metric returned {shape} for {len(logits)} prompts: return one number a prompt, "
            "from metric(logits [batch, value], rows)"
        )
    return values


def _same(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return torch.equal(left, right)


def _share(change: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole == 0, torch.zeros_like(change), change / whole)


def _none_first(value: object) -> tuple[bool, object]:
    return (value is not None, value if value is not None else 0)
