"""The JSON that an answer gives: alone, in a code fence, or within other text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from evalharness.answers.json_paths import MISSING
from evalharness.answers.json_text import balanced_end, loads
from evalharness.answers.thoughts import without_thoughts

_OBJECT = re.compile(r'\{(?=\s*["}])')  # not the brace of other texts
_LIST = re.compile(r"\[")
# Nothing but parts of JSON: behind a bracket of prose, such as [1, p. 3] or [0, 1), there are words.
_PARTS_OF_LIST = re.compile(r'\[(?:[\[\],:\s\d.eE+-]|"(?:[^"\\]|\\.)*"|true|false|null)*(?P<open>"(?:[^"\\]|\\.)*)?', re.DOTALL)
_FENCE = re.compile(r"```[A-Za-z0-9_-]{0,20}[ \t]{0,8}\n(.*?)(?:\n[ \t]{0,8}```|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Answer:
    """The JSON in a text. `is_json` distinguishes `null` from no JSON; `strict`: the text is JSON and nothing else."""

    value: Any
    is_json: bool
    strict: bool


def parse_answer(text: str) -> Answer:
    """Return the JSON of a text: the text itself, else that in a code fence, else the first object in it, else the first list.

    Thoughts, up to the last `</think>` or after a `<think>` that never ends, are not the answer; nor is a part of an object or
    list that is cut off. Never raises; linear in the text's length.
    """
    whole = _value(text)
    if whole is not MISSING:
        return Answer(whole, True, True)
    text = without_thoughts(text)
    whole = _value(text)
    if whole is not MISSING:
        return Answer(whole, True, False)
    for fence in _FENCE.finditer(text):
        value = _value(fence[1])
        if value is not MISSING:
            return Answer(value, True, False)
    value = _first_root(text)
    return Answer(None if value is MISSING else value, value is not MISSING, False)


def _value(text: str) -> Any:
    try:
        return loads(text)
    except ValueError:
        return MISSING


def _first_root(text: str) -> Any:
    """Return the first object in a text, or the list of objects that holds it; the first list where there is no object."""
    first = _OBJECT.search(text)
    lists = []
    for start, end, value in _roots(text, _LIST):
        if first is not None and start > first.start():
            break
        if value in (None, MISSING) and (first is None or first.start() < end):
            before = _PARTS_OF_LIST.fullmatch(text, start, end if first is None else first.start())
            if before is not None and (first is None or before["open"] is None):
                return MISSING  # cut off or broken: its parts are not the answer
        if isinstance(value, list):
            if any(isinstance(item, dict) for item in value):
                return value
            lists.append(value)
    value = next((value for *_, value in _roots(text, _OBJECT) if isinstance(value, dict)), MISSING)
    return lists[0] if value is MISSING and lists else value


def _roots(text: str, opening: re.Pattern[str]) -> Iterator[tuple[int, int, Any]]:
    """Yield start, end and value of every balanced root, `MISSING` where it is not JSON, and last None for a root that never closes."""
    position = 0
    while (match := opening.search(text, position)) is not None:
        end = balanced_end(text, match.start())
        if end is None:
            yield match.start(), len(text), None
            return  # later roots are all within this one
        yield match.start(), end, _value(text[match.start() : end])
        position = end
