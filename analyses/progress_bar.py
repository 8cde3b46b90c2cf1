"""Progress of training, as `probes.bars` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from analyses.recipe import Progress
from probes.bars import Bars


@contextmanager
def training_bar(steps: int) -> Iterator[Callable[[Progress], None]]:
    """A bar over `steps`, to be told the progress after each."""
    with Bars() as bars:
        bars.add("training", steps)

        def tell(progress: Progress) -> None:
            bars.tell("training", progress.step, describe(progress))

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
def family_bars(names: Sequence[str], steps: int) -> Iterator[Callable[[str, Progress], None]]:
    """A bar for each run of a family, to be told a run's name and progress."""
    with Bars() as bars:
        width = max(map(len, names), default=0)
        for name in names:
            bars.add(f"{name:{width}}", steps)

        def tell(name: str, progress: Progress) -> None:
            bars.tell(f"{name:{width}}", progress.step, describe(progress))

        yield tell
