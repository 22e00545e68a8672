"""report.html in a real browser: it opens from disk, filters, searches, sorts, goes by keyboard, links to cases, fits a phone."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from evalharness.report.html import cases as case_rows
from evalharness.report.html.cases import case_anchor
from evalharness.report.html.report_page import write_report_pages
from evalharness.report.tables import load_tables
from tests.browser.conftest import DESKTOP, PHONE, make_photo
from tests.report.runs import generation, row, rows, write_run

NUM_CASES = 46
FIRST_MISS = case_anchor("stage_a", "test_summary", "hf:early", "photo-00")


def cases(page, anchor="#cases"):
    """Return the ids in the list, in order, once it is filled."""
    page.locator("#matches").filter(has_text="cases").wait_for()
    return page.locator(".item .name").all_text_contents()


def wait_for_matches(page, text):
    page.locator("#matches").get_by_text(text, exact=True).wait_for()


def title(page):
    return page.locator("#case-title").text_content()


def test_the_first_screen_gives_verdict_scores_gates_and_what_broke_first(opened, report):
    page = opened(report)
    assert page.locator(".verdict").inner_text().split() == ["✗", "FAILED"]
    assert "1 of 2 gates failed" in page.locator("h1").inner_text()
    scores = page.get_by_role("table", name="Scores of stage_a")
    assert scores.get_by_text("f1 >= 0.8").count() == 1
    assert "95 % interval" in scores.locator(".bar").first.get_attribute("aria-label")
    assert page.locator(".bar").first.bounding_box()["y"] < DESKTOP["height"]
    assert page.get_by_label("Validity").first.inner_text().split()[-8:] == ["1", "of", "22", "invalid", "1", "of", "22", "errors"]
    text = page.locator("section", has_text="What broke first").first.inner_text()
    for part in ("Failed gates", "0.500, needs ≥ 0.95", "CUDA is out of memory", "99 is not the count", "image.jpg is empty"):
        assert part in text
    page.get_by_role("row", name="99 is not the count").get_by_role("link").click()
    wait_for_matches(page, f"7 of {NUM_CASES} cases")
    assert {name.split("-")[0] for name in cases(page)} == {"photo"}


def test_cases_are_filtered_by_outcome_engine_and_tag(opened, report):
    page = opened(report, "#cases")
    page.get_by_role("button", name="miss").click()
    wait_for_matches(page, f"8 of {NUM_CASES} cases")
    page.get_by_label("Eval").select_option("stage_a")
    wait_for_matches(page, f"7 of {NUM_CASES} cases")
    page.get_by_label("mission").select_option("left")
    wait_for_matches(page, f"3 of {NUM_CASES} cases")
    page.get_by_label("Engine").select_option("hf:final")
    wait_for_matches(page, f"0 of {NUM_CASES} cases")
    assert page.get_by_text("No case fits these filters.").is_visible()
    page.get_by_role("button", name="Clear").click()
    wait_for_matches(page, f"{NUM_CASES} cases")


def test_backends_of_one_checkpoint_are_told_apart_and_taken_together(opened, tmp_path: Path):
    samples = [row(f"case-{number}", engine=engine) for engine in ("hf:a", "vllm:a", "hf:b") for number in range(2)]
    write_run(tmp_path, samples)
    page = opened(write_report_pages(load_tables(tmp_path))["report.html"], "#cases")
    page.get_by_label("Checkpoint").select_option("a")
    wait_for_matches(page, "4 of 6 cases")
    page.get_by_label("Engine").select_option("vllm:a")
    wait_for_matches(page, "2 of 6 cases")


def test_a_search_reads_every_text_and_keeps_its_place_in_the_address(opened, report):
    page = opened(report)
    page.keyboard.press("/")
    page.keyboard.type("count VERDICT: fail")
    wait_for_matches(page, f"0 of {NUM_CASES} cases")
    page.locator("#search").fill("verdict: FAIL")
    wait_for_matches(page, f"1 of {NUM_CASES} cases")
    assert cases(page) == ["it's a 'quoted' case"]
    assert page.url.endswith("#cases?q=verdict%3A+FAIL")


def test_cases_are_sorted_by_a_score(opened, report):
    page = opened(report, "#cases?engine=hf%3Afinal")
    page.get_by_label("Sort").select_option("f1, highest first")
    assert cases(page)[:2] == ["photo-19", "photo-18"]


def test_tables_are_sorted_by_their_headers(opened, report):
    page = opened(report)
    page.locator("summary", has_text="Categories").click()
    table = page.locator("details", has_text="Categories").locator("table")
    header = table.get_by_role("columnheader", name="F1")
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert table.locator("tbody td:first-child").all_text_contents() == ["c", "a", "b"]
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert table.locator("tbody td:first-child").all_text_contents() == ["b", "a", "c"]


@pytest.mark.parametrize(("forth", "back"), [("j", "k"), ("ArrowRight", "ArrowLeft")], ids=["letters", "arrows"])
def test_cases_are_gone_through_by_keyboard(opened, report, forth, back):
    page = opened(report, "#cases")
    seen = []
    for key in (forth, forth, forth, back):
        page.keyboard.press(key)
        page.wait_for_function(
            "at => document.querySelector('#case').getAttribute('aria-label').startsWith(`Case ${at} of`)", arg=(1, 2, 3, 2)[len(seen)]
        )
        seen.append(title(page))
    assert seen == ["photo-00", "photo-01", "photo-02", "photo-01"]
    assert page.get_by_role("option", selected=True).locator(".name").text_content() == "photo-01"


def test_keys_are_explained_and_a_link_to_no_case_says_so(opened, report):
    page = opened(report, "#cases")
    page.keyboard.press("?")
    assert page.get_by_role("dialog", name="Keys").is_visible()
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0
    page = opened(report, "#case=gone")
    assert page.get_by_text("This page has no such case").first.is_visible()


def test_every_case_has_a_link_that_opens_it(opened, report):
    page = opened(report, "#" + case_anchor("votes", "test_vote", "hf:tiny", "it's a 'quoted' case"))
    page.locator("#case-title").wait_for()
    assert title(page) == "it's a 'quoted' case"
    page.keyboard.press("k")
    page.wait_for_function("() => document.querySelector('#case-title').textContent === 'photo-21'")
    page.go_back()
    page.wait_for_function("""() => document.querySelector('#case-title').textContent === "it's a 'quoted' case" """)


def test_the_command_that_runs_a_case_again_is_copied_as_a_shell_takes_it(opened, report):
    page = opened(report, "#" + case_anchor("votes", "test_vote", "hf:tiny", "it's a 'quoted' case"))
    page.locator("#case-title").wait_for()
    page.keyboard.press("c")
    page.get_by_text("Copied").first.wait_for()
    page.keyboard.press("/")
    page.keyboard.press("Control+V")
    command = page.locator("#search").input_value()
    nodeid = "evals/test_stage_a.py::test_summary[hf:tiny-it's a 'quoted' case]"
    assert shlex.split(command) == ["pytest", nodeid, "--model", "/models/a b/tiny", "--backend", "hf"]


def test_all_answers_and_steps_and_what_differs_are_shown(opened, report):
    page = opened(report, f"#{FIRST_MISS}")
    assert page.locator(".case del").all_text_contents() == ["0"]
    assert page.locator(".case ins").all_text_contents() == ["99"]
    page.keyboard.press("j")
    page.get_by_text("as the reference").wait_for()
    page = opened(report, "#" + case_anchor("votes", "test_vote", "hf:tiny", "it's a 'quoted' case"))
    assert page.get_by_role("heading", name="Answer").all_text_contents() == ["Answer 1 of 3", "Answer 2 of 3", "Answer 3 of 3"]
    page.get_by_text("Step 1: 2 requests").click()
    assert page.get_by_text("a first summary").is_visible()


def test_truth_is_solid_and_prediction_dashed_and_each_can_be_hidden(opened, report):
    page = opened(report, "#" + case_anchor("dense", "test_objects", "hf:tiny", "dense/photo-1"))
    page.locator(".photo image").wait_for()
    dashes = page.evaluate(
        "['truth', 'prediction'].map((kind) => getComputedStyle(document.querySelector(`.shape.${kind}`)).strokeDasharray)"
    )
    assert dashes[0] == "none"
    assert dashes[1] != "none"
    assert page.locator(".photo .shape.truth").count() == page.locator(".photo .shape.prediction").count() == 2
    assert page.locator(".photo svg").get_attribute("aria-label").endswith("2 reference (solid), 2 predicted (dashed)")
    page.keyboard.press("t")
    assert page.locator(".photo .shape.truth").first.is_hidden()
    assert page.get_by_role("button", name="reference 2").get_attribute("aria-pressed") == "false"
    assert [cell.split()[0] for cell in page.locator(".case tbody td:first-child").all_text_contents()] == ["missed", "wrong", "hit"]


def test_pictures_of_many_cases_are_seen_at_once(opened, report):
    page = opened(report, "#cases?eval=stage_a")
    cases(page)
    page.keyboard.press("g")
    tops = "[...document.querySelectorAll('.is-gallery .item')].map((one) => one.getBoundingClientRect().top)"
    page.wait_for_function(f"{tops}.length >= 12")
    first, second, third = page.evaluate(tops)[:3]
    assert first == second == third


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system_and_the_switch(opened, report, scheme):
    page = opened(report, color_scheme=scheme)
    lightness = (
        "() => { const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number); return r + g + b; }"
    )
    first = page.evaluate(lightness)
    page.get_by_role("button", name="Switch between light and dark").click()
    second = page.evaluate(lightness)
    assert (first > 600, second > 600) == (scheme == "light", scheme == "dark")


_CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (node) => { for (; node; node = node.parentElement) { const c = parse(getComputedStyle(node).backgroundColor); if (c.length < 4 || c[3] > 0.99) return c; } return [255, 255, 255]; };
  const light = (c) => { const [r, g, b] = c.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const found = [];
  for (const node of document.querySelectorAll('main *, header *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !node.checkVisibility() || node.closest('svg, .visually-hidden, :disabled, noscript')) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${node.tagName} ${node.className} ${node.textContent.slice(0, 30)}`);
  }
  return [...new Set(found)];
}"""  # noqa: E501 -- one function of the browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("anchor", ["", f"#{FIRST_MISS}"], ids=["overview", "case"])
def test_every_text_stands_out_from_its_ground(opened, report, scheme, anchor):
    page = opened(report, anchor, color_scheme=scheme)
    if anchor:
        page.locator("#case-title").wait_for()
    assert page.evaluate(_CONTRAST) == []


@pytest.mark.parametrize("anchor", ["", "#cases", f"#{FIRST_MISS}"], ids=["overview", "cases", "case"])
def test_a_phone_needs_no_scrolling_sideways(opened, report, anchor):
    page = opened(report, anchor, viewport=PHONE, has_touch=True)
    if anchor:
        page.locator("#case-title" if "case=" in anchor else ".item").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_on_a_phone_a_case_takes_the_screen_and_gives_it_back(opened, report):
    page = opened(report, "#cases", viewport=PHONE)
    page.locator(".item").first.click()
    page.locator("#case-title").wait_for()
    assert page.locator("#case-list").is_hidden()
    page.get_by_role("button", name="List").click()
    assert page.locator("#case-list").is_visible()


@pytest.mark.parametrize("anchor", ["", f"#{FIRST_MISS}"], ids=["overview", "case"])
def test_whatever_can_be_used_or_seen_has_a_name_for_screen_readers(opened, report, anchor):
    page = opened(report, anchor)
    if anchor:
        page.locator("#case-title").wait_for()
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "link", "searchbox", "combobox", "listbox", "option", "image", "img", "table", "article", "navigation", "heading"}
    roles.add("search")
    nodes = [node for node in tree if not node.get("ignored") and node.get("role", {}).get("value") in roles]
    named = ("table",)  # captions and headings around a table tell what it is
    assert len(nodes) > 15
    assert [node for node in nodes if not node.get("name", {}).get("value", "").strip() and node["role"]["value"] not in named] == []
    assert page.get_by_role("main").count() == page.get_by_role("banner").count() == 1
    assert [page.get_by_role("navigation", name=name).count() for name in ("Pages", "Sections")] == [1, 1]


def test_the_numbers_are_there_without_javascript_and_on_paper(opened, report):
    page = opened(report, java_script_enabled=False)
    assert "1 of 2 gates failed" in page.locator("h1").inner_text()
    assert "Sorting and single cases need JavaScript" in page.locator("noscript").inner_text()
    page = opened(report)
    page.emulate_media(media="print")
    assert page.locator("h1").is_visible()
    assert page.get_by_role("navigation").is_hidden()


def test_a_photo_has_its_own_shape_and_is_not_shown_if_it_changed(opened, tmp_path: Path):
    asked = generation(images=[make_photo(tmp_path / "photo.jpg", (300, 100))])
    write_run(tmp_path / "run", [row(steps=[[asked, None]])])
    page = opened(write_report_pages(load_tables(tmp_path / "run"))["report.html"], "#cases")
    page.keyboard.press("j")
    page.locator(".photo image").wait_for()
    assert page.locator(".photo svg").get_attribute("viewBox") == "0 0 300 100"
    fact = make_photo(tmp_path / "photo.jpg")
    make_photo(tmp_path / "photo.jpg", (300, 300))
    write_run(tmp_path / "run", [row(generation=generation(images=[fact]))])
    page = opened(write_report_pages(load_tables(tmp_path / "run"))["report.html"], "#cases")
    page.keyboard.press("j")
    assert page.get_by_text("This image is not shown: it is gone or has changed.").is_visible()


def test_a_run_of_many_cases_goes_on_on_further_pages(opened, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(case_rows, "ROWS_PER_PAGE", 10)
    write_run(tmp_path, rows(25))
    pages = write_report_pages(load_tables(tmp_path))
    assert list(pages) == ["report.html", "report-2.html", "report-3.html"]
    page = opened(pages["report.html"])
    assert "cases 21–25" in page.locator(".pages").first.inner_text()
    page.get_by_role("link", name="Page 3").first.click()
    wait_for_matches(page, "5 cases")
    assert cases(page) == [f"case-{number}" for number in range(20, 25)]
    page.get_by_role("link", name="Overview").click()
    page.locator(".verdict").wait_for()


def test_five_thousand_cases_are_few_elements_and_all_there(opened, tmp_path: Path):
    write_run(tmp_path, [row(f"case-{number:04}", text=f"answer {number}", scores={"f1": number % 7 / 7}) for number in range(5000)])
    path = write_report_pages(load_tables(tmp_path))["report.html"]
    assert path.stat().st_size < 2_000_000
    page = opened(path, "#cases")
    assert cases(page)[0] == "case-0000"
    assert page.locator(".item").count() < 40
    page.evaluate("document.querySelector('#case-list').scrollTop = 1e9")
    page.get_by_text("case-4999").wait_for()
    page.locator("#search").fill("answer 4321")
    wait_for_matches(page, "1 of 5,000 cases")


def test_a_run_without_cases_has_a_page(opened, tmp_path: Path):
    write_run(tmp_path, [])
    page = opened(write_report_pages(load_tables(tmp_path))["report.html"])
    assert "EMPTY" in page.locator(".verdict").inner_text()
    page.get_by_role("link", name="Cases").click()
    assert page.get_by_text("No case was recorded.").last.is_visible()
