"""What an answer's fields must be: paths into JSON, and a small language of values. Pure; never raises on an answer.

A path is keys with dots between: `address.city`, `items[0].name`; `items[*].name` is the list of all names. A backslash takes
a dot or bracket as it is: `v1\\.0`. An expected value is plain JSON and must be equal (1 and 1.0 are, texts to the letter), or
an object with one of these keys:

    {"$number": 12.5, "tolerance": 0.1}   a number at most that far away (tolerance 0 if left out); "12.5" as text is wrong
    {"$text": "Paris"}                    a text; case and the number of blanks do not matter
    {"$any": ["pass", {"$text": "ok"}]}   one of these values
    {"$set": ["a", "b"]}                  a list with these values; order and repeats do not matter
    {"$type": "integer"}                  any value of a type: string, number, integer, boolean, array, object, null
    {"$absent": true}                     the path must not be there
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evalharness.api.errors import ConfigError

__all__ = ["MISSING", "check_expected", "find", "is_absent", "matches", "read_path"]

MISSING = object()
"""What stands where a path leads nowhere."""

_STEP = re.compile(r"((?:\\.|[^\\.\[\]])+)|\[(\d{1,9}|\*)\]|(\.)")
Step = str | int | None
"""A key, a place in a list, or None for every place."""


def read_path(path: str, where: str = "") -> tuple[Step, ...]:
    """Return the steps of a path; `ConfigError` where it is none, with `where` it stands."""
    told = f"{where}: {path!r}" if where else repr(path)
    steps: list[Step] = []
    position, after_dot = 0, True
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None or (match[1] is not None and not after_dot) or (match[3] and after_dot) or (match[2] and after_dot and steps):
            raise ConfigError(f"{told} is no path (at character {position + 1}); write keys as in items[0].name, or items[*].name for all")
        if match[1] is not None:
            steps.append(re.sub(r"\\(.)", r"\1", match[1]))
        elif match[2] is not None:
            steps.append(None if match[2] == "*" else int(match[2]))
        after_dot = match[3] is not None
        position = match.end()
    if not steps or after_dot:
        raise ConfigError(f"{told} is no path; write keys as in items[0].name, or items[*].name for all")
    return tuple(steps)


def find(value: Any, steps: Sequence[Step]) -> Any:
    """Return what a path leads to, `MISSING` where it leads nowhere; after `[*]` a list of what is there."""
    for number, step in enumerate(steps):
        if step is None:
            if not isinstance(value, list):
                return MISSING
            found = [find(item, steps[number + 1 :]) for item in value]
            return [item for item in found if item is not MISSING]
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return MISSING
            value = value[step]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return MISSING
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def _check_number(wanted: Any, given: Mapping[str, Any]) -> str | None:
    tolerance = given.get("tolerance", 0)
    fine = _is_number(wanted) and _is_number(tolerance) and tolerance >= 0
    return None if fine else "a number, and a tolerance of at least 0"


def _check_list(wanted: Any, given: Mapping[str, Any]) -> str | None:
    return None if isinstance(wanted, list) and wanted else "a list with at least one value"


_MATCHERS: dict[str, Callable[[Any, Mapping[str, Any]], str | None]] = {
    "$number": _check_number,
    "$text": lambda wanted, given: None if isinstance(wanted, str) else "a text",
    "$any": _check_list,
    "$set": lambda wanted, given: None if isinstance(wanted, list) else "a list",
    "$type": lambda wanted, given: None if isinstance(wanted, str) and wanted in _TYPES else f"one of {', '.join(_TYPES)}",
    "$absent": lambda wanted, given: None if wanted is True else "true",
}
"""What each matcher takes; the text says what is legal."""


def _matcher(expected: Any) -> str | None:
    if not isinstance(expected, dict):
        return None
    return next((key for key in expected if key.startswith("$")), None)


def _matchers_within(plain: Any) -> Iterator[str]:
    for inner in plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ():
        key = _matcher(inner)
        if key is not None:
            yield key
        else:
            yield from _matchers_within(inner)


def check_expected(expected: Any, where: str) -> None:
    """Raise `ConfigError` for an expected value that is not understood."""
    key = _matcher(expected)
    if key is None:
        inner = next(_matchers_within(expected), None)
        if inner is not None:
            raise ConfigError(f"{where}: {inner!r} stands within a plain value, where it would be compared to the letter; use a path to it")
        return
    if key not in _MATCHERS:
        raise ConfigError(f"{where}: {key!r} is unknown; known: {', '.join(_MATCHERS)}")
    strange = set(expected) - {key} - ({"tolerance"} if key == "$number" else set())
    if strange:
        raise ConfigError(f"{where}: {key} stands alone, got {', '.join(map(repr, sorted(strange)))} beside it")
    legal = _MATCHERS[key](expected[key], expected)
    if legal is not None:
        raise ConfigError(f"{where}: {key} takes {legal}, got {expected[key]!r}")
    if key in ("$any", "$set"):
        for one in expected[key]:
            check_expected(one, where)


def is_absent(expected: Any) -> bool:
    """Return whether an expected value says that nothing is to be there."""
    return _matcher(expected) == "$absent"


def matches(value: Any, expected: Any) -> bool:
    """Return whether a value, `MISSING` for none, is as expected."""
    key = _matcher(expected)
    if key == "$any":
        return any(matches(value, one) for one in expected[key])
    if key == "$absent" or value is MISSING:
        return key == "$absent" and value is MISSING
    if key is None:
        return _equal(value, expected)
    wanted = expected[key]
    if key == "$number":
        return _is_near(value, wanted, expected.get("tolerance", 0))
    if key == "$text":
        return isinstance(value, str) and _folded(value) == _folded(wanted)
    if key == "$set":
        return isinstance(value, list) and _same_set(value, wanted)
    return _TYPES[wanted](value)


def _is_near(value: Any, wanted: float, tolerance: float) -> bool:
    try:
        return _is_number(value) and math.isfinite(value) and abs(value - wanted) <= tolerance
    except OverflowError:  # a whole number of hundreds of digits
        return bool(value == wanted)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _equal(value: Any, expected: Any) -> bool:
    """Return whether two JSON values are equal; true is not 1, though Python says so."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(_equal(value[key], expected[key]) for key in expected)
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(_equal, value, expected))
    return bool(value == expected)


def _same_set(values: Sequence[Any], wanted: Sequence[Any]) -> bool:
    return all(any(matches(value, one) for one in wanted) for value in values) and all(
        any(matches(value, one) for value in values) for one in wanted
    )
