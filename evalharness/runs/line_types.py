"""Checks that a journal's line holds what its kind says: a journal may be damaged, a stranger's, or of another program.

Only what readers rely on is checked; unknown kinds and keys are legal, so that older versions read newer journals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType, NoneType
from typing import Any, NamedTuple

from evalharness.runs.journal import MAX_DEPTH, Line, is_too_deep

_MAX_COUNT = 1 << 53
_NUM_SAMPLES = 1_000_000


class _Value(NamedTuple):
    """What a value must be: of one of these very types, as JSON's parser makes no others; if not null, the check must hold, too."""

    types: frozenset[type]
    check: Callable[[Any], bool] | None = None

    def or_null(self) -> _Value:
        return self._replace(types=self.types | {NoneType})

    def fits(self, value: Any) -> bool:
        return type(value) in self.types and (self.check is None or value is None or self.check(value))


def _of(*types: type, check: Callable[[Any], bool] | None = None) -> _Value:
    return _Value(frozenset(types), check)


def _list_of(inner: _Value) -> _Value:
    # Lists may have thousands of elements: their types are looked at together.
    return _of(
        list, check=lambda values: inner.types.issuperset(map(type, values)) and (inner.check is None or all(map(inner.fits, values)))
    )


def _object_of(inner: _Value) -> _Value:
    return _of(dict, check=lambda value: all(map(inner.fits, value.values())))


class _Shape:
    """The keys that an object must have, and may have, with their values; others are legal."""

    def __init__(self, required: Mapping[str, _Value], optional: Mapping[str, _Value] = MappingProxyType({})) -> None:
        self._required = required.keys()
        self._values: dict[str, _Value] = {**optional, **required}

    def problem(self, values: Mapping[str, Any]) -> str:
        """Return what is wrong with the object, "" where nothing is."""
        if not self._required <= values.keys():
            return f"without {next(name for name in self._required if name not in values)!r}"
        for name, value in values.items():
            # As `fits` does, without a call: a run has millions of values.
            wanted = self._values.get(name)
            if wanted is None:
                continue
            if type(value) not in wanted.types or (wanted.check is not None and value is not None and not wanted.check(value)):
                return f"with a wrong {name!r}"
        return ""

    def as_value(self) -> _Value:
        """Return what a value of this shape must be."""
        return _of(dict, check=lambda value: not self.problem(value))


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond every float
        return False


_TEXT, _OBJECT, _FLAG = _of(str), _of(dict), _of(bool)
_NUMBER = _of(int, float, check=lambda value: abs(value) <= _MAX_COUNT)
_COUNT = _of(int, check=lambda value: 0 <= value <= _MAX_COUNT)
_SAMPLE = _of(int, check=lambda value: 0 <= value < _NUM_SAMPLES)
_SCORES = _object_of(_of(bool, int, float, check=_is_finite))
_SUMS = _object_of(_of(int, float, check=lambda value: 0 <= value < 1e100))  # the sum of many is still a number
# No call for each token: it would take as long as reading them.
_TOKEN_IDS = _of(list, check=lambda ids: {int}.issuperset(map(type, ids)) and (not ids or (min(ids) >= 0 and max(ids) <= _MAX_COUNT)))


_CASE = {"engine": _TEXT, "eval": _TEXT, "case_id": _TEXT}
_PLACE = {"sample": _SAMPLE, "step": _COUNT, "request": _COUNT, "steps": _list_of(_SAMPLE).or_null()}
_FAILURE = {"failure": _of(str, check=("invalid", "error").__contains__), "problem": _TEXT}
_GENERATION = {
    **dict.fromkeys(("text", "raw_text", "prompt_text", "backend", "prefill", "join"), _TEXT.or_null()),
    **dict.fromkeys(("finish_reason", "fallback", "prompt_sha256", "weight_version", "logprobs_kind"), _TEXT.or_null()),
    **dict.fromkeys(("num_prompt_tokens", "num_completion_tokens"), _COUNT.or_null()),
    "stop_reason": _of(str, int, bool, NoneType),
    "seed": _of(int, NoneType, check=lambda value: value >> 64 == 0),
    "token_ids": _TOKEN_IDS,
    **dict.fromkeys(("logprobs", "entropies"), _list_of(_of(int, float, str, NoneType)).or_null()),
    **dict.fromkeys(("ignored_options", "shots"), _list_of(_TEXT)),
    "images": _list_of(_OBJECT),
    "thinking": _OBJECT.or_null(),
    **dict.fromkeys(("cached", "exact_ids"), _FLAG),
}
_GENERATED = {"generation": _Shape({}, _GENERATION).as_value()}
_SPEC = _Shape(dict.fromkeys(("id", "backend", "checkpoint", "checkpoint_path"), _TEXT)).as_value()
_FACTS = _Shape({}, {"group": _TEXT.or_null(), "tags": _object_of(_TEXT), "stratum": _SAMPLE}).as_value()
_ROW = _Shape(
    {**_CASE, "nodeid": _TEXT, "outcome": _of(str, check=("pass", "miss", "fail", "invalid", "error", "skip").__contains__)},
    {
        **dict.fromkeys(("test", "checkpoint", "backend", "run_id"), _TEXT),
        **dict.fromkeys(("problem", "cause", "worker", "started_at", "group", "reference_sha256"), _TEXT.or_null()),
        "duration_s": _NUMBER.or_null(),
        "scores": _SCORES,
        "details": _OBJECT.or_null(),
        "tags": _object_of(_TEXT),
        **dict.fromkeys(("num_samples", "stratum"), _SAMPLE),
        "options": _of(dict, list, NoneType),
    },
)
_KINDS: Mapping[str, _Shape] = {
    "generation": _Shape({**_CASE, "sample": _SAMPLE, **_GENERATED}, _PLACE),
    "failure": _Shape({**_CASE, "sample": _SAMPLE, **_FAILURE}, {**_PLACE, "cause": _TEXT.or_null()}),
    "step": _Shape({**_CASE, "step": _COUNT, "request": _COUNT, **_GENERATED}, _PLACE),
    "step_failure": _Shape({**_CASE, "step": _COUNT, "request": _COUNT, **_FAILURE}, {**_PLACE, "cause": _TEXT.or_null()}),
    "row": _ROW,
    "repeat": _ROW,
    "engine": _Shape(
        {"id": _TEXT, "settings": _OBJECT},
        {
            **dict.fromkeys(("worker", "how", "swapped_from", "cold_because"), _TEXT),
            **dict.fromkeys(("load_s", "ended_s", "closed_s"), _NUMBER),
            "cost": _OBJECT,
            "devices": _list_of(_TEXT).or_null(),
        },
    ),
    "eval": _Shape(
        {"name": _TEXT, "path": _TEXT},
        {
            "tests": _object_of(_list_of(_TEXT)),
            "cases": _object_of(_FACTS),
            "options": _list_of(_OBJECT).or_null(),
            "num_cases": _COUNT,
            **dict.fromkeys(("notices", "plugins"), _list_of(_TEXT)),
            "takes_coordinates": _FLAG,
            "directions": _object_of(_TEXT),
            "code": _object_of(_object_of(_TEXT)),
        },
    ),
    "collected": _Shape({}, {"engines": _list_of(_SPEC), "nodeids": _list_of(_TEXT)}),
    "problem": _Shape({"problem": _TEXT}),
    "unit_start": _Shape({}, {"ahead": _FLAG}),
    "unit": _Shape({"engine": _TEXT, "eval": _TEXT, "generation_s": _NUMBER}, {"ended_s": _NUMBER, "num_outcomes": _COUNT, "work": _SUMS}),
}
_UNKNOWN = _Shape({})


def check_line(line: Line) -> None:
    """Raise `RecordError`, with file and line, for a line that does not hold what its kind says."""
    kind = line.values["kind"]
    problem = _KINDS.get(kind, _UNKNOWN).problem(line.values)
    if problem:
        raise line.broken(f"is a {kind} line {problem}")
    if is_too_deep(line.raw, line.values):
        raise line.broken(f"is nested more than {MAX_DEPTH} deep")
