"""A family of runs as one self-contained page: verdict first, then the figure, then how."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader

from analyses.figures import describe_staircase

if TYPE_CHECKING:
    from analyses.family import FamilyResult


def render_report(result: FamilyResult, figure: bytes) -> str:
    """The page as HTML; it asks nothing of the network.

    Args:
        result: a family with at least one finished run.
        figure: the staircase as PNG.
    """
    environment = Environment(
        loader=PackageLoader("analyses"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    first = next(iter(result.runs.values()))
    return environment.get_template("report.html").render(
        runs=result.runs,
        failed=result.failed,
        recipe=result.family.recipe,
        task=first.trace.config.task,
        first=first,
        figure=base64.b64encode(figure).decode(),
        words=describe_staircase({name: run.trace for name, run in result.runs.items()}),
    )
