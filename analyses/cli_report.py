"""The command that writes a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analyses.cli_completion import models as complete_models
from analyses.cli_options import Quiet
from analyses.cli_output import Output, one_line_errors


def report(
    directory: Annotated[
        Path,
        typer.Argument(
            help="What run, train or sweep has left; or the name of a model that comes along.",
            autocompletion=complete_models,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The page; DIRECTORY/report.html if not given.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write one self-contained page: verdict, staircases, circuits, attention, predictions."""
    say = Output(quiet=quiet)
    with one_line_errors():
        from analyses.report_directory import write_report

        with say.bars():
            page = write_report(directory, out, told=lambda name: say.note(f"looking at {name}"))
        say.note(f"Report: {page}")
        if open_it:
            import webbrowser

            if not webbrowser.open(page.resolve().as_uri()):
                raise ValueError(f"no browser could be started; open {page} yourself")
