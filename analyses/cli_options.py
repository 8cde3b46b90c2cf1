"""Options that several commands have in common, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from analyses.cli_completion import devices, schedules

SCHEDULE = typer.Option(
    help="Kinds of the layers, first to last, such as full,deltanet,full; or the name of a public "
    "hybrid, such as qwen3-next.",
    autocompletion=schedules,
)
DEVICE = typer.Option(
    help='Where to train, such as cuda; "accelerate" under accelerate launch.',
    autocompletion=devices,
)
Layers = Annotated[int | None, typer.Option(help="Depth of a public hybrid; its own if not given.")]
Out = Annotated[Path, typer.Option("--out", help="Directory of the run; made if need be.")]
Seed = Annotated[int, typer.Option(help="Of the initial weights and of all prompts.")]
Steps = Annotated[int, typer.Option(help="Training steps at most, for each model.")]
Workers = Annotated[
    int | None, typer.Option(help="Processes, one thread each; one a core by default.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but errors, and JSON if asked for.")
]


def json_option(what: str) -> Any:
    """`--json`, and what it prints."""
    return typer.Option("--json", help=f"Print JSON instead of a table: {what}.")
