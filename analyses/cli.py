"""`hoptrace` on the command line. Heavy imports wait until a command needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analyses.cli_completion import models as complete_models
from analyses.cli_options import (
    DEVICE,
    SCHEDULE,
    Layers,
    Out,
    Quiet,
    Seed,
    Steps,
    Workers,
    json_option,
)
from analyses.cli_output import Output, failed, one_document, one_line_errors, one_of
from analyses.cli_report import report
from analyses.cli_sweeps import findings, mechanisms, models, sweep
from analyses.cli_theory import theory

app = typer.Typer(
    help="How many hops along a chain of functions does each layer of a model make, "
    "and is that what the theory allows?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command()
def run(
    out: Out = Path("hoptrace-run"),
    steps: Steps = 3000,
    seed: Seed = 0,
    workers: Workers = None,
    as_json: Annotated[bool, json_option("what progress.json holds")] = False,
    quiet: Quiet = False,
) -> None:
    """Train four stacks, trace each layer's hops, and lay them beside the theory.

    Writes progress.json, staircase.png and report.html. Started again on the same directory,
    it goes on where it was cut off.
    """
    say = Output(as_json=as_json, quiet=quiet)
    with one_line_errors():
        from analyses.family import FIGURE_FILE, REPORT_FILE, default_family, run_family
        from analyses.setting import setting
        from analyses.tables import verdict_table
        from analyses.workers import processes

        family = default_family(steps=steps, seed=seed)
        count = min(processes(workers), len(family.arms))
        say.note(setting([seed], threads=1, processes=count))
        with say.bars():
            result = run_family(family, out, workers=workers)
        say.answer(
            lambda: result.model_dump_json(indent=2),
            *([verdict_table(result.runs)] if result.runs else []),
            *[
                f"{run.trace.size_condition}: what can be compared is the shape."
                for run in list(result.runs.values())[:1]
            ],
        )
        if result.runs:
            say.note(f"Figure: {out / FIGURE_FILE}   report: {out / REPORT_FILE}")
        failed(result.failed.items())


@app.command()
def train(
    schedule: Annotated[str, SCHEDULE],
    out: Out,
    layers: Layers = None,
    start_domain: Annotated[int, typer.Option(help="m, values of the start.")] = 8,
    branching: Annotated[str, typer.Option(help="n_1,…,n_{L-1}, such as 4 or 3,2.")] = "4",
    steps: Steps = 3000,
    seed: Seed = 0,
    d_model: Annotated[int, typer.Option(help="Width of the residual stream.")] = 64,
    n_heads: Annotated[int, typer.Option(help="Heads of a full layer.")] = 4,
    d_mlp: Annotated[int, typer.Option(help="Width of the MLPs; 0 for none.")] = 0,
    linear_heads: Annotated[int, typer.Option(help="Heads of a linear layer.")] = 2,
    d_key: Annotated[int, typer.Option(help="Keys in each head's state.")] = 2,
    short_conv: Annotated[
        int, typer.Option(help="Width of convolutions in linear layers; 0 for none.")
    ] = 0,
    window: Annotated[int, typer.Option(help="Positions that a sliding layer sees.")] = 16,
    device: Annotated[str, DEVICE] = "cpu",
    as_json: Annotated[bool, json_option("what result.json holds")] = False,
    quiet: Quiet = False,
) -> None:
    """Train one stack and trace it; started again on the same directory, it goes on."""
    with one_line_errors():
        import torch

        from analyses.devices import Devices
        from analyses.recipe import TrainingRecipe
        from analyses.runs import run as run_one
        from analyses.setting import setting
        from analyses.tables import trace_table
        from architectures import ModelConfig
        from composition import CompositionTask, read_schedule

        task = CompositionTask(start_domain=start_domain, branching=integers(branching))
        config = ModelConfig(
            task=task,
            schedule=read_schedule(schedule, layers),
            d_model=d_model,
            n_heads=n_heads,
            d_mlp=d_mlp,
            linear_heads=linear_heads,
            d_key=d_key,
            short_conv=short_conv,
            window=window,
        )
        torch.set_num_threads(1)  # what makes a resumed run the same bit for bit
        devices = Devices(device)
        recipe = TrainingRecipe(steps=steps, seed=seed)
        say = Output(as_json=as_json, quiet=quiet or not devices.is_main)
        say.note(setting([seed], str(devices.device), 1, devices.count))
        with say.bars():
            result = run_one(config, recipe=recipe, directory=out, devices=devices)
        if not devices.is_main:
            return
        ended = f"{result.outcome} at step {result.progress.step}"
        say.answer(
            lambda: result.model_dump_json(indent=2),
            trace_table(result.trace),
            f"exact accuracy {result.accuracy:.4f}, {ended}",
        )


@app.command()
def trace(
    directory: Annotated[
        Path,
        typer.Argument(
            help="A directory with a trained model, or the name of a model that comes along.",
            autocompletion=complete_models,
        ),
    ],
    hop: Annotated[int | None, typer.Option(help="Show the accuracies of this hop only.")] = None,
    pairs: Annotated[int, typer.Option(help="Interchange pairs.")] = 1024,
    seed: Annotated[int, typer.Option(help="Of the prompts drawn.")] = 0,
    figure: Annotated[Path | None, typer.Option(help="Write the staircase to this file.")] = None,
    as_json: Annotated[bool, json_option("the whole trace")] = False,
    quiet: Quiet = False,
) -> None:
    """Trace a trained model: hops made after each layer, by probe and by patch."""
    say = Output(as_json=as_json, quiet=quiet)
    with one_line_errors():
        from analyses.family import FAMILY_FILE
        from analyses.figures import staircase, to_png
        from analyses.setting import setting
        from analyses.tables import trace_table
        from analyses.tracing import trace as trace_model
        from analyses.zoo import trained_directory, trained_names
        from architectures import load_model
        from architectures.checkpoints import WEIGHTS_FILE, write_atomically

        if (directory / FAMILY_FILE).exists():
            arms = sorted(path.parent.name for path in directory.glob(f"*/{WEIGHTS_FILE}"))
            raise ValueError(
                f"{directory} holds several runs; trace one of {', '.join(arms) or 'none yet'}, "
                f"such as {directory / arms[0] if arms else directory / 'full'}"
            )
        shipped = str(directory) in trained_names() and not directory.exists()
        model = load_model(trained_directory(str(directory)) if shipped else directory)
        if hop is not None:
            model.config.task.check_hop(hop)
        say.note(setting([seed]))
        with say.bars():
            traced = trace_model(model, pairs=pairs, seed=seed)
        if figure is not None:
            write_atomically(figure, to_png(staircase({str(directory): traced})))
        say.answer(
            traced.to_json,
            trace_table(traced, hop),
            f"exact accuracy {traced.accuracy:.4f}; {traced.size_condition}",
        )


@app.command()
def show(
    directories: Annotated[list[Path], typer.Argument(help="Directories that `run` has left.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print one table to paste.")] = False,
    as_json: Annotated[bool, json_option("a list of what each progress.json holds")] = False,
) -> None:
    """Print the verdict tables of finished families again."""
    with one_line_errors():
        from analyses.family import PROGRESS_FILE, FamilyResult
        from analyses.tables import verdict_markdown, verdict_table
        from architectures.checkpoints import read_json

        one_of("--markdown", "--json", markdown and as_json)
        results = [read_json(FamilyResult, path / PROGRESS_FILE) for path in directories]
        if markdown:
            typer.echo(verdict_markdown([result.runs for result in results]))
        else:
            Output(as_json=as_json).answer(
                lambda: one_document([result.model_dump(mode="json") for result in results]),
                *[verdict_table(result.runs) for result in results],
            )
        failed([item for result in results for item in result.failed.items()])


def integers(text: str) -> tuple[int, ...]:
    """Comma-separated integers.

    Raises:
        ValueError: a part is not an integer.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of integers such as 4 or 3,2") from None


for command in (theory, report, sweep, mechanisms, findings, models):
    app.command()(command)


if __name__ == "__main__":
    app()
