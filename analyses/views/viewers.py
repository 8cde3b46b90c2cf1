"""Things to look at, as HTML that works from disk: one copy of circuitsvis' scripts a page.

circuitsvis (1.43) writes its whole bundle of scripts into every picture, or points at a server. A
`View` only says what to draw. The page it stands on carries the bundle once, compressed, and draws
all views with it, one after another. What is drawn stands in an attribute, escaped, so that no
token can end a script; until it is drawn, or where scripts do not run, a picture stands there.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from architectures.checkpoints import write_atomically

Component = Literal["AttentionHeads", "AttentionPattern"]
"""What of circuitsvis is drawn here."""


VIEWER = "hoptrace-viewer"
"""Class of the places where scripts draw."""


@dataclass(frozen=True, repr=False)
class View:
    """Something to look at; the last line of a notebook cell shows it.

    Attributes:
        html: what it shows. Parts that scripts draw are drawn by the page that it stands on.
        title: of the page that `save` writes.
    """

    html: str
    title: str = "hoptrace"

    def save(self, path: str | Path) -> Path:
        """Write a page of its own, which opens from disk without a network."""
        path = Path(path)
        style = "body{font:16px/1.5 system-ui,sans-serif;margin:1rem;color-scheme:light dark}"
        scripts = bundle_html() + drawing_html() if self.is_drawn else ""
        page = (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{style}</style>"
            f"<body>{self.html}{scripts}</body></html>"
        )
        write_atomically(path, page.encode())
        return path

    @property
    def is_drawn(self) -> bool:
        """Whether scripts draw a part of it."""
        return VIEWER in self.html

    def __repr__(self) -> str:
        return f"View({self.title!r}); save(path) writes it as a page"

    def _repr_html_(self) -> str:
        if not self.is_drawn:
            return self.html
        return self.html + _bundle_of_the_notebook() + drawing_html()


def beside(views: Sequence[View], title: str = "hoptrace") -> View:
    """Several views side by side, or below one another where the page is narrow."""
    cells = "".join(
        f'<div style="flex:1 1 24rem;min-width:0;max-width:100%">{view.html}</div>'
        for view in views
    )
    return View(f'<div style="display:flex;flex-wrap:wrap;gap:1rem">{cells}</div>', title)


def viewer_html(
    component: Component, properties: Mapping[str, Any], *, picture: bytes, words: str
) -> str:
    """The place where a component of circuitsvis is drawn.

    Args:
        properties: what the component is given, as JSON would have it.
        picture: a PNG that stands there until then.
        words: what it shows, for those who cannot see it.
    """
    still = base64.b64encode(picture).decode()
    drawn = escape(json.dumps(properties, separators=(",", ":"), allow_nan=False), quote=False)
    quoted = drawn.replace("'", "&#39;")
    return (
        f'<div class="{VIEWER}" role="group" aria-label="{escape(words)}" '
        f"data-component=\"{component}\" data-properties='{quoted}' "
        'style="background:#fff;color:#222;border-radius:4px">'
        f'<img src="data:image/png;base64,{still}" alt="{escape(words)}" style="max-width:100%">'
        "</div>"
    )


def drawing_html() -> str:
    """The script that draws every view of the page which is not drawn yet."""
    return f"<style>{_asset('viewers.css')}</style><script>{_asset('viewers.js')}</script>"


@cache
def bundle_html() -> str:
    """circuitsvis' scripts, compressed, for one page."""
    scripts = (files("circuitsvis") / "dist" / "cdn" / "iife.js").read_bytes()
    packed = base64.b64encode(gzip.compress(scripts, 9, mtime=0)).decode()
    return f'<script type="application/gzip" class="hoptrace-bundle">{packed}</script>'


def _asset(name: str) -> str:
    return (files("analyses") / "templates" / name).read_text(encoding="utf-8")


_bearer: tuple[object, object] | None = None
"""The cell of this notebook whose output carries the bundle, and the run of it that did."""


def _bundle_of_the_notebook() -> str:
    """The bundle for the first view that a notebook shows, nothing for those that follow.

    Where the same cell is run again, its output carries the bundle again.
    """
    global _bearer
    cell, run = _running()
    if _bearer is not None and (cell is None or cell != _bearer[0] or run == _bearer[1]):
        return ""
    _bearer = cell, run
    return bundle_html()


def _running() -> tuple[object, object]:
    """Which cell is running, if the notebook says so, and which run of it this is."""
    try:
        from IPython import get_ipython

        parent = get_ipython().kernel.get_parent()
        return parent["metadata"].get("cellId"), parent["header"]["msg_id"]
    except (ImportError, AttributeError, KeyError):
        return None, None
