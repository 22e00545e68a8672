"""JSON in texts, files of rows, headers, thoughts. Run: pytest tests/tasks/test_shared.py"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from evalharness.answers.json_text import balanced_end, balanced_spans, loads, tokens
from evalharness.answers.thoughts import leftover_thinking, without_thoughts
from evalharness.api.errors import RecordError
from evalharness.tasks.shared import (
    Header,
    find_header,
    header_line,
    header_matches,
    header_problems,
    is_header,
    json_lines,
    read_lines,
    write_whole,
)
from tests.growth import assert_linear

PIECES = st.lists(st.sampled_from(["{", "}", "[", "]", '"', "\\", "a", " ", "'", "\n"]), max_size=40).map("".join)


def reference_tokens(text: str) -> Iterator[tuple[int, int]]:
    """Yield what `tokens` yields, one character at a time."""
    place = 0
    while place < len(text):
        start = place
        if text[place] == '"':
            place += 1
            while place < len(text) and text[place] != '"':
                place += 2 if text[place] == "\\" else 1
            place = min(place + 1, len(text))
            yield start, place
        elif text[place] == "\\":
            place += 2
        else:
            place += 1
            if text[start] in "{}[]":
                yield start, place


@given(PIECES)
def test_strings_and_brackets_are_distinguished(text: str) -> None:
    assert list(tokens(text)) == list(reference_tokens(text))


@given(PIECES)
def test_balanced_parts_are_apart_in_order_and_balanced(text: str) -> None:
    spans = list(balanced_spans(text))
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    assert all(text[start] == "{" and balanced_end(text, start) == end for start, end in spans)


@given(st.dictionaries(st.text(), st.text(), max_size=3), st.text("ab [", max_size=5))
def test_an_object_is_found_within_other_text(value: dict[str, str], before: str) -> None:
    text = json.dumps(value)
    assert list(balanced_spans(f"{before}{text} after")) == [(len(before), len(before) + len(text))]


def test_a_bracket_that_never_closes_hides_nothing() -> None:
    assert list(balanced_spans("{ {a} {b}")) == [(2, 5), (6, 9)]
    assert balanced_end("{ {a} {b}", 0) is None


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e999", "[" * 100_000, "", "{'a': 1}"], ids=lambda text: text[:10])
def test_invalid_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"not JSON|not a finite number|nested too deeply|Expecting"):
        loads(text)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["{", "}", "[", '"', "\\", "{}", '{"a": "', "'"])
def test_a_megabyte_takes_time_by_its_length(unit: str) -> None:
    assert_linear(lambda text: list(balanced_spans(text)), unit * (1_000_000 // len(unit)))


def test_the_line_that_is_written_is_the_line_that_is_read() -> None:
    line = header_line("rru", "SUMMARY")
    assert (line, find_header(line), is_header(line)) == ("<DOMAIN=RRU>, <TASK=SUMMARY>", (Header("RRU", "SUMMARY"), len(line)), True)


HEADERS = {
    "<DOMAIN=RRU>, <TASK=SUMMARY>\n{}": None,
    "": "the header line is missing",
    "<DOMAIN=BBU>, <TASK=SUMMARY>": "header says BBU, SUMMARY",
    "<DOMAIN=RRU>, <TASK=DETECTION>": "header says RRU, DETECTION",
    "<DOMAIN=rru>, <TASK=SUMMARY>": "the header must be the whole first line",
    "x <DOMAIN=RRU>, <TASK=SUMMARY>": "the header must be the whole first line",
    "<DOMAIN=RRU>,  <TASK=SUMMARY>": "the header must be the whole first line",
}


@pytest.mark.parametrize(("text", "problem"), HEADERS.items())
def test_a_wrong_header_is_named(text: str, problem: str | None) -> None:
    header, _ = find_header(text)
    assert header_problems(header, "rru", "SUMMARY", text) == (() if problem is None else (problem,))
    assert header_matches(header, "rru", "SUMMARY") == (problem is None or "whole first line" in problem)


THOUGHTS = {"<think>a": "open", "<think>a</think>b<thinking>c": "open", "<think>a</think>b": "closed", "<THINK></THINK>": "closed"}
NO_THOUGHTS = {"a</think>b": "end only", "I think": None, "<thinker>": None}


@pytest.mark.parametrize(("text", "state"), [*THOUGHTS.items(), *NO_THOUGHTS.items()], ids=str)
def test_thoughts_are_open_or_closed(text: str, state: str | None) -> None:
    assert leftover_thinking(text) == state


SAID = {"a": "a", "<think>a</think>b": "b", "a</think>b": "b", "<think>a</think>b<think>c</think>d": "d", "<think>a": ""}
SAID |= {"b<thinking>a": "b", "<think>a</think>b<think>c": "b", "b<think>a<think>c": "b"}


@pytest.mark.parametrize(("text", "said"), SAID.items())
def test_the_answer_is_outside_of_thoughts(text: str, said: str) -> None:
    assert without_thoughts(text) == said


@given(st.lists(st.dictionaries(st.text(), st.text(st.characters()) | st.integers() | st.none(), max_size=3), max_size=3))
def test_rows_are_read_back_as_they_were_written(rows: list[dict[str, object]]) -> None:
    lines = json_lines(rows).decode("utf-8").split("\n")
    assert [loads(line) for line in lines if line] == rows


def test_chinese_is_readable_a_lone_surrogate_escaped_and_a_line_named_by_its_number(tmp_path: Path) -> None:
    assert json_lines([{"a": "统计"}, {"a": "\ud800"}]) == b'{"a": "' + "统计".encode() + b'"}\n{"a": "\\ud800"}\n'
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"a": "x\u2028y"}\n\n[1]'.encode())
    assert list(read_lines(path)) == [(f"{path}:1", {"a": "x\u2028y"}), (f"{path}:3", [1])]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"1\n{", "a.jsonl:2 is not JSON"),
        (b"NaN", "a.jsonl:1 is not JSON: NaN is not JSON"),
        (b"\xff", "cannot be read"),
        (None, "cannot be read"),
    ],
    ids=["cut", "nan", "bytes", "absent"],
)
def test_an_unreadable_line_or_file_is_an_error(tmp_path: Path, content: bytes | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(RecordError, match=problem):
        list(read_lines(tmp_path / "a.jsonl"))


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(RecordError, match=r"a\.jsonl cannot be written"):
        write_whole(tmp_path / "a.jsonl", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
