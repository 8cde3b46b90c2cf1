"""Bars that behave: the one place where anything here shows how far it is.

In a terminal they are bars. In a notebook they are one output, drawn over in place, which ends as
one finished line for each bar. Everywhere else (a log, a pipe, a file) they are plain lines, one
every tenth of the way and not more often than every ten seconds.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as TerminalBars
from rich.text import Text

LOG_EVERY, NOTEBOOK_EVERY = 10.0, 0.2
"""Seconds between two lines of a bar in a log, and between two drawings in a notebook."""

_console: Console | None = Console(stderr=True)
_chosen = False
_showing = False


@contextmanager
def shown_on(console: Console | None) -> Iterator[None]:
    """Bars that are given no console use this one for the time of the block; None for no bars."""
    global _console, _chosen
    before = _console, _chosen
    _console, _chosen = console, True
    try:
        yield
    finally:
        _console, _chosen = before


def hide_bars() -> None:
    """No bars in this process, unless they are given a console: it reports to another one."""
    global _console, _chosen
    _console, _chosen = None, True


@dataclass
class Bar:
    """How far one thing is: `done` of `total`, what else is to be said, and if it was `told`."""

    name: str
    total: int
    done: int = 0
    news: str = ""
    told: bool = False

    @property
    def line(self) -> str:
        """The same in words."""
        count = f"{self.name.rstrip()}: {self.done} of {self.total}"
        return f"{count}, {self.news}" if self.news else count


class Bars:
    """Bars of things that go on side by side, for the time of a `with` block.

    Nothing is shown before the first news, and nothing while other bars are shown: those stand
    for the whole of which these are a part.

    Args:
        console: where; if not given standard error or the notebook, or what `shown_on` says.
        delay: seconds before which nothing is shown.
        leave: whether they stay when they are over; in a notebook they do.
        time_left: whether an estimate stands beside each.
        clock: seconds.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        delay: float = 0.0,
        leave: bool = True,
        time_left: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = _console if console is None else console
        self._notebook = console is None and not _chosen and in_notebook()
        self._delay, self._leave, self._time_left, self._clock = delay, leave, time_left, clock
        self._bars: dict[str, Bar] = {}
        self._display: _Display | None = None
        self._lock = RLock()

    def __enter__(self) -> Bars:
        self._began = self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        global _showing
        with self._lock:
            if self._display is not None:
                self._display.end(self._bars)
                self._display, _showing = None, False
            self._console = None

    def add(self, name: str, total: int) -> None:
        """A bar more."""
        self._bars[name] = Bar(name, total)

    def tell(self, name: str, done: int, news: str = "") -> None:
        """How far one is, in all."""
        with self._lock:
            bar = self._bars[name]
            bar.done, bar.news, bar.told = done, news, True
            if self._display is None:
                self._begin()
            if self._display is not None:
                self._display.draw(self._bars, bar)

    def drop(self, name: str) -> None:
        """A bar less."""
        with self._lock:
            del self._bars[name]

    def _begin(self) -> None:
        global _showing
        late = self._clock() - self._began >= self._delay
        if self._console is None or _showing or not late:
            return
        _showing = True
        if self._notebook:
            self._display = _Notebook(self._clock)
        elif is_terminal(self._console):
            self._display = _Terminal(self._console, self._leave, self._time_left)
        else:
            self._display = _Log(self._console, self._leave, self._began, self._clock)


def is_terminal(console: Console) -> bool:
    """Whether a line there can be written over; not so in a log, whatever colours it is to have."""
    isatty = getattr(console.file, "isatty", None)
    return bool(isatty and isatty()) and console.is_terminal and not console.is_dumb_terminal


def in_notebook() -> bool:
    """Whether a kernel runs this process, so that a browser shows what it displays."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class _Display(Protocol):
    def draw(self, bars: Mapping[str, Bar], changed: Bar) -> None: ...

    def end(self, bars: Mapping[str, Bar]) -> None: ...


class _Terminal:
    def __init__(self, console: Console, leave: bool, time_left: bool) -> None:
        estimate = [TimeRemainingColumn()] if time_left else []
        self._bars = TerminalBars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            *estimate,
            TextColumn("{task.fields[news]}", markup=False),
            console=console,
            transient=not leave,
        )
        self._ids: dict[str, Any] = {}
        self._bars.start()

    def draw(self, bars: Mapping[str, Bar], changed: Bar) -> None:
        for name in self._ids.keys() - bars.keys():
            self._bars.remove_task(self._ids.pop(name))
        for name, bar in bars.items():
            if name not in self._ids:
                self._ids[name] = self._bars.add_task(bar.name, total=bar.total, news="")
        self._bars.update(self._ids[changed.name], completed=changed.done, news=changed.news)

    def end(self, bars: Mapping[str, Bar]) -> None:
        self._bars.stop()


class _Notebook:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._drawn = clock, float("-inf")
        self._handle: Any = None

    def draw(self, bars: Mapping[str, Bar], changed: Bar) -> None:
        if self._clock() - self._drawn >= NOTEBOOK_EVERY:
            self._drawn = self._clock()
            self._show(bars, '<progress value="{0.done}" max="{0.total}"></progress> ')

    def end(self, bars: Mapping[str, Bar]) -> None:
        self._show(bars, "")

    def _show(self, bars: Mapping[str, Bar], before: str) -> None:
        from IPython.display import display

        lines = [f"<div>{before.format(bar)}{html.escape(bar.line)}</div>" for bar in bars.values()]
        plain = "\n".join(bar.line for bar in bars.values())
        data = {"text/html": "".join(lines), "text/plain": plain}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


class _Log:
    def __init__(
        self, console: Console, leave: bool, began: float, clock: Callable[[], float]
    ) -> None:
        self._console, self._leave, self._began, self._clock = console, leave, began, clock
        self._said: dict[str, tuple[float, int, str]] = {}

    def draw(self, bars: Mapping[str, Bar], changed: Bar) -> None:
        when, done, _ = self._said.get(changed.name, (self._began, 0, ""))
        now = self._clock()
        if (
            now - when >= LOG_EVERY
            and changed.done * 10 // changed.total > done * 10 // changed.total
        ):
            self._say(changed, now)

    def end(self, bars: Mapping[str, Bar]) -> None:
        for bar in bars.values() if self._leave else ():
            if bar.told and self._said.get(bar.name, (0.0, 0, ""))[2] != bar.line:
                self._say(bar, self._clock())

    def _say(self, bar: Bar, now: float) -> None:
        self._said[bar.name] = now, bar.done, bar.line
        self._console.print(Text(bar.line), soft_wrap=True)
