"""Calls written as Python: `[f(k=v)]`, with or without marks around it, and `f(k=v)` of an offered tool in prose.

The calls are taken apart here, by brackets, commas and strings, and Python reads only single values, literals all of them: so names need
not be Python's (`from=1`, `get-weather(…)`), places are counted in characters of the text, and nothing is run.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalharness.api.json_schema import check_depth
from evalharness.tool_calls.types import MAX_CALLS, RawCall

_LONGEST = 100_000  # characters of one value; Python's parser takes several times that in memory
_JSON_NAMES = {"true": True, "false": False, "null": None}
_MARKS = {
    "<|python_tag|>": "<|eom_id|>",
    "<|python_start|>": "<|python_end|>",  # Llama 4
    "<|tool_call_start|>": "<|tool_call_end|>",  # LFM2
    "<function_calls>": "</function_calls>",  # Olmo 3: one call a line, without the brackets of a list
}
_OPENING = re.compile(rf"(?:{'|'.join(map(re.escape, _MARKS))})\s*(?=\[|[^\W\d][\w.-]*\()")
_CALL = re.compile(r"\s*([^\W\d][\w.-]{0,255})\s*\(")
_KEY = re.compile(r"\s*([^\W\d][\w-]{0,255})\s*=(?!=)")
_SPACE = re.compile(r"\s*")
# A whole string (one that never ends takes the rest of the text, so that nothing is read twice), a bracket or a comma.
_TOKEN = re.compile(
    r'(?P<string>"""(?:[^\\]|\\.)*?(?:"""|\\?\Z)|\'\'\'(?:[^\\]|\\.)*?(?:\'\'\'|\\?\Z)'
    r'|"(?:[^"\\]|\\.)*(?:"|\\?\Z)|\'(?:[^\'\\]|\\.)*(?:\'|\\?\Z))|[()\[\]{},]',
    re.DOTALL,
)
_ESCAPED_OR_CONTROL = re.compile(r"\\.|[\n\r\0]", re.DOTALL)
_CONTROLS = {"\n": r"\n", "\r": r"\r", "\0": r"\0"}


def pythonic(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield the calls of lists behind a mark; without marks those of an answer that is a list of calls.

    Words behind an unmarked list are content if its first call is of an offered tool; else it is prose in brackets.
    """
    position, is_marked = 0, False
    while (mark := _OPENING.search(text, position)) is not None:
        is_marked = True
        read = _read_list(text, mark.end())
        closing = _MARKS[mark[0].rstrip()]
        end = _skip(text, read.end)
        position = end + len(closing) if text.startswith(closing, end) else read.end
        yield from read.spread_over(mark.start(), position)
    start = _skip(text, 0)
    if is_marked or not text.startswith("[", start):
        return
    read = _read_list(text, start)
    is_whole = not read.is_broken and text[read.end :].strip() in ("", *_MARKS.values())
    if read.calls and (is_whole or len(read.calls) > MAX_CALLS or read.calls[0].name in offered):
        yield from read.spread_over(0, len(text) if is_whole else read.end)


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()


@dataclass(frozen=True)
class _CallList:
    """The calls of one list, where it ends, and whether it does not end as a list does."""

    calls: Sequence[RawCall]
    end: int
    is_broken: bool

    def spread_over(self, start: int, end: int) -> Iterator[RawCall]:
        """Yield the calls with spans that leave nothing between start and end: commas, brackets and marks are no content."""
        for place, call in enumerate(self.calls):
            last = end if place == len(self.calls) - 1 else call.span[1]
            yield replace(call, span=(start, last))
            start = last


def _read_list(text: str, start: int) -> _CallList:
    in_brackets = text.startswith("[", start)
    position = start + in_brackets
    calls: list[RawCall] = []
    while len(calls) <= MAX_CALLS and (opened := _CALL.match(text, position)) is not None:
        call, position = _read_call(text, opened)
        calls.append(call)
        position = _skip(text, position)
        if in_brackets and text.startswith("]", position):
            return _CallList(calls, position + 1, False)
        if text.startswith(",", position):
            position = _skip(text, position + 1)
            if in_brackets and text.startswith("]", position):
                return _CallList(calls, position + 1, False)
        elif in_brackets:
            break
    if in_brackets and calls and calls[-1].error is None:
        calls[-1] = replace(calls[-1], error="the list of calls is cut off: no closing bracket behind the call")
    return _CallList(calls, position, in_brackets)


def _read_call(text: str, opened: re.Match[str]) -> tuple[RawCall, int]:
    """Return the call whose name and bracket a match found, and where it ends."""
    pieces, end = _pieces(text, opened.end())
    start = opened.start(1)
    if end is None:
        return RawCall(opened[1], {}, (start, len(text)), "the call is cut off: no closing bracket"), len(text)
    arguments: dict[str, Any] = {}
    error: str | None = None
    for piece in pieces:
        key = _KEY.match(piece)
        if key is None:
            error = error or ("** is not an argument" if piece.lstrip().startswith("**") else "positional arguments have no name")
        elif key[1] in arguments:
            error = error or f"the argument {key[1]!r} stands twice"
        else:
            try:
                arguments[key[1]] = _literal(piece[key.end() :])
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                error = error or f"the argument {key[1]!r} is not a literal"
    return RawCall(opened[1], arguments, (start, end), error), end


def _pieces(text: str, position: int) -> tuple[list[str], int | None]:
    """Return the texts between the commas of a call, without an empty last one, and its end behind the bracket; None if that is missing."""
    pieces: list[str] = []
    depth = 1
    for token in _TOKEN.finditer(text, position):
        sign = token[0]
        if sign in ("(", "[", "{"):
            depth += 1
        elif sign in (")", "]", "}"):
            depth -= 1
        if depth == 0 or (depth == 1 and sign == ","):
            pieces.append(text[position : token.start()])
            position = token.end()
            if depth == 0:
                return (pieces if pieces[-1].strip() else pieces[:-1]), position
    return pieces, None


def function(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield `name(key=value)` anywhere, for names of offered tools; text within strings is text."""
    if not offered:
        return
    names = "|".join(re.escape(name) for name in sorted(offered, key=len, reverse=True))
    opening = re.compile(rf"(?<![\w.])({names})\s*\(")
    position = 0
    while (opened := opening.search(text, position)) is not None:
        call, position = _read_call(text, opened)
        yield call


def _literal(source: str) -> Any:
    """Return the value of a Python literal, which may hold line breaks in its strings, as models write them; `ValueError` for others."""
    if len(source) > _LONGEST:
        raise ValueError(f"too long to read: {len(source)} characters, at most {_LONGEST}")
    source = _TOKEN.sub(_without_controls, source.strip())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in strings, which are the model's
        value = _value(ast.parse(f"({source}\n)", mode="eval").body)
    check_depth(value)
    return value


def _without_controls(token: re.Match[str]) -> str:
    return _ESCAPED_OR_CONTROL.sub(lambda match: _CONTROLS.get(match[0], match[0]), token[0]) if token["string"] else token[0]


def _value(node: ast.expr) -> Any:
    """Return a literal as JSON has it: tuples and sets are lists, the names that JSON has are known; else `ValueError`."""
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) if key is not None else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("keys must be texts")
        return {key: _value(value) for key, value in zip(keys, node.values, strict=True)}
    value = ast.literal_eval(node)
    if not isinstance(value, (str, int, float, bool, type(None))) or (isinstance(value, float) and not abs(value) < float("inf")):
        raise ValueError(f"{type(value).__name__} does not exist in JSON")
    str(value)  # `ValueError` for a hexadecimal number with more digits than JSON may have
    return value
