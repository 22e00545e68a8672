"""report.html in a real browser: it opens from disk, filters, searches, sorts, goes by keyboard, links to cases, fits a phone."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from evalharness.report.html import cases as case_rows
from evalharness.report.html.cases import case_anchor
from evalharness.report.html.report_page import write_report_pages
from evalharness.report.tables import load_tables
from tests.browser.conftest import PHONE, make_photo
from tests.report.runs import gate, generation, row, rows, write_run

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


WIDE, SMALL = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@pytest.mark.parametrize("size", [WIDE, SMALL], ids=["desk", "phone"])
def test_the_first_screen_says_what_broke(opened, report, size):
    page = opened(report, viewport=size)
    assert page.locator(".verdict").inner_text().split() == ["✗", "FAILED"]
    assert "1 of 2 gates failed" in page.locator("#overview h1").inner_text()
    assert page.locator(".gates").inner_text().split("\n") == ["stage_a on hf:early 20 cases", "✗", "f1 0.500, needs ≥ 0.95 (0.230–0.510)"]
    shown = [page.locator(".gates").first, page.locator(".reason").first, *(page.locator(".worst").all() if size is WIDE else ())]
    assert len(shown) == (5 if size is WIDE else 2)
    for box in (one.bounding_box() for one in shown):
        assert box["y"] + box["height"] <= size["height"]
        assert box["x"] + box["width"] <= size["width"]


def test_what_broke_leads_to_its_cases(opened, report):
    page = opened(report)
    page.get_by_role("link", name="f1", exact=True).click()
    wait_for_matches(page, f"17 of {NUM_CASES} cases")
    page.get_by_role("button", name="Remove the filter f1 < 0.8").click()
    wait_for_matches(page, f"22 of {NUM_CASES} cases")
    page.go_back()
    page.go_back()
    assert page.locator(".worst .thumb").count() == 3
    page.locator(".worst a").first.click()
    page.locator("#case-title").wait_for()
    assert title(page) == "photo-00"
    page.go_back()
    page.locator("tbody tr", has_text="99 is not the count").get_by_role("link").click()
    wait_for_matches(page, f"7 of {NUM_CASES} cases")
    assert page.locator("#narrowed").inner_text().split("\n") == ["reason: 99 is not the count", "✕"]
    assert {name.split("-")[0] for name in cases(page)} == {"photo"}


def test_scores_and_words_are_explained_where_they_stand(opened, report):
    page = opened(report)
    scores = page.get_by_role("table", name="Scores of stage_a")
    assert scores.get_by_text("f1 >= 0.8").count() == 1
    assert "95 % interval" in scores.locator(".bar").first.get_attribute("aria-label")
    assert page.get_by_label("Validity").first.inner_text().split()[-8:] == ["1", "of", "22", "invalid", "1", "of", "22", "errors"]
    words = page.locator(".words").all_inner_texts()
    assert "miss: an assertion failed in a test whose gates decide" in words[0]
    assert "malformed: not of the form" in words[1]
    page.get_by_role("link", name="1 of 22 errors").first.click()
    wait_for_matches(page, f"1 of {NUM_CASES} cases")


def test_an_aggregate_of_a_category_leads_to_its_cases_and_scores_have_their_scale(opened, tmp_path: Path):
    lines = [{"domain": "bbu", "category": name, "F1": value} for name, value in (("标签", 0.9), ("螺丝", 0.1), ("光纤", 0.8))]
    table = {"eval": "stage_a", "test": "test_summary", "engine": "hf:tiny", "title": "by category", "rows": lines}
    gates = [
        gate(False, metric="category_min_f1", expression="category_min_f1 >= 0.6", value=0.1, threshold=0.6, reason="0.100, needs ≥ 0.60")
    ]
    told = {n: {"reference": "螺丝" if n == 3 else "标签", "tags": {"site": "ab"[n % 2]}} for n in range(6)}
    samples = [row(f"c{n}", group=f"g{n // 2}", scores={"chars": 190.0 + n}, **more) for n, more in told.items()]
    write_run(tmp_path, samples, gates=gates, tables=[table], exit_code=1)
    page = opened(write_report_pages(load_tables(tmp_path))["report.html"])
    scores = page.get_by_role("table", name="Scores of stage_a")
    text = scores.inner_text()
    assert "192.5" in text
    assert "6 in 3 groups" in text
    assert "on a scale from 0.000 to 200" in scores.locator("tr", has_text="chars").locator(".bar").get_attribute("aria-label")
    page.locator(".gates").get_by_role("link", name="螺丝").click()
    page.locator("#matches").filter(has_text="1 of 6 cases").wait_for()
    assert cases(page) == ["c3"]


def test_cases_are_filtered_by_outcome_engine_and_tag(opened, report):
    page = opened(report, "#cases")
    page.get_by_role("button", name="miss").click()
    wait_for_matches(page, f"8 of {NUM_CASES} cases")
    page.get_by_label("Eval").select_option("stage_a")
    wait_for_matches(page, f"7 of {NUM_CASES} cases")
    page.get_by_text("More", exact=True).click()
    page.get_by_label("mission").select_option("left")
    wait_for_matches(page, f"3 of {NUM_CASES} cases")
    page.get_by_label("Engine").select_option("hf:final")
    wait_for_matches(page, f"0 of {NUM_CASES} cases")
    assert page.get_by_text("No case fits these filters.").is_visible()
    page.keyboard.press("Escape")
    chips = page.locator("#narrowed button")
    assert chips.all_inner_texts() == ["eval = stage_a\n✕", "mission = left\n✕", "engine = hf:final\n✕"]
    page.get_by_role("button", name="Remove the filter mission = left").press("Enter")
    assert page.get_by_label("mission").input_value() == ""
    assert page.evaluate("document.activeElement.innerText") == "eval = stage_a\n✕"
    page.get_by_role("button", name="Clear").click()
    wait_for_matches(page, f"{NUM_CASES} cases")
    assert chips.count() == 0


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
    page.get_by_label("Sort").select_option("f1")
    assert cases(page)[:2] == ["photo-00", "photo-01"]
    page.get_by_role("button", name="lowest").click()
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
def test_cases_open_on_the_worst_and_are_gone_through_by_keyboard(opened, report, forth, back):
    page = opened(report, "#cases")
    seen = []
    for place, key in zip((1, 2, 3, 2), (forth, forth, back, ""), strict=True):
        page.wait_for_function("at => (document.querySelector('#case').ariaLabel ?? '').startsWith(`Case ${at} of`)", arg=place)
        seen.append(title(page))
        if key:
            page.keyboard.press(key)
    assert seen == ["photo-00", "photo-03", "photo-06", "photo-03"]
    assert page.get_by_role("option", selected=True).locator(".name").text_content() == "photo-03"
    assert page.evaluate("index.worst.slice(-1)[0]") == page.evaluate("index.outcome.lastIndexOf(0)")


def test_a_case_is_one_key_from_itself_on_other_engines_and_in_the_run_before(opened, tmp_path: Path):
    for day, outcome in ((1, "pass"), (2, "miss")):
        samples = [row(f"case {n}", engine=engine, outcome=outcome if n == 7 else "pass") for n in range(9) for engine in ("hf:a", "hf:b")]
        run = {"evals": [{"name": "stage_a"}], "counts": {"pass": 18}, "started_at": f"2030-01-0{day}T00:00:00", "run_id": f"day {day}"}
        write_run(tmp_path / f"day {day}", samples, **run)
        path = write_report_pages(load_tables(tmp_path / f"day {day}"))["report.html"]
    page = opened(path, "#cases?engine=hf%3Aa&sort=case")
    page.locator(".item", has_text="case 7").click()
    page.get_by_role("link", name="run before, day 1: pass").wait_for()
    page.keyboard.press("e")
    page.locator("#case .chip", has_text="hf:b").first.wait_for()
    page.wait_for_function("() => document.querySelector('#case .chips').textContent.includes('hf:b')")
    page.keyboard.press("j")  # on from where it was in the list, which has only the other engine
    page.wait_for_function("() => document.querySelector('#case-title').textContent === 'case 8'")
    page.keyboard.press("k")
    page.wait_for_function("() => document.querySelector('#case-title').textContent === 'case 7'")
    page.keyboard.press("b")
    page.wait_for_url("**/day%201/report.html#case=*")
    page.wait_for_function("() => document.querySelector('#case-title')?.textContent === 'case 7'")
    page.noted.clear()  # the request for the other run's page, which is meant here


def test_an_image_is_zoomed_and_moved_by_key_button_and_mouse(opened, report):
    page = opened(report, f"#{FIRST_MISS}")
    page.locator(".photo image").wait_for()
    page.keyboard.press("z")
    zoomed = page.locator("#zoom svg")
    whole = zoomed.get_attribute("viewBox")
    page.keyboard.press("+")
    larger = [float(part) for part in zoomed.get_attribute("viewBox").split()]
    assert larger[2] < 288
    page.keyboard.press("ArrowRight")
    assert float(zoomed.get_attribute("viewBox").split()[0]) > larger[0]
    page.get_by_role("button", name="Whole image").click()
    assert zoomed.get_attribute("viewBox") == whole
    zoomed.hover()
    page.mouse.wheel(0, -300)
    page.wait_for_function("whole => document.querySelector('#zoom svg').getAttribute('viewBox') !== whole", arg=whole)
    page.keyboard.press("Escape")
    assert page.locator("#zoom").is_hidden()
    assert title(page) == "photo-00"


_LINES = [{"name": f"螺丝{n}", "note": "安装位置正确"} for n in range(12)]


def test_differences_of_json_stand_side_by_side_by_line_and_word(opened, tmp_path: Path):
    changed = [{**line, "note": "安装位置错误"} if n == 5 else line for n, line in enumerate(_LINES) if n != 8]
    said = {"合格": "不符合", "lines": changed, "surplus": 1}
    made = generation(text=json.dumps(said, ensure_ascii=False))
    write_run(tmp_path, [row(outcome="miss", reference={"lines": _LINES, "合格": "符合"}, generation=made)])
    page = opened(write_report_pages(load_tables(tmp_path))["report.html"], "#cases")
    lines = [row_.split("\t") for row_ in page.locator(".aligned tr.changed").all_inner_texts()]
    assert ['      "note": "安装位置正确"', '      "note": "安装位置错误"'] in lines
    assert ['  "合格": "符合"', '  "合格": "不符合"'] in lines
    assert ["", '  "surplus": 1,'] in lines
    assert page.locator(".aligned ins").all_text_contents() == ["错误", '"surplus": 1,', "不"]
    button = page.get_by_role("button", name="Only differences")
    assert button.get_attribute("aria-pressed") == "true"  # so many lines are equal
    equal = page.locator(".aligned").get_by_text("螺丝2").first
    assert equal.is_hidden()
    assert page.get_by_text("equal lines").first.is_visible()
    page.keyboard.press("d")
    assert equal.is_visible()
    assert page.get_by_text("equal lines").first.is_hidden()


_FORMS = {
    "chatml": ("<|im_start|>{}\n{}<|im_end|>\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    "llama": ("<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    "phi": ("<|{}|>\n{}<|end|>\n", "<|assistant|>\n"),
}


def test_what_was_said_is_a_conversation_whatever_the_template(opened, tmp_path: Path):
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
    said = [("system", "Be brief."), ("user", "Rain in Ulm?"), ("assistant", call), ("user", "<tool_response>\nyes\n</tool_response>")]
    samples = []
    for name, (turn, start) in _FORMS.items():
        prompts = ["".join(turn.format(*one) for one in said[:number]) + start for number in (2, 4)]
        steps = [[generation(text=call, prompt_text=prompts[0])]]
        samples.append(row(name, steps=steps, generation=generation(text="Yes.", prompt_text=prompts[1])))
    write_run(tmp_path, samples)
    page = opened(write_report_pages(load_tables(tmp_path))["report.html"], "#cases")
    for place, name in enumerate(_FORMS):
        page.evaluate("place => choose(place)", place)
        page.wait_for_function("name => document.querySelector('#case-title')?.textContent === name", arg=name)
        bubbles = [text.split("\n")[:2] for text in page.locator(".conversation .bubble").all_inner_texts()]
        assert [who for who, _ in bubbles] == ["system", "user", "assistant", "tool", "assistant"]
        assert [text for _, text in bubbles] == ["Be brief.", "Rain in Ulm?", "calls a tool get_weather", "yes", "Yes."]
    mistral = "<s>[SYSTEM] x[INST]Hi[/INST]Hello</s>[INST]" + "[INST]" * 100_000
    assert page.evaluate("prompt => turnsOf(prompt)", mistral) == [["prompt", "[SYSTEM] x"], ["user", "Hi"], ["assistant", "Hello"]]
    assert page.evaluate("turnsOf('no <|user|>\\nform')") == [["prompt", "no"], ["user", "form"]]
    assert page.evaluate("turnsOf('plain <|vision_start|><|image_pad|><|vision_end|>text')") == [["prompt", "plain [image]text"]]


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
    page.wait_for_function("""() => document.querySelector('#case-title').textContent !== "it's a 'quoted' case" """)
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
    page = opened(report, f"#{FIRST_MISS.replace('early', 'final')}")
    page.get_by_text("as the reference").wait_for()
    page = opened(report, "#" + case_anchor("votes", "test_vote", "hf:tiny", "it's a 'quoted' case"))
    assert page.get_by_role("heading", name="Answer").all_text_contents() == ["Answer 1 of 3", "Answer 2 of 3", "Answer 3 of 3"]
    assert page.get_by_text("Step 1, request 2 of 2").is_visible()
    assert page.locator(".bubble", has_text="a first summary").is_visible()


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
    assert page.locator("#search").bounding_box()["y"] > page.locator("header").bounding_box()["height"]
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
    assert "1 of 2 gates failed" in page.locator("#overview h1").inner_text()
    assert "Sorting and single cases need JavaScript" in page.locator("noscript").inner_text()
    page = opened(report)
    page.emulate_media(media="print")
    assert page.locator("#overview h1").is_visible()
    assert page.get_by_role("navigation").first.is_hidden()


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
    page = opened(pages["report.html"], "#" + case_anchor("stage_a", "test_summary", "hf:tiny", "case-23"))  # as other pages link to it
    page.locator("#case-title").filter(has_text="case-23").wait_for()
    assert page.url.partition("#")[0].endswith("report-3.html")


def test_five_thousand_cases_are_few_elements_and_all_there(opened, tmp_path: Path):
    write_run(tmp_path, [row(f"case-{number:04}", text=f"answer {number}", scores={"f1": number % 7 / 7}) for number in range(5000)])
    path = write_report_pages(load_tables(tmp_path))["report.html"]
    assert path.stat().st_size < 2_000_000
    page = opened(path, "#cases?sort=run")
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
