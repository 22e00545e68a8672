"""Prompts of one's own with JSON answers: rows, paths, matching, scores. Run: pytest tests/tasks/test_json_answers.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness import TextGenerationRequest, VlmGenerationRequest
from evalharness.answers.json_answer import Answer, parse_answer
from evalharness.answers.json_paths import MISSING, find, read_path
from evalharness.api.errors import ConfigError
from evalharness.tasks.json_answers import check_expected, judge, load_cases, matches, request, tables
from tests.growth import assert_linear

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def rows(folder: Path, *given_rows: Any) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in given_rows]
    (folder / "json_answers.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


ROW = {"id": "a", "prompt": "Which total?", "expected": {"total": 3}}


def test_a_row_becomes_a_request(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (32, 32)).save(tmp_path / "7.png")
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    given_rows = [
        {**ROW, "group": "g", "tags": {"kind": "easy"}},
        "",
        {**ROW, "id": "b", "images": ["7.png"]},
        {**ROW, "id": "c", "images": ["none.png"]},
        {"id": "d", "messages": chat, "expected": {"x": 1}},
    ]
    first, pictured, invalid, whole = load_cases(rows(tmp_path, *given_rows))
    assert (first.id, first.group, first.tags, first.reference) == ("a", "g", {"kind": "easy"}, {"total": 3})
    assert request(first) == TextGenerationRequest([{"role": "user", "content": "Which total?"}])
    # Images stand before the prompt and are relative to the file; a missing one makes its own row invalid.
    content = [{"type": "image"}, {"type": "text", "text": "Which total?"}]
    assert request(pictured) == VlmGenerationRequest([{"role": "user", "content": content}], images=(str(tmp_path / "7.png"),))
    assert (first.invalid, "none.png" in (invalid.invalid or "")) == (None, True)
    assert request(whole) == TextGenerationRequest(chat)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        pytest.param("{", r"json_answers.jsonl:1 is not JSON", id="json"),
        pytest.param([1], r":1 must be a JSON object", id="list"),
        pytest.param({**ROW, "expect": {}}, r":1 has 'expect'; did you mean 'expected'", id="misspelt"),
        pytest.param({"prompt": "x"}, r":1: id must be a printable text without '::', got None", id="no id"),
        pytest.param({**ROW, "id": 7}, r":1: id must be a printable text without '::', got 7; give each row its own", id="number"),
        pytest.param({**ROW, "id": "a\nb"}, r":1: id must be a printable text", id="line end"),
        pytest.param({**ROW, "id": "a::b"}, r":1: id must be a printable text without '::'", id="colons"),
        pytest.param({**ROW, "group": 3}, r":1: group must be a text, the same for rows that belong together, got 3", id="group"),
        pytest.param({**ROW, "group": " "}, r":1: group must be a text", id="blank group"),
        pytest.param({**ROW, "tags": ["easy"]}, r":1: tags must be texts by name", id="tags"),
        pytest.param({**ROW, "tags": {"level": 1}}, r":1: tags must be texts by name, such as .*, got \{'level': 1\}", id="tag"),
        pytest.param({"id": "a", "prompt": "x"}, r":1: expected must be an object with at least one field", id="nothing expected"),
        pytest.param({**ROW, "messages": []}, r":1 needs either prompt or messages", id="both"),
        pytest.param({**ROW, "prompt": " "}, r":1: prompt must be a text", id="blank"),
        pytest.param({**ROW, "images": "7.png"}, r":1: images must be a list of paths", id="image"),
        pytest.param({**ROW, "expected": {"a": {"$numbr": 1}}}, r":1: expected 'a': '\$numbr' is unknown; known: \$number", id="matcher"),
        pytest.param({**ROW, "expected": {"a[": 1}}, r":1: 'a\[' is not a path", id="path"),
        pytest.param({"id": "a", "messages": ["x"], "expected": {"x": 1}}, r":1: request.messages\[0\] must be a mapping", id="message"),
    ],
)
def test_a_row_that_is_wrong_is_named(tmp_path: Path, row: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_cases(rows(tmp_path, row))


BAD_FILES: dict[str, tuple[bytes | None, str]] = {
    "id twice": (f"{json.dumps(ROW)}\n\n{json.dumps(ROW)}".encode(), r":3: id 'a' is that of line 1; give each row its own"),
    "empty": (b"\n \n", " holds no rows; write one JSON object a line, with id, prompt"),
    "bytes": (b"\xff\xfe{}", " cannot be read"),
    "brackets": (b"[" * 100_000, ":1 is not JSON"),
    "missing": (None, " does not exist; write one JSON object a line, with id, prompt"),
}


@pytest.mark.parametrize(("content", "problem"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_without_rows_is_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "json_answers.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=f"json_answers.jsonl{problem}"):
        load_cases(tmp_path)


@pytest.mark.parametrize("answer", ['{"a": 1}', 'So: {"a": 1}', '```json\n{"a": 1}\n```'], ids=["bare", "prose", "fence"])
def test_json_within_thoughts_is_not_the_answer(answer: str) -> None:
    assert parse_answer(f'<think>{{"a": 2}} or {{"a": 3}}</think>\n{answer}') == Answer({"a": 1}, True, False)
    assert not parse_answer('<think>{"a": 2}</think>').is_json


@pytest.mark.parametrize("tag", ["think", "THINKING", "reasoning"])
def test_thoughts_that_never_end_hold_no_answer(tag: str) -> None:
    assert not parse_answer(f'<{tag}>{{"a": 2}}').is_json
    assert not parse_answer(f'<{tag}>```json\n{{"a": 2}}\n```').is_json
    assert parse_answer(f'{{"a": 1}}\n<{tag}>or {{"a": 2}}') == Answer({"a": 1}, True, False)


FOUND = {
    "fence": ('```json\n{"a": 1}\n```', {"a": 1}),
    "open fence": ('Sure:\n```\n{"a": 1}', {"a": 1}),
    "prose": ('The answer is {"a": "}"}. Good luck {"b": 2}', {"a": "}"}),
    "footnote": ('see [1]: {"a": 1}', {"a": 1}),
    "list in prose": ("items: [1, 2] as asked", [1, 2]),
    "list of objects": ('Here: [{"a": 1}, {"a": 2}].', [{"a": 1}, {"a": 2}]),
    "other braces": ('A { brace, (or [ two), and {"a": 1}', {"a": 1}),
}


@pytest.mark.parametrize(("text", "value"), FOUND.values(), ids=FOUND)
def test_json_is_found_within_other_text(text: str, value: Any) -> None:
    assert parse_answer(text) == Answer(value, True, False)


NO_JSON = ["", "no JSON here", '{"a": [1, 2], "b"', 'So: {"a": {"b": 1}, "c": ', 'So: [{"a": 1}, {"a": 2', '{"a": NaN}']
NO_JSON += ["{" * 5_000, "[" * 100_000]


@pytest.mark.parametrize("text", NO_JSON)
def test_a_text_without_whole_json_has_no_answer(text: str) -> None:
    assert parse_answer(text) == Answer(None, False, False)


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    parse_answer(text)
    judge(text, {"a.b": 1})


@given(VALUES)
def test_every_json_value_is_read_as_it_was_written(value: Any) -> None:
    assert parse_answer(json.dumps(value)) == Answer(value, True, True)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["{" * 1_000_000, "[" * 1_000_000, '{"a": 1},' * 110_000], ids=["braces", "brackets", "objects"])
def test_a_megabyte_takes_time_by_its_length(text: str) -> None:
    assert_linear(parse_answer, text)


def test_unexpected_keys_are_counted_and_cut() -> None:
    judged = judge(json.dumps({"total": 3, **{f"{number}" * 50: 0 for number in range(10, 510)}}), {"total": 3})
    assert judged.scores["num_extra"] == 500
    assert (len(judged.details["extra"]), max(map(len, judged.details["extra"]))) == (20, 60)


PATHS = {"a": {"b": [1, {"c": 2}]}, "a.b[1].c": 2, "a.b[*].c": [2], "a.b[5]": MISSING, "a.x": MISSING, "x\\.y": 3, "list[*]": [1, 2]}


@pytest.mark.parametrize(("path", "found"), PATHS.items(), ids=PATHS)
def test_a_path_leads_to_a_value(path: str, found: Any) -> None:
    assert find({"a": {"b": [1, {"c": 2}]}, "x.y": 3, "list": [1, 2]}, read_path(path)) == found


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "a[", "a[x]", "a]", "a[0]b"])
def test_a_wrong_path_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="is not a path"):
        read_path(path)


RIGHT: list[tuple[Any, Any]] = [
    (1, 1.0),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (12.54, {"$number": 12.5, "tolerance": 0.05}),
    (10**400, {"$number": 10**400}),
    ("  new   YORK ", {"$text": "New York"}),
    ("OK", {"$any": ["pass", {"$text": "ok"}]}),
    (["b", "a", "a"], {"$set": ["a", "b"]}),
    ([], {"$set": []}),
    (3.0, {"$type": "integer"}),
    (None, {"$type": "null"}),
    (MISSING, {"$absent": True}),
    (MISSING, {"$any": ["a", {"$absent": True}]}),
    ("a", {"$any": ["a", {"$absent": True}]}),
]
WRONG: list[tuple[Any, Any]] = [
    ("Paris", "paris"),
    (True, 1),
    ([1, 2], [2, 1]),
    (12.56, {"$number": 12.5, "tolerance": 0.05}),
    (10**400, {"$number": 12.5, "tolerance": 1}),
    ("b", {"$any": ["a", {"$absent": True}]}),
    ("12.5", {"$number": 12.5}),
    (True, {"$number": 1}),
    (5, {"$text": "5"}),
    ("no", {"$any": ["pass"]}),
    (["a"], {"$set": ["a", "b"]}),
    (["a", "b", "c"], {"$set": ["a", "b"]}),
    ("ab", {"$set": ["a", "b"]}),
    (True, {"$type": "integer"}),
    (None, {"$absent": True}),
    (MISSING, {"$type": "null"}),
    (MISSING, None),
]


@pytest.mark.parametrize(
    ("value", "expected", "right"),
    [*((*pair, True) for pair in RIGHT), *((*pair, False) for pair in WRONG)],
    ids=lambda value: "missing" if value is MISSING else repr(value)[:60],  # an object's repr differs in every process
)
def test_values_match(value: Any, expected: Any, right: bool) -> None:
    check_expected(expected, "here")
    assert matches(value, expected) is right


@given(VALUES)
def test_every_plain_value_matches_itself(value: Any) -> None:
    if not (isinstance(value, dict) and any(key.startswith("$") for key in value)):
        assert matches(value, value)


@pytest.mark.parametrize(
    ("expected", "problem"),
    [
        ({"$number": "1"}, r"\$number takes a number, and a tolerance of at least 0, got '1'"),
        ({"$number": 1, "tolerance": -1}, r"\$number takes a number, and a tolerance of at least 0"),
        ({"$number": 1, "tol": 1}, r"\$number stands alone, got 'tol' beside it"),
        ({"$text": 5}, r"\$text takes a text"),
        ({"$any": []}, r"\$any takes a list with at least one value"),
        ({"$any": [{"$tex": "a"}]}, r"'\$tex' is unknown"),
        ({"$type": "int"}, r"\$type takes one of string, number, integer"),
        ({"$absent": False}, r"\$absent takes true"),
        ({"$type": ["string"]}, r"\$type takes one of string"),
        ({"total": {"$number": 1}}, r"'\$number' stands within a plain value"),
        ([{"a": [{"$text": "x"}]}], r"'\$text' stands within a plain value"),
    ],
    ids=repr,
)
def test_a_wrong_expected_value_is_refused(expected: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^here: {problem}"):
        check_expected(expected, "here")


EXPECTED = {"total": {"$number": 12.5, "tolerance": 0.01}, "city": {"$text": "Rome"}, "tip": {"$absent": True}}


def test_each_field_counts_once_and_extra_keys_are_counted() -> None:
    judged = judge('Here: {"total": 12.5, "note": "x"}', EXPECTED)
    shares = {"valid": 1.0, "strict": 0.0, "fields_right": pytest.approx(2 / 3), "all_right": 0.0}
    assert judged.scores == {**shares, "num_missing": 1.0, "num_extra": 1.0}
    assert judged.details == {"fields": {"total": "right", "city": "missing", "tip": "right"}, "extra": ["note"]}
    assert judged.problem == "city is missing"


def test_a_right_answer_has_no_problem_and_without_json_nothing_is_right() -> None:
    judged = judge('{"total": 12.5, "city": "ROME"}', EXPECTED)
    assert (judged.all_right, judged.problem, judged.scores["strict"]) == (True, "", 1.0)
    judged = judge("twelve", EXPECTED)  # not even what must be absent
    assert (judged.scores["fields_right"], judged.problem) == (0.0, "no JSON in 'twelve'")


def test_the_table_shows_the_worst_field_first() -> None:
    made = [{"details": judge(text, EXPECTED).details} for text in ('{"total": 12.5, "city": "Rome"}', '{"total": 1, "city": "Rome"}')]
    assert tables(made)["fields"] == [
        {"field": "total", "cases": 2, "accuracy": 0.5, "wrong": 1, "missing": 0},
        {"field": "city", "cases": 2, "accuracy": 1.0, "wrong": 0, "missing": 0},
        {"field": "tip", "cases": 2, "accuracy": 1.0, "wrong": 0, "missing": 0},
    ]
    assert tables([]) == {}


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"a": "x</think>y"}\n```',
        '{"a": "x</think>y"} is it.',
        '<think>or {"a": "</think>"}?</think>So: {"a": "x</think>y"}',
        'Hm.</think>\n```json\n{"a": "x</think>y", "b": ["<think>"]}\n```',
    ],
)
def test_a_mark_of_thoughts_within_a_text_of_the_json_is_text(text):
    assert parse_answer(text).value["a"] == "x</think>y"


def test_json_in_thoughts_is_still_no_answer():
    assert not parse_answer('perhaps {"a": 1}</think>I do not know.').is_json
    assert not parse_answer('<think>{"a": "</think>"} or').is_json


@pytest.mark.parametrize(
    "text",
    [
        '[{"a": 1}, {"a": 2',
        '[1, {"a": 1}, {"a": 2',
        '["x", {"a": 1}, {"a',
        '[[{"a": 1}], [{"a": 1}',
        '```json\n[null, {"a": 1},\n```',
        '[{"a": 1}, {"a": 2},]',
        'Here: [ {"a": 1}, {"a": 2\n\nSorry, see [1].',
    ],
)
def test_no_part_of_a_list_that_is_cut_or_broken_is_the_answer(text):
    judged = judge(text, {"a": 1}, "length")
    assert (judged.scores["valid"], judged.scores["fields_right"]) == (0.0, 0.0)
    assert judged.problem.startswith("the answer was cut at max_new_tokens: no JSON in '")
    assert "num_extra" not in judged.scores


def test_a_bracket_in_prose_hides_no_answer():
    texts = ('[see below {"a": 1}', "[1] {'x'} {\"a\": 1}", '[12 of them] {"a": 1}', 'As in [1, p. 3] {"a": 1}', 'In [0, 1) {"a": 1}')
    for text in (*texts, 'The sign "[" is odd. {"a": 1}', 'Of [3, 4, ...] {"a": 1}', 'Of ["x", "y" or "z"] {"a": 1}', '[2024, ] {"a": 1}'):
        assert parse_answer(text).value == {"a": 1}
