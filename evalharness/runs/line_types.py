"""Checks that a journal's line holds what its kind says: a journal may be damaged, a stranger's, or of another program.

Only what readers rely on is checked; unknown kinds and keys are legal, so that older versions read newer journals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from evalharness.runs.journal import MAX_DEPTH, Line, is_too_deep

_MAX_COUNT = 1 << 53

_Check: TypeAlias = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MAX_COUNT


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def _seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


# Lists of a thousand tokens: a call for each would take as long as reading them.


def _token_ids(value: Any) -> bool:
    return isinstance(value, list) and {*map(type, value)} <= {int} and (not value or (min(value) >= 0 and max(value) <= _MAX_COUNT))


def _values(value: Any) -> bool:
    return isinstance(value, list) and {*map(type, value)} <= {int, float, str, type(None)}


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _finite(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and math.isfinite(float(value))
    except OverflowError:
        return False


def _list_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _object_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _or_null(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _anything(value: Any) -> bool:
    return True


def _shape(required: Mapping[str, _Check], optional: Mapping[str, _Check]) -> _Check:
    return lambda value: isinstance(value, dict) and not _problem(value, required, optional)


_OBJECT = _object_of(_anything)
_NUM_SAMPLES = 1_000_000


def _sample(value: Any) -> bool:
    return _count(value) and value < _NUM_SAMPLES


_CASE = {"engine": _text, "eval": _text, "case_id": _text}
_PLACE = {"sample": _sample, "step": _count, "request": _count, "steps": _or_null(_list_of(_sample))}
_FAILURE = {"failure": lambda value: value in ("invalid", "error"), "problem": _text}
_GENERATION = {
    **dict.fromkeys(("text", "raw_text", "prompt_text", "backend"), _or_null(_text)),
    **dict.fromkeys(("finish_reason", "fallback", "prompt_sha256", "weight_version", "logprobs_kind"), _or_null(_text)),
    **dict.fromkeys(("num_prompt_tokens", "num_completion_tokens"), _or_null(_count)),
    "stop_reason": _or_null(lambda value: isinstance(value, (str, int))),
    "seed": _or_null(_seed),
    "token_ids": _token_ids,
    **dict.fromkeys(("logprobs", "entropies"), _or_null(_values)),
    "ignored_options": _list_of(_text),
    "images": _list_of(_OBJECT),
    "thinking": _or_null(_OBJECT),
    **dict.fromkeys(("cached", "exact_ids"), _flag),
}
_GENERATED = {"generation": _shape({}, _GENERATION)}
_SPEC = _shape(dict.fromkeys(("id", "backend", "checkpoint", "checkpoint_path"), _text), {})
_FACTS = _shape({}, {"group": _or_null(_text), "tags": _object_of(_text)})
_KINDS: Mapping[str, tuple[Mapping[str, _Check], Mapping[str, _Check]]] = {
    "generation": ({**_CASE, "sample": _sample, **_GENERATED}, _PLACE),
    "failure": ({**_CASE, "sample": _sample, **_FAILURE}, {**_PLACE, "cause": _or_null(_text)}),
    "step": ({**_CASE, "step": _count, "request": _count, **_GENERATED}, _PLACE),
    "step_failure": ({**_CASE, "step": _count, "request": _count, **_FAILURE}, {**_PLACE, "cause": _or_null(_text)}),
    "row": (
        {**_CASE, "nodeid": _text, "outcome": lambda value: value in ("pass", "miss", "fail", "invalid", "error", "skip")},
        {
            **dict.fromkeys(("test", "checkpoint", "backend", "run_id"), _text),
            **dict.fromkeys(("problem", "cause", "worker", "started_at", "group", "reference_sha256"), _or_null(_text)),
            "duration_s": _or_null(_number),
            "scores": _object_of(_finite),
            "details": _or_null(_OBJECT),
            "tags": _object_of(_text),
            "num_samples": _sample,
            "options": _or_null(lambda value: isinstance(value, (dict, list))),
        },
    ),
    "engine": (
        {"id": _text, "settings": _OBJECT},
        {
            **dict.fromkeys(("worker", "how", "swapped_from", "cold_because"), _text),
            **dict.fromkeys(("load_s", "ended_s"), _number),
            "devices": _or_null(_list_of(_text)),
        },
    ),
    "eval": (
        {"name": _text, "path": _text},
        {
            "tests": _object_of(_list_of(_text)),
            "cases": _object_of(_FACTS),
            "options": _or_null(_list_of(_OBJECT)),
            "num_cases": _count,
            **dict.fromkeys(("notices", "plugins"), _list_of(_text)),
            "takes_coordinates": _flag,
            "directions": _object_of(_text),
            "code": _object_of(_object_of(_text)),
        },
    ),
    "collected": ({}, {"engines": _list_of(_SPEC), "nodeids": _list_of(_text)}),
    "problem": ({"problem": _text}, {}),
    "unit_start": ({}, {"ahead": _flag}),
    "unit": ({"engine": _text, "eval": _text, "generation_s": _number}, {"ended_s": _number, "num_outcomes": _count}),
}


def check_line(line: Line) -> None:
    """Raise `RecordError`, with file and line, for a line that does not hold what its kind says."""
    required, optional = _KINDS.get(line.values["kind"], ({}, {}))
    problem = _problem(line.values, required, optional)
    if problem:
        raise line.broken(f"is a {line.values['kind']} line {problem}")
    if is_too_deep(line.raw, line.values):
        raise line.broken(f"is nested more than {MAX_DEPTH} deep")


def _problem(values: Mapping[str, Any], required: Mapping[str, _Check], optional: Mapping[str, _Check]) -> str:
    for name, check in required.items():
        if name not in values:
            return f"without {name!r}"
        if not check(values[name]):
            return f"with a wrong {name!r}"
    return next((f"with a wrong {name!r}" for name, check in optional.items() if name in values and not check(values[name])), "")
