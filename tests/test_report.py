"""A report opens from disk in a real browser with the network off: whole, drawn, and usable.

Chromium shows it wide and on a phone, in the dark, in print and without scripts; nothing is
fetched, nothing is complained of, every viewer has pixels, heads can be chosen with the keyboard.
Screenshots stay in `test-artefacts/`. Without a Chromium on the machine those tests are skipped,
unless HOPTRACE_NEEDS_BROWSER is set.
"""

import io
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from typer.testing import CliRunner

from analyses import (
    Grid,
    TrainingRecipe,
    default_family,
    load_trained,
    run_family,
    run_sweep,
    trained_result,
)
from analyses.cli import app
from analyses.report import Report, Reported, render_report, verdict
from analyses.report_directory import report_of, write_report
from analyses.results import parameters
from analyses.zoo import trained_directory
from architectures import CheckpointError, ModelConfig
from composition import CompositionTask

pytestmark = pytest.mark.slow

ARTEFACTS = Path(__file__).parents[1] / "test-artefacts"

DEFAULT_RUN = {
    "full": "full-L2",
    "early-linear": "early-linear-L2",
    "late-linear": "late-linear-L2",
    "linear-only": "linear-only-L2",
}
"""Arms of the default run, and models of the same sizes that come with hoptrace."""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """The report of a run like the default one, whose models are those that are shipped."""
    runs = [
        Reported(arm, trained_result(name), load_trained(name)) for arm, name in DEFAULT_RUN.items()
    ]
    for run in runs:
        shipped, arm = run.result.trace.config, default_family().arms[run.name]
        assert (shipped.task, shipped.schedule) == (arm.task, arm.schedule)
        assert parameters(shipped) == parameters(arm)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_report(Report("Four stacks", runs, ("shell", "hoptrace run"))))
    return path


# -- in a browser ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium():
    """A headless Chromium that this machine has."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        assert not os.environ.get("HOPTRACE_NEEDS_BROWSER"), "no Chromium on this machine"
        pytest.skip("no Chromium on this machine, so pages are not looked at")
    with sync_playwright() as driver:
        # Root, as in containers, has no sandbox; the pages are our own.
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


class Shown:
    """A page in the browser, and what it said and asked for."""

    def __init__(self, browser, path: Path, width: int, **options) -> None:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_offline(True)
        self.page = context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def drawn(self):
        self.page.wait_for_selector("html[data-hoptrace-drawn]", state="attached", timeout=120_000)
        return self.page

    def keep(self, name: str) -> None:
        ARTEFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)


def pixels(picture: bytes) -> np.ndarray:
    return imread(io.BytesIO(picture))[..., :3].reshape(-1, 3)


@pytest.mark.parametrize("width", [1280, 390])
def test_every_viewer_is_drawn_and_nothing_is_complained_of(chromium, page, width):
    shown = Shown(chromium, page, width)
    inside = shown.drawn()
    assert shown.said == []
    assert [url for url in shown.asked if not url.startswith(("file:", "data:"))] == []
    assert inside.evaluate("document.documentElement.scrollWidth") <= width

    viewers = inside.locator(".hoptrace-viewer")
    assert viewers.count() == 4 * 3  # every layer of every run
    for number in range(viewers.count()):
        viewer = viewers.nth(number)
        assert viewer.get_attribute("data-drawn") == "yes"
        assert viewer.locator("img").count() == 0, "the still picture has made room"
        heads = viewer.locator("canvas")
        assert heads.count() in (2 + 1, 4 + 1)  # small ones, and the one chosen
        for head in range(heads.count()):
            seen = pixels(heads.nth(head).screenshot())
            colors, counts = np.unique((seen * 255).astype(int), axis=0, return_counts=True)
            assert len(colors) > 8, (number, head)
            grey = (np.ptp(colors, axis=1) == 0) & (colors[:, 0] < 250)
            assert counts[grey].sum() > 0.1 * len(seen), "what is masked is grey"
            assert counts[np.ptp(colors, axis=1) > 8].sum() > 0.001 * len(seen), "and some is not"
    shown.keep(f"report-{width}")  # last: the window it needs makes charts draw anew


def test_the_brightest_cell_is_where_the_model_looks(chromium, tmp_path):
    """Pixels are the model's numbers: a head of a hand-set model looks at a single entry."""
    from analyses.views import attention_view
    from architectures import hand_set_model

    task = CompositionTask(start_domain=4, branching=(2,))
    prompts = task.sample(1, torch.Generator().manual_seed(0))
    view = attention_view(hand_set_model(task, "early-linear"), prompts, layers=[2])
    inside = Shown(chromium, view.save(tmp_path / "view.html"), 800).drawn()
    key = task.positions["z2"].start + int(
        task.candidates(2) * (prompts.tokens[0, -1] - task.n_values) + prompts.chain[0, 1]
    )
    small = inside.locator("canvas").first
    seen = imread(io.BytesIO(small.screenshot()))[..., :3]
    side, length = seen.shape[0], task.length
    y, x = int((length - 0.5) / length * side), int((key + 0.5) / length * side)
    blue = np.array([11, 92, 173]) / 255
    assert np.abs(seen[y, x] - blue).max() < 0.1, seen[y, x]


def test_heads_can_be_chosen_with_the_keyboard(chromium, page):
    inside = Shown(chromium, page, 1280).drawn()
    viewer = inside.locator(".hoptrace-viewer").first
    assert viewer.locator("h2").inner_text() == "Head 0"
    viewer.locator('[role="button"]').nth(0).focus()
    inside.keyboard.press("Tab")
    assert inside.evaluate("document.activeElement.getAttribute('aria-label')") == "show Head 1"
    inside.keyboard.press("Enter")
    assert viewer.locator("h2").inner_text() == "Head 1"


def test_where_nothing_can_be_drawn_the_still_picture_stays(chromium, tmp_path):
    from analyses.views import attention_view

    model = load_trained("full-L2")
    prompts = model.config.task.sample(1, torch.Generator().manual_seed(0))
    path = attention_view(model, prompts, layers=[0]).save(tmp_path / "view.html")
    context = chromium.new_context()
    context.add_init_script("HTMLCanvasElement.prototype.getContext = () => { throw new Error() }")
    inside = context.new_page()
    inside.goto(path.as_uri())
    inside.wait_for_selector("html[data-hoptrace-drawn]", state="attached", timeout=60_000)
    viewer = inside.locator(".hoptrace-viewer")
    assert viewer.get_attribute("data-drawn") == "no"
    assert len(np.unique(pixels(viewer.locator("img").screenshot()), axis=0)) > 20
    assert "A still picture" in viewer.inner_text()


def test_whatever_scrolls_can_be_reached_with_the_keyboard(chromium, page):
    inside = Shown(chromium, page, 390).drawn()
    unreachable = inside.evaluate(
        """[...document.querySelectorAll("main *")].filter((e) =>
            e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0 &&
            ["auto", "scroll"].includes(getComputedStyle(e).overflowX)).map((e) => e.outerHTML)"""
    )
    assert unreachable == []


def test_dark_pages_are_dark_and_text_on_them_is_read(chromium, page):
    shown = Shown(chromium, page, 1280, color_scheme="dark")
    inside = shown.drawn()
    shown.keep("report-dark")
    seen = pixels(inside.screenshot(clip={"x": 0, "y": 0, "width": 1280, "height": 60}))
    assert np.median(seen) < 0.2
    behind = np.median(seen, axis=0)
    for kind in ("inside", "above"):
        color = inside.locator(f"span.{kind}").first.evaluate("(e) => getComputedStyle(e).color")
        light = np.array([float(part) for part in re.findall(r"[\d.]+", color)[:3]]) / 255
        assert contrast(light, behind) > 4.5, (kind, color)


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    """WCAG 2's contrast of two colours."""

    def luminance(color: np.ndarray) -> float:
        linear = np.where(color <= 0.03928, color / 12.92, ((color + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_print_keeps_what_is_drawn_and_leaves_out_what_only_a_screen_has(chromium, page):
    shown = Shown(chromium, page, 1280)
    inside = shown.drawn()
    inside.emulate_media(media="print")
    assert not inside.locator("nav").is_visible()
    inside.evaluate("window.onbeforeprint()")
    assert inside.locator("details pre").last.is_visible(), "recipe and model are printed"
    assert inside.locator("#verdict table").first.is_visible()
    ARTEFACTS.mkdir(exist_ok=True)
    printed = inside.pdf(path=ARTEFACTS / "report.pdf", format="A4")
    assert printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") > 4


def test_without_scripts_still_pictures_stand_in(chromium, page):
    shown = Shown(chromium, page, 1280, java_script_enabled=False)
    still = shown.page.locator(".hoptrace-viewer img")
    assert still.count() == 12
    assert len(np.unique(pixels(still.first.screenshot()), axis=0)) > 20


# -- the page itself ---------------------------------------------------------------------------


def test_the_page_is_small_whole_and_says_the_verdict_first(page):
    html = page.read_text()
    assert len(html.encode()) < 3_000_000
    assert html.index('id="verdict"') < html.index('id="run-1"') < html.index('id="size"')
    assert "Against the prediction, past the bound: late-linear after layer 2" in html
    assert "3 of 4 runs" not in html
    assert "2 of 4 runs learned the task" in html
    for needed in ("size condition", "(Hdp)^1024", "[H] Theorem 1.1", "hoptrace run", "seed 0"):
        assert needed in html
    assert "http" not in html, "the report asks nothing of the network"
    images = re.findall(r"<img[^>]*>", html)
    assert len(images) == 4 * (3 + 3) + 3  # steps, heatmaps, hop map, layers; circuits
    assert "Not shown: 4.9 % of the answers are right" in html
    assert all(re.search(r'alt="[^"]{20,}"', image) for image in images)
    assert len(images) == len(set(images)), "no picture is shown twice"
    identifiers = re.findall(r'\bid="([^"]+)"', html)
    assert len(identifiers) == len(set(identifiers))
    for target in re.findall(r'href="#([^"]+)"', html):
        assert target in identifiers


def runs_of(**names):
    return [Reported(arm, trained_result(name)) for arm, name in names.items()]


def test_the_verdict_is_what_the_traces_say():
    assert verdict(runs_of(a="full-L2", b="early-linear-L2"), {}) == [
        "2 of 2 runs learned the task (exact accuracy above 0.99): a, b.",
        "Every layer's causal hop is inside its bounds.",
    ]
    said = verdict(runs_of(late="late-linear-L2"), {"broken": "no memory"})
    assert said[0].startswith("Against the prediction, past the bound: late after layer 2 (2 hops")
    assert said[1].startswith("The run has not learned")
    assert said[-1] == "Failed: broken."


def test_without_weights_there_is_a_report_without_views():
    html = render_report(Report("No weights", runs_of(full="full-L2"), ("shell", "true")))
    assert "The weights of this run are not in its directory" in html
    assert "hoptrace-viewer" not in re.sub(r"<(style|script).*?</\1>", "", html, flags=re.S)
    with pytest.raises(
        ValueError, match=r"nothing to report \(a failed: no memory\); start it again"
    ):
        render_report(Report("Empty", [], ("shell", "true"), failed={"a": "no memory"}))


def test_names_and_errors_cannot_become_markup():
    runs = runs_of(**{"<b>bold</b>": "full-L2"})
    html = render_report(Report("<i>", runs, ("shell", "<u>"), failed={"x": "</pre><script>"}))
    for raw in ("<b>bold", "<i>", "<u>", "</pre><script>"):
        assert raw not in html


def test_what_the_page_says_makes_the_run_again_does():
    report = report_of(trained_directory("one-to-three-L2"))
    kind, code = report.again
    assert kind == "python"
    names: dict = {}
    setting, call = code.rsplit("\n", 1)
    exec(setting, names)
    result = trained_result("one-to-three-L2")
    assert (names["config"], names["recipe"]) == (result.trace.config, result.recipe)
    assert call == 'run(config, recipe=recipe, directory="again")'


# -- of directories ----------------------------------------------------------------------------

TASK = CompositionTask(start_domain=3, branching=(3,))
SETTINGS = {"start_domain": 3, "branching": [3], "d_model": 16, "d_key": 2, "steps": 6, "batch": 16,
            "evaluation_prompts": 100}  # fmt: skip


def test_of_a_sweep_one_run_an_arm_has_a_section(tmp_path):
    arms = {
        f"arm{number}": {"schedule": ",".join(["full"] + ["gla"] * number)} for number in (1, 2)
    }
    run_sweep(Grid(base=SETTINGS, cross={"seed": [0, 1, 2]}, arms=arms), tmp_path / "sweep")
    html = write_report(tmp_path / "sweep").read_text()
    assert html == (tmp_path / "sweep" / "report.html").read_text()
    for number in (1, 2):
        for seed in range(3):
            assert f'<th scope="row">arm{number}_seed={seed}<br>' in html
    assert len(re.findall(r'<section id="run-\d+">', html)) == 2
    assert "one run an arm, that of median accuracy." in html
    assert "run_sweep(grid" in html


def test_of_a_family_its_file_makes_it_again(tmp_path):
    from analyses import Family

    arms = {"a": ModelConfig(task=TASK, schedule=("full", "gla"), d_model=16)}
    recipe = TrainingRecipe(steps=6, batch=16, evaluation_prompts=100)
    run_family(Family(arms=arms, recipe=recipe), tmp_path / "out")
    before = (tmp_path / "out" / "report.html").read_text()
    assert "Family.model_validate_json" in before
    assert write_report(tmp_path / "out").read_text() == before


def test_the_command_writes_a_page_of_a_shipped_model_and_opens_it(tmp_path, monkeypatch):
    import webbrowser

    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["report", "two-full-L2", "--open"])
    assert said.exit_code == 0, said.output
    assert (tmp_path / "two-full-L2.html").stat().st_size > 500_000
    assert opened == [(tmp_path / "two-full-L2.html").as_uri()]
    quiet = CliRunner().invoke(app, ["report", "two-full-L2", "--out", "there.html", "-q"])
    assert quiet.output == ""
    assert (tmp_path / "there.html").exists()


def test_a_run_whose_weights_are_gone_is_reported_from_where_one_stands(tmp_path, monkeypatch):
    place = tmp_path / "my run & co"
    shutil.copytree(trained_directory("full-L2"), place)
    (place / "model.safetensors").unlink()
    monkeypatch.chdir(place)
    html = write_report(".").read_text()
    assert "<h1>my run &amp; co: how many hops" in html
    assert "The weights of this run are not in its directory" in html


def test_what_cannot_be_reported_is_one_clear_error(tmp_path):
    with pytest.raises(CheckpointError, match="no finished run, no family of runs and no sweep"):
        write_report(tmp_path)
    said = CliRunner().invoke(app, ["report", str(tmp_path / "nowhere")])
    assert said.exit_code == 2
    assert "full-L2" in said.stderr
