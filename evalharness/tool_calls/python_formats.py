"""Calls written as Python: a whole answer `[f(k=v)]`, and `f(k=v)` of an offered tool in prose. Literals only, nothing is run."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from evalharness.tool_calls.types import RawCall

_LONGEST = 100_000  # characters of one call; the parser below takes several times that in memory
_FIRST_NAME = re.compile(r"\[\s*([\w.]+)")
_JSON_NAMES = {"true": True, "false": False, "null": None}
_MARKS = ("<|python_tag|>", "<|tool_call_start|>")
_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")
_LIST_END = "<|tool_call_end|>"
_INSIDE = re.compile(r"""\\.|['"()\[\]{}]""", re.DOTALL)


def pythonic(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield the calls of an answer that is a list of calls and nothing else."""
    begun = text.lstrip()
    for mark in _MARKS:
        begun = begun.removeprefix(mark).lstrip()
    if _LIST.match(begun) is None:
        return
    source = begun.rstrip().removesuffix(_LIST_END).rstrip()
    tree = _parse(source)
    if isinstance(tree, str):
        named = _FIRST_NAME.match(source)
        if named is not None and named[1] in offered:  # else it is prose in brackets
            yield RawCall(named[1], {}, (0, len(text)), tree)
        return
    if not isinstance(tree, ast.List) or not all(isinstance(each, ast.Call) for each in tree.elts):
        return
    lines = source.splitlines(keepends=True)
    starts = list(accumulate(map(len, lines), initial=len(text) - len(begun)))
    begin = 0
    for position, call in enumerate(tree.elts):
        assert isinstance(call, ast.Call)
        assert call.end_lineno is not None
        # Python counts lines from 1 and columns in bytes of UTF-8.
        before = lines[call.end_lineno - 1].encode("utf-8", "surrogatepass")[: call.end_col_offset].decode("utf-8", "surrogatepass")
        end = len(text) if position == len(tree.elts) - 1 else starts[call.end_lineno - 1] + len(before)
        yield _call_of(call, (begin, end))  # commas and brackets belong to the calls: nothing of such an answer is content
        begin = end


def function(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield `name(key=value)` anywhere, for names of offered tools; text within strings is text."""
    if not offered:
        return
    names = "|".join(re.escape(name) for name in sorted(offered, key=len, reverse=True))
    opening = re.compile(rf"(?<![\w.])({names})\s*\(")
    position = 0
    while (opened := opening.search(text, position)) is not None:
        end = _closing(text, opened.end())
        if end is None:
            yield RawCall(opened[1], {}, (opened.start(), len(text)), "the call is cut off: no closing bracket")
            return
        # A tool's name need not be a Python name (`get-weather`), so a placeholder stands for it.
        tree = _parse(f"f({text[opened.end() : end]}")
        span = (opened.start(), end)
        if isinstance(tree, ast.Call):
            yield replace(_call_of(tree, span), name=opened[1])
        else:
            yield RawCall(opened[1], {}, span, tree if isinstance(tree, str) else "no call")
        position = end


def _closing(text: str, position: int) -> int | None:
    depth, quote = 1, ""
    for mark in _INSIDE.finditer(text, position):
        if quote:
            quote = "" if mark[0] == quote else quote
        elif mark[0] in ("'", '"'):
            quote = mark[0]
        elif mark[0] in ("(", "[", "{"):
            depth += 1
        elif mark[0] in (")", "]", "}"):
            depth -= 1
            if depth == 0:
                return mark.end()
    return None


def _parse(source: str) -> ast.expr | str:
    """Return the expression in a source, or in words why it cannot be parsed."""
    if len(source) > _LONGEST:
        return f"the call is too long to read: {len(source)} characters, at most {_LONGEST}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings, which are the model's
            return ast.parse(source, mode="eval").body
    except SyntaxError as error:
        return f"not Python: {error.msg}"
    except (ValueError, MemoryError, RecursionError) as error:
        return f"Python that cannot be read: {type(error).__name__}"


def _call_of(call: ast.Call, span: tuple[int, int]) -> RawCall:
    arguments: dict[str, Any] = {}
    error = "positional arguments have no name" if call.args else None
    for keyword in call.keywords:
        if keyword.arg is None:
            error = error or "** is not an argument"
            continue
        if keyword.arg in arguments:
            error = error or f"the argument {keyword.arg!r} stands twice"
            continue
        try:
            arguments[keyword.arg] = _value(keyword.value)
        except (ValueError, TypeError, MemoryError, RecursionError):
            error = error or f"the argument {keyword.arg!r} is not a literal"
    try:
        name = ast.unparse(call.func)
    except RecursionError:
        name = None
    return RawCall(name, arguments, span, error)


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
    return value
