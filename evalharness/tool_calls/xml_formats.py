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

    def add(self, name: str, text: str, missing: str = "") -> None:
        if missing:
            self.error = self.error or f"the parameter {name!r} is cut off: no {missing}"
        elif name in self:
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
        yield RawCall(opened[1].strip(), arguments, span, arguments.error or _cut_off("" if closed else "</function>"), texts=True)
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
            arguments.add(name, "", "</parameter>")
        name = None
        if mark[1] is not None:
            name, begin = mark[1].strip(), mark.end()
        elif mark[0] == "</function>":
            return arguments, True, mark.end()
        elif mark[0] in ("<function=", "</tool_call>"):
            return arguments, False, mark.start()
    if name is not None:
        arguments.add(name, "", "</parameter>")
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


def _elements(text: str, opening: re.Pattern[str], closing: str = "</{}>") -> Iterator[tuple[re.Match[str], str, int, str]]:
    """Yield each opening mark, the text inside of it, where its element ends, and the closing mark if that is missing, else "".

    The `{}` of a closing mark is the opening one's first group.
    """
    end = 0
    while (opened := opening.search(text, end)) is not None:
        mark = closing.format(*opened.groups())
        close = text.find(mark, opened.end())
        end = close + len(mark) if close >= 0 else len(text)
        yield opened, text[opened.end() : close if close >= 0 else end], end, "" if close >= 0 else mark


def anthropic(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield `<invoke name="…"><parameter name="…">value</parameter></invoke>`, with or without a prefix or a block around them."""
    for opened, body, end, missing in _elements(text, _INVOKE, "</{}invoke>"):
        prefix = opened[1]
        opening = re.compile(rf"""<{prefix}parameter\s+name\s*=\s*(?:"([^"<>]{{1,256}})"|'([^'<>]{{1,256}})')[^<>]{{0,256}}>""")
        arguments = _Texts()
        for parameter, value, _, cut in _elements(body, opening, f"</{prefix}parameter>"):
            arguments.add(html.unescape(parameter[1] or parameter[2]), html.unescape(_without_newlines(value)), cut)
        name = html.unescape(opened[2] or opened[3]).strip()
        yield RawCall(name, arguments, _with_block(text, opened.start(), end, prefix), arguments.error or _cut_off(missing), texts=True)


def _cut_off(missing: str) -> str | None:
    return f"the call is cut off: no {missing}" if missing else None


def _with_block(text: str, start: int, end: int, prefix: str) -> tuple[int, int]:
    """Return the span with a `<function_calls>` that stands directly before, and its end directly behind."""
    opening, closing = f"<{prefix}function_calls>", f"</{prefix}function_calls>"
    if text[max(0, start - len(opening) - 64) : start].rstrip().endswith(opening):
        start = text.rfind(opening, 0, start)
    after = re.compile(rf"\s{{0,64}}{closing}").match(text, end)
    return start, after.end() if after else end


def invoke(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield `<invoke><tool_name>…</tool_name><parameters><key>value</key></parameters></invoke>`; nested elements stay text."""
    for opened, body, end, missing in _elements(text, _OLD_INVOKE, "</invoke>"):
        named = _OLD_NAME.match(body)
        if named is None:
            yield RawCall(None, {}, (opened.start(), end), "the call has no <tool_name>", texts=True)
            continue
        arguments = _Texts()
        begin, close = body.find("<parameters>", named.end()), body.rfind("</parameters>", named.end())
        parameters = body[begin + len("<parameters>") : close if close >= 0 else len(body)] if begin >= 0 else ""
        if begin >= 0 > close:
            arguments.error = "the parameters are cut off: no </parameters>"
        for parameter, value, _, cut in _elements(parameters, _TAG):
            arguments.add(parameter[1], html.unescape(value.strip()), cut)
        yield RawCall(html.unescape(named[1]).strip(), arguments, (opened.start(), end), arguments.error or _cut_off(missing), texts=True)
