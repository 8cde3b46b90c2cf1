"""What every command says and where: its result, notes on the way, and errors in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import typer
from pydantic import ValidationError
from rich.console import Console, RenderableType
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

console = Console()
errors = Console(stderr=True, soft_wrap=True)
beside_json = Console(stderr=True)
"""For notes and bars where standard output is one JSON document."""


class Output:
    """Where a command says what.

    Args:
        as_json: standard output is one JSON document, and notes go to standard error.
        quiet: no notes and no tables; JSON that was asked for, and errors.

    Attributes:
        notes: where notes and bars go; None for nowhere.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self._as_json, self._quiet = as_json, quiet
        self.notes = None if quiet else beside_json if as_json else console

    def note(self, text: str) -> None:
        """A line beside the result, as it is: a path in it can be copied."""
        if self.notes is not None:
            self.notes.print(Text(text), soft_wrap=True)

    def answer(self, document: Callable[[], str], *shown: RenderableType) -> None:
        """The result: as the JSON that `document` gives, or as what is shown below one another."""
        if self._as_json:
            typer.echo(document())
        elif not self._quiet:
            for each in shown:
                console.print(each)

    def bars(self) -> AbstractContextManager[None]:
        """For the time of a block, bars go where notes go."""
        from probes.bars import shown_on

        return shown_on(self.notes)


def one_document(value: Any) -> str:
    """JSON of plain Python values."""
    return json.dumps(value, indent=2, allow_nan=False)


def rows_of_frame(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A frame's rows as JSON knows values: lists for arrays, None for what is missing."""
    return [
        {str(name): _plain(value) for name, value in row.items()}
        for row in frame.to_dict("records")
    ]


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy's arrays and numbers
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def one_of(first: str, second: str, both: bool) -> None:
    """Raise a ValueError if both of two options are given that exclude each other."""
    if both:
        raise ValueError(f"give one of {first} and {second}: each is all of the output")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What a user can put right is said in one line, without a trace of Python."""
    try:
        yield
    except ValidationError as error:
        from architectures.checkpoints import one_line

        errors.print(error_text(one_line(error)))
        raise typer.Exit(2) from None
    except (ValueError, OSError) as error:
        errors.print(error_text(str(error)))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        errors.print("stopped; the same command goes on from the last checkpoint")
        raise typer.Exit(130) from None


def failed(reasons: Iterable[tuple[str, str]]) -> None:
    """Say why each run failed, and leave with 1 if any has."""
    reasons = list(reasons)
    for name, reason in reasons:
        errors.print(error_text(reason, f"{name} failed: "))
    if reasons:
        raise typer.Exit(1)


def error_text(message: str, what: str = "error: ") -> Text:
    """As text, not markup: the message may quote brackets that a user typed."""
    return Text.assemble((what, "red"), message)
