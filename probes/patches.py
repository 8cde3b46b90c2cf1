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

    Args:
        cells: the patches, and whose rows they are for.
        end: where the piece that runs ends; None for the end of the prompt, when all of it runs.
            What a hook sees may begin later than the piece, but ends with it.
    """

    def __init__(self, cells: Sequence[tuple[Patch, slice]], end: int | None = None) -> None:
        self.cells = cells
        self.end = end
        self.fired = [False] * len(cells)

    def __call__(self, value: Tensor, hook: HookPoint) -> Tensor:
        """The value with everything replaced that lies in the piece."""
        value = value.clone()
        for index, (patch, rows) in enumerate(self.cells):
            site = patch.site
            if site.component != "state":
                length = value.shape[2 if is_pattern(site) else 1]
                site = seen_from(site, (length if self.end is None else self.end) - length)
                if isinstance(site.position, int) and not 0 <= site.position < length:
                    continue
            value[rows] = replace_at(value[rows], site, patch.value)
            self.fired[index] = True
        return value

    def check_fired(self) -> None:
        """Raise a RuntimeError if a patch never took place."""
        for (patch, _), fired in zip(self.cells, self.fired, strict=True):
            if not fired:
                raise RuntimeError(f"the patch at {patch.site} never took place: no hook fired")


@contextmanager
def writing(
    model: nn.Module, cells: Sequence[tuple[Patch, slice]], end: int | None = None
) -> Iterator[None]:
    """Put patches in place, each in its rows, while a piece that ends at `end` runs."""
    by_name: dict[str, list[tuple[Patch, slice]]] = {}
    for patch, rows in cells:
        by_name.setdefault(hook_name(model, patch.site), []).append((patch, rows))
    writers = {name: Writer(those, end) for name, those in by_name.items()}
    with added_hooks(model, list(writers.items())):
        yield
    for writer in writers.values():
        writer.check_fired()


def seen_from(site: Site, first: int) -> Site:
    """The site in a piece that begins at position `first`."""
    if site.component == "state" or site.position is None or first == 0:
        return site
    if isinstance(site.position, tuple):
        return replace(site, position=tuple(place - first for place in site.position))
    return replace(site, position=site.position - first)
