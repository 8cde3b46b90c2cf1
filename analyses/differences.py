"""Where two pieces of data of one kind differ, to be named in an error."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import BaseModel


def first_difference(
    left: BaseModel, right: BaseModel, *, ignoring: Collection[str] = ()
) -> str | None:
    """Name of the first field in which two models of one class differ; None if in none."""
    for name in type(left).model_fields:
        if name not in ignoring and getattr(left, name) != getattr(right, name):
            return name
    return None
