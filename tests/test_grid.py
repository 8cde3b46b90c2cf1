"""Grids: read from TOML, crossed, named; what cannot be run is refused before anything runs."""

from pathlib import Path

import pytest

from analyses.grid import Grid, build
from analyses.recipe import TrainingRecipe
from analyses.resources import Resources
from architectures import ModelConfig
from composition import CompositionTask, named_schedule

TEXT = """
[base]
start_domain = 3
branching = [2]
d_model = 16

[cross]
steps = [10, 20]
seed = [0, 1]

[arms.full]
schedule = "full,full"

[arms.hybrid]
schedule = ["full", "deltanet"]
d_key = 2
"""


def written(tmp_path, text=TEXT):
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return path


def test_every_arm_has_every_combination(tmp_path):
    points = Grid.read(written(tmp_path)).points()
    assert [point.name for point in points] == [
        f"{arm}_steps={steps}_seed={seed}"
        for arm in ("full", "hybrid")
        for steps in (10, 20)
        for seed in (0, 1)
    ]
    last = points[-1]
    assert last.arm == "hybrid"
    assert last.varied == {"steps": 20, "seed": 1}
    task = CompositionTask(start_domain=3, branching=(2,))
    assert last.config == ModelConfig(task=task, schedule=("full", "deltanet"), d_model=16, d_key=2)
    assert last.recipe == TrainingRecipe(steps=20, seed=1)


def test_a_grid_is_the_same_after_a_trip_through_json(tmp_path):
    grid = Grid.read(written(tmp_path))
    assert Grid.model_validate_json(grid.model_dump_json()) == grid
    assert Grid.model_validate_json(grid.model_dump_json()).points() == grid.points()


def test_settings_reach_their_fields():
    """Every field of the four has one owner, so flat settings are never ambiguous."""
    fields = [
        *CompositionTask.model_fields,
        *ModelConfig.model_fields,
        *TrainingRecipe.model_fields,
        *Resources.model_fields,
    ]
    assert len(fields) == len(set(fields))
    settings = {"start_domain": 2, "branching": [3, 2], "schedule": "qwen3-next"}
    config, recipe, resources = build({**settings, "batch": 5, "gpus": 1})
    assert config.schedule == named_schedule("qwen3-next")
    assert config.task.branching == (3, 2)
    assert recipe.batch == 5
    assert resources.gpus == 1


@pytest.mark.parametrize("path", sorted(Path("grids").glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_grids_can_be_run(path):
    assert Grid.read(path).points()


@pytest.mark.parametrize(
    ("old", "new", "needed"),
    [
        ("d_key = 2", "d_keys = 2", ["'d_keys' is no setting", "did you mean 'd_key'?"]),
        ("d_key = 2", "zzz = 2", ["'zzz' is no setting", "use some of batch, "]),
        ("d_key = 2", "d_key = 0", ["run hybrid_steps=10_seed=0", "d_key", "0"]),
        ("d_key = 2", "seed = 3", ["seed is both crossed and set by arm 'hybrid'"]),
        ("seed = [0, 1]", "seed = [0, 0]", ["are the same run"]),
        ("seed = [0, 1]", "seed = []", ["cross.seed", "at least 1 item"]),
        ("seed = [0, 1]", "seed = 3", ["cross.seed", "list"]),
        ("[arms.full]", '[arms."a/b"]', ["'a/b'", "directories are named after it"]),
        ('"full,full"', '"full,fill"', ["run full_steps=10_seed=0", "fill"]),
        ("[base]", "[bass]", ["bass"]),
        ("[base]", "[base", ["grid.toml: ", "line 2"]),
        ("branching = [2]", "", ["branching", "required"]),
    ],
)
def test_what_cannot_be_run_is_refused(old, new, needed, tmp_path):
    path = written(tmp_path, TEXT.replace(old, new, 1))
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Grid.read(path)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("grid.toml", *needed):
        assert part in message, message


def test_a_grid_with_tuples_is_the_grid_that_was_stored():
    grid = Grid(
        base={"start_domain": 3, "schedule": ("full", "full")}, cross={"branching": [(2,), (3,)]}
    )
    again = Grid.model_validate_json(grid.model_dump_json())
    assert again == grid
    assert again.points() == grid.points()
