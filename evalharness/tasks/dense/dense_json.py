"""Read a JSON object of objects out of a text that may be cut off, wrapped in prose or slightly broken. Knows no geometry.

What is good JSON is read as JSON. Otherwise each object is looked for by itself: between one `"object_N":` and the next,
so that a lost quote in one object cannot hide the others. Braces inside strings are seen as part of the string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from evalharness.tasks.shared import tokens

__all__ = ["Pairs", "Root", "read_root"]


class Pairs(tuple[tuple[str, Any], ...]):
    """A JSON object as its keys and values in the order of the text, keys written twice included."""

    def duplicates(self) -> list[str]:
        """Return the keys that are written twice."""
        seen: set[str] = set()
        return [key for key, _ in self if key in seen or seen.add(key)]  # type: ignore[func-returns-value]


@dataclass(frozen=True)
class Root:
    """What was found: a `Pairs` or list. `repaired` says how it had to be read, "" if the text was JSON and nothing else.

    Values of a repaired root that could not be read are None.
    """

    value: Any
    found: bool
    truncated: bool
    repaired: str


_DECODER = json.JSONDecoder(object_pairs_hook=Pairs)
_FIRST_BRACKET = re.compile(r"[{\[]")
# In a valid string the quotes would stand behind a backslash, so these are keys, whatever a text says.
_DOUBLE_MARK = re.compile(r'"(object_[0-9]{1,9})"\s{0,8}:')
_SINGLE_MARK = re.compile(r"'(object_[0-9]{1,9})'\s{0,8}:")
MIN_OBJECT_CHARS = len('{"line":[1,2,3,4]}')
"""Shorter braces hold nothing of use; so a megabyte of `{},` is no list of objects to be read one by one."""
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))|,\s{0,64}(?=[}\]])', re.DOTALL)


def read_root(text: str) -> Root:
    """Return what JSON a text holds; never raises, linear in its length."""
    text = text.strip()
    value = _loads(text)
    if _may_hold_objects(value):
        return Root(value, True, False, "")
    first = _FIRST_BRACKET.search(text)
    if first is None:
        return Root(None, False, False, "")
    body = text[first.start() :]
    whole = _first_value(body)
    if whole is not None:
        return Root(whole, True, False, "other text around it")
    return _salvaged(body)


def _loads(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):  # RecursionError: a megabyte of opening brackets
        return None


def _first_value(body: str) -> Any:
    """Return the JSON value with which a text begins, None if there is none or more objects follow it."""
    try:
        value, end = _DECODER.raw_decode(body)
    except (ValueError, RecursionError):
        return None
    return value if _may_hold_objects(value) and "{" not in body[end:] else None


def _may_hold_objects(value: Any) -> bool:
    return isinstance(value, Pairs) or (isinstance(value, list) and (not value or any(isinstance(item, Pairs) for item in value)))


def _salvaged(body: str) -> Root:
    """Return the objects of a text that is no JSON as a whole, each read by itself."""
    marks = list(_DOUBLE_MARK.finditer(body)) or list(_SINGLE_MARK.finditer(body))
    if not marks:
        spans, is_open = _flat_objects(body)
        items = [_load_repaired(body[start:end]) for start, end in spans if end - start >= MIN_OBJECT_CHARS]
        found = is_open or bool(items)
        return Root(items, found and "{" in body, is_open, "cut off" if is_open else "broken JSON")
    entries, rest = [], body
    for place, mark in enumerate(marks):
        piece = body[mark.end() : marks[place + 1].start() if place + 1 < len(marks) else len(body)]
        if "}" not in piece:
            entries.append((mark[1], None))
            rest = ""
            continue
        value, rest = _marked_object(piece)
        entries.append((mark[1], value))
    # Behind the last object stands the end of the root, if there is one. An object with a lost quote hides it from the scan.
    truncated = "}" not in rest and "]" not in rest and not body.endswith("}}")
    return Root(Pairs(entries), True, truncated, "cut off" if truncated else "broken JSON")


def _marked_object(piece: str) -> tuple[Any, str]:
    """Return the object that stands behind its key, None if it cannot be read, and what follows it."""
    start = piece.find("{")
    try:
        # Whole, as it may have objects within, which the scan for flat ones would take for it.
        value, end = _DECODER.raw_decode(piece, start)
        return value, piece[end:]
    except (ValueError, RecursionError):
        spans, is_open = _flat_objects(piece, only_first=True)
    value = _load_repaired(piece[slice(*spans[0])]) if spans else None
    return value, piece[spans[0][1] :] if spans else ("" if is_open else piece)


def _flat_objects(text: str, only_first: bool = False) -> tuple[list[tuple[int, int]], bool]:
    """Return start and end of each `{…}` without braces in it, strings apart, and whether a brace or bracket stays open."""
    spans: list[tuple[int, int]] = []
    opened: list[str] = []
    start: int | None = None
    for begin, end in tokens(text):
        sign = text[begin]
        if sign in "{[":
            opened.append(sign)
            start = begin if sign == "{" else start
        elif sign in "}]":
            if opened:
                opened.pop()
            if sign == "}" and start is not None:
                spans.append((start, end))
                start = None
                if only_first:
                    break
        elif end == len(text) and not _is_closed(text[begin:end]):
            return spans, True
    return spans, bool(opened)


def _is_closed(string: str) -> bool:
    return len(string) > 1 and string.endswith('"') and (len(string) - 1 - len(string[:-1].rstrip("\\"))) % 2 == 0


def _load_repaired(text: str) -> Any:
    """Return the value of one object's text, None if it cannot be read: as JSON, without trailing commas, with quotes swapped."""
    for candidate in _candidates(text):
        value = _loads(candidate)
        if value is not None:
            return value
    return None


def _candidates(text: str) -> Iterator[str]:
    yield text
    yield _TRAILING_COMMA.sub(lambda match: match[1] or "", text)
    if '"' not in text:
        yield _TRAILING_COMMA.sub(lambda match: match[1] or "", text.replace("'", '"'))
