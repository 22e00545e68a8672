"""The pages of a run together: a case is found from each on the others, and axe-core finds nothing on any, light, dark or on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalharness.analysis.comparison.compare import compare
from evalharness.analysis.comparison.sides import read_side
from evalharness.analysis.comparison.timeline import read_tracks, timeline_of
from evalharness.report.compare.files import write_comparison
from evalharness.report.html.index_page import write_index
from evalharness.report.timeline.page import write_timeline_page
from tests.browser.conftest import PHONE

axe = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed: pip install -e '.[test]'")

OPENED = [
    ("report.html", ""),
    ("report.html", "#cases?outcome=miss"),
    ("compare.html", "#case=0"),
    ("timeline.html", ""),
    ("index.html", ""),
]


@pytest.fixture(scope="module")
def pages(report: Path) -> dict[str, Path]:
    """A run's pages of all kinds, and the index that has the run."""
    run = report.parent
    sides = [read_side(f"{run}:{engine}") for engine in ("hf:early", "hf:final")]
    compared = write_comparison([compare(*sides)], run)[0]
    timeline = write_timeline_page([timeline_of(track) for track in read_tracks([run], [])], [], run / "timeline.html")
    index = write_index(run.parent)
    assert index is not None
    return {path.name: path for path in (report, compared, timeline, index)}


def test_a_case_is_one_click_away_on_each_page_of_its_run(opened, pages):
    page = opened(pages["report.html"], "#cases")
    page.locator("#case-title").filter(has_text="photo-00").wait_for()
    page.locator(".elsewhere").get_by_role("link", name="timeline").click()
    page.locator(".said h4").first.wait_for()
    assert page.locator("#case-grid tr[aria-current] th").inner_text() == "photo-00"
    page.locator(".said").get_by_role("link", name="in its report").first.click()
    page.locator(".elsewhere").get_by_role("link", name="compare").click()
    page.locator("#case-detail h3").filter(has_text="photo-00").wait_for()
    assert page.get_by_role("link", name="All runs").get_attribute("href") == "../index.html"


def found(page, options: str) -> list[tuple[str, list[str]]]:
    violations = page.evaluate(f"axe.run({{ resultTypes: ['violations'], {options} }})")["violations"]
    return [(rule["id"], [node["html"][:160] for node in rule["nodes"][:3]]) for rule in violations]


@pytest.mark.parametrize(("name", "anchor"), OPENED)
def test_axe_finds_nothing(opened, pages, name, anchor):
    page = opened(pages[name], anchor)
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    page.wait_for_function("!document.querySelector('#case-list, #case-grid') || document.querySelector('#case-list > *, #case-grid > *')")
    page.evaluate(axe.AXE_SCRIPT)
    assert found(page, "") == []
    page.emulate_media(color_scheme="dark")
    assert found(page, "runOnly: ['color-contrast']") == []
    page.set_viewport_size(PHONE)
    assert found(page, "rules: { 'color-contrast': { enabled: false } }") == []
