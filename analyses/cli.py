"""`hoptrace` on the command line. Heavy imports wait until a command needs them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from analyses.cli_output import console, error_text, errors, one_line_errors
from analyses.cli_report import report
from analyses.cli_sweeps import findings, mechanisms, models, sweep

app = typer.Typer(
    help="How many hops along a chain of functions does each layer of a model make, "
    "and is that what the theory allows?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

SCHEDULE = typer.Option(
    help="Kinds of the layers, first to last, such as full,deltanet,full; or the name of a public "
    "hybrid, such as qwen3-next."
)
Layers = Annotated[int | None, typer.Option(help="Depth of a public hybrid; its own if not given.")]
Out = Annotated[Path, typer.Option("--out", help="Directory of the run; made if need be.")]
Seed = Annotated[int, typer.Option(help="Of the initial weights and of all prompts.")]
Steps = Annotated[int, typer.Option(help="Training steps at most, for each model.")]


@app.command()
def run(
    out: Out = Path("hoptrace-run"),
    steps: Steps = 3000,
    seed: Seed = 0,
    workers: Annotated[
        int | None, typer.Option(help="Processes, one thread each; one a core by default.")
    ] = None,
) -> None:
    """Train four stacks, trace each layer's hops, and lay them beside the theory.

    Writes progress.json, staircase.png and report.html. Started again on the same directory,
    it goes on where it was cut off.
    """
    with one_line_errors():
        from analyses.family import FIGURE_FILE, REPORT_FILE, default_family, run_family
        from analyses.progress_bar import family_bars
        from analyses.tables import verdict_table

        family = default_family(steps=steps, seed=seed)
        with family_bars(list(family.arms), steps, console) as tell:
            result = run_family(family, out, workers=workers, report=tell)
        if result.runs:
            console.print(verdict_table(result.runs))
            first = next(iter(result.runs.values()))
            console.print(f"{first.trace.size_condition}: what can be compared is the shape.")
            console.print(f"Figure: {out / FIGURE_FILE}   report: {out / REPORT_FILE}")
        for name, error in result.failed.items():
            console.print(error_text(error, f"{name} failed: "))
        if result.failed:
            raise typer.Exit(1)


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
    device: Annotated[
        str,
        typer.Option(help='Where to train, such as cuda; "accelerate" under accelerate launch.'),
    ] = "cpu",
) -> None:
    """Train one stack and trace it; started again on the same directory, it goes on."""
    with one_line_errors():
        import torch

        from analyses.devices import Devices
        from analyses.recipe import TrainingRecipe
        from analyses.runs import run as run_one
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
        result = run_one(config, recipe=recipe, directory=out, devices=devices)
        if not devices.is_main:
            return
        console.print(trace_table(result.trace))
        console.print(
            f"exact accuracy {result.accuracy:.4f}, {result.outcome} at step {result.progress.step}"
        )


@app.command()
def trace(
    directory: Annotated[Path, typer.Argument(help="A directory with a trained model.")],
    hop: Annotated[int | None, typer.Option(help="Show the accuracies of this hop only.")] = None,
    pairs: Annotated[int, typer.Option(help="Interchange pairs.")] = 1024,
    seed: Annotated[int, typer.Option(help="Of the prompts drawn.")] = 0,
    figure: Annotated[Path | None, typer.Option(help="Write the staircase to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole trace as JSON.")] = False,
) -> None:
    """Trace a trained model: hops made after each layer, by probe and by patch."""
    with one_line_errors():
        from analyses.family import FAMILY_FILE
        from analyses.figures import staircase, to_png
        from analyses.tables import trace_table
        from analyses.tracing import trace as trace_model
        from architectures import load_model
        from architectures.checkpoints import WEIGHTS_FILE, write_atomically

        if (directory / FAMILY_FILE).exists():
            arms = sorted(path.parent.name for path in directory.glob(f"*/{WEIGHTS_FILE}"))
            raise ValueError(
                f"{directory} holds several runs; trace one of {', '.join(arms) or 'none yet'}, "
                f"such as {directory / arms[0] if arms else directory / 'full'}"
            )
        model = load_model(directory)
        if hop is not None:
            model.config.task.check_hop(hop)
        traced = trace_model(model, pairs=pairs, seed=seed)
        if figure is not None:
            write_atomically(figure, to_png(staircase({str(directory): traced})))
        if as_json:
            typer.echo(traced.to_json())
        else:
            console.print(trace_table(traced, hop))
            console.print(f"exact accuracy {traced.accuracy:.4f}; {traced.size_condition}")


@app.command()
def show(
    directories: Annotated[list[Path], typer.Argument(help="Directories that `run` has left.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print one table to paste.")] = False,
) -> None:
    """Print the verdict tables of finished families again."""
    with one_line_errors():
        from analyses.family import PROGRESS_FILE, FamilyResult
        from analyses.tables import verdict_markdown, verdict_table
        from architectures.checkpoints import read_json

        results = [read_json(FamilyResult, path / PROGRESS_FILE) for path in directories]
        if markdown:
            typer.echo(verdict_markdown([result.runs for result in results]))
        else:
            for result in results:
                console.print(verdict_table(result.runs))
        failures = [item for result in results for item in result.failed.items()]
        for name, error in failures:
            errors.print(error_text(error, f"{name} failed: "))
        if failures:
            raise typer.Exit(1)


@app.command()
def theory(
    schedule: Annotated[str | None, SCHEDULE] = None,
    layers: Layers = None,
    public: Annotated[bool, typer.Option("--public", help="All public hybrids instead.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a table to paste.")] = False,
    hops: Annotated[
        int | None, typer.Option(help="L, the length of the chain; 2, or a public hybrid's stairs.")
    ] = None,
    heads: Annotated[
        int | None, typer.Option(help="H, for the size condition; 4, or the public hybrid's.")
    ] = None,
    head_dimension: Annotated[
        int | None, typer.Option(help="d, for the size condition; 16, or the public hybrid's.")
    ] = None,
    precision: Annotated[int, typer.Option(help="p in bits, for the size condition.")] = 32,
    length: Annotated[int, typer.Option(help="n, tokens in a prompt.")] = 42,
    window_reaches_table: Annotated[
        bool, typer.Option("--window-reaches-table", help="A sliding window may hold a table.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bounds on the hops known at the answer position after every layer of a schedule."""
    with one_line_errors():
        from composition import (
            PUBLIC_HYBRIDS,
            predict_progress,
            read_schedule,
            size_condition,
        )
        from composition.schedules import attention_layers
        from composition.theory import LONGEST_CHAIN

        if public == (schedule is not None):
            raise ValueError(
                "give one of --schedule, such as full,kda,full or qwen3-next, and --public"
            )
        if schedule is None:
            from analyses.tables import public_markdown, public_table

            if markdown:
                typer.echo(public_markdown())
            else:
                console.print(public_table())
            return
        kinds, hybrid = read_schedule(schedule, layers), PUBLIC_HYBRIDS.get(schedule.strip())
        if hops is None:
            hops = min(attention_layers(kinds) + 1, LONGEST_CHAIN) if hybrid else 2
        own_heads, own_dimension = (hybrid.heads, hybrid.head_dimension) if hybrid else (4, 16)
        bounds = predict_progress(kinds, hops, window_reaches_table=window_reaches_table)
        condition = size_condition(
            hops,
            heads=own_heads if heads is None else heads,
            head_dimension=own_dimension if head_dimension is None else head_dimension,
            precision=precision,
            length=length,
        )
        if as_json:
            rows = [asdict(bound) for bound in bounds]
            typer.echo(json.dumps({"layers": rows, "size_condition": asdict(condition)}, indent=2))
        else:
            from analyses.tables import bounds_table

            console.print(bounds_table(bounds, hops))
            if hybrid:
                own = layers in (None, hybrid.n_layers)
                depth = "" if own else f", at {layers} layers instead of {hybrid.n_layers}"
                console.print(Text(f"{hybrid.title}{depth}. {hybrid.note}".rstrip(" .")))
            console.print(str(condition))


def integers(text: str) -> tuple[int, ...]:
    """Comma-separated integers.

    Raises:
        ValueError: a part is not an integer.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of integers such as 4 or 3,2") from None


for command in (report, sweep, mechanisms, findings, models):
    app.command()(command)


if __name__ == "__main__":
    app()
