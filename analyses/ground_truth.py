"""Every tool on models whose mechanism is written down: what it finds against what is there.

    python -m analyses.ground_truth > docs/ground_truth.md

What each tool has to find follows from a mechanism's steps (`hand_set_mechanisms.py`). Every
finding is a statement that holds or does not; a cell of the table counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from analyses.hand_set_mechanisms import TASKS, Mechanism, models
from architectures import HookedStack
from composition import CompositionTask
from composition.sampling import visited_position
from probes import (
    PromptSplit,
    Site,
    Target,
    ablation_sweep,
    activation_reader,
    agreement,
    align,
    attribution,
    carry_or_look_up,
    correctness,
    entry_contents,
    first_hop,
    fit_tuned_lens,
    grid,
    interchange,
    interchange_at,
    interchange_controls,
    interchange_pairs,
    lens_accuracy,
    logit_difference,
    logit_lens,
    patch_sweep,
    path_sweep,
    probe_sites,
    subspace_interchange,
)
from probes.activations import residual_sites
from probes.fitters import logistic
from probes.interchange import InterchangePairs
from probes.metrics import Metric

PROMPTS, PAIRS = 24, 100
NEAR_ONE, NEAR_ZERO = 0.99, 0.01

Statements = list[tuple[str, bool]]
"""What was checked, and whether it holds."""


def probes(mechanism: Mechanism, model: HookedStack) -> Statements:
    """A logistic probe is exact where a hop stands, and not where it does not."""
    task = mechanism.task
    prompts = task.sample(2000, torch.Generator().manual_seed(1))
    targets = {
        f"i_{hop}": Target(prompts.chain[:, hop], task.ranges[hop]) for hop in range(task.hops + 1)
    }
    found: Statements = []
    for name, position in task.traced_positions.items():
        read = activation_reader(model, prompts.tokens, residual_sites(model, position))
        table = probe_sites(read, targets, PromptSplit.of(len(prompts)), fit=logistic)
        for place, hops in enumerate(mechanism.readable(position)):
            exact = {hop for hop in range(task.hops + 1) if table.accuracy[place, hop] > NEAR_ONE}
            found.append((f"{name}, layer {place}: {exact}", exact == hops))
    return found


def lenses(mechanism: Mechanism, model: HookedStack) -> Statements:
    """Both lenses read the answer after the layer that makes it, and nothing before."""
    task, generator = mechanism.task, torch.Generator().manual_seed(2)
    fit, test = task.sample(2000, generator), task.sample(300, generator)
    tuned = fit_tuned_lens(model, fit.tokens).logits(model, test.tokens)
    made = mechanism.steps[-1].layer + 1
    found: Statements = []
    for name, logits in (
        ("logit", logit_lens(model, test.tokens, [-1])[:, 0]),
        ("tuned", tuned),
    ):
        reads = lens_accuracy(logits, task, test)[:, task.hops] > NEAR_ONE
        found += [
            (f"{name} lens, layer {place}", bool(reads[place]) == (place >= made))
            for place in range(len(reads))
        ]
    return found


def residual_interchange(mechanism: Mechanism, model: HookedStack) -> Statements:
    """After every layer, at both positions: exactly the hop that is carried, or nothing."""
    task, pairs = mechanism.task, _pairs(mechanism.task)
    swaps = interchange(model, task, pairs)
    found: Statements = []
    for name, position in task.traced_positions.items():
        shares = torch.cat([swaps.follows[name], swaps.unchanged[name][:, None]], dim=1)
        for place, hop in enumerate(mechanism.carried(position)):
            found.append((f"{name}, layer {place}", _only(shares[place], hop)))
    return found


def head_interchange(mechanism: Mechanism, model: HookedStack) -> Statements:
    """A head's output brings the hop of its step, at the step's position, and no other does."""
    task, pairs = mechanism.task, _pairs(mechanism.task)
    places = task.traced_positions.values()
    sites = [Site("z", layer, at, 0) for layer in range(len(mechanism.layers)) for at in places]
    brought: dict[tuple[int, object], int] = {
        (step.layer, step.at): step.hop for step in mechanism.steps
    }
    return [
        (str(site), _only(shares, brought.get((site.layer, site.position))))
        for site, shares in zip(sites, interchange_at(model, pairs, sites), strict=True)
    ]


def state_interchange(mechanism: Mechanism, model: HookedStack) -> Statements:
    """A recurrent state holds the carried hop from the start position on, until it is read."""
    task, pairs = mechanism.task, _pairs(mechanism.task)
    found: Statements = []
    for step in mechanism.steps:
        if model.config.schedule[step.layer] == "full":
            continue
        sites = [Site("state", step.layer, place) for place in range(task.length)]
        for site, shares in zip(sites, interchange_at(model, pairs, sites), strict=True):
            assert isinstance(site.position, int)
            held = task.start_position <= site.position < task.answer_position
            found.append((str(site), _only(shares, step.hop if held else None)))
    return found


def mechanism_tests(mechanism: Mechanism, model: HookedStack) -> Statements:
    """Where the first hop is made, what each layer does, what entries hold."""
    task, steps = mechanism.task, mechanism.steps
    where = "start" if steps[0].at == task.start_position else "answer"
    swaps = interchange(model, task, _pairs(task))
    found: Statements = [("first hop", first_hop(swaps).position == where)]
    for layer in range(len(mechanism.layers)):
        step = next((step for step in steps if step.layer == layer), None)
        does = carry_or_look_up(model, task, layer, pairs=PAIRS)
        hop_of = {step.carries: step.hop} if step is not None else {}
        expected = (hop_of.get(True), hop_of.get(False))
        found.append((f"layer {layer}", (does.carries, does.looks_up) == expected))
    for hop in range(1, task.hops + 1):
        contents = entry_contents(model, task, hop, pairs=PAIRS)
        read_by = next(step.layer for step in steps if step.hop == hop and not step.carries)
        held = [float(place <= read_by) for place in range(len(mechanism.layers) + 1)]
        found.append((f"entries of z_{hop}", contents.follows[:, 0].tolist() == held))
        found.append((f"entries of z_{hop} fetch nothing", contents.fetched == 0))
    return found


def activation_patching(mechanism: Mechanism, model: HookedStack) -> Statements:
    """A changed entry is on its path with all of the effect, and nowhere else with any."""
    found: Statements = []
    for hop in range(mechanism.task.hops + 1):
        clean, corrupted, metric, entry = _changed(mechanism.task, hop)
        components = ("resid_pre", "attn_out", "z", "q", "k", "v", "pattern")
        sites = [site for c in components for site in grid(model, clean, c, heads=[None])]
        for direction in ("denoise", "noise"):
            sweep = patch_sweep(model, clean, corrupted, sites, metric, direction=direction)
            assert sweep.donor is not None
            effect = (sweep.values - sweep.base) / (sweep.donor - sweep.base)
            for site, shares in zip(sites, effect, strict=True):
                on_path = _on_path(mechanism, hop, site, entry)
                near = (shares - on_path.float()).abs() < NEAR_ZERO
                found.append((f"{direction} i_{hop}, {site}", bool(near.all())))
    return found


def _on_path(mechanism: Mechanism, hop: int, site: Site, entry: Tensor) -> Tensor:
    """`[prompt]`, whether the change of the entry that gives `i_hop` passes the site."""
    hit = torch.zeros(len(entry), dtype=torch.bool)
    for step, place, layers, as_value in mechanism.flow(hop):
        here = entry == site.position if place == -1 else torch.tensor(site.position == place)
        at_step = torch.tensor(site.layer == step.layer)
        if site.component == "resid_pre":
            hit |= here & (site.layer in layers)
        elif site.component == "v":
            hit |= here & at_step & as_value
        elif site.component in ("q", "pattern"):
            hit |= here & at_step & (not as_value)
        elif site.component in ("z", "attn_out"):
            hit |= at_step & (site.position == step.at)
    last = mechanism.steps[-1]
    if site.component == "resid_pre" and site.position == last.at:
        hit |= torch.tensor(site.layer > last.layer)
    return hit


def path_patching(mechanism: Mechanism, model: HookedStack) -> Statements:
    """What a step writes reaches the next step's value or query directly, and nothing else."""
    task = mechanism.task
    clean, corrupted, metric, _ = _changed(task, 0)
    found: Statements = []
    for sender, reader in zip(mechanism.steps, mechanism.steps[1:], strict=False):
        at_start = ("v", reader.layer, task.start_position)
        read = at_start if reader.carries else ("q", reader.layer, reader.at)
        receivers = [
            Site(part, layer, place, 0)
            for layer in range(sender.layer + 1, len(mechanism.layers))
            for part in "qkv"
            for place in task.traced_positions.values()
        ]
        wrote = Site("z", sender.layer, sender.at, 0)
        sweep = path_sweep(model, corrupted, clean, wrote, receivers, metric)
        for site, effect in zip(sweep.sites, sweep.effect.tolist(), strict=True):
            expected = float((site.component, site.layer, site.position) == read)
            found.append((f"{wrote} to {site}", abs(effect - expected) < NEAR_ZERO))
    return found


def ablation(mechanism: Mechanism, model: HookedStack) -> Statements:
    """Without a step's output the answer is lost, without any other layer's it stays."""
    task = mechanism.task
    prompts = task.sample(200, torch.Generator().manual_seed(4))
    sites = grid(model, prompts.tokens, "attn_out", positions=task.traced_positions.values())
    needed = {(step.layer, step.at) for step in mechanism.steps}
    sweep = ablation_sweep(model, prompts.tokens, sites, correctness(prompts.answer))
    return [
        (str(site), (right < 0.9) if (site.layer, site.position) in needed else right == 1)
        for site, right in zip(sites, sweep.values.double().mean(1).tolist(), strict=True)
    ]


def alignment(mechanism: Mechanism, model: HookedStack) -> Statements:
    """A learned subspace carries the hop that stands at the answer position, and no other one."""
    task = mechanism.task
    first = next(step for step in mechanism.steps if step.at == task.answer_position)
    site = Site("resid_post", first.layer, task.answer_position)
    fit, test = _pairs(task, 1024, seed=5), _pairs(task, 200, seed=6)
    found: Statements = []
    for hop in range(task.hops + 1):
        dimension = max(1, (task.ranges[hop] - 1).bit_length())
        basis = align(model, fit, site, hop, dimension, steps=60).basis
        accuracy = subspace_interchange(model, test, site, hop, basis).accuracy
        right = accuracy > NEAR_ONE if hop == first.hop else accuracy < 0.5
        found.append((f"i_{hop}: {accuracy:.2f}", right))
    return found


def controls(mechanism: Mechanism, model: HookedStack) -> Statements:
    """Where the donor's value moves every answer, random directions and fresh weights do not."""
    floors = interchange_controls(
        model, HookedStack(model.config), mechanism.task, _pairs(mechanism.task)
    )
    real = interchange(model, mechanism.task, _pairs(mechanism.task))
    found: Statements = []
    for name, position in mechanism.task.traced_positions.items():
        found.append((f"off the chain, {name}", bool((floors.off_path[name] == 1).all())))
        random, untrained = (
            floor.follows[name] for floor in (floors.random_direction, floors.untrained)
        )
        for place, hop in enumerate(mechanism.carried(position)):
            if hop is not None:  # where the donor's value moves every answer, the floors do not
                above = real.follows[name][place, hop] == 1 and random[place, hop] < 0.5
                found.append((f"random direction, {name} {place}", bool(above)))
        # The donor's answer, copied from the last layer, is right on untrained weights too.
        found.append((f"untrained, {name}", bool(untrained[:-1].max() < 0.5)))
    return found


def attribution_warns(mechanism: Mechanism, model: HookedStack) -> Statements:
    """Saturated softmaxes have no gradient: `agreement` names the sites that attribution misses."""
    clean, corrupted, metric, _ = _changed(mechanism.task, 0)
    sites = grid(model, clean, "resid_pre")
    sweep = patch_sweep(model, clean, corrupted, sites, metric)
    estimate = attribution(model, clean, corrupted, sites, metric)
    missed = set(agreement(sweep, estimate).missed)
    # From the last step on the stream is read out linearly; before it a saturated softmax is ahead.
    last = mechanism.steps[-1]
    ahead = {
        Site("resid_pre", layer, place)
        for _, place, layers, _ in mechanism.flow(0)
        for layer in layers
    }
    read_out = Site("resid_post", last.layer, last.at)
    estimated = attribution(model, clean, corrupted, [read_out], metric).double().mean()
    real = patch_sweep(model, clean, corrupted, [read_out], metric).change.double()[0]
    exact = abs(estimated - real) < NEAR_ZERO * abs(real)
    return [(str(site), (site in missed) == (site in ahead)) for site in sites] + [
        (f"{read_out} is exact", bool(exact))
    ]


TOOLS: dict[str, Callable[[Mechanism, HookedStack], Statements]] = {
    "probes": probes,
    "lenses": lenses,
    "interchange, residual": residual_interchange,
    "interchange, head output": head_interchange,
    "interchange, recurrent state": state_interchange,
    "interchange, learned subspace": alignment,
    "interchange, controls": controls,
    "mechanism tests": mechanism_tests,
    "activation patching": activation_patching,
    "path patching": path_patching,
    "ablation": ablation,
    "attribution says what it misses": attribution_warns,
}


def told_apart(left: Mechanism, right: Mechanism, tool: str) -> bool:
    """Whether the tool, expecting one mechanism, objects to the other's model."""
    return not all(holds for _, holds in TOOLS[tool](left, right.model()))


def _pairs(task: CompositionTask, count: int = PAIRS, seed: int = 3) -> InterchangePairs:
    return interchange_pairs(task, count, torch.Generator().manual_seed(seed))


def _changed(task: CompositionTask, hop: int) -> tuple[Tensor, Tensor, Metric, Tensor]:
    """Prompts with another entry for `i_hop`, and the metric that tells their answers apart."""
    generator = torch.Generator().manual_seed(10 + hop)
    pairs = task.counterfactual(task.sample(PROMPTS, generator), hop, generator)
    metric = logit_difference(pairs.clean.answer, pairs.corrupted.answer)
    entry = visited_position(task, pairs.clean, hop)
    return pairs.clean.tokens, pairs.corrupted.tokens, metric, entry


def _only(shares: Tensor, hop: int | None) -> bool:
    """Whether all pairs follow this hypothesis: a hop, or the last one, nothing changed."""
    expected = torch.zeros(len(shares), dtype=shares.dtype)
    expected[-1 if hop is None else hop] = 1
    return torch.equal(shares, expected)


def table(task: CompositionTask, tools: Sequence[str]) -> Iterator[str]:
    """Rows of the table for one task, and then what did not hold."""
    mechanisms = models(task)
    built = {name: mechanism.model() for name, mechanism in mechanisms.items()}
    yield "| tool | " + " | ".join(mechanisms) + " |"
    yield "|---|" + "---|" * len(mechanisms)
    wrong: list[str] = []
    for tool in tools:
        cells = []
        for name, mechanism in mechanisms.items():
            found = TOOLS[tool](mechanism, built[name])
            failed = [what for what, holds in found if not holds]
            wrong += [f"- {tool}, {name}: {what}" for what in failed]
            cells.append(f"{len(found) - len(failed)}/{len(found)}" if found else "—")
        yield f"| {tool} | " + " | ".join(cells) + " |"
    yield ""
    yield "Every statement holds." if not wrong else "\n".join(["Wrong:", "", *wrong])
    yield ""


def main() -> None:
    """Print the page."""
    print(HEADING)
    for hops, task in TASKS.items():
        size = f"Start domain {task.start_domain}, branching {task.branching}, T = {task.length}"
        print(f"## L = {hops}\n\n{size}.\n")
        for line in table(task, list(TOOLS)):
            print(line, flush=True)


HEADING = """# Ground truth: mechanism × tool

Printed by `python -m analyses.ground_truth`. Each column is a hand-set model whose mechanism is
known step by step; each cell counts the statements of a tool that hold, of all that follow from the
mechanism (what has to be found, and that nothing else is). The last four columns are deliberately
wrong models: they answer as exactly, but make their hops in other layers, or have a layer that does
nothing; every tool is held to what is really there. A dash: nothing there for the tool to look at.
"""

if __name__ == "__main__":
    main()
