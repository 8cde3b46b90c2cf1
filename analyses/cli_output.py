"""What every command says and how: two consoles, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

console = Console()
errors = Console(stderr=True, soft_wrap=True)


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


def error_text(message: str, what: str = "error: ") -> Text:
    """As text, not markup: the message may quote brackets that a user typed."""
    return Text.assemble((what, "red"), message)
