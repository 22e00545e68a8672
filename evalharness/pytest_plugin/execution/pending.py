"""The requests of a unit that wait for the engine, and how many of them it gets at a time: all, those that a verdict needs next, or a group
of suspects.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from typing import NamedTuple

from evalharness.api.options import GenerationOptions
from evalharness.api.requests import Request
from evalharness.pytest_plugin.execution.case_request import CaseRequest, Step
from evalharness.pytest_plugin.execution.takeover import CrashIsolation
from evalharness.pytest_plugin.execution.unit_results import UnitResults
from evalharness.runs.records import Failed, Recorded

LEAST_AHEAD = 256
"""Cases that are asked at once before any is finished: few verdicts need fewer, and most engines are busy with so many."""


class PendingRequest(NamedTuple):
    """One request for the engine; `position` is the sample or, in a step, the place of the request; `known` its recorded outcome."""

    case: CaseRequest
    step: Step | None
    position: int
    request: Request
    options: GenerationOptions
    known: Recorded | Failed | None = None

    @property
    def place(self) -> tuple[int, ...]:
        """The sample, or step and request, as a journal has them; of the case's newest step."""
        return (self.position,) if self.step is None else (len(self.case.steps) - 1, self.position)


class PendingRequests:
    """The requests of a unit that wait for the engine. The next batch is all of them."""

    def __init__(self) -> None:
        self._waiting: list[PendingRequest] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, request: PendingRequest) -> None:
        """Add a request at the end."""
        self._waiting.append(request)

    def put_back(self, batch: Iterable[PendingRequest]) -> None:
        """Put requests of the last batch back to the front."""
        self._waiting = [*batch, *self._waiting]

    def clear(self) -> None:
        """Drop all requests."""
        self._waiting = []

    @property
    def is_ready(self) -> bool:
        """Whether `take` would return a request."""
        return bool(self._waiting)

    def finish(self, case_id: str) -> None:
        """Note that a sample of a case is finished; of no account where all requests go to the engine together."""

    def take(self, is_over: Callable[[], bool]) -> list[PendingRequest]:
        """Return the next batch."""
        batch, self._waiting = self._waiting, []
        return batch


class OrderedRequests(PendingRequests):
    """The requests of a unit that may be decided before all cases are asked (--until-certain).

    A verdict takes cases in their order, so it waits for the slowest of the first ones; what the engine does far ahead of that is lost if
    the verdict comes. So the engine gets as many cases behind the first unfinished one as are finished, and `LEAST_AHEAD` at first.
    """

    def __init__(self, case_ids: Iterable[str], num_samples: int) -> None:
        super().__init__()
        self._place = {case_id: place for place, case_id in enumerate(case_ids)}
        self._num_left = [num_samples] * len(self._place)
        self._first = 0
        """Of the cases that are not finished."""
        self._num_finished = 0

    def _place_of(self, pending: PendingRequest) -> int:
        return self._place[pending.case.case.id]

    @property
    def _end(self) -> int:
        """The place of the first case that the engine does not get yet."""
        return self._first + max(LEAST_AHEAD, self._num_finished)

    def add(self, request: PendingRequest) -> None:
        """Add a request behind those of its case and of cases before it."""
        bisect.insort(self._waiting, request, key=self._place_of)

    def put_back(self, batch: Iterable[PendingRequest]) -> None:
        """Put requests of the last batch back before others of their cases."""
        self._waiting = sorted([*batch, *self._waiting], key=self._place_of)

    @property
    def is_ready(self) -> bool:
        """Whether `take` would return a request; engines ask at each decoding step."""
        return bool(self._waiting) and self._place_of(self._waiting[0]) < self._end

    def finish(self, case_id: str) -> None:
        """Note that a sample of a case is finished."""
        place = self._place[case_id]
        self._num_left[place] -= 1
        self._num_finished += self._num_left[place] == 0
        while self._first < len(self._num_left) and self._num_left[self._first] <= 0:
            self._first += 1

    def take(self, is_over: Callable[[], bool]) -> list[PendingRequest]:
        """Return the next batch."""
        num = bisect.bisect_left(self._waiting, self._end, key=self._place_of)
        batch = self._waiting[:num]
        del self._waiting[:num]
        return batch


class IsolatedRequests(PendingRequests):
    """The requests of a unit with cases that may kill the worker. The next batch is what is recorded, then one group of suspects.

    A group starts when a test waits for one of its cases, and tests see its outcomes when all are finished. So at any time either one group
    is generating or one test is running.
    """

    def __init__(self, isolation: CrashIsolation, results: UnitResults) -> None:
        super().__init__()
        self._isolation = isolation
        self._results = results
        self._groups: list[tuple[str, ...]] | None = None
        self._group: tuple[str, ...] = ()

    def take(self, is_over: Callable[[], bool]) -> list[PendingRequest]:
        """Return the next batch. Waits for a test where a new group begins, or for `is_over()`."""
        waiting = super().take(is_over)
        if batch := [pending for pending in waiting if pending.known is not None]:
            self.put_back(pending for pending in waiting if pending.known is None)
            return batch
        case_ids = list(dict.fromkeys(pending.case.case.id for pending in waiting))
        if self._groups is None:
            self._groups = self._isolation.groups(case_ids)
        if not any(case_id in self._group for case_id in case_ids):
            self._results.show()
            self._group = self._results.wait_for_any(self._groups, is_over)
            if self._group:
                self._groups.remove(self._group)
        self.put_back(pending for pending in waiting if pending.case.case.id not in self._group)
        return [pending for pending in waiting if pending.case.case.id in self._group]
