"""Calls written as elements: qwen's `<function=…>`, GLM's keys and values, attributes (Anthropic, MiniMax, DeepSeek's DSML), the older
elements. Arguments are texts."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from evalharness.tool_calls.types import RawCall

_FUNCTION = re.compile(r"<function=([^<>\n]{1,256})>")
_QWEN_MARK = re.compile(r"<parameter=(?P<open>[^<>\n]{1,256})>|(?P<close></parameter>)|(?P<end></function>)|<function=|</tool_call>")
_GLM = re.compile(r"<tool_call>\s{0,64}([^\s<>{}\[\]]{1,256})\s{0,64}(?=<arg_key>|</tool_call>)")
_GLM_MARK = re.compile(
    r"<arg_key>(?P<open>[^<>]{1,256})</arg_key>\s{0,64}<arg_value>|(?P<close></arg_value>)|(?P<end></tool_call>)|<tool_call>|<arg_key>"
)
_INVOKE = re.compile(r"""<((?:[A-Za-z]{1,32}:|｜DSML｜)?)invoke\s+name\s*=\s*(?:"([^"<>]{1,256})"|'([^'<>]{1,256})')\s*>""")
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
        arguments, closed, end = _parameters(text, opened.end(), _QWEN_MARK, "</parameter>")
        span = _with_mark(text, opened.start(), end)
        yield RawCall(opened[1].strip(), arguments, span, arguments.error or _cut_off("" if closed else "</function>"), texts=True)
        position = max(end, opened.end())


def glm(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`, as GLM-4.5 and later write it."""
    position = 0
    while (opened := _GLM.search(text, position)) is not None:
        arguments, closed, position = _parameters(text, opened.end(), _GLM_MARK, "</arg_value>")
        error = arguments.error or _cut_off("" if closed else "</tool_call>")
        yield RawCall(opened[1], arguments, (opened.start(), position), error, texts=True)


def _parameters(text: str, position: int, marks: re.Pattern[str], closing: str) -> tuple[_Texts, bool, int]:
    """Return the parameters of a call, whether its end mark is there, and where it ends.

    A value ends at the last end mark before the next parameter or the end of the call: those before are part of it.
    """
    arguments = _Texts()
    name: str | None = None
    begin, close = position, -1

    def add() -> None:
        if name is not None:
            arguments.add(name, _without_newlines(text[begin:close]), "" if close >= 0 else closing)

    for mark in marks.finditer(text, position):
        if mark["close"]:
            close = mark.start() if name is not None else close
            continue
        add()
        if mark["open"] is None:
            return arguments, mark["end"] is not None, mark.end() if mark["end"] else mark.start()
        name, begin, close = mark["open"].strip(), mark.end(), -1
    add()
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
    end = 0
    while (opened := _INVOKE.search(text, end)) is not None:
        prefix = opened[1]
        read, closed, end = _parameters(text, opened.end(), _invoke_marks(prefix), f"</{prefix}parameter>")
        arguments = {html.unescape(key): html.unescape(value) for key, value in read.items()}
        error = read.error or _cut_off("" if closed else f"</{prefix}invoke>")
        name = html.unescape(opened[2] or opened[3]).strip()
        yield RawCall(name, arguments, _with_block(text, opened.start(), end, prefix), error, texts=True)


@lru_cache(maxsize=64)
def _invoke_marks(prefix: str) -> re.Pattern[str]:
    name = r"""(?:"(?=[^"<>]{1,256}")|'(?=[^'<>]{1,256}'))(?P<open>[^"'<>]{1,256})["']"""
    return re.compile(rf"<{prefix}parameter\s+name\s*=\s*{name}[^<>]{{0,256}}>|(?P<close></{prefix}parameter>)|(?P<end></{prefix}invoke>)")


def _cut_off(missing: str) -> str | None:
    return f"the call is cut off: no {missing}" if missing else None


def _with_block(text: str, start: int, end: int, prefix: str) -> tuple[int, int]:
    """Return the span with a mark of a block that stands directly before, and its end directly behind."""
    before = re.compile(rf"<{prefix}(?:function|tool)_calls>\s{{0,64}}\Z").search(text[max(0, start - len(prefix) - 96) : start])
    after = re.compile(rf"\s{{0,64}}</{prefix}(?:function|tool)_calls>").match(text, end)
    return start - len(before[0]) if before else start, after.end() if after else end


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
