"""A report: one self-contained page of some runs, verdict first, that needs no network."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from analyses.figures import Picture, describe_heatmaps, describe_steps, heatmaps, steps, to_png
from analyses.runs import RunResult
from analyses.views.attention import attention_view
from analyses.views.effects import effect_view
from analyses.views.pictures import circuit_figure, describe_hop_map, hop_map_figure
from analyses.views.viewers import bundle_html, drawing_html
from architectures import HookedStack, load_model
from architectures.checkpoints import WEIGHTS_FILE
from composition.sampling import CounterfactualPairs
from probes.circuit import circuit
from probes.hop_map import hop_map

LEARNED = 0.99
"""Exact accuracy above which a task counts as learned."""

ANSWERS = 0.5
"""Exact accuracy from which on it is worth asking how answers come about."""

DPI = 90


@dataclass(frozen=True)
class Reported:
    """One run of a report.

    Attributes:
        name: what the page calls it.
        result: how it ended, with its trace.
        model: its weights; without them there are no views of its inside.
    """

    name: str
    result: RunResult
    model: HookedStack | None = None


@dataclass(frozen=True)
class Report:
    """What a page is made of.

    Attributes:
        title: of the page.
        runs: those shown, each with a section of its own; at least one.
        again: command or code that makes the runs anew, and what it is ("shell", "python").
        more: other runs that only have a row in the table.
        failed: errors of those that failed, by name.
        note: a sentence about which runs are shown; none if empty.
    """

    title: str
    runs: Sequence[Reported]
    again: tuple[str, str]
    more: Sequence[Reported] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def model_in(directory: Path) -> HookedStack | None:
    """The trained model of a run, or None where its weights are gone."""
    return load_model(directory) if (directory / WEIGHTS_FILE).exists() else None


def render_report(report: Report, told: Callable[[str], None] | None = None) -> str:
    """The page as HTML.

    Args:
        told: called with the name of each run when its section is begun.

    Raises:
        ValueError: a report without a single finished run.
    """
    if not report.runs:
        name, error = next(iter(report.failed.items()), ("", ""))
        reason = f" ({name} failed: {error})" if name else ""
        raise ValueError(
            f"no run is finished, so there is nothing to report{reason}; start it again"
        )
    environment = Environment(
        loader=PackageLoader("analyses"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    sections = []
    with one_thread():
        for run in report.runs:
            if told is not None:
                told(run.name)
            sections.append(_section(run))
    first, rows = report.runs[0].result, [*report.runs, *report.more]
    return environment.get_template("report.html").render(
        report=report,
        rows=rows,
        sections=sections,
        verdict=verdict(rows, report.failed),
        first=first,
        task=first.trace.config.task,
        one_task=len({run.result.trace.config.task for run in rows}) == 1,
        bundle=Markup(bundle_html() + drawing_html()),
        condition=first.trace.size_condition,
    )


def verdict(runs: Sequence[Reported], failed: Mapping[str, str]) -> list[str]:
    """What the runs show, in sentences: against the prediction first."""
    past = [
        f"{run.name} after layer {layer.layer} ({layer.causal_hop} hops, {layer.upper} allowed)"
        for run in runs
        for layer in run.result.trace.layers
        if layer.verdict == "above"
    ]
    behind = [
        run.name
        for run in runs
        if any(layer.verdict == "below" for layer in run.result.trace.layers)
    ]
    learned = [run.name for run in runs if run.result.accuracy > LEARNED]
    said = []
    if past:
        said.append(f"Against the prediction, past the bound: {_some(past)}.")
    said.append(
        f"{len(learned)} of {len(runs)} runs learned the task (exact accuracy above {LEARNED}): "
        f"{_some(learned)}."
        if learned
        else f"{'No run' if len(runs) > 1 else 'The run has not'} learned the task (exact accuracy "
        f"above {LEARNED})."
    )
    if behind:
        said.append(f"Short of the lower bound, after some layer: {_some(behind)}.")
    if not past and not behind:
        said.append("Every layer's causal hop is inside its bounds.")
    if failed:
        said.append(f"Failed: {_some(list(failed))}.")
    return said


@contextmanager
def one_thread() -> Iterator[None]:
    """Models here are small: on a busy machine a second thread costs many times what it saves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _section(run: Reported) -> dict[str, Any]:
    trace = run.result.trace
    views: list[tuple[str, str, Markup]] = []
    if run.model is not None:
        model, task = run.model, run.model.config.task
        prompts = task.sample(64, torch.Generator().manual_seed(0))

        def circuit_html() -> str:
            if run.result.accuracy < ANSWERS:
                raise ValueError(
                    f"{100 * run.result.accuracy:.1f} % of the answers are right, and a circuit of "
                    f"wrong ones says little; it is drawn from {100 * ANSWERS:.0f} % on"
                )
            found = circuit(model, task, chains=8, prompts=8)
            words = "; ".join(found.sentences()) or "no path reaches a tenth of the effect"
            return wide(image(circuit_figure(found), f"Circuit. {words}."), "Circuit")

        def hop_map_html() -> str:
            found = hop_map(model, task, pairs=256)
            words = f"Hop map. {describe_hop_map(found)}"
            return wide(image(hop_map_figure(found), words), "Hop map")

        def effect_html() -> str:
            pairs = task.counterfactual(prompts, 1, torch.Generator().manual_seed(0))
            return effect_view(model, pairs, row=answered(model, pairs)).html

        views = [
            ("Who moves which hop where", CIRCUIT, _or_reason(circuit_html)),
            ("Where is each hop’s value?", HOP_MAP, _or_reason(hop_map_html)),
            ("One prompt, patched", "", _or_reason(effect_html)),
            (
                "Who looks at what, on the same prompt",
                ATTENTION,
                _or_reason(lambda: attention_view(model, prompts).html),
            ),
        ]
    return {
        "run": run,
        "steps": Markup(image(steps(trace), describe_steps(run.name, trace))),
        "heatmaps": Markup(image(heatmaps(trace), describe_heatmaps(trace))),
        "views": views,
    }


CIRCUIT = (
    "Path patching between components at the positions the chain visits. An arrow is a direct "
    "path: the share of the answer it alone brings back after an entry of the chain was changed, "
    "and the hop whose value goes along it, as far as "
    "one can tell: of those worth about as much the last. 8 chains; paths under 0.1 are left out."
)
HOP_MAP = (
    "Share of pairs that go on from a donor prompt’s value when the residual at that position "
    "and layer is the donor’s. Entries are compared where both prompts visit them; grey is not "
    "measured. An entry’s cell is of those of 256 pairs that visit it, which may be a few."
)
ATTENTION = (
    "Patterns of full layers, and the exact effective attention of linear ones, which may be "
    "negative. Choose a head with the mouse, or with Tab and Enter."
)


def _or_reason(make: Callable[[], str]) -> Markup:
    """What a view shows, or in words why it cannot be shown for this task."""
    try:
        return Markup(make())
    except ValueError as error:
        return Markup("<p>Not shown: {}.</p>").format(str(error))


def image(figure: Picture, words: str) -> str:
    """A figure inside the page, with words for those who cannot see it."""
    data = base64.b64encode(to_png(figure, words, dpi=DPI)).decode()
    return Markup('<img src="data:image/png;base64,{}" alt="{}">').format(data, words)


def wide(picture: str, name: str) -> str:
    """A picture that scrolls sideways where the page is too narrow for it to be read."""
    return Markup(
        '<div class="scroll wide" tabindex="0" role="region" aria-label="{}">{}</div>'
    ).format(name, Markup(picture))


@torch.no_grad()
def answered(model: HookedStack, pairs: CounterfactualPairs) -> int:
    """The first pair of which the model answers both prompts right.

    Raises:
        ValueError: there is none: of a wrong answer no part can be brought back.
    """
    right = torch.ones(len(pairs), dtype=torch.bool)
    for side in (pairs.clean, pairs.corrupted):
        right &= model(side.tokens)[:, -1].argmax(-1) == side.answer
    if not right.any():
        raise ValueError(
            f"of {len(pairs)} prompts and their twins it answers none right, and of a wrong answer "
            "nothing can be brought back"
        )
    return int(right.float().argmax())


def _some(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
