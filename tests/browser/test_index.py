"""index.html in a real browser: runs are found, and chosen to be compared, with a keyboard and on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalharness.report.html.index_page import write_index
from tests.browser.conftest import PHONE
from tests.report.runs import gate, row, write_run


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of two runs, each of two checkpoints."""
    reports = tmp_path_factory.mktemp("project") / "reports"
    for day, name in enumerate(("old", "new one"), start=1):
        engines = [{"id": f"hf:{name[0]}{number}"} for number in (1, 2)]
        run = write_run(reports / name, [row()], started_at=f"2030-01-0{day}", engines=engines, gates=[gate(day == 1)])
        (run / "timeline.html").touch()
    path = write_index(reports)
    assert path is not None
    return path


def test_runs_are_found_and_lead_to_their_pages(opened, index):
    page = opened(index)
    page.fill("#find", "hf:n1")
    assert page.locator("#count").inner_text() == "1 of 2"
    page.fill("#find", "nothing")
    assert page.locator("#count").inner_text() == "0 of 2"
    page.fill("#find", "")
    assert page.get_by_role("link", name="timeline").first.get_attribute("href") == "new%20one/timeline.html"
    names = page.locator("#runs tbody th a")
    assert names.all_inner_texts() == ["new one", "old"]
    page.get_by_role("button", name="checkpoints").press("Enter")
    page.get_by_role("button", name="checkpoints").press("Enter")
    assert names.all_inner_texts() == ["old", "new one"]


def test_two_runs_are_ticked_and_the_command_that_compares_them_is_there(opened, index):
    page = opened(index)
    command = page.locator("#compare-command")
    page.get_by_label("Compare old").press("Space")
    assert command.inner_text() == "evalharness compare reports/old:hf:o1 reports/old:hf:o2"
    page.get_by_label("Compare new one").press("Space")
    assert command.inner_text() == "evalharness compare reports/old:hf:o1 'reports/new one:hf:n2'"
    page.get_by_label("Base").select_option("reports/old:hf:o2")
    assert command.inner_text() == "evalharness compare reports/old:hf:o2 'reports/new one:hf:n2'"
    page.get_by_label("Compare old").press("Space")
    assert command.inner_text() == "evalharness compare 'reports/new one:hf:n1' 'reports/new one:hf:n2'"
    page.get_by_label("Compare new one").press("Space")
    assert not command.is_visible()


def test_on_a_phone_the_verdict_is_on_the_first_screen(opened, index):
    page = opened(index, viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    chip = page.locator("#runs tbody tr").first.locator(".verdict-cell .chip").bounding_box()
    assert chip["x"] + chip["width"] <= PHONE["width"]
    assert chip["y"] + chip["height"] <= PHONE["height"]
