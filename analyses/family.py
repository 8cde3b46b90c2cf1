"""Several runs side by side, drawn and reported together: the default family."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from analyses.differences import first_difference
from analyses.figures import staircase, to_png
from analyses.frames import family_frame
from analyses.progress_bar import family_bars
from analyses.recipe import TrainingRecipe
from analyses.report import Report as ReportPage
from analyses.report import Reported, model_in, render_report
from analyses.runs import RunResult
from analyses.workers import Failure, Job, Report, processes, run_all
from architectures import CheckpointError, ModelConfig
from architectures.checkpoints import (
    read_json,
    visible_files,
    write_atomically,
    write_json,
)
from composition import CompositionTask

if TYPE_CHECKING:
    import pandas as pd

FAMILY_FILE, PROGRESS_FILE = "family.json", "progress.json"
FIGURE_FILE, REPORT_FILE = "staircase.png", "report.html"


class Family(BaseModel):
    """Runs that belong together.

    Attributes:
        arms: configs by name.
        recipe: how each is trained; the budget is the same for all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    arms: dict[str, ModelConfig]
    recipe: TrainingRecipe


class FamilyResult(BaseModel):
    """What `progress.json` holds: finished runs, and errors of those that failed, by name."""

    model_config = ConfigDict(frozen=True)

    family: Family
    runs: dict[str, RunResult]
    failed: dict[str, str]

    def to_frame(self) -> pd.DataFrame:
        """The traces of the finished runs below one another; those in `failed` have no rows.

        Columns: `run`, `seed`, `accuracy`, `outcome`, `step` of the run, then those of
        `ProgressTrace.to_frame`.
        """
        return family_frame(self.runs)


def default_family(*, steps: int = 3000, seed: int = 0) -> Family:
    """Four stacks at L = 2 whose bounds differ, small enough for minutes on two cores.

    With `m = 8` and `n_1 = 4` three full layers learn the task well within the budget and two do
    not; with `m = 4` two get further, by a shortcut (docs/learnability.md). The linear layers'
    state has two heads of two keys, fewer than the eight entries of `z_1`: it can carry a value
    but not hold the table.
    """
    task = CompositionTask(start_domain=8, branching=(4,))
    schedules = {
        "full": ("full", "full", "full"),
        "early-linear": ("full", "deltanet", "full"),
        "late-linear": ("full", "full", "deltanet"),
        "linear-only": ("deltanet", "deltanet", "deltanet"),
    }
    arms = {
        name: ModelConfig(task=task, schedule=schedule, linear_heads=2, d_key=2)
        for name, schedule in schedules.items()
    }
    return Family(arms=arms, recipe=TrainingRecipe(steps=steps, seed=seed))


def run_family(
    family: Family,
    directory: str | Path,
    *,
    workers: int | None = None,
    report: Report | None = None,
) -> FamilyResult:
    """Train and trace every arm in `directory/<name>`, then write what they show.

    Writes `progress.json` (everything measured), `staircase.png` and `report.html`. Arms that
    are finished already are read, those cut off are gone on with. An arm that fails leaves its
    error in the result and the others alone; it is tried again next time.

    Args:
        workers: processes; one a core if None, never more than arms.
        report: called in this process with an arm's name and progress, now and then, in place of
            progress bars.

    Raises:
        CheckpointError: the directory holds another family, or files that are not a run's.
    """
    directory, workers = Path(directory), processes(workers)
    _claim(directory, family)
    runs: dict[str, RunResult] = {}
    failed: dict[str, str] = {}
    jobs = {
        name: Job(config, family.recipe, directory / name) for name, config in family.arms.items()
    }
    bars = family_bars(list(jobs), family.recipe.steps) if report is None else nullcontext(report)
    with bars as tell:
        for name, ended in run_all(jobs, workers=workers, report=tell):
            if isinstance(ended, Failure):
                failed[name] = ended.message
            else:
                runs[name] = ended
    in_order = {name: runs[name] for name in family.arms if name in runs}
    result = FamilyResult(family=family, runs=in_order, failed=failed)
    write_family(result, directory)
    return result


def write_family(result: FamilyResult, directory: Path) -> None:
    """Figure and report, then `progress.json`: where that is, the rest is."""
    if result.runs:
        figure = to_png(staircase({name: run.trace for name, run in result.runs.items()}))
        write_atomically(directory / FIGURE_FILE, figure)
        page = render_report(family_report(result, directory))
        write_atomically(directory / REPORT_FILE, page.encode())
    write_json(directory / PROGRESS_FILE, result)


def family_report(result: FamilyResult, directory: Path) -> ReportPage:
    """What the report of a family is made of; its models are those in the directory."""
    runs = [Reported(name, run, model_in(directory / name)) for name, run in result.runs.items()]
    recipe = result.family.recipe
    again = "shell", f"hoptrace run --seed {recipe.seed} --steps {recipe.steps}"
    if result.family != default_family(steps=recipe.steps, seed=recipe.seed):
        again = (
            "python",
            "from pathlib import Path\n\nfrom analyses import Family, run_family\n\n"
            f'family = Family.model_validate_json(Path("{FAMILY_FILE}").read_text())\n'
            'run_family(family, "again")',
        )
    title = "How many hops does each layer make?"
    return ReportPage(title, runs, again, failed=result.failed)


def _claim(directory: Path, family: Family) -> None:
    """Make the directory this family's, unless it is something else's already."""
    manifest = directory / FAMILY_FILE
    if manifest.exists():
        there = read_json(Family, manifest)
        if there != family:
            raise CheckpointError(
                f"{directory} holds another family of runs ({_difference(there, family)}); "
                "give another --out, or remove it"
            )
        return
    if directory.exists() and (not directory.is_dir() or visible_files(directory)):
        raise CheckpointError(
            f"{directory} is there already and is not a family of runs; "
            "give --out a new or empty directory"
        )
    write_json(manifest, family)


def _difference(there: Family, here: Family) -> str:
    name = first_difference(there.recipe, here.recipe)
    if name is not None:
        old, new = getattr(there.recipe, name), getattr(here.recipe, name)
        return f"{name} is {old} there and {new} here"
    return f"arms {', '.join(there.arms)} there and {', '.join(here.arms)} here"
