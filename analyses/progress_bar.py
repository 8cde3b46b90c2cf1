"""Progress of training, in a terminal, a notebook or a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from analyses.recipe import Progress


def bars(console: Console | None = None, *more: ProgressColumn) -> Bars:
    """Name, bar, count, and then news; other columns of a kind of bar stand before the news."""
    return Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        *more,
        TextColumn("{task.fields[news]}"),
        console=console,
    )


@contextmanager
def training_bar(steps: int) -> Iterator[Callable[[Progress], None]]:
    """A bar over `steps`, to be told the progress after each."""
    with bars(None, TimeRemainingColumn()) as shown:
        bar = shown.add_task("training", total=steps, news="")

        def tell(progress: Progress) -> None:
            shown.update(bar, completed=progress.step, news=describe(progress))

        yield tell


def describe(progress: Progress) -> str:
    """Level and accuracy by number of hops, in a few words."""
    hops = len(progress.by_hops)
    level = "the task" if progress.level > hops else f"level {progress.level}"
    accuracies = " ".join(
        f"{hop}:{accuracy:.2f}"
        for hop, accuracy in enumerate(progress.by_hops, start=1)
        if accuracy is not None
    )
    return f"{level}, accuracy by hops {accuracies}"


@contextmanager
def family_bars(
    names: list[str], steps: int, console: Console
) -> Iterator[Callable[[str, Progress], None]]:
    """A bar for each run of a family; plain lines where the console is no terminal."""
    if not console.is_terminal:
        yield _lines(console)
        return
    with bars(console, TimeRemainingColumn()) as shown:
        width = max(len(name) for name in names)
        ids = {name: shown.add_task(f"{name:{width}}", total=steps, news="") for name in names}

        def tell(name: str, progress: Progress) -> None:
            shown.update(ids[name], completed=progress.step, news=describe(progress))

        yield tell


def _lines(console: Console) -> Callable[[str, Progress], None]:
    def tell(name: str, progress: Progress) -> None:
        if progress.step % 200 == 0:
            console.print(f"{name}: step {progress.step}, {describe(progress)}")

    return tell
