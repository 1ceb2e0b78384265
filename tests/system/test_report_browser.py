"""The page as a browser shows it: headless Chromium, three widths, both themes.

Needs Debian's chromium (`apt-get install -y chromium`), playwright and axe; skips where one is
missing. Screenshots are kept under the test's temporary folder, or KVSTUDY_SCREENSHOTS.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit/report"))

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
WIDTHS = {"wide": 1440, "tablet": 820, "phone": 390}
THEMES = ("light", "dark")

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="no chromium; apt-get install chromium"),
]
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The whole configured study, every cell from the simulator, through the real steps."""
    from rendering import render
    from synthetic import full_study

    return render(full_study("emulated"), tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, rendered: Any) -> Iterator[Any]:
    """The page on a wide screen; the test fails on any console message or network request."""
    yield from opened(browser, rendered, WIDTHS["wide"], "light")


def opened(browser: Any, rendered: Any, width: int, theme: str) -> Iterator[Any]:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, accept_downloads=True
    )
    shown = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    shown.on("console", lambda message: said.append(message.text))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto((rendered.folder / "index.html").as_uri())
    yield shown
    context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_and_nothing_runs_over_the_edge(
    browser: Any, rendered: Any, tmp_path: Path, width: str, theme: str
) -> None:
    folder = Path(os.environ.get("KVSTUDY_SCREENSHOTS", tmp_path))
    for shown in opened(browser, rendered, WIDTHS[width], theme):
        shown.screenshot(path=folder / f"{width}-{theme}.png", full_page=True)
        found = axe.Axe().run(shown).response["violations"]
        assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found] == []
        assert shown.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width]
        dark = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(18, 21, 24)") == (theme == "dark")


def test_numbers_shown_are_those_of_the_parquet_files(page: Any, rendered: Any) -> None:
    script = """() => [...document.querySelectorAll('[data-claim][data-source][data-value]')]
        .map(n => [n.dataset.claim, n.dataset.source, Number(n.dataset.value)])"""
    shown: dict[tuple[str, str], set[float]] = {}
    for claim, source, value in page.evaluate(script):
        shown.setdefault((claim, source), set()).add(value)
    checked = 0
    for row in pq.read_table(rendered.folder / "verdicts.parquet").to_pylist():
        if row["observed"] is not None:
            values = shown[(row["claim_id"], row["source"])]
            assert max(values) == pytest.approx(row["observed"], rel=1e-7)
            assert min(values) == pytest.approx(row["observed"], rel=1e-7)
            checked += 1
    assert checked > 80


def test_sorting_reorders_rows_by_number_and_says_so(page: Any) -> None:
    table = page.locator("#table-issue-w-c-trtllm-1-2-1, [id='table-issue-w-c-trtllm-1.2.1']").first
    head = table.locator("thead th").nth(2)
    values = "rows => rows.map(r => Number(r.cells[2].querySelector('[data-value]').dataset.value))"
    for direction, reverse in (("ascending", False), ("descending", True)):
        head.locator("button").focus()
        page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == direction
        found = table.locator("tbody tr").evaluate_all(values)
        assert found == sorted(found, reverse=reverse)


def test_the_filter_keeps_only_matching_rows(page: Any) -> None:
    table = page.locator("[id='table-claims-issue-16827']")
    table.locator("select").select_option("model differs")
    shown = table.locator("tbody tr:not([hidden])")
    assert 0 < shown.count() < table.locator("tbody tr").count()
    for text in shown.locator("td:nth-child(6)").all_inner_texts():
        assert text == "model differs"


def test_the_theme_button_turns_the_page_over_and_back(page: Any) -> None:
    button = page.locator("#theme")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert page.evaluate(colour) != light
    button.click()
    assert page.evaluate(colour) == light


def test_an_arm_can_be_switched_off_and_the_readout_follows_the_pointer(page: Any) -> None:
    figure = page.locator("#fig-server-w-c-c32-trtllm-1-2-1")
    part = figure.locator("svg [data-toggle='mu']").first
    box = figure.locator("input[data-toggle='mu']")
    assert part.is_visible()
    box.uncheck()
    assert not part.is_visible()
    box.check()
    assert part.is_visible()

    figure.locator("svg").hover(position={"x": 400, "y": 120})
    assert "seconds" in figure.locator("output").inner_text() or "x:" in (
        figure.locator("output").inner_text()
    )
    figure.get_by_role("button", name="Enlarge").click()
    assert "big" in str(figure.locator(".drawing").get_attribute("class"))


def test_data_downloads_are_the_figures_and_tables_own(page: Any, rendered: Any) -> None:
    with page.expect_download() as waiting:
        page.locator("#fig-effects a.download").click()
    name = waiting.value.suggested_filename
    assert name == "effects.csv"
    content = Path(waiting.value.path()).read_bytes()
    assert content == (rendered.folder / "figures/effects.csv").read_bytes()


def test_links_of_the_contents_lead_to_their_chapters(page: Any) -> None:
    for link in page.locator("nav a").all():
        target = str(link.get_attribute("href"))
        link.click()
        assert page.locator(target).is_visible()
        assert page.url.endswith(target)


def test_paper_has_no_controls_and_opens_what_is_folded(page: Any) -> None:
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert not page.locator("#theme").is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.set_viewport_size({"width": 760, "height": 1000})
    assert page.evaluate("document.documentElement.scrollWidth") <= 760
    assert len(page.pdf(format="A4")) > 10_000


def test_without_scripts_the_page_still_reads(browser: Any, rendered: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    shown = context.new_page()
    shown.goto((rendered.folder / "index.html").as_uri())
    assert shown.locator("#summary").is_visible()
    assert not shown.locator("#theme").is_visible()
    context.close()
