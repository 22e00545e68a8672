"""Behaviours 24 to 28 of the engine's breadth: what counts as a call, where it stands, when it may be executed."""

from __future__ import annotations

import pytest

from evalharness.api.tools import Tool
from evalharness.tool_calls import parse_tool_calls

LEGACY = (
    "I will search it."
    "<invoke><tool_name>search</tool_name><parameters><query>Python tutorials</query><max_results>5</max_results></parameters></invoke>"
)
SEARCH = Tool(
    "search",
    parameters={"type": "object", "properties": {"query": {"type": "string"}, "max_results": {"type": "integer"}}, "required": ["query"]},
)


def test_a_fenced_call_is_found_with_its_span():
    answer = parse_tool_calls('x\n```json\n{"tool": "search", "arguments": {"q": "a"}}\n```')
    [call] = answer.calls
    assert (call.name, call.arguments, call.span, call.error) == ("search", {"q": "a"}, (2, 57), None)
    assert answer.content == "x"


@pytest.mark.parametrize("body", ['["tool"]', "3", "null", '"tool"', "[]", "[[]]", "{}"])
def test_fenced_json_that_is_no_call_gives_none(body):
    assert parse_tool_calls(f"```json\n{body}\n```").calls == ()


def test_the_older_elements_are_read_with_their_span():
    [call] = parse_tool_calls(LEGACY).calls
    assert (call.name, call.arguments) == ("search", {"query": "Python tutorials", "max_results": "5"})
    assert call.span == (17, len(LEGACY))
    assert call.raw_text == LEGACY[17:]
    [call] = parse_tool_calls(LEGACY, [SEARCH]).executable  # a schema makes numbers of texts
    assert call.arguments == {"query": "Python tutorials", "max_results": 5}


def test_the_form_with_attributes_is_read():
    [call] = parse_tool_calls('<invoke name="search"><parameter name="q">a</parameter></invoke>').executable
    assert (call.name, call.arguments) == ("search", {"q": "a"})


def test_commas_and_equals_signs_in_texts_are_text():
    [call] = parse_tool_calls('say(text="a, b=c")', [Tool("say")], format="function").executable
    assert call.arguments == {"text": "a, b=c"}


@pytest.mark.parametrize("tools", [[], [Tool("say")]], ids=["no tools", "another tool"])
def test_a_call_of_no_tool_in_prose_is_prose(tools):
    assert parse_tool_calls("Use print(x) to see it.", tools).calls == ()
    assert parse_tool_calls("a set {1,2}", tools).calls == ()


def test_a_list_of_calls_is_read_as_python():
    [call] = parse_tool_calls("[search(query='a', n=-5, flag=None)]").executable
    assert call.arguments == {"query": "a", "n": -5, "flag": None}


def test_complete_json_without_its_end_mark_is_a_call():
    [call] = parse_tool_calls('<tool_call>\n{"name": "search", "arguments": {"q": "a"}}').executable
    assert call.arguments == {"q": "a"}


def test_one_broken_call_harms_no_other():
    text = '<tool_call>{"name": "a", "arguments": {}}</tool_call>\n<tool_call>{"name": "b", "arguments": {oops}}</tool_call>'
    answer = parse_tool_calls(text)
    assert [call.name for call in answer.executable] == ["a"]
    assert [call.name for call in answer.failed] == ["b"]
    assert "not JSON" in answer.failed[0].error


def _qwen(value, closing="</parameter>\n</function>\n</tool_call>"):
    return f"<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n<parameter=q>\n{value}\n{closing}"


QWEN_TOOL = Tool("f", parameters={"type": "object", "properties": {"n": {"type": "integer"}, "q": {"type": "string"}}})


def test_numbers_and_texts_are_told_apart_by_the_schema_and_a_text_that_is_no_integer_is_kept():
    [call] = parse_tool_calls(_qwen("123"), [QWEN_TOOL]).executable
    assert call.arguments == {"n": 5, "q": "123"}
    tool = Tool("f", parameters={"type": "object", "properties": {"n": {"type": "integer"}, "q": {"type": "integer"}}})
    [call] = parse_tool_calls(_qwen("abc"), [tool]).failed
    assert call.arguments == {"n": 5, "q": "abc"}
    assert call.error == "q: 'abc' is not of type 'integer'"


def test_a_parameter_that_is_cut_off_is_never_executed():
    answer = parse_tool_calls(_qwen("12", closing=""), [QWEN_TOOL], finish_reason="length")
    assert answer.executable == ()
    assert "'q' is cut off" in answer.failed[0].error


@pytest.mark.parametrize("finish_reason", ["length", "abort", "error", "repetition", None])
def test_an_answer_that_did_not_end_by_itself_is_never_executed(finish_reason):
    answer = parse_tool_calls(_qwen("1"), [QWEN_TOOL], finish_reason=finish_reason)
    assert answer.executable == ()
    assert "did not end by itself" in answer.calls[0].error


def test_words_beside_a_marked_list_are_content():
    answer = parse_tool_calls('I look.<|tool_call_start|>[get_status(id="1")]<|tool_call_end|>Checking.')
    assert [(call.name, call.arguments) for call in answer.executable] == [("get_status", {"id": "1"})]
    assert answer.content == "I look.Checking."


@pytest.mark.parametrize("behind", ["", " I will tell you.", "\nDone [see above](x)."])
def test_words_behind_a_list_of_offered_calls_are_content(behind):
    answer = parse_tool_calls(f"[say(text='[(\"')]{behind}", [Tool("say")], format="pythonic")
    assert [(call.arguments, call.error) for call in answer.calls] == [({"text": '[("'}, None)]
    assert answer.content == behind.strip()
    assert parse_tool_calls("[print(x=1)] is a call.", [Tool("say")]).calls == ()


@pytest.mark.parametrize("name", ["from", "class", "lambda", "None", "in-place", "名"])
def test_arguments_may_have_any_name(name):
    for text in (f"[memory-get({name}=1)]", f"Now memory-get({name}=1)"):
        [call] = parse_tool_calls(text, [Tool("memory-get")]).executable
        assert (call.name, call.arguments) == ("memory-get", {name: 1})


BREAKS = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\0", "\\\n", "\ud800"]


@pytest.mark.parametrize("line_break", BREAKS, ids=ascii)
def test_line_breaks_in_texts_shift_no_span(line_break):
    text = f"[say(text='{line_break}中中中中'),\nsay(text='b'),\r\nsay(text='c{line_break}')]"
    calls = parse_tool_calls(text, [Tool("say")]).calls
    assert [call.raw_text for call in calls] == [
        f"[say(text='{line_break}中中中中')",
        ",\nsay(text='b')",
        f",\r\nsay(text='c{line_break}')]",
    ]
    if line_break not in ("\\\n", "\ud800"):  # the first joins two lines, the second is in no Python source
        assert [call.arguments["text"] for call in calls] == [f"{line_break}中中中中", "b", f"c{line_break}"]


def test_a_broken_list_keeps_the_calls_before_the_break():
    [first, second] = parse_tool_calls("[say(text='a'), say(text='b') oops", [Tool("say")]).calls
    assert (first.error, first.arguments) == (None, {"text": "a"})
    assert "the list of calls is cut off" in second.error


@pytest.mark.parametrize(
    "call",
    [
        '<tool_call>{"name": "say", "arguments": {"text": "a</think>b"}}</tool_call>',
        "<tool_call><function=say><parameter=text>a</think>b</parameter></function></tool_call>",
        "[say(text='a</think>b')]",
    ],
)
def test_a_mark_of_thoughts_in_an_argument_is_text(call):
    for before in ("", "<think>no</think>", f"<think>{call}</think>"):
        [found] = parse_tool_calls(before + call, [Tool("say")]).executable
        assert (found.arguments, found.span[0]) == ({"text": "a</think>b"}, len(before))
