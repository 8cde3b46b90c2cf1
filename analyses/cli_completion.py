"""What a shell completes after TAB. Each must answer at once: no torch here."""

from __future__ import annotations

from pathlib import Path

ZOO = Path(__file__).parent / "zoo"


def schedules(incomplete: str) -> list[str]:
    """The last layer of a list begun, or the name of a public hybrid.

    >>> schedules("full,deltan")
    ['full,deltanet']
    >>> schedules("full,full+mamb")
    ['full,full+mamba2']
    """
    from composition import LINEAR_KINDS, PUBLIC_HYBRIDS, SOFTMAX_KINDS

    before, comma, last = incomplete.rpartition(",")
    beside, plus, _ = last.rpartition("+")
    if plus:  # a softmax layer with a linear one beside it
        words = [f"{beside}+{kind}" for kind in LINEAR_KINDS] if beside in SOFTMAX_KINDS else []
    else:
        words = [*SOFTMAX_KINDS, *LINEAR_KINDS]
        words += [] if comma else list(PUBLIC_HYBRIDS)
    return [f"{before}{comma}{word}" for word in words if word.startswith(last)]


def devices(incomplete: str) -> list[str]:
    """Where a model may train."""
    return [name for name in ("cpu", "cuda", "mps", "accelerate") if name.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Trained models that come with hoptrace, then directories that hold a model.

    Of a directory with several runs, such as `hoptrace run` leaves, those that are in it.
    """
    shipped = sorted(path.parent.name for path in ZOO.glob("*/result.json"))
    begin, name = Path(incomplete).parent, Path(incomplete).name
    if incomplete.endswith("/"):
        begin, name = Path(incomplete), ""
    found: list[Path] = []
    for path in sorted(begin.glob("*")):
        if path.name.startswith(name) and path.is_dir():
            inside = sorted(model.parent for model in path.glob("*/config.json"))
            found += [path] if (path / "config.json").exists() else inside
    return [each for each in shipped if each.startswith(incomplete)] + list(map(str, found))
