"""Tool calls as an eval: rows, what an answer's calls are worth, tables. Run: pytest tests/tasks/test_tools.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.api.errors import ConfigError
from evalharness.tasks import tools
from evalharness.tool_calls import parse_tool_calls

SHIPPED = Path("fixtures/tool_calls")
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def write(folder: Path, *rows: Any, known: Any = None) -> Path:
    (folder / "tool_calls.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if known is not None:
        (folder / "tools.json").write_text(json.dumps(known))
    return folder


def row(**changes: Any) -> dict[str, Any]:
    return {"id": "x", "prompt": "do it", "tools": [TOOL], "expected": [{"name": "f", "arguments": {"a": 1}}], **changes}


def said(*calls: tuple[str, dict[str, Any]]) -> Any:
    text = "".join(f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>" for name, arguments in calls)
    return parse_tool_calls(text or "no", [TOOL, {**TOOL, "name": "g"}])


def test_the_shipped_rows_load_and_can_be_asked() -> None:
    cases = tools.load_cases(SHIPPED)
    assert len(cases) == 12
    assert {case.tags["calls"] for case in cases} == {"one", "several", "none"}
    assert [case.reference for case in cases if case.tags["calls"] == "none"] == [[]] * 3
    assert all(tools.request(case).tools for case in cases)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"tools": []}, r"tool_calls.jsonl:1: tools must be a list with at least one tool"),
        ({"tools": ["ff"]}, r"the tool 'ff' is not in tools.json; did you mean 'f'\? Known: f"),
        ({"tools": [{"description": "x"}]}, r"tools\[0\] has no name"),
        ({"expected": {}}, "expected must be a list of calls"),
        ({"expected": [{"name": "g"}]}, r"expected\[0\]: 'g' is not offered; tools of this row: f"),
        ({"expected": [{"name": "f", "args": {}}]}, "must be an object with name and arguments"),
        ({"expected": [{"name": "f", "arguments": {"a": {"$nmber": 1}}}]}, "nmber"),
        ({"expectd": []}, "did you mean 'expected'"),
    ],
)
def test_the_error_names_the_line_of_a_wrong_row(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        tools.load_cases(write(tmp_path, row(**changes), known=[TOOL]))
    with pytest.raises(ConfigError, match=r"tools.json does not hold a list of tools: tools must be a sequence"):
        tools.load_cases(write(tmp_path, row(), known={"f": TOOL}))


EXPECTED = [{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"a": {"$type": "integer"}}}]


@pytest.mark.parametrize(
    ("calls", "expected", "scores"),
    [
        ([("f", {"a": 1})], EXPECTED[:1], {"all_right": 1, "right_tool": 1, "right_arguments": 1, "executable": 1}),
        ([("f", {"a": 2})], EXPECTED[:1], {"all_right": 0, "right_tool": 1, "right_arguments": 0, "executable": 1}),
        ([("g", {"a": 1})], EXPECTED[:1], {"all_right": 0, "right_tool": 0, "right_arguments": 0, "executable": 1}),
        ([("f", {"a": "1"})], EXPECTED[:1], {"all_right": 0, "right_tool": 1, "right_arguments": 0, "executable": 0}),
        ([], EXPECTED[:1], {"all_right": 0, "right_tool": 0, "right_arguments": 0}),
        ([("f", {"a": 1}), ("f", {"a": 1})], EXPECTED[:1], {"all_right": 0, "right_tool": 0, "right_arguments": 1, "executable": 1}),
        # The call with a=1 fits both; it is taken for the one that a=7 does not fit.
        ([("f", {"a": 1}), ("f", {"a": 7})], EXPECTED, {"all_right": 1, "right_tool": 1, "right_arguments": 1, "executable": 1}),
        ([("f", {"a": 7}), ("f", {"a": 1})], EXPECTED, {"all_right": 1, "right_tool": 1, "right_arguments": 1, "executable": 1}),
        ([], [], {"all_right": 1, "no_call": 1}),
        ([("f", {})], [], {"all_right": 0, "no_call": 0, "executable": 1}),
        ([("nobody", {})], [], {"all_right": 0, "no_call": 0, "executable": 0}),
    ],
)
def test_calls_are_scored_against_the_expected_ones(calls: Any, expected: Any, scores: dict[str, float]) -> None:
    judged = tools.judge(said(*calls), expected)
    assert judged.scores == scores
    assert bool(judged.problem) != judged.all_right


CALLS = st.lists(st.tuples(st.sampled_from("fg"), st.fixed_dictionaries({"a": st.integers(0, 2)})), max_size=4)


@given(CALLS, CALLS, st.randoms(use_true_random=False))
def test_neither_order_matters(made: Any, expected: Any, random: Any) -> None:
    wanted = [{"name": name, "arguments": arguments} for name, arguments in expected]
    scores = tools.judge(said(*made), wanted).scores
    random.shuffle(made)
    random.shuffle(wanted)
    assert tools.judge(said(*made), wanted).scores == scores


@given(CALLS)
def test_the_expected_calls_themselves_are_right(expected: Any) -> None:
    assert tools.judge(said(*expected), [{"name": name, "arguments": arguments} for name, arguments in expected]).all_right


def test_tables_count_calls_by_tool_and_by_error() -> None:
    judged = [tools.judge(said(call), EXPECTED[:1]) for call in (("f", {"a": 1}), ("g", {"a": 1}), ("f", {"a": "1"}))]
    found = tools.tables([{"details": dict(each.details)} for each in judged])
    assert found["by tool"] == [
        {"tool": "f", "expected": 3, "made": 2, "right": 1, "precision": 0.5, "recall": 1 / 3},
        {"tool": "g", "expected": 0, "made": 1, "right": 0, "precision": 0.0, "recall": None},
    ]
    assert found["calls that cannot be executed"] == [{"error": "a: '1' is not of type 'integer'", "calls": 1}]
    assert tools.tables([{"details": None}]) == {}


def test_an_answer_that_was_cut_before_any_call_says_so():
    judged = tools.judge(parse_tool_calls("Let me think about", finish_reason="length"), [{"name": "f", "arguments": {}}], "length")
    assert judged.problem == "the answer was cut at max_new_tokens: no call in 'Let me think about'"
