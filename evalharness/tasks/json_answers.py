"""Prompts of your own whose answers are JSON with known fields: one JSONL file of rows in, a score per field out.

    {"id": "invoice-7", "prompt": "Which total? Answer as JSON.", "images": ["7.png"], "expected": {"total": {"$number": 12.5}}}

`prompt` is one user turn, `messages` a whole chat instead; `images` are relative to the file, and stand before the prompt or
take the chat's `{"type": "image"}` parts in turn. `group` joins rows that belong together, `tags` are texts by name. What
`expected` may say is in `json_matching.py`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError
from evalharness.tasks.prompt_rows import Judgement, PromptCase, read_rows, request_of
from evalharness.tasks.shared import balanced_end, loads, without_thoughts

__all__ = [
    "MISSING",
    "Answer",
    "JsonCase",
    "Judgement",
    "check_expected",
    "find",
    "is_absent",
    "judge",
    "load_cases",
    "matches",
    "parse_answer",
    "read_path",
    "request",
    "tables",
]


# What an answer's fields must be: paths into JSON, and a small language of values. Pure; never raises on an answer

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
            raise ConfigError(
                f"{told} is not a path (at character {position + 1}); write keys as in items[0].name, or items[*].name for all"
            )
        if match[1] is not None:
            steps.append(re.sub(r"\\(.)", r"\1", match[1]))
        elif match[2] is not None:
            steps.append(None if match[2] == "*" else int(match[2]))
        after_dot = match[3] is not None
        position = match.end()
    if not steps or after_dot:
        raise ConfigError(f"{told} is not a path; write keys as in items[0].name, or items[*].name for all")
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


FILE_NAME = "json_answers.jsonl"
MAX_EXTRA, MAX_KEY_CHARS = 20, 60
"""Keys of an answer that are kept in the details though nothing is expected of them; how many there were is a score."""
_OWN_KEYS = ("expected",)
_OBJECT = re.compile(r'\{(?=\s*["}])')  # not the brace of other texts
_LIST = re.compile(r"\[")
_LIST_OF_OBJECTS = re.compile(r"\[\s*[{\[]")
_FENCE = re.compile(r"```[A-Za-z0-9_-]{0,20}[ \t]{0,8}\n(.*?)(?:\n[ \t]{0,8}```|\Z)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class JsonCase(PromptCase):
    """One row; `reference` is what is expected, by path."""


@dataclass(frozen=True)
class Answer:
    """What JSON a text holds. `strict`: the text is JSON and nothing else. `found` tells no JSON from `null`."""

    value: Any
    found: bool
    strict: bool


def load_cases(data_dir: Path | str | None, *, name: str = FILE_NAME) -> list[JsonCase]:
    """Return one case per row of `<data_dir>/json_answers.jsonl`; `ConfigError` names the line of whatever is wrong."""
    cases = []
    for row in read_rows(data_dir, name, _OWN_KEYS):
        expected = row.values.get("expected")
        if not isinstance(expected, dict) or not expected:
            raise ConfigError(f"{row.where}: expected must be an object with at least one field, got {expected!r}")
        for path, value in expected.items():
            read_path(path, row.where)
            check_expected(value, f"{row.where}: expected {path!r}")
        cases.append(JsonCase(reference=expected, **row.asked()))
    return cases


request = request_of


def parse_answer(text: str) -> Answer:
    """Return the JSON of a text: the text itself, or else what stands in a code fence, or else the first object in it, or list.

    What a model thought, up to the last `</think>` or behind a `<think>` that never ends, is not its answer. Nor is a part of
    an object or list that is cut off. Never raises; linear in the text's length.
    """
    whole = _loads(text)
    if whole is not MISSING:
        return Answer(whole, True, True)
    text = without_thoughts(text)
    whole = _loads(text)
    if whole is not MISSING:
        return Answer(whole, True, False)
    for fence in _FENCE.finditer(text):
        value = _loads(fence[1])
        if value is not MISSING:
            return Answer(value, True, False)
    value = _first_root(text)
    return Answer(None if value is MISSING else value, value is not MISSING, False)


def _loads(text: str) -> Any:
    try:
        return loads(text)
    except ValueError:
        return MISSING


def _first_root(text: str) -> Any:
    """Return the first object in a text, or a list of objects around it; where there is no object, the first list."""
    first = _OBJECT.search(text)
    lists = []
    for start, value in _roots(text, _LIST):
        if first is not None and start > first.start():
            break
        if value is None and _LIST_OF_OBJECTS.match(text, start):
            return MISSING  # cut off: what it holds is no answer
        if isinstance(value, list):
            if any(isinstance(item, dict) for item in value):
                return value
            lists.append(value)
    found = next((value for _, value in _roots(text, _OBJECT) if isinstance(value, dict)), MISSING)
    return lists[0] if found is MISSING and lists else found


def _roots(text: str, opening: re.Pattern[str]) -> Iterator[tuple[int, Any]]:
    """Yield the start and value of every balanced root, `MISSING` for what is no JSON; None for one that never closes, the last."""
    position = 0
    while (match := opening.search(text, position)) is not None:
        end = balanced_end(text, match.start())
        if end is None:
            yield match.start(), None
            return  # nor does any later one end: they are all within this one
        yield match.start(), _loads(text[match.start() : end])
        position = end


def judge(text: str, expected: Mapping[str, Any]) -> Judgement:
    """Return how a text does against the expected fields.

    `valid`: there is JSON. `strict`: and nothing else. `fields_right`: share of expected fields that are right. `all_right`:
    all of them. `num_missing`, `num_extra`: fields that are not there, and keys of the answer that nothing is expected of.
    """
    answer = parse_answer(text)
    value = answer.value if answer.found else MISSING
    fields: dict[str, str] = {}
    for path, wanted in expected.items():
        found = find(value, read_path(path)) if answer.found else MISSING
        right = answer.found and matches(found, wanted)
        fields[path] = "right" if right else "missing" if found is MISSING and not is_absent(wanted) else "wrong"
    known = {read_path(path)[0] for path in expected}
    extra = [key for key in value if key not in known] if isinstance(value, dict) else []
    num_right = sum(state == "right" for state in fields.values())
    scores = {
        "valid": float(answer.found),
        "strict": float(answer.strict),
        "fields_right": num_right / len(fields),
        "all_right": float(num_right == len(fields)),
        "num_missing": float(sum(state == "missing" for state in fields.values())),
        "num_extra": float(len(extra)),
    }
    bad = ", ".join(f"{path} is {state}" for path, state in fields.items() if state != "right")
    details = {"fields": fields, "extra": [key[:MAX_KEY_CHARS] for key in extra[:MAX_EXTRA]]}
    return Judgement(scores, details, bad if answer.found else f"no JSON in {text[:80]!r}")


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return how often each field was right, wrong or missing, the worst first."""
    states: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        for path, state in (row.get("details") or {}).get("fields", {}).items():
            states[path][state] += 1
    lines = [
        {"field": path, "cases": sum(each.values()), "accuracy": each["right"] / sum(each.values()), "wrong": each["wrong"],
         "missing": each["missing"]} for path, each in states.items()
    ]  # fmt: skip
    return {"fields": sorted(lines, key=lambda line: (line["accuracy"], line["field"]))} if lines else {}
