"""Every form of calls by examples: sound ones, several of them, and what goes wrong with each."""

from __future__ import annotations

import json

import pytest

from evalharness.api.errors import ConfigError, ContractTypeError, ContractValueError
from evalharness.api.tools import Tool, read_tools
from evalharness.tool_calls import FORMATS, parse_tool_calls, prompt_part
from evalharness.tool_calls.types import coerce_arguments

TOOLS = [Tool("get-weather"), Tool("say"), Tool("os.remove")]

TWO_CALLS = {
    "hermes": 'Hi\n<tool_call>\n{"name": "a", "arguments": {"x": "</tool_call>"}}\n</tool_call>\n'
    '<tool_call>{"name": "b", "arguments": {"y": [1, {}]}}</tool_call>',
    "qwen_xml": "Hi\n<tool_call>\n<function=a>\n<parameter=x>\n<b>1</b>\n</parameter>\n</function>\n</tool_call>\n"
    "<function=b><parameter=y>\n\nz\n</parameter></function>",
    "mistral": 'Hi[TOOL_CALLS]a[ARGS]{"x": "[TOOL_CALLS]"}b[CALL_ID]9z[ARGS]{"y": [1, {}]}',
    "anthropic": 'Hi\n<function_calls>\n<invoke name="a">\n<parameter name="x">1 &lt; 2</parameter>\n</invoke>\n'
    '<invoke name="b"><parameter name="y">\nz\n</parameter></invoke>\n</function_calls>',
    "invoke_xml": "Hi<invoke><tool_name>a</tool_name><parameters><x-y>1 &amp; 2</x-y></parameters></invoke> "
    "<invoke><tool_name>b</tool_name><parameters><y><z>1</z></y></parameters></invoke>",
    "fenced_json": 'Hi\n```json\n[{"tool": "a", "args": {"x": "```"}}, {"name": "b", "arguments": {"y": [1, {}]}}]\n```',
    "pythonic": "[a(x='(1, [2'), b(y=[1, {'k': (2, None)}])]",
    "llama_json": '<|python_tag|>{"name": "a", "parameters": {"x": "};{"}}; {"name": "b", "parameters": {"y": [1, {}]}}',
    "glm": "Hi\n<tool_call>a\n<arg_key>x</arg_key>\n<arg_value></arg_value> {</arg_value>\n</tool_call>\n"
    "<tool_call>b<arg_key>y</arg_key><arg_value>[1, {}]</arg_value></tool_call>",
    "deepseek": "Hi<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n"
    '{"x": "\\n```<｜tool▁call▁end｜>"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>b<｜tool▁sep｜>{"y": [1, {}]}'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi": 'Hi<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{"x": "<|tool_call_end|>"}'
    '<|tool_call_end|><|tool_call_begin|>functions.b:1 <|tool_call_argument_begin|> {"y": [1, {}]}<|tool_call_end|>'
    "<|tool_calls_section_end|>",
    "harmony": 'Hi<|channel|>commentary to=functions.a <|constrain|>json<|message|>{"x": "<|call|>"}<|call|>'
    '<|start|>assistant to=functions.b<|channel|>commentary json<|message|>{"y": [1, {}]}<|call|>',
    "gemma": 'Hi<|tool_call>call:a{x:<|"|>}, y: <tool_call|><|"|>}<tool_call|><|tool_call>call:b{y:[1,{}]}<tool_call|>',
    "tagged_json": 'Hi<|tool_call|>[{"name": "a", "arguments": {"x": "]"}}, {"name": "b", "arguments": {"y": [1, {}]}}]',
    "json": 'Hi {"name": "a", "arguments": {"x": "}"}} and {"type": "function", "function": {"name": "b", "arguments": "{\\"y\\": 1}"}}',
}
ARGUMENTS = {
    "hermes": [{"x": "</tool_call>"}, {"y": [1, {}]}],
    "qwen_xml": [{"x": "<b>1</b>"}, {"y": "\nz"}],
    "mistral": [{"x": "[TOOL_CALLS]"}, {"y": [1, {}]}],
    "anthropic": [{"x": "1 < 2"}, {"y": "z"}],
    "invoke_xml": [{"x-y": "1 & 2"}, {"y": "<z>1</z>"}],
    "fenced_json": [{"x": "```"}, {"y": [1, {}]}],
    "pythonic": [{"x": "(1, [2"}, {"y": [1, {"k": [2, None]}]}],
    "llama_json": [{"x": "};{"}, {"y": [1, {}]}],
    "glm": [{"x": "</arg_value> {"}, {"y": "[1, {}]"}],
    "deepseek": [{"x": "\n```<｜tool▁call▁end｜>"}, {"y": [1, {}]}],
    "kimi": [{"x": "<|tool_call_end|>"}, {"y": [1, {}]}],
    "harmony": [{"x": "<|call|>"}, {"y": [1, {}]}],
    "gemma": [{"x": "}, y: <tool_call|>"}, {"y": [1, {}]}],
    "tagged_json": [{"x": "]"}, {"y": [1, {}]}],
    "json": [{"x": "}"}, {"y": 1}],
}


@pytest.mark.parametrize("format", TWO_CALLS)
def test_two_calls_are_found_by_the_form_that_is_asked_for_and_by_auto(format):
    for asked in (format, "auto"):
        answer = parse_tool_calls(TWO_CALLS[format], format=asked)
        assert answer.format == format
        assert [(call.name, call.error) for call in answer.calls] == [("a", None), ("b", None)]
        assert [call.arguments for call in answer.calls] == ARGUMENTS[format]


CONTENT = {"fenced_json": "Hi\n```json\n[, ]\n```", "pythonic": "", "llama_json": ";", "json": "Hi  and"}


@pytest.mark.parametrize("format", TWO_CALLS)
def test_spans_are_in_order_apart_and_hold_the_raw_text_and_the_rest_is_the_content(format):
    text = TWO_CALLS[format]
    answer = parse_tool_calls(text)
    first, second = answer.calls
    assert first.span[0] < first.span[1] <= second.span[0] < second.span[1] <= len(text)
    assert [text[slice(*call.span)] for call in (first, second)] == [first.raw_text, second.raw_text]
    assert answer.content == CONTENT.get(format, "Hi")


CUT_OFF = {
    "hermes": '<tool_call>{"name": "a", "arguments": {"x": "hal',
    "qwen_xml": "<tool_call><function=a><parameter=x>\nhal",
    "mistral": '[TOOL_CALLS]a[ARGS]{"x": "hal',
    "anthropic": '<invoke name="a"><parameter name="x">hal',
    "invoke_xml": "<invoke><tool_name>a</tool_name><parameters><x>hal",
    "fenced_json": '```json\n{"name": "a", "arguments": {"x": "hal',
    "pythonic": "[a(x='hal",
    "llama_json": '<|python_tag|>{"name": "a", "parameters": {"x": "hal',
    "json": '{"name": "a", "arguments": {"x": "hal',
    "function": "Well, a(x='hal",
    "glm": "<tool_call>a<arg_key>x</arg_key><arg_value>hal",
    "deepseek": '<｜tool▁call▁begin｜>a<｜tool▁sep｜>{"x": "hal',
    "kimi": '<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{"x": "hal',
    "harmony": '<|channel|>commentary to=functions.a<|message|>{"x": "hal',
    "gemma": '<|tool_call>call:a{x:<|"|>hal',
    "tagged_json": '<|tool_call|>[{"name": "a", "arguments": {"x": "hal',
}


@pytest.mark.parametrize("format", CUT_OFF)
def test_a_call_that_is_cut_off_is_an_attempt_and_never_executed(format):
    answer = parse_tool_calls(CUT_OFF[format], [Tool("a")], finish_reason="stop")
    assert answer.format == format
    assert answer.executable == ()
    assert len(answer.failed) == 1


@pytest.mark.parametrize("format", FORMATS)
def test_plain_text_has_no_calls_in_any_form(format):
    text = 'She said: "f(x) = {1, 2}", [see](there), a < b, <b>bold</b>, and `{"name": "Ann", "age": 7}`.'
    assert parse_tool_calls(text, TOOLS, format=format).calls == ()


def test_calls_in_thoughts_are_thoughts():
    call = '<tool_call>{"name": "say", "arguments": {}}</tool_call>'
    assert parse_tool_calls(f"<think>perhaps {call}</think>No.").calls == ()
    assert parse_tool_calls(f"<think>perhaps {call}").calls == ()
    [found] = parse_tool_calls(f"<think>{call}</think>{call}").executable
    assert found.span == (len(f"<think>{call}</think>"), len(f"<think>{call}</think>{call}"))


def test_a_tool_that_is_not_offered_is_told():
    [call] = parse_tool_calls('<tool_call>{"name": "sya", "arguments": {}}</tool_call>', TOOLS).failed
    assert call.error == "'sya' is not offered; did you mean 'say'? Offered: get-weather, say, os.remove"


def test_missing_and_wrong_arguments_are_told():
    tool = Tool("f", parameters={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n", "m"]})
    [call] = parse_tool_calls('{"name": "f", "arguments": {"n": "five"}}', [tool]).failed
    assert call.error == "'m' is a required property; n: 'five' is not of type 'integer'"
    [call] = parse_tool_calls('{"name": "f", "arguments": {"n": "5", "m": 1}}', [tool]).failed
    assert call.arguments == {"n": "5", "m": 1}  # texts of JSON are not made numbers


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"name": "f", "arguments": {"a": 1, "a": 2}}', "keys stand twice: 'a'"),
        ("<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>", "the parameter 'a' stands twice"),
        ('<invoke name="f"><parameter name="a">1</parameter><parameter name="a">2</parameter></invoke>', "the parameter 'a' stands twice"),
        ("[f(a=1, a=2)]", "the argument 'a' stands twice"),
        ("[f(1)]", "positional arguments have no name"),
        ("[f(a=open('x'))]", "the argument 'a' is not a literal"),
        ("[f(**{'a': 1})]", "** is not an argument"),
        ('<tool_call>{"name": "f"}</tool_call>', "the call has no arguments; expected one of arguments, parameters, args, input"),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "the arguments are not an object but list"),
        ("<tool_call>[]</tool_call>", "no call: the JSON, of type list, names no tool"),
        ('<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "not JSON: NaN is not JSON"),
        ("<invoke><parameters></parameters></invoke>", "the call has no <tool_name>"),
        ("[TOOL_CALLS] oops", "no name and arguments behind [TOOL_CALLS]"),
    ],
)
def test_what_is_wrong_with_a_call_is_told(text, error):
    answer = parse_tool_calls(text)
    assert [call.error for call in answer.calls] == [error]


def test_names_that_python_does_not_know_can_be_called_in_prose():
    answer = parse_tool_calls(
        "Sure: get-weather(city='Ulm', days=2). Not xsay(text='no'), nor my.say(text='no'), but say(text='yes')", TOOLS
    )
    assert [(call.name, call.arguments) for call in answer.executable] == [
        ("get-weather", {"city": "Ulm", "days": 2}),
        ("say", {"text": "yes"}),
    ]
    [call] = parse_tool_calls("f(a=(1+2)*3, b=2)", [Tool("f")]).failed  # a formula is no literal
    assert call.arguments == {"b": 2}


def test_an_unknown_form_is_refused_with_a_suggestion_and_function_needs_tools():
    with pytest.raises(ConfigError, match=r"'herms' is unknown; did you mean 'hermes'\? Known: auto, hermes"):
        parse_tool_calls("", format="herms")
    with pytest.raises(ConfigError, match="give the tools"):
        parse_tool_calls("f(x=1)", format="function")


@pytest.mark.parametrize(
    ("tools", "error", "match"),
    [
        ("f", ContractTypeError, "tools must be a sequence of tools"),
        ([3], ContractTypeError, r"tools\[0\] must be a Tool or a mapping"),
        ([{"type": "function"}], ContractValueError, r"tools\[0\] has no name"),
        ([{"name": "f"}, {"name": "f"}], ContractValueError, "'f' is offered 2 times"),
        ([{"name": "f", "parameters": {"type": "objct"}}], ContractValueError, r"tools\[0\]: tool.parameters.type must be 'object'"),
        ([{"name": "f", "parameters": {"properties": {"a": {"type": "text"}}}}], ContractValueError, "'f' is not a JSON Schema"),
        ([{"name": " "}], ContractValueError, "tool.name is empty"),
    ],
)
def test_tools_that_are_none_are_refused_with_their_place(tools, error, match):
    with pytest.raises(error, match=match):
        read_tools(tools)


def test_tools_are_read_from_the_form_that_templates_take():
    tool = Tool("f", "does it", {"type": "object", "properties": {}})
    assert read_tools([tool.to_json()]) == (tool,)
    assert read_tools([tool.to_json()["function"]]) == (tool,)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, " 5 ", 5),
        ({"type": "integer"}, "5.0", "5.0"),
        ({"type": "number"}, "5", 5),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "1", "1"),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": "array"}, "[1]", [1]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({"anyOf": [{"type": "integer"}, {}]}, "7", "7"),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", 2]}, "2", "2"),
        ({"const": 3}, "3", 3),
        ({"type": ["string", "integer"]}, "3", "3"),
        ({}, "3", "3"),
        ({"type": "integer"}, "[" * 100_000, "[" * 100_000),
    ],
)
def test_texts_become_what_the_schema_says(schema, text, value):
    assert coerce_arguments({"a": text}, {"properties": {"a": schema}}) == {"a": value}


def test_the_prompt_part_asks_for_what_is_read():
    part = prompt_part([Tool("say", "speaks 中文")])
    assert "speaks 中文" in part
    example = part.replace('"tool name"', '"say"').split("one pair for each call:")[1]
    [call] = parse_tool_calls(example, [Tool("say")]).executable
    assert call.name == "say"


def test_a_call_is_plain_json():
    text = '{"name": "f", "arguments": {"a": [1]}}'
    [call] = parse_tool_calls(text).calls
    assert json.loads(json.dumps(call.to_json())) == {**json.loads(text), "raw_text": text, "span": [0, 38], "error": None}


@pytest.mark.parametrize("length", range(4060, 4110, 7))
@pytest.mark.parametrize("value", ["false", '"\\ud83d\\ude00"', "-12.5e3", "[{}]"], ids=["literal", "escape", "number", "list"])
def test_json_longer_than_a_window_of_reading_is_read_whole(length, value):
    [call] = parse_tool_calls('{"name": "f", "arguments": {"a": "' + "y" * length + f'", "b": {value}}}}}').executable
    assert call.arguments["b"] == json.loads(value)


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ('<function_call> {"name": "a", "arguments": {"x": 1}}', "tagged_json"),
        ('<tool_calls>[{"name": "a", "arguments": {"x": 1}}]</tool_calls>', "tagged_json"),
        ('functools[{"name": "a", "arguments": {"x": 1}}]', "tagged_json"),
        ('<|action_start|><|plugin|>\n{"name": "a", "parameters": {"x": 1}}<|action_end|>', "tagged_json"),
        ("<|python_start|>[a(x=1)]<|python_end|>", "pythonic"),
        ("<function_calls>\na(x=1)\n</function_calls>", "pythonic"),
        ("<start_function_call>call:a{x:<escape>1<escape>}<end_function_call>", "gemma"),
        (
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="a">\n<｜DSML｜parameter name="x" string="false">1</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            "anthropic",
        ),
        ('<minimax:tool_calls><invoke name="a"><parameter name="x">1</parameter></invoke></minimax:tool_calls>', "anthropic"),
        ("<seed:tool_call><function=a><parameter=x>1</parameter></function></seed:tool_call>", "qwen_xml"),
    ],
)
def test_other_marks_around_the_same_forms_are_read(text, format):
    answer = parse_tool_calls(text, [Tool("a", parameters={"type": "object", "properties": {"x": {"type": "integer"}}})])
    assert (answer.format, [(call.arguments, call.error) for call in answer.calls]) == (format, [({"x": 1}, None)])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call><function=a><parameter=x>1</parameter> and </parameter><parameter=y>2</parameter></function></tool_call>",
        '<invoke name="a"><parameter name="x">1</parameter> and </parameter><parameter name="y">2</parameter></invoke>',
        "<tool_call>a<arg_key>x</arg_key><arg_value>1</arg_value> and </arg_value><arg_key>y</arg_key><arg_value>2</arg_value></tool_call>",
    ],
    ids=["qwen", "invoke", "glm"],
)
def test_an_end_mark_within_a_value_is_text(text):
    mark = "</arg_value>" if "arg_value" in text else "</parameter>"
    assert parse_tool_calls(text).executable[0].arguments == {"x": f"1{mark} and ", "y": "2"}
