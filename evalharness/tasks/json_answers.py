"""Prompts with JSON answers: expected fields in, a score per field out.

    {"id": "invoice-7", "prompt": "Which total? Answer as JSON.", "images": ["7.png"], "expected": {"total": {"$number": 12.5}}}

One row per line in `<data folder>/json_answers.jsonl`; the other keys are those of `prompt_rows.py`. `expected` maps paths such
as `items[0].name` or `items[*].name` to a plain value, which must be equal, or to one of these:

    {"$number": 12.5, "tolerance": 0.01}    {"$text": "Rome"} ignoring case and white space    {"$any": [value, …]}
    {"$set": [value, …]} in any order    {"$type": "string"}    {"$absent": true}
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
from evalharness.tasks.prompt_rows import Judgement, PromptCase, none_in, read_rows, request_of
from evalharness.tasks.shared import balanced_end, loads, without_thoughts

MISSING = object()
"""The value of a path that leads nowhere."""

_STEP = re.compile(r"((?:\\.|[^\\.\[\]])+)|\[(\d{1,9}|\*)\]|(\.)")
Step = str | int | None
"""A key, a place in a list, or None for every place."""


def read_path(path: str, where: str = "") -> tuple[Step, ...]:
    """Return the steps of a path; `ConfigError`, which begins with `where`, if it is not a path."""
    place = f"{where}: {path!r}" if where else repr(path)
    advice = "write keys as in items[0].name, or items[*].name for all"
    steps: list[Step] = []
    position, after_dot = 0, True
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None or (match[1] is not None and not after_dot) or (match[3] and after_dot) or (match[2] and after_dot and steps):
            raise ConfigError(f"{place} is not a path (at character {position + 1}); {advice}")
        if match[1] is not None:
            steps.append(re.sub(r"\\(.)", r"\1", match[1]))
        elif match[2] is not None:
            steps.append(None if match[2] == "*" else int(match[2]))
        after_dot = match[3] is not None
        position = match.end()
    if not steps or after_dot:
        raise ConfigError(f"{place} is not a path; {advice}")
    return tuple(steps)


def find(value: Any, steps: Sequence[Step]) -> Any:
    """Return the value at a path, `MISSING` where it leads nowhere; for `[*]` the list of the values there."""
    for number, step in enumerate(steps):
        if step is None:
            if not isinstance(value, list):
                return MISSING
            values = [find(item, steps[number + 1 :]) for item in value]
            return [item for item in values if item is not MISSING]
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


_MATCHERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "$number": (_is_number, "a number, and a tolerance of at least 0"),
    "$text": (lambda wanted: isinstance(wanted, str), "a text"),
    "$any": (lambda wanted: isinstance(wanted, list) and bool(wanted), "a list with at least one value"),
    "$set": (lambda wanted: isinstance(wanted, list), "a list"),
    "$type": (lambda wanted: isinstance(wanted, str) and wanted in _TYPES, f"one of {', '.join(_TYPES)}"),
    "$absent": (lambda wanted: wanted is True, "true"),
}
"""Whether the value of a matcher is legal, and what is."""


def _matcher(expected: Any) -> str | None:
    return next((key for key in expected if key.startswith("$")), None) if isinstance(expected, dict) else None


def _matchers_within(plain: Any) -> Iterator[str]:
    for inner in plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ():
        key = _matcher(inner)
        if key is not None:
            yield key
        else:
            yield from _matchers_within(inner)


def check_expected(expected: Any, where: str) -> None:
    """Raise `ConfigError` for an expected value of a wrong form."""
    key = _matcher(expected)
    if key is None:
        for inner in _matchers_within(expected):
            raise ConfigError(f"{where}: {inner!r} stands within a plain value, where it would be compared to the letter; use a path to it")
        return
    if key not in _MATCHERS:
        raise ConfigError(f"{where}: {key!r} is unknown; known: {', '.join(_MATCHERS)}")
    unknown = set(expected) - {key} - ({"tolerance"} if key == "$number" else set())
    if unknown:
        raise ConfigError(f"{where}: {key} stands alone, got {', '.join(map(repr, sorted(unknown)))} beside it")
    is_legal, legal = _MATCHERS[key]
    tolerance = expected.get("tolerance", 0)
    if not is_legal(expected[key]) or not _is_number(tolerance) or tolerance < 0:
        raise ConfigError(f"{where}: {key} takes {legal}, got {expected[key]!r}")
    if key in ("$any", "$set"):
        for value in expected[key]:
            check_expected(value, where)


def matches(value: Any, expected: Any) -> bool:
    """Return whether a value, or `MISSING`, is as expected."""
    key = _matcher(expected)
    if key == "$any":
        return any(matches(value, option) for option in expected[key])
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
        return (
            isinstance(value, list)
            and all(any(matches(item, option) for option in wanted) for item in value)
            and all(any(matches(item, option) for item in value) for option in wanted)
        )
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


FILE_NAME = "json_answers.jsonl"
MAX_EXTRA, MAX_KEY_CHARS = 20, 60
"""Unexpected keys of an answer that are kept in the details; their number is a score."""
_OBJECT = re.compile(r'\{(?=\s*["}])')  # not the brace of other texts
_LIST = re.compile(r"\[")
# Nothing but parts of JSON: behind a bracket of prose, such as [1, p. 3] or [0, 1), there are words.
_PARTS_OF_LIST = re.compile(r'\[(?:[\[\],:\s\d.eE+-]|"(?:[^"\\]|\\.)*"|true|false|null)*(?P<open>"(?:[^"\\]|\\.)*)?', re.DOTALL)
_FENCE = re.compile(r"```[A-Za-z0-9_-]{0,20}[ \t]{0,8}\n(.*?)(?:\n[ \t]{0,8}```|\Z)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class JsonCase(PromptCase):
    """One row; `reference` maps paths to expected values."""


@dataclass(frozen=True)
class Answer:
    """The JSON in a text. `is_json` distinguishes `null` from no JSON; `strict`: the text is JSON and nothing else."""

    value: Any
    is_json: bool
    strict: bool


def load_cases(data_dir: Path | str | None, *, name: str = FILE_NAME) -> list[JsonCase]:
    """Return one case per row of `<data_dir>/json_answers.jsonl`; `ConfigError` names the line that is wrong."""
    cases = []
    for row in read_rows(data_dir, name, ("expected",)):
        expected = row.values.get("expected")
        if not isinstance(expected, dict) or not expected:
            raise ConfigError(f"{row.where}: expected must be an object with at least one field, got {expected!r}")
        for path, value in expected.items():
            read_path(path, row.where)
            check_expected(value, f"{row.where}: expected {path!r}")
        cases.append(JsonCase(reference=expected, **row.case_fields()))
    return cases


request = request_of


def parse_answer(text: str) -> Answer:
    """Return the JSON of a text: the text itself, else that in a code fence, else the first object in it, else the first list.

    Thoughts, up to the last `</think>` or after a `<think>` that never ends, are not the answer; nor is a part of an object or
    list that is cut off. Never raises; linear in the text's length.
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
        yield match.start(), end, _loads(text[match.start() : end])
        position = end


def judge(text: str, expected: Mapping[str, Any], finish_reason: str | None = None) -> Judgement:
    """Return the scores of a text against the expected fields; `finish_reason` says whether it was cut.

    `valid`: there is JSON. `strict`: and nothing else. `fields_right`: share of the expected fields that are right. `all_right`:
    all of them are. `num_missing`: expected fields that are absent. `num_extra`, where there is JSON: its keys that are not expected.
    """
    answer = parse_answer(text)
    value = answer.value if answer.is_json else MISSING
    fields: dict[str, str] = {}
    for path, wanted in expected.items():
        field = find(value, read_path(path)) if answer.is_json else MISSING
        right = answer.is_json and matches(field, wanted)
        fields[path] = "right" if right else "missing" if field is MISSING and _matcher(wanted) != "$absent" else "wrong"
    known = {read_path(path)[0] for path in expected}
    extra = [key for key in value if key not in known] if isinstance(value, dict) else []
    num_right = sum(state == "right" for state in fields.values())
    scores = {
        "valid": float(answer.is_json),
        "strict": float(answer.strict),
        "fields_right": num_right / len(fields),
        "all_right": float(num_right == len(fields)),
        "num_missing": float(sum(state == "missing" for state in fields.values())),
        **({"num_extra": float(len(extra))} if answer.is_json else {}),  # else silence would be better than a wrong answer
    }
    bad = ", ".join(f"{path} is {state}" for path, state in fields.items() if state != "right")
    details = {"fields": fields, "extra": [key[:MAX_KEY_CHARS] for key in extra[:MAX_EXTRA]]}
    return Judgement(scores, details, bad if answer.is_json else none_in("JSON", text, finish_reason))


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return how often each field was right, wrong or missing, the worst field first."""
    states: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        for path, state in (row.get("details") or {}).get("fields", {}).items():
            states[path][state] += 1
    lines = []
    for path, counts in states.items():
        shares = {"cases": sum(counts.values()), "accuracy": counts["right"] / sum(counts.values())}
        lines.append({"field": path, **shares, "wrong": counts["wrong"], "missing": counts["missing"]})
    return {"fields": sorted(lines, key=lambda line: (line["accuracy"], line["field"]))} if lines else {}
