"""Calls written as elements: qwen's `<function=…>`, Anthropic's attributes, and the older elements. Arguments are texts."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from evalharness.tool_calls.types import RawCall

_FUNCTION = re.compile(r"<function=([^<>\n]{1,256})>")
_QWEN_MARK = re.compile(r"<parameter=([^<>\n]{1,256})>|</parameter>|</function>|<function=|</tool_call>")
_INVOKE = re.compile(r"""<((?:[A-Za-z]{1,32}:)?)invoke\s+name\s*=\s*(?:"([^"<>]{1,256})"|'([^'<>]{1,256})')\s*>""")
_OLD_INVOKE = re.compile(r"<invoke>")
_OLD_NAME = re.compile(r"\s*<tool_name>([^<>]{1,256})</tool_name>")
_TAG = re.compile(r"<([A-Za-z_][\w.-]{0,255})>")


class _Texts(dict[str, str]):
    """Arguments as they are read; the first of two with one name stays, and `error` says so."""

    error: str | None = None

    def add(self, name: str, text: str) -> None:
        if name in self:
            self.error = f"the parameter {name!r} stands twice"
        else:
            self[name] = text


def qwen(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`; the outer mark may be missing.

    One newline is trimmed on each side of a value. A value without its end mark is an error: it may be half of one.
    """
    position = 0
    while (opened := _FUNCTION.search(text, position)) is not None:
        arguments, closed, end = _qwen_parameters(text, opened.end())
        span = _with_mark(text, opened.start(), end)
        error = arguments.error or (None if closed else "the call is cut off: no </function>")
        yield RawCall(opened[1].strip(), arguments, span, error, texts=True)
        position = max(end, opened.end())


def _qwen_parameters(text: str, position: int) -> tuple[_Texts, bool, int]:
    """Return the parameters, whether `</function>` is there, and where the call ends. A value holds none of these marks."""
    arguments = _Texts()
    name: str | None = None
    begin = position
    for mark in _QWEN_MARK.finditer(text, position):
        if name is not None and mark[0] == "</parameter>":
            arguments.add(name, _without_newlines(text[begin : mark.start()]))
        elif name is not None:
            arguments.error = arguments.error or f"the parameter {name!r} is cut off: no </parameter>"
        name = None
        if mark[1] is not None:
            name, begin = mark[1].strip(), mark.end()
        elif mark[0] == "</function>":
            return arguments, True, mark.end()
        elif mark[0] in ("<function=", "</tool_call>"):
            return arguments, False, mark.start()
    if name is not None:
        arguments.error = arguments.error or f"the parameter {name!r} is cut off: no </parameter>"
    return arguments, False, len(text)


def _without_newlines(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")


def _with_mark(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span with the `<tool_call>` around it, where there is one."""
    before = text[max(0, start - 64) : start].rstrip()
    if before.endswith("<tool_call>"):
        start = text.rfind("<tool_call>", 0, start)
        after = re.compile(r"\s{0,64}</tool_call>").match(text, end)
        end = after.end() if after else end
    return start, end


def anthropic(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield `<invoke name="…"><parameter name="…">value</parameter></invoke>`, with or without a prefix or a block around them."""
    position = 0
    while (opened := _INVOKE.search(text, position)) is not None:
        prefix = opened[1]
        close = text.find(f"</{prefix}invoke>", opened.end())
        end = close if close >= 0 else len(text)
        arguments = _attribute_parameters(text[opened.end() : end], prefix)
        error = arguments.error or (None if close >= 0 else f"the call is cut off: no </{prefix}invoke>")
        end += len(f"</{prefix}invoke>") if close >= 0 else 0
        name = html.unescape(opened[2] or opened[3]).strip()
        yield RawCall(name, arguments, _with_block(text, opened.start(), end, prefix), error, texts=True)
        position = end


def _attribute_parameters(body: str, prefix: str) -> _Texts:
    arguments = _Texts()
    opening = re.compile(rf"""<{prefix}parameter\s+name\s*=\s*(?:"([^"<>]{{1,256}})"|'([^'<>]{{1,256}})')[^<>]{{0,256}}>""")
    closing = f"</{prefix}parameter>"
    position = 0
    while (opened := opening.search(body, position)) is not None:
        name = html.unescape(opened[1] or opened[2])
        close = body.find(closing, opened.end())
        if close < 0:
            arguments.error = arguments.error or f"the parameter {name!r} is cut off: no {closing}"
            break
        arguments.add(name, html.unescape(_without_newlines(body[opened.end() : close])))
        position = close + len(closing)
    return arguments


def _with_block(text: str, start: int, end: int, prefix: str) -> tuple[int, int]:
    """Return the span with a `<function_calls>` that stands directly before, and its end directly behind."""
    opening, closing = f"<{prefix}function_calls>", f"</{prefix}function_calls>"
    if text[max(0, start - len(opening) - 64) : start].rstrip().endswith(opening):
        start = text.rfind(opening, 0, start)
    after = re.compile(rf"\s{{0,64}}{closing}").match(text, end)
    return start, after.end() if after else end


def invoke(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield `<invoke><tool_name>…</tool_name><parameters><key>value</key></parameters></invoke>`; nested elements stay text."""
    end = 0
    while (opened := _OLD_INVOKE.search(text, end)) is not None:
        close = text.find("</invoke>", opened.end())
        end = close if close >= 0 else len(text)
        named = _OLD_NAME.match(text, opened.end(), end)
        arguments = _element_parameters(text[named.end() : end]) if named else _Texts()
        error = arguments.error or (None if close >= 0 else "the call is cut off: no </invoke>")
        end += len("</invoke>") if close >= 0 else 0
        name = html.unescape(named[1]).strip() if named else None
        error = error if named else "the call has no <tool_name>"
        yield RawCall(name, arguments, (opened.start(), end), error, texts=True)


def _element_parameters(body: str) -> _Texts:
    arguments = _Texts()
    begin = body.find("<parameters>")
    if begin < 0:
        return arguments
    position = begin + len("<parameters>")
    end = body.rfind("</parameters>")
    if end < 0:
        arguments.error = "the parameters are cut off: no </parameters>"
        end = len(body)
    while (opened := _TAG.search(body, position, end)) is not None:
        closing = f"</{opened[1]}>"
        close = body.find(closing, opened.end(), end)
        if close < 0:
            arguments.error = arguments.error or f"the parameter {opened[1]!r} is cut off: no {closing}"
            break
        arguments.add(opened[1], html.unescape(body[opened.end() : close].strip()))
        position = close + len(closing)
    return arguments
