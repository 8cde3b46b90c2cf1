"""Frames say exactly what results say: each result can be put together again from its frame."""

from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from analyses import TrainingRecipe, default_family, trace, train, trained_result
from analyses.family import FamilyResult
from analyses.recipe import Progress
from analyses.tracing import LayerTrace, Measured
from architectures import ModelConfig, hand_set_model
from composition import CompositionTask
from probes import HopMap, HopProbes, Interchange, PatchSweep, Site
from probes.back_patching import BackPatch
from probes.frames import site_columns, tidy
from probes.lens import TunedLens
from probes.mechanisms import CarryOrLookUp, EntryContents, InterchangeControls
from probes.probing import ProbeTable
from probes.subspace import Alignment
from tests.conftest import TASKS

sizes = st.integers(1, 4)
seeds = st.integers(0, 2**31)
dtypes = st.sampled_from([torch.float32, torch.float64])
POSITIONS = ("start", "answer")


def drawn(shape, seed, dtype=torch.float64):
    """Random numbers, some of them missing."""
    values = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return torch.where(values < 0.1, float("nan"), values)


def whole(frame: pd.DataFrame, shape, column: str) -> torch.Tensor:
    """The column as a tensor again, whose axes are the order of the rows."""
    return torch.from_numpy(frame[column].to_numpy().reshape(shape).copy())


def same(left: torch.Tensor, right: torch.Tensor) -> None:
    assert left.dtype == right.dtype
    torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


def cells(frame: pd.DataFrame, axes: dict) -> None:
    """The rows are the axes' combinations, the last the fastest, each once."""
    expected = pd.MultiIndex.from_product(list(axes.values()))
    assert list(map(tuple, frame[list(axes)].to_numpy(dtype=object))) == list(expected)


@given(sizes, sizes, seeds, dtypes)
@settings(max_examples=30, deadline=None)
def test_tensors_become_columns_and_their_axes_labels(rows, columns, seed, dtype):
    values = drawn((rows, columns), seed, dtype)
    labels = [f"column {index}" for index in range(columns)]
    frame = tidy({"row": range(rows), "label": labels}, {"value": values, "first": values[:, :1]})
    assert list(frame) == ["row", "label", "value", "first"]
    cells(frame, {"row": range(rows), "label": labels})
    same(whole(frame, (rows, columns), "value"), values)
    same(whole(frame, (rows, columns), "first"), values[:, :1].expand(rows, columns))


def test_half_precision_is_kept_exactly_and_gradients_are_left_behind():
    values = torch.tensor([1.0, 1 / 3], dtype=torch.bfloat16, requires_grad=True)
    assert tidy({"n": range(2)}, {"value": values})["value"].tolist() == values.tolist()


@given(sizes, sizes, seeds, dtypes)
@settings(max_examples=30, deadline=None)
def test_interchange_and_hop_probes(layers, hops, seed, dtype):
    follows = {p: drawn((layers, hops), seed + i, dtype) for i, p in enumerate(POSITIONS)}
    unchanged = {p: drawn((layers,), seed + 2 + i, dtype) for i, p in enumerate(POSITIONS)}
    frame = Interchange(follows, dict(reversed(unchanged.items())), 7).to_frame()
    assert list(frame) == ["position", "layer", "hop", "follows", "unchanged", "pairs"]
    cells(frame, {"position": POSITIONS, "layer": range(layers), "hop": range(hops)})
    assert set(frame["pairs"]) == {7}
    probes = HopProbes(follows, {p: 1 - follows[p] for p in reversed(POSITIONS)}).to_frame()
    assert list(probes) == ["position", "layer", "hop", "accuracy", "shuffled"]
    for position in POSITIONS:
        rows = frame[frame["position"] == position]
        same(whole(rows, (layers, hops), "follows"), follows[position])
        there = unchanged[position][:, None].expand(layers, hops)
        same(whole(rows, (layers, hops), "unchanged"), there)
        rows = probes[probes["position"] == position]
        same(whole(rows, (layers, hops), "accuracy"), follows[position])
        same(whole(rows, (layers, hops), "shuffled"), 1 - follows[position])


def test_interchange_controls():
    def swaps(seed):
        return Interchange(
            {p: drawn((3, 2), seed + i) for i, p in enumerate(POSITIONS)},
            {p: drawn((3,), seed + 2 + i) for i, p in enumerate(POSITIONS)},
            5,
        )

    off_path = {p: drawn((3,), 9 + i) for i, p in enumerate(POSITIONS)}
    controls = InterchangeControls(swaps(0), swaps(5), off_path)
    frame = controls.to_frame()
    by_control = dict(list(frame.groupby("control", sort=False)))
    assert list(by_control) == ["random direction", "untrained", "off path"]
    for name, swap in (
        ("random direction", controls.random_direction),
        ("untrained", controls.untrained),
    ):
        rows = by_control[name].drop(columns="control").reset_index(drop=True)
        pd.testing.assert_frame_equal(rows.astype({"hop": "int64"}), swap.to_frame())
    rows = by_control["off path"]
    assert rows["hop"].isna().all()
    assert rows["follows"].isna().all()
    cells(rows, {"position": POSITIONS, "layer": range(3)})
    same(whole(rows, (2, 3), "unchanged"), torch.stack(list(off_path.values())))


@given(sizes, sizes, sizes, seeds)
@settings(max_examples=20, deadline=None)
def test_entry_contents_and_carry_or_look_up(layers, hop, later, seed):
    contents = EntryContents(hop, drawn((layers, later), seed), drawn((layers,), seed + 1))
    frame = contents.to_frame()
    cells(frame, {"function": [hop], "layer": range(layers), "hop": range(hop, hop + later)})
    same(whole(frame, (layers, later), "follows"), contents.follows)
    same(whole(frame, (layers, later), "unchanged")[:, 0], contents.unchanged)

    mechanism = CarryOrLookUp(layers, drawn((hop + 1,), seed), drawn((hop,), seed + 1))
    frame = mechanism.to_frame()
    assert list(frame) == ["layer", "does", "hop", "share"]
    assert set(frame["layer"]) == {layers}
    carries, looks_up = (frame[frame["does"] == does] for does in ("carries", "looks up"))
    assert list(carries["hop"]) == list(range(hop + 1))
    assert list(looks_up["hop"]) == list(range(1, hop + 1))
    same(whole(carries, (hop + 1,), "share"), mechanism.carried)
    same(whole(looks_up, (hop,), "share"), mechanism.looked_up)


places = st.one_of(st.none(), st.integers(-3, 9), st.tuples(st.integers(0, 9), st.integers(0, 9)))
sites = st.builds(
    Site,
    st.sampled_from(["resid_pre", "z"]),
    st.integers(0, 3),
    places,
    st.one_of(st.none(), st.integers(0, 3)),
)


def plain(value):
    """None for what is missing, and no numpy."""
    if isinstance(value, tuple):
        return value
    return None if pd.isna(value) else int(value)


@given(st.lists(sites, max_size=5), sizes, seeds, dtypes, st.booleans())
@settings(max_examples=50, deadline=None)
def test_patch_sweeps(chosen, prompts, seed, dtype, ablation):
    shape = (len(chosen), prompts)
    generator = torch.Generator().manual_seed(seed)
    sweep = PatchSweep(
        sites=tuple(chosen),
        values=torch.rand(shape, generator=generator, dtype=dtype),
        answers=torch.randint(9, shape, generator=generator),
        base=torch.rand(prompts, generator=generator, dtype=dtype),
        donor=None if ablation else torch.rand(prompts, generator=generator, dtype=dtype),
        done=torch.rand(shape, generator=generator) < 0.5,
    )
    frame = sweep.to_frame()
    of_the_site = ["site", "component", "layer", "position", "head"]
    measured = ["prompt", "value", "answer", "base", "donor", "done"]
    assert list(frame) == of_the_site + measured
    cells(frame, {"site": range(shape[0]), "prompt": range(prompts)})
    same(whole(frame, shape, "value"), sweep.values)
    same(whole(frame, shape, "answer"), sweep.answers)
    same(whole(frame, shape, "base"), sweep.base.expand(shape))
    if sweep.donor is None:
        assert frame["donor"].isna().all()
    else:
        same(whole(frame, shape, "donor"), sweep.donor.expand(shape))
    same(whole(frame, shape, "done"), sweep.done)
    first = frame[frame["prompt"] == 0]
    columns = ("component", "layer", "position", "head")
    again = tuple(
        Site(component, *map(plain, place))
        for component, *place in zip(*(first[name] for name in columns), strict=True)
    )
    assert again == sweep.sites


def test_places_of_sites_are_integers_unless_a_site_has_several():
    one = site_columns([Site("z", 0, 3, 1), Site("z", 0)])
    assert (one["position"].dtype, one["head"].dtype) == ("Int64", "Int64")
    assert site_columns([Site("v", 0, (3, 4))])["position"].tolist() == [(3, 4)]


@given(sizes, sizes, seeds)
@settings(max_examples=20, deadline=None)
def test_probe_tables(rows, count, seed):
    targets = tuple(f"i_{index}" for index in range(count))
    of_cells = ("accuracy", "low", "high", "shuffled", "control", "untrained", "penalty")
    table = ProbeTable(
        targets=targets,
        chance=drawn((count,), seed + 10),
        frequency_baseline=drawn((count,), seed + 11),
        fitted=(),
        **{name: drawn((rows, count), seed + i) for i, name in enumerate(of_cells)},
    )
    frame = table.to_frame()
    names = {field.name for field in fields(table)}
    assert set(frame) == {"site", "target"} | (names - {"targets", "fitted"})
    cells(frame, {"site": range(rows), "target": targets})
    for name in of_cells:
        same(whole(frame, (rows, count), name), getattr(table, name))
    for name in ("chance", "frequency_baseline"):
        same(whole(frame, (rows, count), name)[0], getattr(table, name))


def test_back_patches_have_a_row_for_each_way_back():
    accuracy = drawn((3, 3), 0).tril().masked_fill(torch.ones(3, 3).triu(1) > 0, float("nan"))
    frame = BackPatch(accuracy, 0.25, 0.5, (2, 0)).to_frame()
    ways = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert list(zip(frame["source"], frame["target"], strict=True)) == ways
    same(whole(frame, (6,), "accuracy"), accuracy[tuple(zip(*ways, strict=True))])
    assert set(frame["unpatched"]) == {0.25}


def test_hop_maps():
    task, shape = TASKS["L=2"], (3, 4, TASKS["L=2"].length)
    found = HopMap(task, drawn(shape, 0), torch.arange(task.length))
    frame = found.to_frame()
    assert list(frame) == ["hop", "layer", "position", "follows", "pairs"]
    cells(frame, {name: range(size) for name, size in zip(frame, shape, strict=False)})
    same(whole(frame, shape, "follows"), found.follows)
    same(whole(frame, shape, "pairs")[0, 0], found.pairs)


def test_lenses_and_alignments():
    lens = TunedLens(torch.zeros(2, 3, 3), torch.zeros(2, 3), -1, torch.tensor([0.5, 0.1]))
    frame = lens.to_frame()
    assert list(frame["layer"]) == [0, 1]
    assert list(frame["position"]) == [-1, -1]
    same(whole(frame, (2,), "divergence"), lens.divergence)
    alignment = Alignment(Site("z", 0), 1, torch.eye(2), (0.7, 0.1 + 0.2))
    assert alignment.to_frame().to_dict("list") == {"step": [0, 1], "loss": [0.7, 0.1 + 0.2]}


def layers_again(frame: pd.DataFrame) -> tuple[LayerTrace, ...]:
    """The layers of a trace from its frame."""

    def measured(rows):
        assert list(rows["hop"]) == list(range(len(rows)))
        (unchanged,) = set(rows["unchanged"])
        names = ("interchange", "probe", "probe_floor")
        return Measured(unchanged=unchanged, **{name: tuple(rows[name]) for name in names})

    layers = []
    for _, rows in frame.groupby("layer", sort=False):
        of_the_layer = set(LayerTrace.model_fields) - {"start", "answer"}
        (row,) = rows[sorted(of_the_layer)].drop_duplicates().to_dict("records")
        at = {p: measured(rows[rows["position"] == p]) for p in POSITIONS}
        layers.append(LayerTrace(**row, **at))
    return tuple(layers)


@pytest.mark.parametrize("name", ["full-L2", "one-to-three-L3", "linear-forward-L3"])
def test_a_trace_can_be_read_from_its_frame(name):
    traced = trained_result(name).trace
    assert layers_again(traced.to_frame()) == traced.layers
    assert len(traced.to_frame()) == len(traced.layers) * 2 * (traced.hops + 1)


def test_a_traces_frame_is_what_the_readme_reads_off_it():
    traced = trace(hand_set_model(TASKS["L=2"], "early-linear"), prompts=200, pairs=20)
    made = traced.to_frame().groupby("layer")["causal_hop"].first()
    assert made.to_dict() == {0: 0, 1: 0, 2: 1, 3: 2}


def test_a_family_is_its_runs_below_one_another():
    family = default_family()
    runs = {name: trained_result(f"{name}-L2") for name in ("full", "early-linear")}
    result = FamilyResult(family=family, runs=runs, failed={"late-linear": "no memory"})
    frame = result.to_frame()
    assert list(frame["run"].unique()) == list(runs)
    assert list(frame.index) == list(range(len(frame)))
    for name, rows in frame.groupby("run"):
        run = runs[name]
        of_the_run = rows[["seed", "accuracy", "outcome", "step"]].drop_duplicates()
        assert of_the_run.to_numpy(dtype=object).tolist() == [
            [run.recipe.seed, run.accuracy, run.outcome, run.progress.step]
        ]
        assert layers_again(rows) == run.trace.layers
    empty = FamilyResult(family=family, runs={}, failed={"full": "no memory"}).to_frame()
    assert len(empty) == 0


def entries_again(frame: pd.DataFrame) -> list[Progress]:
    hops = [name for name in frame if name.startswith("accuracy_hops_")]
    assert hops == [f"accuracy_hops_{hop}" for hop in range(1, len(hops) + 1)]
    entries = []
    for row in frame.to_dict("records"):
        row = {name: None if pd.isna(value) else value for name, value in row.items()}
        entries.append(Progress(by_hops=tuple(row.pop(name) for name in hops), **row))
    return entries


@pytest.mark.parametrize("name", ["full-L2", "full-L3"])
def test_a_history_can_be_read_from_its_frame(name):
    result = trained_result(name)
    ended = result.history[-1:] == (result.progress,)
    expected = [*result.history, *([] if ended else [result.progress])]
    assert entries_again(result.to_frame()) == expected


@pytest.mark.parametrize(("steps", "rows"), [(3, [3]), (25, [25]), (26, [25, 26])])
def test_the_history_of_a_training_ends_where_training_did(steps, rows):
    task = CompositionTask(start_domain=3, branching=(3,))
    config = ModelConfig(task=task, schedule=("full",), d_model=16)
    result = train(config, recipe=TrainingRecipe(steps=steps, evaluation_prompts=64))
    frame = result.to_frame()
    assert list(frame["step"]) == rows
    assert entries_again(frame)[-1] == result.progress
    assert entries_again(replace(result, history=[]).to_frame()) == [result.progress]
    assert np.isfinite(frame["loss"]).all()
