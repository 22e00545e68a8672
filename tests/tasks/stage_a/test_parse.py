"""Stage-A summaries from texts. Run: pytest tests/tasks/stage_a/test_parse.py"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from evalharness.api.errors import ContractValueError
from evalharness.tasks.stage_a.parse import IRRELEVANT, parse_summary, render_summary
from evalharness.tasks.stage_a.schema import DOMAINS
from tests.growth import assert_linear
from tests.tasks.stage_a_examples import BBU_HEADER, RRU_EXAMPLE, RRU_HEADER, WIRE, bbu, line, rru, summaries

GOOD = f"{BBU_HEADER}\n{line(bbu(WIRE))}"


def test_the_documented_example_is_strictly_valid() -> None:
    summary = parse_summary(RRU_EXAMPLE, "rru")
    assert (summary.valid, summary.tolerant_valid, summary.problem) == (True, True, "")
    assert summary.header == ("RRU", "SUMMARY")


def test_header_goes_and_keys_come_in_canonical_order() -> None:
    text = f'{BBU_HEADER}\n{{"备注": ["a"], "x": 1, "统计": [], "分组统计": {{}}}}'
    assert list(json.loads(parse_summary(text, "bbu").text)) == ["统计", "备注", "分组统计", "x"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("无关图片", ""),
        *((text, "无关图片 must stand alone") for text in ("无关图片，没有设备", f"{BBU_HEADER}\n无关图片", "  无关图片。\n")),
    ],
    ids=["alone", "more", "header", "full stop"],
)
def test_an_irrelevant_photo_is_read_as_such_and_only_the_bare_word_is_strictly_valid(text: str, problem: str) -> None:
    summary = parse_summary(text, "bbu")
    assert (summary.text, summary.is_irrelevant, summary.tolerant_valid, summary.data) == (IRRELEVANT, True, True, None)
    assert (summary.valid, summary.problem) == (not problem, problem)


@pytest.mark.parametrize("sign", ["=", ":", " = "])
def test_an_assignment_is_repaired_and_the_wrong_task_is_flagged(sign: str) -> None:
    summary = parse_summary(f"<DOMAIN=BBU>, <TASK=DETECTION>\n统计{sign}[{line(WIRE)}]", "bbu")
    assert summary.data == bbu(WIRE)
    assert (summary.tolerant_valid, summary.valid, summary.header_match) == (True, False, False)
    assert "header says BBU, DETECTION" in summary.problem


@pytest.mark.parametrize("domain", DOMAINS)
@given(st.data())
def test_every_key_of_an_assignment_is_read_in_any_order(domain, data: st.DataObject) -> None:
    said = data.draw(summaries(domain))
    keys = data.draw(st.permutations(list(said)))
    sign, between = data.draw(st.sampled_from(["=", ":", " = "])), data.draw(st.sampled_from([", ", "\n", " ", "；"]))
    text = between.join(f"{key}{sign}{line(said[key])}" for key in keys)
    summary = parse_summary(f"<DOMAIN={domain.upper()}>, <TASK=DETECTION>\n{text}", domain)
    assert (summary.data, summary.valid, summary.violations) == (said, False, ())


def test_words_within_a_value_are_not_an_assignment() -> None:
    notes = bbu(WIRE, 备注=["统计=[{}] 备注=[1]"])
    assert parse_summary(f"统计={line(notes['统计'])}, 备注={line(notes['备注'])}", "bbu").data == notes


NOT_ASSIGNED = {
    "full-width colon": f"统计：[{line(WIRE)}]",
    "tail of a longer key": "分组统计=[1]",
    **{
        name: f"统计=[{line(WIRE)}], {tail}"
        for name, tail in {"cut": '备注=["a', "words": "备注=[a]", "open": "分组统计={", "nan": '分组统计={"1": NaN}'}.items()
    },
    **{name: f'{BBU_HEADER}\n{{"统计": [{name}]}}' for name in ("NaN", "Infinity", "1e999")},
    "huge number": f'{BBU_HEADER}\n{{"统计": [{"9" * 5000}]}}',
}


@pytest.mark.parametrize("text", NOT_ASSIGNED.values(), ids=NOT_ASSIGNED)
def test_what_is_neither_json_nor_whole_assignments_is_not_read(text: str) -> None:
    assert not parse_summary(text, "bbu").tolerant_valid


@pytest.mark.parametrize(
    "text", [f"统计=[]\n统计=[{line(WIRE)}]", f'{BBU_HEADER}\n{{"统计": [], "统计": [{line(WIRE)}]}}'], ids=["assigned", "json"]
)
def test_a_key_written_twice_is_a_violation_and_the_last_counts(text: str) -> None:
    summary = parse_summary(text, "bbu")
    assert (summary.data, summary.violations) == (bbu(WIRE), ("key '统计' is written twice",))
    assert (summary.valid, summary.tolerant_valid) == (False, True)


@pytest.mark.parametrize("cut", range(len(BBU_HEADER) + 2, len(GOOD)))
def test_json_cut_anywhere_is_never_valid(cut: int) -> None:
    summary = parse_summary(GOOD[:cut], "bbu")
    assert (summary.valid, summary.tolerant_valid, summary.data) == (False, False, None)
    assert summary.text == GOOD[:cut].strip()
    assert "the JSON is not closed" in summary.problem


def test_of_two_json_lines_the_last_wins() -> None:
    summary = parse_summary(f"{BBU_HEADER}\n{line(bbu())}\n{line(bbu(WIRE))}", "bbu")
    assert summary.data == bbu(WIRE)
    assert "other lines around it" in summary.problem


NOT_STRICT = {
    "empty": ("", "the header line is missing; the answer is empty"),
    "no header": (line(bbu(WIRE)), "the header line is missing"),
    "domain": (f"<DOMAIN=RRU>, <TASK=SUMMARY>\n{line(bbu(WIRE))}", "header says RRU, SUMMARY"),
    "prefix": (f"Here: {GOOD}", "the header must be the whole first line"),
    "header blank": (f"<DOMAIN=BBU>,<TASK=SUMMARY>\n{line(bbu(WIRE))}", "the header must be the whole first line"),
    "suffix": (f"{GOOD}×1", "not one line of JSON after the header: other text around it"),
    "fence": (f"{BBU_HEADER}\n```json\n{line(bbu(WIRE))}\n```", "not one line of JSON after the header: other lines around it"),
    "indent": (f"{BBU_HEADER}\n{json.dumps(bbu(WIRE), ensure_ascii=False, indent=1)}", 'one line with ", " and ": "'),
    "compact": (f"{BBU_HEADER}\n{json.dumps(bbu(WIRE), ensure_ascii=False, separators=(',', ':'))}", 'one line with ", " and ": "'),
    "blank line": (f"{BBU_HEADER}\n\n{line(bbu(WIRE))}", 'one line with ", " and ": "'),
    "single quotes": (f"{BBU_HEADER}\n{{'统计': []}}", "no JSON object with 统计 in it"),
    "list": (f"{BBU_HEADER}\n[1]", "no JSON object with 统计 in it"),
    "prose": ("我看不清这张图", "no JSON object with 统计 in it"),
}


@pytest.mark.parametrize(("text", "problem"), NOT_STRICT.values(), ids=NOT_STRICT)
def test_each_deviation_from_the_strict_form_is_named(text: str, problem: str) -> None:
    summary = parse_summary(text, "bbu")
    assert not summary.valid
    assert problem in summary.problem


AROUND = {
    "think": f"<think>\n{{maybe}}\n</think>\n\n{GOOD}",
    "same line": f"{BBU_HEADER} {line(bbu(WIRE))}",
    "fence": f"```\n{line(bbu(WIRE))}```",
    "indent": json.dumps(bbu(WIRE), ensure_ascii=False, indent=2),
    "legacy text": line({"image_1": line(bbu(WIRE))}),
    "legacy object": line({"图片_1": bbu(WIRE)}),
}


@pytest.mark.parametrize("text", AROUND.values(), ids=AROUND)
def test_text_around_a_summary_is_tolerated(text: str) -> None:
    summary = parse_summary(text, "bbu")
    assert (summary.data, summary.text, summary.valid) == (bbu(WIRE), line(bbu(WIRE)), False)


def test_stats_as_one_object_are_read_but_not_valid_and_escaped_chinese_is() -> None:
    summary = parse_summary(f"{BBU_HEADER}\n{line({'统计': WIRE})}", "bbu")
    assert (summary.tolerant_valid, summary.valid, summary.problem) == (True, False, "统计 must be a list, got dict")
    assert parse_summary(f"{BBU_HEADER}\n{json.dumps(bbu(WIRE))}", "bbu").valid


def test_a_lone_surrogate_survives() -> None:
    text = f'{BBU_HEADER}\n{{"统计": [{{"类别": "标签", "文本": {{"\\ud800": 1}}}}]}}'
    assert parse_summary(text, "bbu").tolerant_valid


def test_a_summary_shows_the_start_of_its_text_on_one_line() -> None:
    text = "a\n\x1b[31m" + "b" * 500
    assert repr(parse_summary(text, "bbu")) == f"Summary({text[:60]!r}…)"


def test_the_domain_is_taken_in_any_case_and_another_one_is_refused() -> None:
    assert parse_summary(GOOD, "BBU").valid
    with pytest.raises(ContractValueError, match="domain must be one of bbu, rru, got 'ddu'"):
        parse_summary(GOOD, "ddu")


PIECES = [*'{}[]":,\n1\\\ud800', "```", "统计", "统计=", "无关图片", "类别", BBU_HEADER, RRU_HEADER, line(bbu(WIRE))]


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=30).map("".join)), st.sampled_from(DOMAINS))
def test_no_text_makes_the_parser_raise(text: str, domain: str) -> None:
    summary = parse_summary(text, domain)
    assert summary.valid == (summary.problem == "")
    assert summary.tolerant_valid or not summary.valid


@pytest.mark.parametrize("domain", DOMAINS)
@given(st.data())
def test_parsing_gives_back_what_was_rendered(domain, data: st.DataObject) -> None:
    said = data.draw(summaries(domain))
    summary = parse_summary(render_summary(said, domain), domain)
    assert (summary.data, summary.problem) == (said, "")


def test_the_irrelevant_answer_renders_as_the_bare_word() -> None:
    assert render_summary(None, "rru") == IRRELEVANT
    assert parse_summary(render_summary(rru(), "rru"), "rru").valid


UNITS = [*'{["\\无', "[{", "]}", "{\n", "}\n{", '{"a":', '{"统计":', "统计=[", "统计 ", "统计=[]", "备注=[", '分组统计={"a": ']
UNITS += ["<DOMAIN=", "<DOMAIN=B>, ", "<think>", '{"统计": [1]}\n', f'{BBU_HEADER}\n{{"统计": []}}\n']
UNITS += ['{"统计": [{"类别": "电线", "捆扎": {"整齐": 1}}, ']


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "}]"], ids=["open", "closed"])
@pytest.mark.parametrize("unit", UNITS)
def test_a_long_answer_takes_time_by_its_length(unit: str, end: str) -> None:
    assert_linear(lambda text: parse_summary(text + end, "bbu"), unit * (400_000 // len(unit)))
