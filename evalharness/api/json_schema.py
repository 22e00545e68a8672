"""JSON as models write it: read strictly, and held against a JSON Schema. What an answer contains never raises, nor takes forever.

Models write numbers of 400 digits, 40,000 items that must be unique, and objects nested in themselves. A schema that asks for the same
part in several branches costs the product of all branches at each level, and a regular expression may take exponential time, so both
have limits; an answer beyond them breaks its schema.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Any

from evalharness.api.checks import excerpt, finite_number, is_deeper, refuse_constant
from evalharness.api.errors import ContractValueError
from evalharness.api.wording import plural

MAX_DEPTH = 100
"""Levels of lists and objects in an answer: what is nested deeper is not JSON to any reader here, whatever the stack is."""
MAX_STEPS = 300_000
"""Keywords of a schema that are applied to one answer: about a second."""
MAX_PATTERN_S = 5.0
"""CPU seconds of the regular expressions of a schema on one answer."""
MAX_PROBLEMS = 20
_MAX_SORTED = 1000


class AnswerDecoder(json.JSONDecoder):
    """Reads JSON that a model wrote. All that json would take and no record can hold is a `ValueError`: NaN, 1e999, any depth."""

    def __init__(self, **hooks: Any) -> None:
        super().__init__(**{"parse_constant": refuse_constant, "parse_float": finite_number, **hooks})

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        """Return the value at a place and its end."""
        try:
            value, end = super().raw_decode(s, idx)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        check_depth(value)
        return value, end


def check_depth(value: Any) -> None:
    """Raise `ValueError` for lists and objects that are nested more than `MAX_DEPTH` deep."""
    if is_deeper(value, MAX_DEPTH):
        raise ValueError("it is nested too deeply")


def check_schema(schema: Mapping[str, Any], path: str) -> None:
    """Raise `ContractValueError` unless any answer can be held against the schema.

    Its references must lead to parts of itself: nothing is fetched.
    """
    from jsonschema import Draft202012Validator, SchemaError  # takes 50 ms, and few requests have a schema

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = "/".join(map(str, error.absolute_path)) or "its top"
        raise ContractValueError(f"{path} is not a JSON Schema: {excerpt(error.message, 200)} (at {place})") from None
    references, has_ids = _named_in(schema)
    if not has_ids:  # with ids of its own a schema may refer to its parts by any address
        _check_references(schema, references, path)


def _check_references(schema: Mapping[str, Any], references: list[str], path: str) -> None:
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(dict(schema)))
    for reference in references:
        try:
            resolver.lookup(reference)
        except (Unresolvable, ValueError):
            advice = "references must lead to parts of the schema itself, as #/$defs/name does; nothing is fetched"
            raise ContractValueError(f"{path} refers to {reference!r}, which is not there; {advice}") from None


def _named_in(schema: Any) -> tuple[list[str], bool]:
    """Return the references of a schema, and whether any of its parts has an id or anchor."""
    references, has_ids = [], False
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            references += [part["$ref"]] if isinstance(part.get("$ref"), str) else []
            has_ids = has_ids or any(isinstance(part.get(key), str) for key in ("$id", "$anchor", "$dynamicAnchor"))
            waiting += [inner for key, inner in part.items() if key not in ("enum", "const", "default", "examples")]
        elif isinstance(part, list):
            waiting += part
    return references, has_ids


def problems_of(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """Return in words what breaks the schema, at most `MAX_PROBLEMS` entries, by place; [] for a value that fits."""
    from referencing.exceptions import Unresolvable

    validator = _validator(json.dumps(schema, sort_keys=True))
    _limits.steps = MAX_STEPS
    try:
        check_depth(value)
        with _limited_patterns():
            errors = list(islice(validator.iter_errors(value), _MAX_SORTED))
        errors.sort(key=lambda error: [str(step) for step in error.path])
        problems = [_in_words(error) for error in errors[:MAX_PROBLEMS]]
    except RecursionError:
        return ["it cannot be checked: nested too deeply"]
    except _TooMuch as limit:
        return [f"it cannot be checked: {limit}"]
    except Unresolvable as error:  # of a schema with ids, whose references are not looked for before
        return [f"it cannot be checked: the schema refers to {excerpt(error.ref, 100)!r}, which is not there"]
    except ValueError as error:
        return [str(error)]
    return [*problems, f"and {plural(len(errors) - MAX_PROBLEMS, 'more problem')}"] if len(errors) > MAX_PROBLEMS else problems


def _in_words(error: Any) -> str:
    place = f"{excerpt(error.json_path.removeprefix('$.'), 100)}: " if error.path else ""
    return f"{place}{excerpt(error.message, 200)}"


class _TooMuch(Exception):
    """The limit of steps or seconds is reached."""


_limits = threading.local()


def _spend() -> None:
    _limits.steps -= 1
    if _limits.steps < 0:
        raise _TooMuch(f"more than {MAX_STEPS:,} steps")


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from referencing import Registry

    return _limited_class()(json.loads(schema), registry=Registry())  # jsonschema's own would fetch what a schema refers to


@lru_cache(maxsize=1)
def _limited_class() -> Any:
    """Return jsonschema's validator with every step counted, and without its own quadratic and overflowing keywords."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    keywords = {**Draft202012Validator.VALIDATORS, "uniqueItems": _unique_items, "multipleOf": _multiple_of}
    made: Any = extend(Draft202012Validator, {name: _counted(check) for name, check in keywords.items()})  # type: ignore[no-untyped-call]
    return made


def _counted(check: Callable[..., Any]) -> Callable[..., Any]:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _spend()
        return check(validator, value, instance, schema)

    return counted


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if wanted and isinstance(instance, list) and len(set(map(_spelling, instance))) < len(instance):
        yield ValidationError(f"{excerpt(repr(instance), 100)} has non-unique elements")


def _spelling(value: Any) -> str:
    """Return one text for all spellings of a JSON value: any order of keys, 1 and 1.0."""
    _spend()
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(key)}:{_spelling(value[key])}' for key in sorted(value))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_spelling, value))}]"
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _multiple_of(validator: Any, factor: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if validator.is_type(instance, "number") and (_exact(instance) / _exact(factor)).denominator != 1:
        yield ValidationError(f"{excerpt(repr(instance), 100)} is not a multiple of {factor!r}")


def _exact(number: float) -> Fraction:
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))  # as written: 19.99 is 1999 times 0.01


@contextmanager
def _limited_patterns() -> Iterator[None]:
    """End regular expressions that take more than `MAX_PATTERN_S` of this thread's time; only in the main thread, which gets signals.

    The timer counts the process's CPU time, of all threads, so it only asks how long this one has taken.
    """
    started = time.thread_time()

    def ask(number: int, frame: Any) -> None:
        if time.thread_time() - started > MAX_PATTERN_S:
            raise _TooMuch(f"more than {MAX_PATTERN_S:g} seconds for a pattern")

    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_VIRTUAL)[0]:
        yield
        return
    before = signal.signal(signal.SIGVTALRM, ask)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_PATTERN_S, MAX_PATTERN_S / 4)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def is_match(pattern: str, text: str) -> bool:
    """Return whether a regular expression matches a whole text; False where that takes too long to tell."""
    try:
        with _limited_patterns():
            return re.fullmatch(pattern, text) is not None
    except _TooMuch:
        return False
