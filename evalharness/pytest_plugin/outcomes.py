"""How a test's reports become the one outcome of its row, and how a miss differs from a failure.

pass      the test passed                      fail    an assertion failed, and the test has no gate
miss      an assertion failed in a gated test  error   machine, network or code failed, or the test raised
invalid   the sample could not be asked        skip    skipped, or never run
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import pytest
from _pytest.outcomes import Failed

from evalharness.api.cases import Case
from evalharness.api.options import GenerationOptions
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec

__all__ = ["InvalidSample", "ItemRecord", "Miss", "NotRecorded", "is_assertion", "note_report"]

RowOutcome: TypeAlias = Literal["pass", "miss", "invalid", "error", "skip", "fail"]

_NO_VERDICT_FROM = ("evalharness.engine", "evalharness.backends", "pytest_timeout")
_MAX_PROBLEM_CHARS = 2000  # the generation itself is in the row; this is what the assertion said about it


class InvalidSample(Failed):
    """The sample of an ungated test could not be asked; a failure of the test, shown without a traceback."""


class NotRecorded(Exception):
    """A recorded run has nothing for a test that is to judge it: the test is not run."""


@dataclass(frozen=True)
class Miss:
    """A failed assertion in a gated test: what it said, and where."""

    problem: str
    location: str


@dataclass(slots=True)
class ItemRecord:
    """One eval test while it runs; becomes one row."""

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
        """Whether nothing kept the case from being asked and answered."""
        return self.broken is None and self.invalid is None

    def to_json(self) -> dict[str, Any]:
        """Return the row, without what the journal already has: the generation, and what the eval's line says of all its rows."""
        row = {
            "nodeid": self.nodeid,
            "eval": self.eval,
            "test": self.test,
            "case_id": self.case.id,
            "engine": self.engine.id,
            "checkpoint": self.engine.checkpoint,
            "backend": self.engine.backend,
            "outcome": self.outcome,
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

    An assertion that broke inside the engine is code: a library's own invariant, never a verdict. Nor is a timeout.
    """
    if not isinstance(error, (AssertionError, pytest.fail.Exception)):
        return False
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith(_NO_VERDICT_FROM):
            return False
        trace = trace.tb_next
    return True


def shorten(text: str) -> str:
    """Return the text, capped, with lone surrogates escaped: it travels through xdist, which cannot carry them."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= _MAX_PROBLEM_CHARS else f"{text[:_MAX_PROBLEM_CHARS]}… ({len(text) - _MAX_PROBLEM_CHARS} more characters)"


def note_report(record: ItemRecord, report: pytest.TestReport, call: pytest.CallInfo[Any]) -> None:
    """Update the record with one phase's report; the worst of the three phases stands."""
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
