"""What README, CONTRIBUTING and docs/ are made of: code blocks, code in text, links, pictures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """Such as "docs/api/probes.md"."""
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A block of code: its language (as written behind the fence), its lines, where they begin."""

    language: str
    code: str
    line: int


def blocks(text: str) -> list[Block]:
    """All blocks of a page; indented ones are without a language, those in HTML have "html"."""
    found = []
    for token in MarkdownIt().parse(text):
        language = "html" if token.type == "html_block" else token.info.strip()
        is_code = token.type in ("fence", "code_block") or "<pre" in token.content
        if token.map and is_code and token.type != "inline":
            found.append(Block(language, token.content, token.map[0] + 1))
    return found


def _inline(text: str) -> list[Token]:
    return [
        child
        for token in MarkdownIt().enable("table").parse(text)
        for child in token.children or []
    ]


def code_in_text(text: str) -> list[str]:
    """What stands between single backticks."""
    return [token.content for token in _inline(text) if token.type == "code_inline"]


def links(text: str) -> list[str]:
    """Targets of links and pictures."""
    named = {"link_open": "href", "image": "src"}
    return [str(token.attrs[named[token.type]]) for token in _inline(text) if token.type in named]


def pictures(text: str) -> list[tuple[str, str]]:
    """Each picture's file and what it says to those who cannot see it."""
    return [
        (str(token.attrs["src"]), token.content) for token in _inline(text) if token.type == "image"
    ]


def headings(text: str) -> set[str]:
    """What a link may have behind `#`: headings in small letters, hyphens for spaces."""
    tokens = MarkdownIt().parse(text)
    titles = [
        following.content for token, following in pairwise(tokens) if token.type == "heading_open"
    ]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
