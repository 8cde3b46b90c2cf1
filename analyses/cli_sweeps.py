"""Commands about many models: sweeps, what they show, and the trained models that come with us."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from analyses.cli_options import Quiet, Workers, json_option
from analyses.cli_output import (
    Output,
    error_text,
    errors,
    failed,
    one_document,
    one_line_errors,
    rows_of_frame,
)

SWEEPS = Path("sweeps")
"""Where sweeps go that are told nothing else: each into a directory named after its grid."""


def sweep(
    grid: Annotated[Path, typer.Argument(help="A TOML file with the grid; see grids/.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Directory of the sweep; sweeps/GRID if not given.")
    ] = None,
    workers: Workers = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run on a Ray cluster instead of this machine's cores.")
    ] = False,
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster; a local one is started if not given.")
    ] = None,
    as_json: Annotated[
        bool, json_option("a list of what results.parquet holds of each run")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Make every run of a grid, and collect them into one Parquet file.

    Started again on the same directory, it goes on where it was cut off. On Ray a run reserves the
    `cpus` and `gpus` of the grid.
    """
    say = Output(as_json=as_json, quiet=quiet)
    with one_line_errors():
        from analyses.findings.words import size_note
        from analyses.grid import Grid
        from analyses.setting import of_a_sweep
        from analyses.sweep import RESULTS_FILE, run_sweep
        from analyses.sweep_progress import SweepProgress
        from analyses.tables import sweep_table

        runner = None
        if ray:
            from analyses.ray_runner import on_ray

            if workers is not None:
                raise ValueError("--workers is for this machine's cores; --ray has its own")
            runner = on_ray(address)
        elif address is not None:
            raise ValueError("--address is of a Ray cluster; add --ray")
        runs = Grid.read(grid)
        out = out or SWEEPS / grid.stem
        points = runs.points()
        say.note(of_a_sweep(points, workers, on_ray=ray))
        budgets = {point.name: point.recipe.steps for point in points}
        with SweepProgress(budgets, say.notes) as bar:
            frame = run_sweep(
                runs, out, workers=workers, report=bar.tell, ended=bar.ended, runner=runner
            )
        say.answer(
            lambda: one_document(rows_of_frame(frame)), sweep_table(frame), Text(size_note(frame))
        )
        say.note(f"Results: {out / RESULTS_FILE}")
        without = frame[frame["error"].notna()]
        failed(zip(without["name"], without["error"], strict=True))


def mechanisms(
    directory: Annotated[Path, typer.Argument(help="A sweep that is at its end.")],
    pairs: Annotated[int, typer.Option(help="Interchange pairs for each test.")] = 512,
    seed: Annotated[int, typer.Option(help="Of the pairs drawn.")] = 0,
    as_json: Annotated[
        bool, json_option("a list of what mechanisms.parquet holds of each run")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Measure how a sweep's models make their hops: who fetches, carries, looks up what."""
    say = Output(as_json=as_json, quiet=quiet)
    with one_line_errors():
        import torch

        from analyses.mechanism_rows import MECHANISMS_FILE, measure_mechanisms
        from analyses.setting import setting
        from probes.bars import Bars

        torch.set_num_threads(1)  # models are small: a second thread costs more than it does
        say.note(setting([seed]))
        with say.bars(), Bars() as bars:

            def ended(name: str, count: int, total: int) -> None:
                if count == 1:
                    bars.add("mechanisms", total)
                bars.tell("mechanisms", count, name)

            frame = measure_mechanisms(directory, pairs=pairs, seed=seed, ended=ended)
        say.answer(lambda: one_document(rows_of_frame(frame)))
        say.note(f"Mechanisms: {directory / MECHANISMS_FILE}")


def findings(
    docs: Annotated[
        Path, typer.Option(help="Where results/ lies, and findings.md and its figures go.")
    ] = Path("docs"),
    sweeps: Annotated[
        Path | None, typer.Option(help="Copy results from here first: a sweep for each grid.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write what the sweeps show into docs/findings.md, with tables and figures."""
    say = Output(quiet=quiet)
    with one_line_errors():
        from analyses.findings import FINDINGS
        from analyses.findings.page import gather, load, write_page

        if sweeps is not None:
            found, unusable = gather(sweeps, docs, FINDINGS)
            for reason in unusable.values():
                errors.print(error_text(reason, "left out: "))
            if not found:
                raise ValueError(f"{sweeps} has no sweep of any finding's grid, such as depth-L2")
            say.note(f"results of {', '.join(found)} from {sweeps}")
        frames = load(docs, FINDINGS)
        if not frames:
            raise ValueError(
                f"{docs / 'results'} has no results of any finding's grid; give --sweeps DIR"
            )
        say.note(f"Findings: {write_page(docs, FINDINGS, frames)}")


def models(
    as_json: Annotated[bool, json_option("a list of models")] = False,
) -> None:
    """List the trained models that come with hoptrace; `load_trained(NAME)` loads one."""
    with one_line_errors():
        from analyses.tables import models_table
        from analyses.zoo import trained_models

        zoo = trained_models()
        Output(as_json=as_json).answer(
            lambda: one_document([model.model_dump() for model in zoo]), models_table(zoo)
        )
