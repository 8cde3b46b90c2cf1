"""Results as tidy pandas frames: one row an observation, axes of tensors as columns of labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:  # pandas waits until somebody asks for a frame
    import pandas as pd

    from probes.sites import Site


def tidy(axes: Mapping[str, Sequence[Any]], values: Mapping[str, Tensor]) -> pd.DataFrame:
    """A row for every cell of tensors that have their axes in common, the last axis fastest.

    Args:
        axes: by the name of its column, the labels along each axis.
        values: by the name of its column, a tensor of that shape, or one that broadcasts to it.

    Raises:
        RuntimeError: a tensor of another shape.
    """
    import pandas as pd

    shape = [len(labels) for labels in axes.values()]
    columns: dict[str, Any] = {}
    for axis, (name, labels) in enumerate(axes.items()):
        along = [1] * len(shape)
        along[axis] = -1
        places = torch.arange(shape[axis]).view(along).expand(shape).flatten()
        columns[name] = pd.Series(list(labels)).take(places.numpy()).reset_index(drop=True)
    for name, value in values.items():
        columns[name] = _exact(value.detach().cpu().expand(shape).flatten()).numpy()
    return pd.DataFrame(columns)


def by_position(tensors: Mapping[str, Tensor]) -> Tensor:
    """`[position, …]`, in the order of the mapping."""
    return torch.stack(list(tensors.values()))


def site_columns(sites: Iterable[Site]) -> pd.DataFrame:
    """A row a site: `component`, `layer`, `position`, `head`.

    `position` and `head` are integers, missing where the site means all of them; `position` holds
    Python objects instead where a site has several.
    """
    import pandas as pd

    sites = list(sites)
    several = any(isinstance(site.position, tuple) for site in sites)
    return pd.DataFrame(
        {
            "component": [site.component for site in sites],
            "layer": [site.layer for site in sites],
            "position": pd.Series(
                [site.position for site in sites], dtype="object" if several else "Int64"
            ),
            "head": pd.Series([site.head for site in sites], dtype="Int64"),
        }
    )


def _exact(value: Tensor) -> Tensor:
    """The same numbers in a type that numpy has."""
    return value.float() if value.dtype == torch.bfloat16 else value
