"""Ready extractors: by pattern, number, letter of a choice, JSON field, box of LaTeX, marks, and without thoughts."""

from __future__ import annotations

import json
import re

from evalharness.answers.extracting import Extractor, last_of
from evalharness.answers.json_answer import parse_answer
from evalharness.answers.json_paths import MISSING, find, read_path
from evalharness.answers.numbers import find_numbers
from evalharness.answers.patterns import BoundedPattern
from evalharness.answers.thoughts import without_thoughts
from evalharness.api.errors import ContractValueError


def first_match(pattern: str, *, ignore_case: bool = False) -> Extractor:
    """Return the extractor of a pattern's first match: its first group that is not empty, the whole match where it has no groups."""
    return _match(pattern, 0, ignore_case)


def last_match(pattern: str, *, ignore_case: bool = False) -> Extractor:
    """Return the extractor of a pattern's last match, likewise."""
    return _match(pattern, -1, ignore_case)


def _match(pattern: str, place: int, ignore_case: bool) -> Extractor:
    compiled = BoundedPattern(pattern, re.IGNORECASE if ignore_case else 0)

    def find_match(text: str) -> str | None:
        matches = compiled.matches(text)
        if not matches:
            return None
        match = matches[place]
        return (match if isinstance(match, str) else next((group for group in match if group), "")).strip()

    return Extractor(f"{'first' if place == 0 else 'last'}_match({pattern!r})", find_match)


def last_number(*, decimal_mark: str = ".") -> Extractor:
    """Return the extractor of the last number in a text, as written: `-1,234.5`; with `decimal_mark=","` also `-1.234,5`.

    The sign counts where it can be one: "5-3" ends with 3. A full stop behind it, a currency and a percent sign are no part of it.
    """
    find_numbers("", decimal_mark)  # a wrong mark is refused here, not with the first answer
    return Extractor("last_number", lambda text: last_of(find_numbers(text, decimal_mark)))


def json_field(path: str) -> Extractor:
    """Return the extractor of a field of the JSON in a text, such as `answer` or `items[0].name`; what is no text is given as JSON.

    A field that is null or missing is nothing.
    """
    steps = read_path(path)

    def find_field(text: str) -> str | None:
        answer = parse_answer(text)
        value = find(answer.value, steps) if answer.is_json else MISSING
        if value is MISSING or value is None:
            return None
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return Extractor(f"json_field({path!r})", find_field)


_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def boxed() -> Extractor:
    r"""Return the extractor of what the last `\boxed{…}` or `\fbox{…}` of a text holds; a box that never closes holds nothing."""

    def find_box(text: str) -> str | None:
        box = last_of(_BOX.finditer(text))
        if box is None:
            return None
        depth = 1
        for brace in _BRACES.finditer(text, box.end()):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                return text[box.end() : brace.start()]
        return None

    return Extractor("boxed", find_box)


def between(start: str, end: str | None = None, *, last: bool = False) -> Extractor:
    """Return the extractor of the text between two marks, without white space around; `end` None: up to the end of the text.

    `last`: after the last start mark rather than the first. A mark that is missing: nothing.
    """
    if not start or end == "":
        raise ContractValueError("between() needs marks that are not empty, such as between('<answer>', '</answer>')")

    def find_between(text: str) -> str | None:
        begin = text.rfind(start) if last else text.find(start)
        if begin < 0:
            return None
        begin += len(start)
        stop = len(text) if end is None else text.find(end, begin)
        return None if stop < 0 else text[begin:stop].strip()

    return Extractor(f"between({start!r}, {end!r}{', last=True' if last else ''})", find_between)


def strip_thinking() -> Extractor:
    """Return the extractor of the text after its last closed block of thoughts (`<think>`), and before a block that never ends."""
    return Extractor("strip_thinking", lambda text: without_thoughts(text).strip())
