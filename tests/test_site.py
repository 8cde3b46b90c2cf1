"""The site builds from docs/ without a warning, and a reader finds everything on it.

Every page is there, every exported name of every package is documented with its shapes, pictures
say what they show, links lead to pages and places that exist, nothing is fetched from elsewhere.
"""

import importlib
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.pages import ROOT

DOCS = ROOT / "docs"
PACKAGES = ("composition", "architectures", "probes", "analyses")
PAGE_OF = {**{package: package for package in PACKAGES}, "analyses.views": "analyses"}
"""What exports names, and where they are documented."""

NO_END = {"img", "link", "meta", "input", "br", "hr", "path", "rect", "line", "circle", "polyline"}

pytestmark = pytest.mark.slow


@dataclass
class Page(HTMLParser):
    """What the tests ask of a page of the site.

    Attributes:
        ids: what a link to this page may have behind `#`.
        links: where links lead.
        images: file and description of each picture.
        fetched: scripts, styles and pictures that a browser loads.
        text: of the article, without tags.
        documented: names with a description below them.
    """

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    images: list[tuple[str, str]] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    text: str = ""
    documented: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self._inside = 0  # depth below <article>, 0 outside
        self._name = ""  # of the object whose description comes next
        self._described: list[str] = []

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "img":
            self.images.append((given["src"], given.get("alt", "")))
        if tag in ("script", "img") and "src" in given:
            self.fetched.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.fetched.append(given["href"])
        if tag == "article" or (self._inside and tag not in NO_END):
            self._inside += 1
        if tag == "dt" and "sig-object" in given.get("class", ""):
            self._name = given.get("id", "")
        if tag == "dd" and self._name:
            self._described.append(self._name)
            self._name = ""

    def handle_endtag(self, tag):
        if self._inside and tag not in NO_END:
            self._inside -= 1
        if tag == "dd":
            self._described = self._described[:-1]

    def handle_data(self, data):
        if self._inside:
            self.text += data
        if self._described and data.strip():
            self.documented.add(self._described[-1])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> dict[str, Page]:
    """The pages of a fresh build, by their path in the site."""
    out = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", out / "doctrees"]
    run = subprocess.run(
        [*build, "docs", out / "html"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    pages = {}
    for path in (out / "html").rglob("*.html"):
        page = Page()
        page.feed(path.read_text())
        pages[path.relative_to(out / "html").as_posix()] = page
    pages["/"] = Page(ids={path.as_posix() for path in files_below(out / "html")})
    return pages


def files_below(folder: Path) -> list[Path]:
    return [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def articles(site) -> dict[str, Page]:
    """The pages that come from a file in docs/."""
    sources = {
        path.with_suffix(".html").as_posix() for path in files_below(DOCS) if path.suffix == ".md"
    }
    assert sources <= site.keys()
    return {name: page for name, page in site.items() if name in sources}


def test_the_main_pages_are_there(articles):
    names = (
        "index getting_started task theory measures findings results gallery new_mixer api/index"
    )
    for name in names.split():
        assert len(articles[f"{name}.html"].text) > 400, name
    assert len(articles) >= 20


def test_every_page_is_reached_from_the_first(articles):
    reached, found = set(), ["index.html"]
    while found:
        name = found.pop()
        if name in articles and name not in reached:
            reached.add(name)
            found += [target(name, link)[0] for link in articles[name].links]
    assert reached == articles.keys()


@pytest.mark.parametrize("package", PAGE_OF)
def test_every_exported_name_is_documented(articles, package):
    module = importlib.import_module(package)
    documented = articles[f"api/{PAGE_OF[package]}.html"].documented
    by_name = {}
    for path in documented:
        home, _, name = path.rpartition(".")
        by_name.setdefault(name, set()).add(home)
    assert len(module.__all__) > 5
    for name in module.__all__:
        homes = by_name.get(name, set())
        assert any(same(home, name, getattr(module, name)) for home in homes), f"{package}.{name}"


def same(home: str, name: str, exported: object) -> bool:
    """Whether the name that is documented is that which the package exports."""
    try:
        found = getattr(importlib.import_module(home), name, None)
    except ImportError:  # of a class: a method that happens to have the name
        return False
    # A constant may be another object by now: a test may have registered a kind of layer.
    return found is exported or (type(found) is type(exported) is tuple)


def test_shapes_can_be_read(articles):
    text = articles["api/probes.html"].text
    assert "Float[Tensor, 'head start_value']" in text
    assert "Float[Tensor, 'batch head query key']" in articles["api/architectures.html"].text


def test_docstrings_are_rendered(articles):
    """No code between backticks is left over, no constraint, no address, no sentence for a type."""
    for package in PACKAGES:
        text = articles[f"api/{package}.html"].text
        assert "Raises:" in text
        for left_over in ("`", "Annotated[", "<function", " object at 0x", "Args:\n", "Type:"):
            assert left_over not in text, f"{package}: {left_over}"


def test_pictures_say_what_they_show(articles):
    shown = [image for page in articles.values() for image in page.images]
    assert len(shown) >= 20
    for source, words in shown:
        assert len(words.split()) >= 3, source


def target(page: str, link: str) -> tuple[str, str]:
    """The page or file that a link on a page leads to, and what stands behind its `#`."""
    parts = urlsplit(link)
    if not parts.path:
        return page, parts.fragment
    steps: list[str] = page.split("/")[:-1]
    for step in unquote(parts.path).split("/"):
        if step == "..":
            steps.pop()
        elif step != ".":
            steps.append(step)
    return "/".join(steps), parts.fragment


def test_links_lead_somewhere(site, articles):
    files = site["/"].ids
    followed = 0
    for name, page in articles.items():
        for link in page.links:
            if urlsplit(link).scheme:
                continue
            path, place = target(name, link)
            assert path in files, f"{name}: {link}"
            assert not place or place in site[path].ids, f"{name}: {link}"
            followed += 1
    assert followed > 500


def test_nothing_is_fetched_from_elsewhere(site, articles):
    for name, page in articles.items():
        assert page.fetched
        for source in page.fetched:
            assert not urlsplit(source).netloc, f"{name}: {source}"
            assert target(name, source)[0] in site["/"].ids


def test_a_wrong_page_would_be_found():
    page = Page()
    page.feed(
        '<article><dt class="sig-object" id="a.b"></dt><dd></dd>'
        '<dt class="sig-object" id="a.c"></dt><dd><p>Words.</p></dd></article>'
        '<img src="x.png"><a href="../y.html#z">'
    )
    assert page.documented == {"a.c"}
    assert page.images == [("x.png", "")]
    assert [target("api/index.html", link) for link in page.links] == [("y.html", "z")]
