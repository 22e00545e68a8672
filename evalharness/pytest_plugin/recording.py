"""What a test records about its case: numbers with `score`, plain data with `details`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from evalharness.analysis.gates import BUILT_IN_METRICS
from evalharness.api.cases import Case
from evalharness.api.errors import ScoreError
from evalharness.pytest_plugin.outcomes import ItemRecord, shorten

__all__ = ["Details", "Score", "reference_of"]


class Score:
    """Records numbers for the case of one test: `score(valid=True, f1=0.5)`; each name once, None means not applicable."""

    def __init__(self, record: ItemRecord) -> None:
        self._record = record

    def __call__(self, **values: Any) -> None:
        for name, value in values.items():
            if name in BUILT_IN_METRICS:
                raise ScoreError(f"score {name!r} has the name of a rate that every test has; give it another name")
            if name in self._record.scores:
                raise ScoreError(f"score {name!r} was recorded already for this case; give each name once")
            if value is not None:
                self._record.scores[name] = _finite(name, value)


class Details:
    """Records plain JSON data about the case of one test, for tables and output files: `details(parsed={...})`; each name once.

    A copy is kept, so what the test does with the data afterwards changes nothing.
    """

    def __init__(self, record: ItemRecord) -> None:
        self._record = record

    def __call__(self, **values: Any) -> None:
        if self._record.details is None:
            self._record.details = {}
        kept = self._record.details
        for name, value in values.items():
            if name in kept:
                raise ScoreError(f"detail {name!r} was recorded already for this case; give each name once")
            try:
                kept[name] = _plain_data(value)
            except _NotPlain as error:
                raise ScoreError(f"detail {name!r}{shorten(''.join(error.path))} {error}") from None
            except RecursionError:
                raise ScoreError(f"detail {name!r} is nested too deeply, or holds itself; give plain JSON data") from None


def _number(value: Any) -> Any:
    """Return numpy's and torch's numbers as Python's, anything else as it is."""
    is_foreign = not isinstance(value, (bool, int, float)) and hasattr(value, "item") and getattr(value, "ndim", 0) == 0
    return value.item() if is_foreign else value


def reference_of(case: Case) -> dict[str, Any]:
    """Return what the row of a case says of its reference: all of it where it is plain JSON data, else nothing."""
    reference = vars(case).get("reference")  # as it stands: a case of a recorded run would load its eval to look it up
    if reference is None:
        return {}
    try:
        return {"reference": _plain_data(reference)}
    except (_NotPlain, RecursionError):
        return {}  # a task's own type; its details tell what matters


def _finite(name: str, value: Any) -> float:
    plain = _number(value)
    if not isinstance(plain, (bool, int, float)):
        raise ScoreError(f"score {name!r} must be a number or bool, got {shorten(repr(value))} ({type(value).__name__})")
    try:
        number = float(plain)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ScoreError(f"score {name!r} must be finite, got {number!r}; leave it out, or give None, where it does not apply")
    return number


class _NotPlain(Exception):
    """Says what is no JSON, and where in the data it lies, outermost key first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []


def _plain_data(value: Any) -> Any:
    """Return a copy made of JSON's own types; raises `_NotPlain`."""
    plain = _number(value)
    if plain is None or isinstance(plain, (bool, int, str)):
        return plain
    if isinstance(plain, float):
        if not math.isfinite(plain):
            raise _NotPlain(f"must be finite, got {plain!r}; give None where there is no number")
        return plain
    if isinstance(plain, Mapping):
        for key in plain:
            if not isinstance(key, str):
                raise _NotPlain(f"has the key {shorten(repr(key))} ({type(key).__name__}); keys must be texts")
        return {key: _inside(key, child) for key, child in plain.items()}
    if isinstance(plain, (list, tuple)):
        return [_inside(place, child) for place, child in enumerate(plain)]
    raise _NotPlain(f"must be plain JSON data, got {shorten(repr(value))} ({type(value).__name__}); give dicts, lists, texts, numbers")


def _inside(key: str | int, child: Any) -> Any:
    try:
        return _plain_data(child)
    except _NotPlain as error:
        error.path.insert(0, f"[{key!r}]")
        raise
