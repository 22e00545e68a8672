"""Turns a test's reports into the outcome of its row, and records its scores and details.

pass      the test passed                      fail    an assertion failed, and the test has no gate
miss      an assertion failed in a gated test  error   machine, network or code failed, or the test raised
invalid   the case could not be asked          skip    skipped, or never run
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from evalharness.analysis.gates import BUILT_IN_METRICS
from evalharness.api.cases import Case
from evalharness.api.checks import excerpt, plain_number
from evalharness.api.errors import ScoreError
from evalharness.api.options import GenerationOptions
from evalharness.pytest_plugin._pytest_internals import Failed
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec
from evalharness.runs.judging import reference_sha256
from evalharness.runs.schema import Row, RowOutcome

_NO_VERDICT_FROM = ("evalharness.engine", "evalharness.backends", "pytest_timeout")
_MAX_PROBLEM_CHARS = 2000  # only the assertion's message: the generation itself is in the row


class InvalidSample(Failed):
    """The case of an ungated test cannot be run: the test fails, without a traceback."""


@dataclass(frozen=True)
class Miss:
    """A failed assertion in a gated test: its message and place."""

    problem: str
    location: str


@dataclass(slots=True)
class ItemRecord:
    """One running eval test; becomes one row."""

    nodeid: str
    eval: str
    test: str
    case: Case
    engine: EngineSpec
    options: Sequence[GenerationOptions]
    gated: bool
    started_at: str | None
    scores: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] | None = None
    invalid: str | None = None
    cause: str | None = None
    """The name of the request error that made the sample invalid, None where it was none: `PromptTooLong` for one over budget."""
    broken: str | None = None
    miss: Miss | None = None
    outcome: RowOutcome | None = None
    problem: str | None = None

    @property
    def can_be_judged(self) -> bool:
        """Whether no generation of the case failed."""
        return self.broken is None and self.invalid is None

    def to_json(self) -> Row:
        """Return the row without the parts that the journal already has: the generation, and facts on the eval's line."""
        row: Row = {
            "nodeid": self.nodeid,
            "eval": self.eval,
            "test": self.test,
            "case_id": self.case.id,
            "engine": self.engine.id,
            "checkpoint": self.engine.checkpoint,
            "backend": self.engine.backend,
            "outcome": cast("RowOutcome", self.outcome),
            "problem": self.problem,
            "scores": self.scores,
            "started_at": self.started_at,
        }
        if self.cause is not None:
            row["cause"] = self.cause
        if self.details is not None:
            row["details"] = self.details
        return row


def is_assertion(error: BaseException) -> bool:
    """Return whether an exception is a verdict on the generation rather than a failure of code.

    A broken assertion inside the engine is a failure of code: a library's own invariant. So is a timeout.
    """
    if not isinstance(error, (AssertionError, pytest.fail.Exception)):
        return False
    frames = traceback.walk_tb(error.__traceback__)
    return not any(frame.f_globals.get("__name__", "").startswith(_NO_VERDICT_FROM) for frame, _ in frames)


def shorten(text: str) -> str:
    """Return the text, capped, with lone surrogates escaped, because xdist cannot carry them."""
    return excerpt(text.encode("utf-8", "backslashreplace").decode("utf-8"), _MAX_PROBLEM_CHARS, count_rest=True)


def note_report(record: ItemRecord, report: pytest.TestReport, call: pytest.CallInfo[Any]) -> None:
    """Update the record with one phase's report; the worst of the three phases counts."""
    if report.when == "setup" and not report.passed:
        record.outcome, record.problem = _not_started(record, report, call)
    elif report.when == "call":
        record.outcome, record.problem = _called(record, report, call)
    elif report.when == "teardown" and report.failed and record.outcome != "error":
        record.outcome, record.problem = "error", f"teardown: {_message(call)}"


def _not_started(record: ItemRecord, report: pytest.TestReport, call: pytest.CallInfo[Any]) -> tuple[RowOutcome, str]:
    if not record.can_be_judged:
        return _without_verdict(record)
    if report.skipped:
        return "skip", _message(call)
    return "error", f"setup: {_message(call)}"


def _without_verdict(record: ItemRecord) -> tuple[RowOutcome, str]:
    if record.broken is not None:
        return "error", shorten(record.broken)
    return "invalid", shorten(record.invalid or "")


def _called(record: ItemRecord, report: pytest.TestReport, call: pytest.CallInfo[Any]) -> tuple[RowOutcome, str | None]:
    if not record.can_be_judged:  # however the test itself ended: a test may ask for its generation as it runs
        return _without_verdict(record)
    if record.miss is not None:
        return "miss", record.miss.problem
    if report.passed:
        return "pass", None
    if report.skipped:
        return "skip", _message(call)
    if call.excinfo is not None and is_assertion(call.excinfo.value):
        return "fail", _message(call)
    return "error", _message(call)


def _message(call: pytest.CallInfo[Any]) -> str:
    if call.excinfo is None:
        return "failed without an exception"
    error = call.excinfo.value
    text = str(error) or type(error).__name__
    known = isinstance(error, (AssertionError, pytest.fail.Exception, pytest.skip.Exception))
    return shorten(text if known else f"{type(error).__name__}: {text}")


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


def reference_of(case: Case) -> Row:
    """Return what a row says of its case's reference: the reference itself if it is plain JSON data, else its hash."""
    reference = object.__getattribute__(case, "reference")  # as it stands: a case of a recorded run would load its eval
    try:
        return {"reference": _plain_data(reference)}
    except (_NotPlain, RecursionError):  # a task's own type; its details tell what matters
        return {"reference_sha256": reference_sha256(reference)}


def _finite(name: str, value: Any) -> float:
    plain = plain_number(value)
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
    """Says which value is not JSON; `path` is its place in the data, outermost key first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []


def _plain_data(value: Any) -> Any:
    """Return a copy made of JSON's own types; raises `_NotPlain`."""
    plain = plain_number(value)
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
