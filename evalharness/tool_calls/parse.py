"""Text → calls: which form they are written in, then names, arguments and whether they may be executed.

Never raises on any text; linear in its length (of broken JSON, what was read in vain is limited).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from evalharness.api.checks import excerpt
from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.api.json_schema import problems_of
from evalharness.api.tools import Tool, read_tools
from evalharness.tool_calls import json_formats, python_formats, xml_formats
from evalharness.tool_calls.types import MAX_CALLS, RawCall, ToolAnswer, ToolCall, coerce_arguments

_Reader = Callable[[str, Sequence[str]], Iterator[RawCall]]

FORMATS: Mapping[str, _Reader] = {
    "hermes": json_formats.hermes,
    "qwen_xml": xml_formats.qwen,
    "glm": xml_formats.glm,
    "mistral": json_formats.mistral,
    "deepseek": json_formats.deepseek,
    "kimi": json_formats.kimi,
    "harmony": json_formats.harmony,
    "gemma": json_formats.gemma,
    "tagged_json": json_formats.tagged,
    "anthropic": xml_formats.anthropic,
    "invoke_xml": xml_formats.invoke,
    "fenced_json": json_formats.fenced,
    "pythonic": python_formats.pythonic,
    "llama_json": json_formats.llama,
    "json": json_formats.bare,
    "function": python_formats.function,
}
"""How calls may be written, in the order in which `auto` looks for them; the first form that finds any is taken."""

_EXECUTABLE = ("stop", "tool")


def parse_tool_calls(
    text: str, tools: Sequence[Tool | Mapping[str, Any]] = (), *, format: str = "auto", finish_reason: str | None = "stop"
) -> ToolAnswer:
    """Return the calls of an answer; those that must not be executed say why in `error`.

    With tools, unknown names and arguments that break the schema are errors, and texts (XML forms) become what the schema
    says. Calls of an answer that did not end by itself (`finish_reason` other than "stop") are never executable. Thoughts
    (up to `</think>`) hold no calls. Behind `MAX_CALLS` calls the rest of the text is one more, with an error. `ConfigError` for
    an unknown format, and for `function` without tools.
    """
    offered = {tool.name: tool for tool in read_tools(tools)}
    names, has_marks = tuple(offered), "think>" in text
    start = _end_of_thoughts(text)
    # A bare list of calls is found only where an answer begins; its calls are found anywhere.
    in_python = _calls_in(text, "function", names) if has_marks else []
    for name in _formats(format, offered):
        if has_marks:
            start = _end_of_thoughts(_without_calls(text, chain(_calls_in(text, name, names), in_python)))
        raw_calls = _calls_in(text[start:], name, names)
        if raw_calls:
            calls = [_judge(text, call, start, offered, finish_reason) for call in raw_calls]
            return ToolAnswer(tuple(calls), _beside(text, start, calls), name)
    return ToolAnswer((), text[start:].strip())


def _formats(format: str, offered: Mapping[str, Tool]) -> Sequence[str]:
    if format == "auto":
        return [name for name in FORMATS if name != "function" or offered]
    if format not in FORMATS:
        raise ConfigError(f"the format {format!r} is unknown{did_you_mean(format, FORMATS)} Known: auto, {', '.join(FORMATS)}")
    if format == "function" and not offered:
        raise ConfigError("the format 'function' reads calls of offered tools only, since any prose may hold f(x); give the tools")
    return [format]


def _calls_in(text: str, format: str, names: Sequence[str]) -> list[RawCall]:
    """Return the calls of one form in their order, `MAX_CALLS` and one that is all the rest at most."""
    calls = sorted(islice(FORMATS[format](text, names), MAX_CALLS + 1), key=lambda call: call.span)
    if len(calls) > MAX_CALLS:
        error = f"more than {MAX_CALLS} calls in one answer; from here on they are not read"
        calls[MAX_CALLS] = replace(calls[MAX_CALLS], span=(calls[MAX_CALLS].span[0], len(text)), error=error)
    return calls


def _end_of_thoughts(text: str) -> int:
    closed = text.rfind("</think>")
    begin = closed + len("</think>") if closed >= 0 else 0
    return len(text) if "<think>" in text[begin:] else begin


def _without_calls(text: str, calls: Iterable[RawCall]) -> str:
    """Return the text with its whole calls blanked: a mark of thoughts in an argument is text."""
    parts, position = [], 0
    for start, end in sorted(call.span for call in calls if call.error is None):
        parts += [text[position:start], " " * (end - max(start, position))]
        position = max(position, end)
    return "".join([*parts, text[position:]])


def _judge(text: str, call: RawCall, offset: int, offered: Mapping[str, Tool], finish_reason: str | None) -> ToolCall:
    span = (call.span[0] + offset, call.span[1] + offset)
    arguments = dict(call.arguments)
    problems = [call.error] if call.error else []
    if offered and call.name is not None:
        tool = offered.get(call.name)
        if tool is None:
            name = excerpt(call.name, 100)
            problems.append(f"{name!r} is not offered{did_you_mean(name, offered)} Offered: {', '.join(offered)}")
        elif not call.error:
            arguments = coerce_arguments(arguments, tool.parameters) if call.texts else arguments
            problems += problems_of(arguments, tool.parameters)
    if finish_reason not in _EXECUTABLE:
        problems.append(f"the answer did not end by itself (finish_reason {finish_reason!r}), so the call may be cut off")
    return ToolCall(call.name, arguments, text[slice(*span)], span, "; ".join(problems) or None)


def _beside(text: str, start: int, calls: Sequence[ToolCall]) -> str:
    parts, position = [], start
    for call in calls:
        parts.append(text[position : max(position, call.span[0])])
        position = max(position, call.span[1])
    parts.append(text[position:])
    return "".join(parts).strip()
