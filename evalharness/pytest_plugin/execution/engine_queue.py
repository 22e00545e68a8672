"""Keeps one engine busy: a thread runs work units in order, the next as soon as the engine has room for it.

A running call of the engine takes on further requests (`next_job` of `Engine.stream`), so the engine neither runs empty nor waits for tests
between two units. Units with plugins, and units that must run alone, get calls of their own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from evalharness.api.errors import RecordError
from evalharness.pytest_plugin.execution.metering import EngineMeter
from evalharness.pytest_plugin.execution.pending import PendingRequest
from evalharness.pytest_plugin.execution.unit_results import Problem
from evalharness.pytest_plugin.execution.unit_runner import UnitRunner
from evalharness.pytest_plugin.progress.counts import UnitProgress

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine
    from evalharness.engine.jobs import Job

STOP_TIMEOUT_S = 60.0
"""How long a call of the engine may take to end once it is told to; a backend looks at least once per generated token."""
_STOPPED = Problem("the engine was stopped before this generation")
_NOTHING = Problem("the engine gave no generation for this case")


class _Call:
    """The requests of one call of the engine that are not answered yet, by position.

    `is_closed`: no other unit joins the call.
    """

    def __init__(self, *, is_closed: bool) -> None:
        self.is_closed = is_closed
        self.num_requests = 0
        self._unanswered: dict[int, tuple[UnitRunner, PendingRequest]] = {}
        self._started: set[int] = set()

    def add(self, runner: UnitRunner, batch: Sequence[PendingRequest]) -> None:
        """Add a unit's batch at the next positions."""
        self._unanswered.update(enumerate(((runner, pending) for pending in batch), self.num_requests))
        self.num_requests += len(batch)

    def start(self, position: int) -> None:
        """Note that a request is being prepared for the engine."""
        runner, pending = self._unanswered[position]
        self._started.add(position)
        runner.in_flight.begin(pending.case.case.id)

    def answer(self, position: int, outcome: Any) -> UnitRunner:
        """Give the outcome of a request to its unit, and return the unit."""
        runner, pending = self._unanswered.pop(position)
        self._started.discard(position)
        runner.answer(pending, outcome)
        return runner

    def put_back(self) -> None:
        """Give the unanswered requests back to their units, in order: the call has ended without them."""
        for position, (runner, pending) in reversed(self._unanswered.items()):
            if position in self._started:
                runner.in_flight.end(pending.case.case.id)
            runner.put_back([pending])


class EngineQueue(threading.Thread):
    """Runs work units on one engine, in order, and ends when none is left; an ended queue takes no more units.

    Store it where `stop` can be called on it before starting it: Ctrl-C may come at any time.
    """

    def __init__(self, engine: Engine, progress: UnitProgress, *runners: UnitRunner, meter: EngineMeter | None = None) -> None:
        super().__init__(name="engine-queue", daemon=True)
        self._engine = engine
        self._progress = progress
        self._meter = meter or EngineMeter()
        self._lock = threading.Lock()
        self._queue: deque[UnitRunner] = deque(runners)
        self._has_ended = False
        self._is_told_to_stop = threading.Event()
        self._kept: Sequence[UnitRunner] = ()
        # From here on for the thread alone
        self._active: list[UnitRunner] = []
        self._busy_since = 0.0
        self._fatal: RecordError | None = None

    def add(self, runner: UnitRunner) -> bool:
        """Add a unit to the end of the queue; return False if the queue has ended."""
        with self._lock:
            if self._has_ended:
                return False
            self._queue.append(runner)
            return True

    @property
    def is_generating(self) -> bool:
        """Whether the engine is still at work."""
        return not self._has_ended

    def stop(self, keep: Sequence[UnitRunner] = ()) -> bool:
        """Stop generating, wait for the thread, and return whether it has ended: it may hang in a library or a device.

        Units in `keep` can then be given to another queue, which makes the requests that were not answered.
        """
        self._kept = keep
        self._is_told_to_stop.set()
        if self.is_alive():  # else it has ended, or has not started and will stop at once
            self.join(STOP_TIMEOUT_S)
        return not self.is_alive()

    # In the thread

    def run(self) -> None:
        """Run each unit in the queue, and the units that join its calls of the engine."""
        while (first := self._next_in_queue()) is not None:
            self._active, self._busy_since = [first], time.monotonic()
            self._meter.restart()
            with self._giving_up(self._active):
                first.begin()
                while not self._is_over() and (runner := self._with_requests()) is not None:
                    self._call_engine(runner)
                    self._end_if_done(runner)
                stopped = self._is_told_to_stop.is_set()
                for runner in list(self._active):
                    if not (stopped and runner in self._kept):
                        self._end(runner, _STOPPED if stopped else _NOTHING)

    def _next_in_queue(self) -> UnitRunner | None:
        with self._lock:
            if self._queue and not self._is_over():
                return self._queue.popleft()
            self._has_ended = True
            for runner in self._queue:
                if self._fatal is not None:
                    runner.end(Problem.of(self._fatal))
                elif runner not in self._kept:
                    runner.end(_STOPPED)
            return None

    def _is_over(self) -> bool:
        return self._is_told_to_stop.is_set() or self._fatal is not None

    def _with_requests(self) -> UnitRunner | None:
        return next((runner for runner in self._active if runner.pending), None)

    @contextlib.contextmanager
    def _giving_up(self, runners: Sequence[UnitRunner]) -> Iterator[None]:
        """Give up these units at any error: nothing may die unseen in a thread, and every test that waits gets its error row.

        Other units go on, unless the journal cannot be written: that is the end of them all.
        """
        try:
            yield
        except BaseException as error:
            if isinstance(error, RecordError):
                self._fatal = error
            for runner in list(runners):
                runner.end(Problem.of(error))
                self._active.remove(runner)

    def _end_if_done(self, runner: UnitRunner) -> None:
        if runner.is_done and runner in self._active:
            self._end(runner, _NOTHING)

    def _end(self, runner: UnitRunner, problem: Problem) -> None:
        """End a unit with the seconds since the last unit ended: summed over units, they are the time in which the engine worked."""
        now = time.monotonic()
        runner.end(problem, now - self._busy_since, self._meter.take())
        self._busy_since = now
        self._active.remove(runner)

    def _call_engine(self, runner: UnitRunner) -> None:
        """Make one call of the engine, if the unit's next requests need one."""
        batch, plugins = runner.next_batch(self._is_told_to_stop.is_set)
        if not batch:
            return
        call = _Call(is_closed=bool(plugins) or runner.is_alone)
        call.add(runner, batch)
        requests, options = [pending.request for pending in batch], [pending.options for pending in batch]
        hooks: Any = {"on_start": call.start, "next_job": lambda: self._next_job(call), "drafts": runner.drafts_of(batch)}
        stream = self._engine.stream(requests, options, plugins=plugins, should_stop=self._should_stop, **hooks)
        # Closed in this thread, whatever is raised here: the engine's lock is held.
        with self._progress.generating(runner.unit.engine, runner.work.module.name), contextlib.closing(stream) as outcomes:
            for position, outcome in outcomes:
                self._end_if_done(call.answer(position, outcome))
        if self._fatal is not None:
            raise self._fatal
        if self._is_told_to_stop.is_set():
            call.put_back()

    def _should_stop(self) -> bool:
        self._progress.num_signs += 1  # engines ask at least once per decoding step
        self._meter.look()
        return self._is_over()

    def _next_job(self, call: _Call) -> Job | None:
        """Return more requests for the running call: those that its answers led to, then the next unit's; None if there are none now.

        The backend calls this while it generates, so a unit that fails to begin must not take down the running call.
        """
        while not self._is_over() and not call.is_closed:
            runner = self._with_requests() or self._next_to_join()
            if runner is None or (runner.pending and not runner.pending.is_ready):
                return None
            with self._giving_up([runner]):
                runner.begin()
                batch, plugins = runner.next_batch(self._is_told_to_stop.is_set)
                requests, options = [pending.request for pending in batch], [pending.options for pending in batch]
                can_join, drafts = batch and not plugins, runner.drafts_of(batch)
                job = self._engine.prepare_join(requests, options, call.num_requests, drafts) if can_join else None
                if job is not None:
                    call.add(runner, batch)
                    return job
                if batch:
                    runner.put_back(batch)
                    call.is_closed = True  # else later units would overtake this one
                self._end_if_done(runner)
        return None

    def _next_to_join(self) -> UnitRunner | None:
        with self._lock:
            if not self._queue or not self._queue[0].can_join:
                return None
            runner = self._queue.popleft()
        self._active.append(runner)
        return runner
