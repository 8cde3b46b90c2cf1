"""Commands about many models: sweeps, what they show, and the trained models that come with us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from analyses.cli_output import console, error_text, one_line_errors

SWEEPS = Path("sweeps")
"""Where sweeps go that are told nothing else: each into a directory named after its grid."""


def sweep(
    grid: Annotated[Path, typer.Argument(help="A TOML file with the grid; see grids/.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Directory of the sweep; sweeps/GRID if not given.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes, one thread each; one a core by default.")
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run on a Ray cluster instead of this machine's cores.")
    ] = False,
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster; a local one is started if not given.")
    ] = None,
) -> None:
    """Make every run of a grid, and collect them into one Parquet file.

    Started again on the same directory, it goes on where it was cut off. On Ray a run reserves the
    `cpus` and `gpus` of the grid.
    """
    with one_line_errors():
        from analyses.findings.words import size_note
        from analyses.grid import Grid
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
        budgets = {point.name: point.recipe.steps for point in runs.points()}
        with SweepProgress(budgets, console) as bar:
            frame = run_sweep(
                runs, out, workers=workers, report=bar.tell, ended=bar.ended, runner=runner
            )
        console.print(sweep_table(frame))
        console.print(size_note(frame), soft_wrap=True)
        console.print(f"Results: {out / RESULTS_FILE}")
        failed = frame[frame["error"].notna()]
        for name, error in zip(failed["name"], failed["error"], strict=True):
            console.print(error_text(error, f"{name} failed: "))
        if len(failed):
            raise typer.Exit(1)


def mechanisms(
    directory: Annotated[Path, typer.Argument(help="A sweep that is at its end.")],
    pairs: Annotated[int, typer.Option(help="Interchange pairs for each test.")] = 512,
) -> None:
    """Measure how a sweep's models make their hops: who fetches, carries, looks up what."""
    with one_line_errors():
        import torch

        from analyses.mechanism_rows import MECHANISMS_FILE, measure_mechanisms

        torch.set_num_threads(1)  # models are small: a second thread costs more than it does

        def ended(name: str, count: int, total: int) -> None:
            console.print(Text(f"{count} of {total}  {name}"), soft_wrap=True)

        measure_mechanisms(directory, pairs=pairs, ended=ended)
        console.print(f"Mechanisms: {directory / MECHANISMS_FILE}")


def findings(
    docs: Annotated[
        Path, typer.Option(help="Where results/ lies, and findings.md and its figures go.")
    ] = Path("docs"),
    sweeps: Annotated[
        Path | None, typer.Option(help="Copy results from here first: a sweep for each grid.")
    ] = None,
) -> None:
    """Write what the sweeps show into docs/findings.md, with tables and figures."""
    with one_line_errors():
        from analyses.findings import FINDINGS
        from analyses.findings.page import gather, load, write_page

        if sweeps is not None:
            found, unusable = gather(sweeps, docs, FINDINGS)
            for reason in unusable.values():
                console.print(error_text(reason, "left out: "))
            if not found:
                raise ValueError(f"{sweeps} has no sweep of any finding's grid, such as depth-L2")
            console.print(f"results of {', '.join(found)} from {sweeps}")
        frames = load(docs, FINDINGS)
        if not frames:
            raise ValueError(
                f"{docs / 'results'} has no results of any finding's grid; give --sweeps DIR"
            )
        console.print(f"Findings: {write_page(docs, FINDINGS, frames)}")


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the trained models that come with hoptrace; `load_trained(NAME)` loads one."""
    with one_line_errors():
        from analyses.tables import models_table
        from analyses.zoo import trained_models

        zoo = trained_models()
        if as_json:
            typer.echo(json.dumps([model.model_dump() for model in zoo], indent=2))
        else:
            console.print(models_table(zoo))
