"""The command that writes a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analyses.cli_output import console, one_line_errors


def report(
    directory: Annotated[
        Path,
        typer.Argument(
            help="What run, train or sweep has left; or the name of a model that `models` lists."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The page; DIRECTORY/report.html if not given.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Write one self-contained page: verdict, staircases, circuits, attention, predictions."""
    with one_line_errors():
        from analyses.report_directory import write_report

        page = write_report(directory, out, told=lambda name: console.print(f"looking at {name}"))
        console.print(f"Report: {page}", soft_wrap=True)
        if open_it:
            import webbrowser

            if not webbrowser.open(page.resolve().as_uri()):
                raise ValueError(f"no browser could be started; open {page} yourself")
