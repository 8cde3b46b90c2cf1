"""A grid of runs, as data: settings in common, settings that are crossed, and named arms.

In TOML:

    [base]                          # of every run: fields of the task, the model, the recipe
    start_domain = 8
    branching = [4]

    [cross]                         # every combination of these
    seed = [0, 1, 2]

    [arms.full]                     # and each of these
    schedule = "full,full,full"

    [arms.early-linear]
    schedule = "full,deltanet,full"

`cpus` and `gpus` are what a run reserves on a Ray cluster, one CPU if nothing is said.
"""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import to_jsonable_python

from analyses.recipe import TrainingRecipe
from analyses.resources import Resources
from architectures import ModelConfig
from architectures.checkpoints import one_line
from composition import CompositionTask, read_schedule

Settings = dict[str, Any]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
"""What an arm may be called: its runs' directories begin with it."""


class Point(BaseModel):
    """One run of a grid.

    Attributes:
        name: of the run and its directory, such as "early-linear_seed=0".
        arm: the arm it belongs to.
        varied: the crossed settings, which tell it from the others of its arm.
        config, recipe: the model, and how to train it.
        resources: what it reserves on a cluster.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    arm: str
    varied: Settings
    config: ModelConfig
    recipe: TrainingRecipe
    resources: Resources = Resources()

    @property
    def same(self) -> tuple[ModelConfig, TrainingRecipe]:
        """What makes it the run that it is; where it is made does not."""
        return self.config, self.recipe


class Grid(BaseModel):
    """Runs to be made and laid side by side.

    Settings are the fields of `CompositionTask`, `ModelConfig`, `TrainingRecipe` and `Resources` by
    their own names. A schedule may be one string, "full,deltanet,full" or the name of a public
    hybrid.

    Args:
        base: settings of every run.
        cross: for each setting the values it takes; every combination is a run.
        arms: by name, settings that go together; every arm has all combinations.

    Raises:
        pydantic.ValidationError: an unknown setting, one that is given twice, or a name that
            cannot be a directory's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: Settings = {}
    cross: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    arms: dict[str, Settings] = Field(default={"run": {}}, min_length=1)

    @classmethod
    def read(cls, path: str | Path) -> Grid:
        """The grid in a TOML file.

        Raises:
            ValueError: not TOML, or not a grid; the message names the file.
            OSError: it cannot be read.
        """
        try:
            grid = cls.model_validate(tomllib.loads(Path(path).read_text(encoding="utf-8")))
            grid.points()
        except ValidationError as error:
            raise ValueError(f"{path}: {one_line(error)}") from None
        except ValueError as error:  # tomllib's, unicode's and ours
            raise ValueError(f"{path}: {error}") from None
        return grid

    @field_validator("base", "cross", "arms")
    @classmethod
    def _as_json_has_it(cls, settings: Settings) -> Settings:
        """Tuples become lists: a grid that was stored equals the grid that it was."""
        return to_jsonable_python(settings)

    @field_validator("arms")
    @classmethod
    def _names_can_be_directories(cls, arms: dict[str, Settings]) -> dict[str, Settings]:
        for name in arms:
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"an arm cannot be called {name!r}, since directories are named after it; "
                    "use letters, digits, '.', '+' and '-'"
                )
        return arms

    def points(self) -> list[Point]:
        """The runs, arm by arm; the setting named last in `cross` varies fastest.

        Raises:
            ValueError: an unknown setting, a setting given twice, a value that its field does
                not take, or two runs that are the same.
        """
        points: list[Point] = []
        for arm, of_arm in self.arms.items():
            for values in product(*self.cross.values()):
                varied = dict(zip(self.cross, values, strict=True))
                points.append(self._point(arm, of_arm, varied))
        same: dict[tuple[str, str], str] = {}
        for point in points:
            key = (point.config.model_dump_json(), point.recipe.model_dump_json())
            if key in same:
                raise ValueError(f"{same[key]} and {point.name} are the same run; leave one out")
            same[key] = point.name
        return points

    def _point(self, arm: str, of_arm: Settings, varied: Settings) -> Point:
        for name in of_arm.keys() & varied.keys():
            raise ValueError(f"{name} is both crossed and set by arm {arm!r}; give it once")
        name = "_".join([arm, *(f"{field}={_short(value)}" for field, value in varied.items())])
        try:
            config, recipe, resources = build({**self.base, **of_arm, **varied})
        except ValidationError as error:
            raise ValueError(f"run {name}: {one_line(error)}") from None
        except ValueError as error:
            raise ValueError(f"run {name}: {error}") from None
        return Point(
            name=name, arm=arm, varied=varied, config=config, recipe=recipe, resources=resources
        )


def build(settings: Settings) -> tuple[ModelConfig, TrainingRecipe, Resources]:
    """The model, the recipe and the resources that flat settings describe.

    Raises:
        ValueError: a name that no field has, or a value that its field does not take.
    """
    task = set(CompositionTask.model_fields)
    model = set(ModelConfig.model_fields) - {"task"}
    recipe, resources = set(TrainingRecipe.model_fields), set(Resources.model_fields)
    for name in settings.keys() - task - model - recipe - resources:
        known = sorted(task | model | recipe | resources)
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"use some of {', '.join(known)}"
        raise ValueError(f"{name!r} is no setting of task, model, recipe or resources; {hint}")

    def only(fields: set[str]) -> Settings:
        return {name: value for name, value in settings.items() if name in fields}

    of_model = only(model)
    if isinstance(of_model.get("schedule"), str):
        of_model["schedule"] = read_schedule(of_model["schedule"])
    config = ModelConfig(task=CompositionTask(**only(task)), **of_model)
    return config, TrainingRecipe(**only(recipe)), Resources(**only(resources))


def _short(value: Any) -> str:
    """A value as a part of a directory's name."""
    parts = value if isinstance(value, list | tuple) else [value]
    text = "-".join(str(part).replace(",", "-") for part in parts)
    if not re.fullmatch(r"[A-Za-z0-9.+-]+", text):
        raise ValueError(f"{value!r} cannot be crossed, since runs are named after it; make arms")
    return text
