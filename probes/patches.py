"""A patch as data, and the hook that puts it in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from probes.running import HookFunction, added_hooks
from probes.sites import Site, hook_name, is_pattern, replace_at


@dataclass(frozen=True)
class Patch:
    """Another value at a site.

    Attributes:
        site: where.
        value: `[prompt, …]`, exactly of the shape that `read` gives for the site.
    """

    site: Site
    value: Tensor


def replacing_hook(site: Site, value: Tensor) -> HookFunction:
    """A hook that puts `value` at the site, in every prompt of the batch."""
    return Writer([(Patch(site, value), slice(0, len(value)))])


class Writer:
    """A hook that replaces what stands at sites, each in its own rows of the batch.

    Attributes:
        first: position of the first token of the piece that runs.
    """

    def __init__(self, cells: Sequence[tuple[Patch, slice]], first: int = 0) -> None:
        self.cells = cells
        self.first = first
        self.fired = [False] * len(cells)

    def __call__(self, value: Tensor, hook: HookPoint) -> Tensor:
        """The value with everything replaced that lies in the piece."""
        value = value.clone()
        for index, (patch, rows) in enumerate(self.cells):
            site, new = seen_from(patch.site, self.first), patch.value
            by_position = site.component != "state" and not is_pattern(site)
            if by_position and not _in_piece(site, value.shape[1]):
                continue
            value[rows] = replace_at(value[rows], site, new)
            self.fired[index] = True
        return value

    def check_fired(self) -> None:
        """Raise a RuntimeError if a patch never took place."""
        for (patch, _), fired in zip(self.cells, self.fired, strict=True):
            if not fired:
                raise RuntimeError(f"the patch at {patch.site} never took place: no hook fired")


@contextmanager
def writing(
    model: nn.Module, cells: Sequence[tuple[Patch, slice]], first: int = 0
) -> Iterator[list[Writer]]:
    """Put patches in place, each in its rows, while a piece that begins at `first` runs."""
    by_name: dict[str, list[tuple[Patch, slice]]] = {}
    for patch, rows in cells:
        by_name.setdefault(hook_name(model, patch.site), []).append((patch, rows))
    writers = {name: Writer(those, first) for name, those in by_name.items()}
    with added_hooks(model, list(writers.items())):
        yield list(writers.values())
    for writer in writers.values():
        writer.check_fired()


def seen_from(site: Site, first: int) -> Site:
    """The site in a piece that begins at position `first`."""
    if site.component == "state" or site.position is None or first == 0:
        return site
    if isinstance(site.position, tuple):
        return replace(site, position=tuple(place - first for place in site.position))
    return replace(site, position=site.position - first)


def _in_piece(site: Site, length: int) -> bool:
    return not isinstance(site.position, int) or 0 <= site.position < length
