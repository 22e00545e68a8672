"""One test after the other: what pytest does with each is noted in its record, which becomes its row.

Registered once a session has collected evals; for all other tests it does next to nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from _pytest.outcomes import Failed

from evalharness.api.errors import RecordError
from evalharness.pytest_plugin.filling import Filling
from evalharness.pytest_plugin.fixtures import end_without_verdict, stop_for
from evalharness.pytest_plugin.outcomes import ItemRecord, Miss, is_assertion, note_report, shorten
from evalharness.pytest_plugin.safe_reports import make_safe
from evalharness.pytest_plugin.session import EvalSession

__all__ = ["RunningTests"]


class RunningTests:
    """The hooks around each test of the session whose state this is."""

    def __init__(self, state: EvalSession) -> None:
        self._state = state
        self._filling = Filling()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Open the test's record, and have its generation ready when setup ends."""
        state = self._state
        state.current = record = state.record_for(item)
        if record is None:
            return (yield)
        assert isinstance(item, pytest.Function)
        try:
            state.note_evals(item.session.items)  # a worker's first test: before, the controller may still refuse the run
        except RecordError as error:
            stop_for(item.session, error)
            raise Failed(str(error), pytrace=False) from None
        self._filling.before_setup(item, record)
        yield
        self._filling.after_setup(item, record)

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """Turn a failed assertion in a gated test into a miss, before anything formats a traceback for it."""
        record = self._state.current
        try:
            result = yield
        except (AssertionError, pytest.fail.Exception) as error:
            if record is None or not record.gated or not record.can_be_judged or not is_assertion(error):
                raise
            record.miss = Miss(shorten(str(error) or type(error).__name__), _location(error, pyfuncitem))
            return True
        except pytest.skip.Exception:
            if record is not None:
                end_without_verdict(record)  # nor may one be skipped over
            raise
        if record is not None:
            end_without_verdict(record)  # a test that caught the failure of its generation must not pass for that
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note each phase in the test's record; after the last one, write its row."""
        report = yield
        state = self._state
        state.progress.num_signs += 1
        record = state.current
        if record is None or record.nodeid != item.nodeid:
            return report
        note_report(record, report, call)
        make_safe(report)
        if report.when == "teardown":
            try:
                state.test_ended(record, call.duration)
            except RecordError as error:
                stop_for(item.session, error)
            state.current = None
        elif report.when == "call" or not report.passed:
            _attach(item, record, report, state.progress.take_new_tokens())
        return report


def _attach(item: pytest.Item, record: ItemRecord, report: pytest.TestReport, num_tokens: int) -> None:
    """Put what the reporting process needs on the report, as plain types that xdist can carry."""
    report.evalharness = {  # type: ignore[attr-defined]
        "outcome": record.outcome,
        "problem": record.problem,
        "location": record.miss.location if record.miss is not None else "",
        "num_tokens": num_tokens,
    }
    if record.outcome in ("miss", "invalid"):
        # Of the item, not of this report: the JUnit file takes those of the teardown.
        item.user_properties += [("outcome", record.outcome), ("problem", record.problem or "")]


def _location(error: BaseException, item: pytest.Function) -> str:
    line = item.function.__code__.co_firstlineno
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is item.function.__code__:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{item.nodeid.partition('::')[0]}:{line}"
