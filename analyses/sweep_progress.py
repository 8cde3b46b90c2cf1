"""Progress of a sweep, in a terminal or a log: what is over, what goes on, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.text import Text

from analyses.progress_bar import describe
from analyses.recipe import Progress
from analyses.runs import RunResult
from analyses.workers import TELL_EVERY, Failure
from probes.bars import Bars, is_terminal

ALL = "all runs"


class SweepProgress:
    """How far a sweep is: runs that are over, those that go on, and the time left.

    Args:
        budgets: the steps each run may take, by name.
        console: where it is shown: bars in a terminal, and everywhere a line for each run that
            ends; nowhere if None.
        clock: seconds, for the estimate.
    """

    def __init__(
        self,
        budgets: Mapping[str, int],
        console: Console | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budgets, self._console, self._clock = budgets, console, clock
        self._began = clock()
        self._shares: dict[str, float] = {}
        self._over: set[str] = set()
        self._found = 0.0
        self._bars: Bars | None = None
        if console is not None and is_terminal(console):
            self._bars = Bars(console, time_left=False)
        self._seen: set[str] = set()

    def __enter__(self) -> SweepProgress:
        if self._bars is not None:
            self._bars.__enter__()
            self._bars.add(ALL, len(self._budgets))
            self._bars.tell(ALL, 0)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.__exit__(*error)

    def tell(self, name: str, progress: Progress) -> None:
        """A run has gone on."""
        if name in self._over:
            return  # a message that was overtaken by the run's end
        share = progress.step / self._budgets[name]
        if name not in self._shares and progress.step > TELL_EVERY:
            self._found += share  # an earlier sweep's work, from a checkpoint
        self._shares[name] = share
        if self._bars is not None:
            if name not in self._seen:
                self._seen.add(name)
                self._bars.add(name, self._budgets[name])
            self._bars.tell(name, progress.step, describe(progress))

    def ended(self, name: str, result: RunResult | Failure, found: bool = False) -> None:
        """A run is over; `found` if it was before this sweep began."""
        self._over.add(name)
        self._shares[name] = 1.0
        self._found += found
        if self._bars is not None:
            if name in self._seen:
                self._bars.drop(name)
            self._bars.tell(ALL, len(self._over), self.left())
        if found or self._console is None:
            return
        what = (
            f"failed: {result.message}"
            if isinstance(result, Failure)
            else f"accuracy {result.accuracy:.4f}, {result.outcome} at step {result.progress.step}"
        )
        count = f"{len(self._over)} of {len(self._budgets)}"
        self._console.print(Text(f"{count}  {name}: {what}{self.left(', ')}"), soft_wrap=True)

    def left(self, before: str = "") -> str:
        """The time left in words, from the runs' shares of their budgets since the beginning."""
        done = sum(self._shares.values()) - self._found
        missing = len(self._budgets) - sum(self._shares.values())
        if done <= 0 or missing <= 0:
            return ""
        seconds = (self._clock() - self._began) / done * missing
        return f"{before}about {_duration(seconds)} left"


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
