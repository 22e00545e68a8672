"""JSON out of an answer, and the record of failures. Run: pytest tests/tasks/stage_b/test_stage_b_json.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalharness.api.errors import RecordError
from evalharness.tasks.stage_b.rule_proposals import extract_object, failure_row, record_failure
from tests.growth import assert_linear

FOUND = {
    "alone": ('{"a": 1}', {"a": 1}, "balanced"),
    "fenced": ('看 {"b": 2}\n```json\n{"a": 1}\n```', {"a": 1}, "fence"),
    "fence without language": ('```\n{"a": 1}\n```', {"a": 1}, "fence"),
    "broken fence": ('{"b": 2}\n```json\n{"a": 1,}\n```', {"b": 2}, "balanced"),
    "first of two": ('x {"a": {"b": 1}} y {"c": 1}', {"a": {"b": 1}}, "balanced"),
    "braces in strings": ('{"a": "}{\\"}"} rest }', {"a": '}{"}'}, "balanced"),
    "quotes before": ('say "x { and {"a": 1}', {"a": 1}, "balanced"),
    "unfinished before": ('{ oh {"a": 1}', {"a": 1}, "balanced"),
}


@pytest.mark.parametrize("text, value, source", FOUND.values(), ids=FOUND.keys())
def test_the_object_is_taken_from_fence_then_balanced_braces(text: str, value: Any, source: str) -> None:
    found = extract_object(text)
    assert (found.value, found.source, found.problem) == (value, source, "")


def test_of_a_cut_answer_the_first_whole_object_is_taken() -> None:
    assert extract_object('{"a": [{"b": 1}, {"c": 2').value == {"b": 1}


@given(st.text(alphabet='{}"\\a: 1,', max_size=12), st.text(alphabet='{}"\\a: 1,', max_size=12))
def test_first_to_last_brace_would_find_nothing_more(before: str, after: str) -> None:
    text = f'{before}{{"a": 1}}{after}'
    widest = text[text.find("{") : text.rfind("}") + 1]
    try:
        value = json.loads(widest)
    except ValueError:
        return
    assert extract_object(text).value == value


NOTHING = {
    "words": ("no JSON here", "the answer holds no JSON object"),
    "empty": ("", "the answer holds no JSON object"),
    "trailing comma": ('{"a": 1,}', "invalid JSON in the balanced part"),
    "truncated": ('{"operations": [', "the answer holds no JSON object"),
    "list": ("```json\n[1]\n```", "the fence part is not an object, but list"),
    "not a number": ('{"a": NaN}', "NaN is not JSON"),
    "deep": ('{"a":' * 50_000 + "1" + "}" * 50_000, "invalid JSON in the balanced part"),
}


@pytest.mark.parametrize("text, problem", NOTHING.values(), ids=NOTHING.keys())
def test_an_answer_without_an_object_says_why(text: str, problem: str) -> None:
    found = extract_object(text)
    assert (found.value, found.source) == (None, None)
    assert problem in found.problem


def test_an_object_inside_think_tags_is_taken_first_and_marked() -> None:
    found = extract_object('<think>maybe {"a": 1}</think>{"b": 2}')
    assert (found.value, found.in_thinking) == ({"a": 1}, True)
    assert not extract_object('<think>x</think>{"b": 2}').in_thinking


PIECES = st.lists(st.sampled_from(["{", "}", '"', "\\", "```", "json", "\n", '{"a": 1}', "<think>", ",", "x"]))


@given(st.one_of(st.text(), PIECES.map("".join)))
def test_no_text_raises(text: str) -> None:
    found = extract_object(text)
    assert (found.value is None) == bool(found.problem)


JSON = st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=8)


@given(st.dictionaries(st.text(), JSON, max_size=3), st.booleans())
def test_what_was_rendered_is_read_back(value: dict[str, Any], ascii_only: bool) -> None:
    assert extract_object(f"好的：\n{json.dumps(value, ensure_ascii=ascii_only)}\n以上").value == value


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["{", "}", "[", '"', '\\"', '{"', "```\n", "<think>", "{}"])
def test_a_megabyte_takes_time_by_its_length(piece: str) -> None:
    text = f'{{"{piece * (1_000_000 // len(piece))}'
    assert_linear(extract_object, text)
    assert_linear(extract_object, text[2:])


def test_failures_are_added_one_line_each(tmp_path: Path) -> None:
    rows = [failure_row("RRU安装检查", step, "a\nb\ud800", "no JSON") for step in range(2)]
    for row in rows:
        path = record_failure(tmp_path, row)
    assert path == tmp_path / "reflection_cache" / "rule_search_proposer_failures.jsonl"
    assert [json.loads(line) for line in path.read_text("utf-8").splitlines()] == rows


def test_a_failure_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "reflection_cache").write_text("")
    with pytest.raises(RecordError, match="cannot be written"):
        record_failure(tmp_path, failure_row("RRU线缆", 0, "", ""))
