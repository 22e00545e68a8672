"""Prompts with JSON answers: expected fields in, a score per field out.

    {"id": "invoice-7", "prompt": "Which total? Answer as JSON.", "images": ["7.png"], "expected": {"total": {"$number": 12.5}}}

One row per line in `<data folder>/json_answers.jsonl`; the other keys are those of `prompt_rows.py`. `expected` maps paths such
as `items[0].name` or `items[*].name` to a plain value, which must be equal, or to one of these:

    {"$number": 12.5, "tolerance": 0.01}    {"$text": "Rome"} ignoring case and white space    {"$any": [value, …]}
    {"$set": [value, …]} in any order    {"$type": "string"}    {"$absent": true}
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.answers.json_answer import parse_answer
from evalharness.answers.json_paths import MISSING, find, read_path
from evalharness.api.errors import ConfigError
from evalharness.tasks.prompt_rows import Judgement, PromptCase, none_in, read_rows, request_of


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


@dataclass(frozen=True, kw_only=True)
class JsonCase(PromptCase):
    """One row; `reference` maps paths to expected values."""


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
