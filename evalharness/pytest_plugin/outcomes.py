"""Turns a test's reports into the outcome of its row, and records its scores and details.

pass      the test passed                      fail    an assertion failed, and the test has no gate
miss      an assertion failed in a gated test  error   machine, network or code failed, or the test raised
invalid   the case could not be asked          skip    skipped, or never run

Assertions are those of the test, of its subtests, and of plugins that collect them. One that was expected to fail (xfail) is a miss:
the answer is as wrong as any other, and the run does not fail for it. A pass that must not be (strict xfail) is a fail.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import pytest

from evalharness.analysis.gates import BUILT_IN_METRICS
from evalharness.api.cases import Case
from evalharness.api.checks import MAX_BITS, plain_number, shown
from evalharness.api.errors import ScoreError
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationResult
from evalharness.pytest_plugin._pytest_internals import Failed
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec
from evalharness.pytest_plugin.failures import message_of, shorten
from evalharness.runs.judging import reference_sha256
from evalharness.runs.schema import MAX_DATA_DEPTH, Row, RowOutcome

_NO_VERDICT_FROM = ("evalharness.engine", "evalharness.backends", "pytest_timeout")
_NOT_RUN = "async_fail"  # pytest's function; `test_pytest_internals.py` knows whether it is there


CANNOT_GO_ON = "the run cannot go on"
"""In the reason why a session ends that could not record its results."""


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
    original: Case | None = None
    """The case as the eval made it, where this test is a repeat's (--noise): `case` has the repeat's id."""
    scores: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] | None = None
    invalid: str | None = None
    cause: str | None = None
    """The name of the request error that made the sample invalid, None where it was none: `PromptTooLong` for one over budget."""
    broken: str | None = None
    miss: Miss | None = None
    answers: Sequence[GenerationResult] = ()
    outcome: RowOutcome | None = None
    problem: str | None = None
    has_returned: bool = False
    """Whether the test function has ended, and its own report is next; until then, reports of a call are its subtests'."""

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

    A broken assertion inside the engine is a failure of code: a library's own invariant. So are a timeout, and pytest's refusal to run an
    async function. A group is a verdict if all of its exceptions are.
    """
    if grouped := getattr(error, "exceptions", ()):  # Python 3.10 has no type for it
        return all(map(is_assertion, grouped))
    if not isinstance(error, (AssertionError, pytest.fail.Exception)):
        return False
    frames = traceback.walk_tb(error.__traceback__)
    places = [(frame.f_globals.get("__name__", ""), frame.f_code.co_name) for frame, _ in frames]
    return not any(module.startswith(_NO_VERDICT_FROM) or function == _NOT_RUN for module, function in places)


_WORSE: tuple[RowOutcome | None, ...] = (None, "pass", "skip", "miss", "fail", "invalid", "error")


def note_report(
    record: ItemRecord, report: pytest.TestReport, call: pytest.CallInfo[Any], raised: BaseException | None
) -> RowOutcome | None:
    """Update the record with one phase's report, or a subtest's; the worst counts. Return what this report alone says.

    `raised` is what the test itself raised: plugins that collect assertions put their own error in its place.
    """
    found: tuple[RowOutcome, str | None]
    if report.when == "setup":
        if report.passed:
            return None
        found = _not_started(record, report, call)
    elif report.when == "call":
        found = _called(record, report, call, raised)
        is_own, record.has_returned = record.has_returned, False
        if not is_own and found[0] in ("pass", "skip"):  # of a subtest: the test itself goes on
            return found[0]
    elif report.failed:
        found = "error", f"teardown: {_message(report, call)}"
    else:
        return None
    if _WORSE.index(found[0]) > _WORSE.index(record.outcome):
        record.outcome, record.problem = found
    return found[0]


def _not_started(record: ItemRecord, report: pytest.TestReport, call: pytest.CallInfo[Any]) -> tuple[RowOutcome, str]:
    if not record.can_be_judged:
        return _without_verdict(record)
    if report.skipped:
        return "skip", _message(report, call)
    return "error", f"setup: {_message(report, call)}"


def _without_verdict(record: ItemRecord) -> tuple[RowOutcome, str]:
    if record.broken is not None:
        return "error", shorten(record.broken)
    return "invalid", shorten(record.invalid or "")


def _called(
    record: ItemRecord, report: pytest.TestReport, call: pytest.CallInfo[Any], raised: BaseException | None
) -> tuple[RowOutcome, str | None]:
    if not record.can_be_judged:  # however the test itself ended: a test may ask for its generation as it runs
        return _without_verdict(record)
    if report.passed:
        return ("miss", record.miss.problem) if record.miss is not None and record.has_returned else ("pass", None)
    errors = [error for error in (raised, call.excinfo and call.excinfo.value) if error is not None]
    broken = next((error for error in errors if not is_assertion(error)), None)
    if report.skipped:
        is_expected = broken is None and hasattr(report, "wasxfail")
        return "miss" if is_expected else "skip", _message(report, call)
    if broken is not None:
        return "error", message_of(broken)
    if not errors:
        return "fail" if report.longreprtext.startswith(_STRICT_XPASS) else "error", _message(report, call)
    return "miss" if record.gated else "fail", _message(report, call)


_STRICT_XPASS = "[XPASS(strict)]"  # pytest says it in this text alone


def _message(report: pytest.TestReport, call: pytest.CallInfo[Any]) -> str:
    reason = getattr(report, "wasxfail", None)
    expected = "" if reason is None else f"xfail: {reason or 'no reason given'}"
    if call.excinfo is None:
        return shorten(report.longreprtext or expected or "failed without an exception")
    text = message_of(call.excinfo.value)
    return shorten(text if not reason or reason == text else f"{text} ({expected})")


class Score:
    """Records numbers for the case of one test: `score(valid=True, f1=0.5)`; each name once, None means not applicable."""

    def __init__(self, record: ItemRecord) -> None:
        self._record = record

    def __repr__(self) -> str:
        return "score"

    def __call__(self, **values: Any) -> None:
        for name, value in values.items():
            if name in BUILT_IN_METRICS:
                raise ScoreError(f"score {name!r} is the name of a built-in metric; give it another name")
            if name in self._record.scores:
                raise ScoreError(f"score {name!r} was recorded already for this case; give each name once")
            if value is not None:
                self._record.scores[name] = _finite(name, value)


class Details:
    """Records plain JSON data about the case of one test, for tables and output files: `details(parsed={...})`; each name once.

    A copy is kept, so what the test does with the data afterwards changes nothing. What JSON cannot hold but an answer can is kept as a
    short text: numbers of thousands of digits, NaN, infinities, and what is nested very deeply. It must not make the answer an error.
    """

    def __init__(self, record: ItemRecord) -> None:
        self._record = record

    def __repr__(self) -> str:
        return "details"

    def __call__(self, **values: Any) -> None:
        if self._record.details is None:
            self._record.details = {}
        kept = self._record.details
        for name, value in values.items():
            if name in kept:
                raise ScoreError(f"detail {name!r} was recorded already for this case; give each name once")
            try:
                kept[name] = _plain_data(value, _shortened)
            except _NotPlain as error:
                raise ScoreError(f"detail {name!r}{shorten(''.join(error.path))} {error}") from None


def reference_of(case: Case) -> Row:
    """Return what a row says of its case's reference: the reference itself if it is plain JSON data, else its hash."""
    reference = object.__getattribute__(case, "reference")  # as it stands: a case of a recorded run would load its eval
    try:
        return {"reference": _plain_data(reference)}
    except Exception:  # run outside the test, on whatever type the eval has; its details tell what matters
        return {"reference_sha256": reference_sha256(reference)}


def _finite(name: str, value: Any) -> float:
    plain = plain_number(value)
    if not isinstance(plain, (bool, int, float)):
        raise ScoreError(f"score {name!r} must be a number or bool, got {shorten(shown(value))} ({type(value).__name__})")
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


_MAX_VALUES = 2_000_000


class _Copying:
    """How far a copy of a value has come: the containers around its current part, and how many values it has."""

    def __init__(self) -> None:
        self.around: list[int] = []
        self.num_values = 0


def _refused(what: str) -> NoReturn:
    raise _NotPlain(what)


def _shortened(what: str) -> str:
    return f"… ({what})"


def _plain_data(value: Any, beyond: Callable[[str], str] = _refused, copying: _Copying | None = None) -> Any:
    """Return a copy made of JSON's own types; raises `_NotPlain`.

    `beyond` gives what stands for a value that only its size or depth keeps out of JSON; otherwise it is refused.
    """
    copying = copying or _Copying()
    copying.num_values += 1
    if copying.num_values > _MAX_VALUES:
        raise _NotPlain(f"has more than {_MAX_VALUES:,} values")
    plain = plain_number(value)
    if plain is None or isinstance(plain, (bool, str)):
        return plain
    if isinstance(plain, int):
        return plain if plain.bit_length() < MAX_BITS else beyond(f"an int of {plain.bit_length():,} bits")
    if isinstance(plain, float):
        return plain if math.isfinite(plain) else beyond(f"{float(plain)!r}")
    if not isinstance(plain, (Mapping, list, tuple)):
        raise _NotPlain(f"must be plain JSON data, got {shorten(shown(value))} ({type(value).__name__}); give dicts, lists, texts, numbers")
    if id(plain) in copying.around:
        raise _NotPlain("contains itself; give plain JSON data")
    if len(copying.around) >= MAX_DATA_DEPTH:
        return beyond(f"nested more than {MAX_DATA_DEPTH} deep")
    copying.around.append(id(plain))
    try:
        if isinstance(plain, Mapping):
            for key in plain:
                if not isinstance(key, str):
                    raise _NotPlain(f"has the key {shorten(shown(key))} ({type(key).__name__}); keys must be texts")
            return {key: _inside(key, child, beyond, copying) for key, child in plain.items()}
        return [_inside(place, child, beyond, copying) for place, child in enumerate(plain)]
    finally:
        copying.around.pop()


def _inside(key: str | int, child: Any, beyond: Callable[[str], str], copying: _Copying) -> Any:
    try:
        return _plain_data(child, beyond, copying)
    except _NotPlain as error:
        error.path.insert(0, f"[{key!r}]")
        raise
