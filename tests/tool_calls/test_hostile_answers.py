"""No text makes the parsers raise, and long ones take no longer than their length."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, strategies as st

from evalharness.api.tools import Tool
from evalharness.tasks.tools import judge
from evalharness.tool_calls import FORMATS, parse_tool_calls
from evalharness.tool_calls.types import MAX_CALLS
from tests.growth import assert_linear

TOOLS = (Tool("f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}}), Tool("get-it"))
PIECES = [*"}{[]),\"'\\\n ;中", "\ud800", "\x00", "```json\n", "```", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]"]
PIECES += ["<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>", "<invoke>", "</invoke>"]
PIECES += ['<invoke name="f">', '<parameter name="a">', "<tool_name>f</tool_name>", "<parameters>", "</parameters>", "<function_calls>"]
PIECES += ['{"name": "f", "arguments": ', '{"a": 1}', "f(", "a=1", "get-it(", "[f(a=1)]"]
PIECES += [
    "<arg_key>a</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<tool_call>f",
    "<｜tool▁call▁begin｜>",
    "f<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
]
PIECES += [
    "<|tool_call_begin|>functions.f:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "to=functions.f",
    "<|message|>",
    "<|call|>",
]
PIECES += ["<|tool_call>call:f{", 'a:<|"|>', '<|"|>', "<tool_call|>", "<|tool_call|>", "<tool_calls>", "functools", "<|tool_call_start|>"]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=30).map("".join)


@given(TEXTS, st.sampled_from(["stop", "length", None]), st.booleans())
@example("[f(a=" + "(" * 500 + ")" * 500 + ")]", "stop", True)
@example("[f(a=1" + "0" * 5000 + ")]", "stop", True)
@example('{"name": "f", "arguments": {"a": 1' + "0" * 5000 + "}}", "stop", True)
@example("[f(a='\\N{oops}')]", "stop", True)
def test_any_text_gives_calls_within_it_and_content(text, finish_reason, with_tools):
    answer = parse_tool_calls(text, TOOLS if with_tools else (), finish_reason=finish_reason)
    for call in answer.calls:
        assert text[slice(*call.span)] == call.raw_text
        assert 0 <= call.span[0] < call.span[1] <= len(text)
        assert call.name is not None or call.error
        assert isinstance(call.to_json(), dict)
    starts = [call.span[0] for call in answer.calls]
    assert starts == sorted(starts)
    assert finish_reason == "stop" or not answer.executable


@given(TEXTS)
def test_every_form_takes_any_text(text):
    for format in FORMATS:
        parse_tool_calls(text, TOOLS, format=format)


LONG = {
    piece.strip() or repr(piece): piece for piece in (*PIECES, "f(a='\\'", "<parameter=a>x</function>", '<invoke name="f"></invoke>')
} | {
    "nested calls": '{"name":[',
    "unclosed fences": "```json\n{",
    "empty parameters": "<function=f><parameter=a>",
    "quoted": "f('\\'",
    "spaced list": "[f(      ",
}


@pytest.mark.slow
@pytest.mark.parametrize("piece", LONG.values(), ids=list(LONG))
def test_a_long_answer_takes_time_by_its_length(piece):
    assert_linear(lambda text: parse_tool_calls(text, TOOLS), piece * (200_000 // len(piece)))


@pytest.mark.parametrize(
    "text",
    [
        '[f(a="x\u2028中中中中"),\nf(b=1),\nf()]',
        "f(a=1" + "0" * 400 + ")",
        "f(a=0x" + "f" * 5000 + ")",
        "f(a=1e999)",
        '{"name": "f", "arguments": {"a": 1' + "0" * 400 + "}}",
        '{"name": "f", "arguments": {"a": 1e999}}',
        '{"name": "f", "arguments": {"a": 1, "b": ' + "[" * 500 + "]" * 500 + "}}",
        '{"name": "' + "n" * 100_000 + '", "arguments": {}}',
        "<function=f><parameter=a>1e999</parameter></function>",
    ],
    ids=lambda text: text[:40],
)
def test_what_an_answer_contains_is_a_miss_that_can_be_recorded(text):
    judged = judge(
        parse_tool_calls(text, [Tool("f", parameters={"properties": {"a": {"type": "number", "multipleOf": 0.5, "maximum": 5}}})]), []
    )
    assert judged.scores == {"all_right": 0.0, "no_call": 0.0, "executable": judged.scores["executable"]}
    assert judged.scores["executable"] < 1
    assert json.dumps(judged.details, allow_nan=False)
    assert all(len(call["error"] or "") < 1000 for call in judged.details["calls"])


@pytest.mark.parametrize("answer", ["f(a=1) {}", "[f(a=1){}]", "<think>f(a=1)</think>f(a=1){}"])
def test_of_thousands_of_calls_the_first_are_read_and_the_rest_is_an_error(answer):
    separator = ", " if answer.startswith("[f(a=1){") else " "
    text = answer.format((separator + "f(a=2)") * 3000)
    read = parse_tool_calls(text, TOOLS)
    assert (len(read.calls), len(read.executable)) == (MAX_CALLS + 1, MAX_CALLS)
    assert read.calls[-1].error == "more than 500 calls in one answer; from here on they are not read"
    assert read.calls[-1].span[1] == len(text)


def test_prose_with_a_word_of_a_form_holds_no_call():
    for text in ("Take functools[0] and <tool_calls>.", "See `functools[x]`, or functools[", "[functools[1]]"):
        assert parse_tool_calls(text, TOOLS).calls == ()


def test_calls_in_thoughts_are_read_once_for_all_forms(monkeypatch):
    read = []
    function = FORMATS["function"]
    monkeypatch.setitem(FORMATS, "function", lambda text, offered: read.append(text) or function(text, offered))
    text = "<think>" + "f(a=1) " * 10 + "</think>none"
    parse_tool_calls(text, TOOLS)
    assert read == [text, text, "none"], "once for all forms, and twice for its own"
