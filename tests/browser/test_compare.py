"""compare.html in a real browser: it opens from disk, filters, searches, goes by keyboard and shows both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.comparison.compare import compare
from evalharness.analysis.comparison.sides import read_side
from evalharness.report.compare.files import write_comparison
from evalharness.report.html.report_page import write_report_pages
from evalharness.report.tables import load_tables
from tests.analysis.comparison.runs import pair
from tests.browser.conftest import DESKTOP, HOSTILE, PHONE, make_photo
from tests.report.compare.test_page import FORGOTTEN
from tests.report.runs import generation, row


def dense_row(number: int, photo: dict[str, Any], *, says: bool) -> dict[str, Any]:
    """Return a row of one object; every fourth is of the category that is forgotten."""
    name = FORGOTTEN if number % 4 == 0 else "标签"
    shape = {"type": "bbox_2d", "points": [100, 200, 500, 600], "desc": f"类别={name},文本=F1"}
    details = {"truth": [shape], "predictions": [shape] if says else [], "space": [1000, 1000], "categories": {name: float(says)}}
    made = generation(text=f"case {number}: {name}" if says else f"case {number}: none", images=[photo], prompt_text="Find all")
    tags = {"site": "north" if number % 2 else "south"}
    outcome = "pass" if says or number else "miss"
    return row(
        f"photo-{number:02}",
        scores={"category_f1": float(says)},
        details=details,
        generation=made,
        tags=tags,
        outcome=outcome,
        reference=f"reference of photo-{number:02}",
    )


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of 80 cases, of which the candidate has lost the 20 of one category."""
    folder = tmp_path_factory.mktemp("compare")
    photo = make_photo(folder / "photo.jpg")
    sides = pair(folder, *([dense_row(n, photo, says=all_right or n % 4 != 0) for n in range(80)] for all_right in (True, False)))
    for side in sides:
        write_report_pages(load_tables(Path(side)))
    return write_comparison([compare(*map(read_side, map(str, sides)))], folder / "out")[0]


def chosen(page):
    return page.locator("#case-detail h3").inner_text().split()[0]


def test_the_first_screen_says_what_was_lost(opened, comparison):
    page = opened(comparison)
    assert page.locator(".verdict").inner_text().split() == ["▼", "REGRESSED"]
    lost = page.locator(".hidden-drops tbody tr").first
    assert FORGOTTEN in lost.inner_text()
    assert lost.locator(".bar").count() == 1
    words = page.locator("dl.counts").inner_text().split()
    assert words[:4] == ["metrics", "▼", "1", "regressed"]
    assert "95 % interval" in lost.locator(".bar").get_attribute("aria-label")


def test_a_click_on_the_first_screen_leads_to_the_cases_and_to_both_reports(opened, comparison):
    page = opened(comparison)
    worst = page.get_by_role("link", name="photo-00")
    assert worst.bounding_box()["y"] < DESKTOP["height"]
    page.get_by_role("link", name="1 newly failing").click()
    page.locator("#f-count").get_by_text("1 of 20 cases").wait_for()
    page.get_by_role("link", name="photo-04").click()
    page.locator('#case-detail h3:has-text("photo-04")').wait_for()
    links = page.locator(".sides a")
    assert [link.get_attribute("href") for link in links.all()] == ["../base/report.html", "../cand/report.html"]
    for link in page.locator("#case-detail").get_by_role("link", name="in its report").all():
        target, _, anchor = link.get_attribute("href").partition("#")
        report = opened((comparison.parent / target).resolve(), f"#{anchor}")
        report.locator("#case-title").filter(has_text="photo-04").wait_for()


def test_a_case_stands_side_by_side_with_its_photo_and_what_differs(opened, comparison):
    page = opened(comparison)
    page.locator("#case-detail .photo").first.wait_for()
    assert page.locator("#case-detail .photo image").count() == 2
    assert page.locator("#case-detail .layer-prediction .shape").count() == 2  # halo and outline, on one side alone
    assert "".join(page.locator("#case-detail del").all_inner_texts()) == FORGOTTEN
    assert page.locator("#case-detail ins").inner_text() == "none"
    colours = "['del', 'ins'].map((tag) => getComputedStyle(document.querySelector(`#case-detail ${tag}`)).backgroundColor)"
    assert len(set(page.evaluate(colours))) == 1, "the base's right answer is not in red"
    page.get_by_text(f"reference of {chosen(page)}").wait_for()
    page.keyboard.press("t")
    assert page.get_by_text(f"reference of {chosen(page)}").is_hidden()


def test_keys_move_and_hide_and_a_link_leads_to_a_case(opened, comparison):
    page = opened(comparison)
    page.locator("#case-detail h3").wait_for()
    first = chosen(page)
    page.keyboard.press("j")
    page.locator(f'#case-detail h3:not(:has-text("{first}"))').wait_for()
    page.keyboard.press("k")
    page.locator(f'#case-detail h3:has-text("{first}")').wait_for()
    page.keyboard.press("p")
    assert not page.locator("#case-detail .layer-prediction").first.is_visible()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "f-find"
    page = opened(comparison, "#case=7")
    page.locator('#case-7[aria-selected="true"]').wait_for()


def test_filters_and_search_narrow_the_list(opened, comparison):
    page = opened(comparison)
    count = page.locator("#f-count")
    count.get_by_text("20 of 20 cases").wait_for()
    page.select_option("#f-way", "failing")
    count.get_by_text("1 of 20 cases").wait_for()
    page.select_option("#f-way", "passing")
    count.get_by_text("0 of 20 cases").wait_for()
    page.select_option("#f-way", "")
    page.select_option("#f-category", FORGOTTEN)
    count.get_by_text("20 of 20 cases").wait_for()
    page.fill("#f-find", "case 16:")
    count.get_by_text("1 of 20 cases").wait_for()
    page.locator('#case-detail h3:has-text("photo-16")').wait_for()
    page.fill("#f-find", "nothing like it")
    count.get_by_text("0 of 20 cases").wait_for()


@pytest.mark.parametrize("options", [{"viewport": PHONE}, {"color_scheme": "dark"}], ids=["phone", "dark"])
def test_it_fits_a_phone_and_the_dark(opened, comparison, options):
    page = opened(comparison, **options)
    page.locator("#case-detail h3").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_hostile_texts_stay_text(opened, tmp_path):
    base, candidate = [], []
    for text in (value[:3000] for value in HOSTILE.values()):
        for number in range(8):
            details = {"categories": {text: 1}, "predictions": [{"type": text, "points": [1, 2, 3, 4], "desc": text}], "space": [9, 9]}
            names = {"scores": {text: 1.0}, "tags": {text: text}, "group": text or None, "nodeid": text, "reference": text}
            base.append(row(f"{number}{text}", text=text, details=details, **names))
            changes = {"scores": {text: 0.0}, "outcome": "miss", "problem": text, "generation": generation(text=text + "x")}
            candidate.append({**base[-1], **changes})
    found = compare(*map(read_side, map(str, pair(tmp_path, base, candidate))))
    page = opened(write_comparison([found], tmp_path / "out")[0])
    page.locator("#case-detail h3").wait_for()
    for _ in range(5):
        page.keyboard.press("j")
    assert page.evaluate("document.querySelectorAll('script:not([type])').length") == 1
    assert page.locator("main img[src^=x], main iframe, main form").count() == 0
