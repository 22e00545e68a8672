"""Keeps one engine busy: a thread runs work units in order, the next as soon as the engine has room for it.

A running call of the engine takes on further requests (`next_job` of `Engine.stream`), so the engine neither runs empty nor waits for tests
between two units. Units with plugins, and units that must run alone, get calls of their own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalharness.api.errors import BackendError, EvalHarnessError, RecordError
from evalharness.pytest_plugin.execution.case_request import last_frame
from evalharness.pytest_plugin.execution.engines import asks_anything, opened_engine
from evalharness.pytest_plugin.execution.takeover import InFlight, Takeover, in_flight_path, takeover_of
from evalharness.pytest_plugin.execution.unit_runner import PendingRequest, UnitProgress, UnitResults, UnitRunner
from evalharness.pytest_plugin.execution.units import UnitKey, UnitPlan, num_cases_ahead
from evalharness.runs.schema import UnitLine

if TYPE_CHECKING:
    from evalharness.api.cases import Case
    from evalharness.engine.engine import Engine
    from evalharness.engine.jobs import Job
    from evalharness.pytest_plugin.eval_module import EvalModule
    from evalharness.pytest_plugin.run_context import RunContext

STOP_TIMEOUT_S = 60.0
"""How long a call of the engine may take to end once it is told to; a backend looks at least once per generated token."""
_STOPPED = "the engine was stopped before this generation"
_NOTHING = "the engine gave no generation for this case"


class EngineQueue(threading.Thread):
    """Runs work units on one engine, in order, and ends when none is left; an ended queue takes no more units.

    Store it where `stop` can be called on it before starting it: Ctrl-C may come at any time.
    """

    def __init__(self, engine: Engine, progress: UnitProgress, *runners: UnitRunner) -> None:
        super().__init__(name="engine-queue", daemon=True)
        self._engine = engine
        self._progress = progress
        self._queue: deque[UnitRunner] = deque(runners)
        self._active: list[UnitRunner] = []
        self._asked: dict[int, tuple[UnitRunner, PendingRequest]] = {}
        self._num_asked = 0
        self._ready: set[int] = set()
        self._is_closed = False
        self._kept: Sequence[UnitRunner] = ()
        self._broken: RecordError | None = None
        self._busy_since = 0.0
        self._lock = threading.Lock()
        self._has_ended = False
        self._is_told_to_stop = threading.Event()

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

    def run(self) -> None:
        """Run each unit in the queue, and the units that join its calls of the engine."""
        while (first := self._next_in_queue()) is not None:
            self._busy_since = time.monotonic()
            self._active = [first]
            problem, error, is_engine = "", None, False
            try:
                first.begin()
                while not self._is_told_to_stop.is_set() and (runner := next((unit for unit in self._active if unit.has_requests), None)):
                    batch, plugins = runner.next_batch(self._is_told_to_stop.is_set)
                    if batch:
                        self._ask(runner, batch, plugins)
                    self._end_if_done(runner)
                self._active = self._without_kept()
                for runner in self._active:
                    self._end(runner)
            except RecordError as caught:
                self._broken = error = caught
                problem = str(caught)
            except EvalHarnessError as caught:
                problem, is_engine = str(caught), isinstance(caught, BackendError)
            except BaseException as caught:  # nothing may die unseen in a thread: every waiting case gets this as its error row
                problem = f"{type(caught).__name__}: {caught} (at {last_frame(caught)})"
            for runner in self._active:
                stopped = _STOPPED if self._is_told_to_stop.is_set() else _NOTHING
                runner.results.give_up(problem or stopped, error, is_engine=is_engine)
                runner.end(None)

    def _next_in_queue(self) -> UnitRunner | None:
        with self._lock:
            if self._queue and not self._is_told_to_stop.is_set() and self._broken is None:
                return self._queue.popleft()
            self._has_ended = True
            for runner in self._queue:
                if runner not in self._kept or self._broken is not None:
                    runner.results.give_up(_STOPPED if self._broken is None else str(self._broken), self._broken)
            return None

    def _without_kept(self) -> list[UnitRunner]:
        """Return the active units that are not kept; put unanswered requests of the kept units back."""
        unanswered = [(number, runner, asked) for number, (runner, asked) in self._asked.items() if runner in self._kept]
        for number, runner, asked in reversed(unanswered):
            if number in self._ready:
                runner.asks_no_more(asked)
            runner.put_back([asked])
        return [runner for runner in self._active if runner not in self._kept]

    def _end_if_done(self, runner: UnitRunner) -> None:
        if runner.is_done and runner in self._active:
            self._end(runner)
            runner.results.give_up(_NOTHING)
            self._active.remove(runner)

    def _end(self, runner: UnitRunner) -> None:
        """End a unit with the seconds since the last unit ended: summed over units, they are the time in which the engine worked."""
        now = time.monotonic()
        runner.end(now - self._busy_since)
        self._busy_since = now

    def _ask(self, runner: UnitRunner, batch: Sequence[PendingRequest], plugins: Sequence[Any]) -> None:
        """Make one call of the engine."""
        self._asked.clear()
        self._ready.clear()
        self._num_asked = 0
        self._is_closed = bool(plugins) or runner.is_alone
        self._note(runner, batch)
        requests, options = [pending.request for pending in batch], [pending.options for pending in batch]
        hooks: Any = {"on_asked": self._on_asked, "next_job": self._next_job}
        stream = self._engine.stream(requests, options, plugins=plugins, should_stop=self._should_stop, **hooks)
        with contextlib.closing(stream) as outcomes:  # in this thread, whatever is raised here: the engine's lock is held
            for number, outcome in outcomes:
                answered, pending = self._asked.pop(number)
                self._ready.discard(number)
                answered.answer(pending, outcome)
                self._end_if_done(answered)
        if self._broken is not None:
            raise self._broken

    def _note(self, runner: UnitRunner, batch: Sequence[PendingRequest]) -> None:
        self._asked.update(enumerate(((runner, pending) for pending in batch), self._num_asked))
        self._num_asked += len(batch)

    def _on_asked(self, number: int) -> None:
        runner, pending = self._asked[number]
        self._ready.add(number)
        runner.asks(pending)

    def _should_stop(self) -> bool:
        self._progress.num_signs += 1  # engines ask at least once per decoding step
        return self._is_told_to_stop.is_set() or self._broken is not None

    def _next_job(self) -> Job | None:
        """Return more requests for the running call: those that its answers led to, then the next unit's; None if there are none now.

        The backend calls this while it generates, so a unit that fails to begin must not take down the running call.
        """
        while not self._is_told_to_stop.is_set() and (runner := self._next_to_join()) is not None:
            try:
                batch, plugins = runner.next_batch(self._is_told_to_stop.is_set)
                requests, options = [pending.request for pending in batch], [pending.options for pending in batch]
                job = self._engine.prepare_join(requests, options, self._num_asked) if batch and not plugins else None
                if job is not None:
                    self._note(runner, batch)
                    return job
                if batch:
                    runner.put_back(batch)
                    self._is_closed = True  # else later units would overtake this one
                    return None
                self._end_if_done(runner)
            except RecordError as error:
                self._broken = error
            except BaseException as error:
                self._give_up(runner, error)
        return None

    def _next_to_join(self) -> UnitRunner | None:
        """Return the unit, begun already, whose requests join the running call next; None if there is none now."""
        while not self._is_closed and self._broken is None:
            for runner in self._active:
                if runner.has_requests:
                    return runner
            with self._lock:
                if not self._queue or self._queue[0].is_alone or self._queue[0].plugins:
                    return None
                runner = self._queue.popleft()
            self._active.append(runner)
            try:
                runner.begin()
                self._end_if_done(runner)
            except RecordError as error:
                self._broken = error
            except BaseException as error:
                self._give_up(runner, error)
        return None

    def _give_up(self, runner: UnitRunner, error: BaseException) -> None:
        """Give up a unit that cannot run; the others go on."""
        is_ours = isinstance(error, EvalHarnessError)
        problem = str(error) if is_ours else f"{type(error).__name__}: {error} (at {last_frame(error)})"
        runner.results.give_up(problem, is_engine=isinstance(error, BackendError))
        runner.end(None)
        self._active.remove(runner)


_LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class _Prepared:
    """A unit that is ready to begin; `asks`: whether it needs the engine, because not all of its outcomes are recorded."""

    unit: UnitKey
    cases: list[Case]
    takeover: Takeover
    asks: bool


class RunningUnits:
    """Pipelines work units: generates upcoming units while the current unit's tests run. Used by the main thread only.

    `modules`: the evals by path. `units_ahead` (workers only) returns the units of the worker's queued tests, in order.
    """

    def __init__(self, context: RunContext, plan: UnitPlan, modules: Mapping[str, EvalModule], progress: UnitProgress) -> None:
        self._context = context
        self._plan = plan
        self._modules = modules
        self._progress = progress
        self._queue: EngineQueue | None = None
        self._current: tuple[UnitKey, UnitRunner] | None = None
        self._ahead: deque[tuple[UnitKey, UnitRunner]] = deque()
        self._hanging: dict[str, str] = {}
        self._next: _Prepared | None = None
        """The unit after those that have begun, once `look_ahead` has read it."""
        self._num_begun = 0
        self._look_at_s = 0.0
        self.units_ahead: Callable[[], Sequence[UnitKey]] | None = None

    @property
    def is_generating(self) -> bool:
        """Whether an engine is at work."""
        return self._queue is not None and self._queue.is_generating

    def engine_failure(self) -> tuple[str, str] | None:
        """Return the engine of the current unit and why it failed; None if it has not failed."""
        if self._current is None or self._current[1].results.engine_failure is None:
            return None
        return self._current[0].engine, self._current[1].results.engine_failure

    def hangs(self, engine_id: str) -> bool:
        """Return whether an engine still generates although it was told to stop."""
        return engine_id in self._hanging

    def results(self, unit: UnitKey, engine: Engine) -> UnitResults:
        """Return the results of a unit; the unit begins now if it has not yet. Raises `BackendError` if the engine hangs."""
        if self._current is None or self._current[0] != unit:
            if any(begun == unit for begun, _ in self._ahead):
                self._go_on_to(unit, engine)
            else:  # it runs alone, or tests run in an unexpected order
                self.stop()
                if unit.engine in self._hanging:
                    raise BackendError(self._hanging[unit.engine])
                prepared = self._prepare(unit)
                if prepared.asks:
                    opened_engine(engine, wanted=True)  # here, not in the thread that generates: libraries start in the main thread only
                runner = self._runner(prepared, engine)
                self._current = (unit, runner)
                self._queue = EngineQueue(engine, self._progress, runner)  # known to `stop` before it starts: Ctrl-C may come any time
                self._queue.start()
            self._look_at_s = 0.0
            self._next = None
        self.look_ahead(engine)
        assert self._current is not None
        return self._current[1].results

    def release(self, unit: UnitKey, case_id: str) -> None:
        """Release the generations of a unit's case."""
        if self._current is not None and self._current[0] == unit:
            self._current[1].results.release(case_id)
            return
        for begun, runner in self._ahead:  # its tests were skipped before they asked for results
            if begun == unit:
                runner.results.release(case_id)

    def look_ahead(self, engine: Engine) -> None:
        """Begin the next units on the same engine, up to the limit of cases ahead. Cheap to call often."""
        now = time.monotonic()
        if now < self._look_at_s:
            return
        self._look_at_s = now + _LOOK_EVERY_S
        if self._current is None or self._current[1].is_alone or self._current[1].results.engine_failure is not None:
            return
        unit = self._current[0]
        num_ahead = sum(runner.num_cases for _, runner in self._ahead)
        following = self._units_after(unit)
        if list(following[: len(self._ahead)]) != [begun for begun, _ in self._ahead]:
            return  # tests were put in another order meanwhile
        for after in following[len(self._ahead) :]:
            if after.engine != unit.engine or num_ahead >= num_cases_ahead(unit.engine):
                return
            if self._next is None or self._next.unit != after:
                self._next = self._prepare(after)  # kept until it can begin: after a crash or in a resumed run this reads all journals
            prepared = self._next
            if prepared.takeover.is_alone or (prepared.asks and opened_engine(engine) is None):
                return  # the test that needs an engine opens it, so that this test reports a failed start
            runner = self._runner(prepared, engine, is_ahead=True)
            self._ahead.append((after, runner))
            if self._queue is None or not self._queue.add(runner):
                self._queue = EngineQueue(engine, self._progress, runner)
                self._queue.start()
            num_ahead += len(prepared.cases)

    def _units_after(self, unit: UnitKey) -> Sequence[UnitKey]:
        if self.units_ahead is None:
            return self._plan.units_after(unit)
        listed = self.units_ahead()
        return listed[listed.index(unit) + 1 :] if unit in listed else listed

    def _go_on_to(self, unit: UnitKey, engine: Engine) -> None:
        """Make a unit that was begun ahead the current unit, and end the units before it: their tests have ended or were skipped."""
        assert self._current is not None
        over = [self._current[1]]
        while self._ahead[0][0] != unit:
            over.append(self._ahead.popleft()[1])
        if not all(runner.is_done for runner in over):
            self._restart(engine, over)  # their tests were skipped: nothing waits for the rest, but the next unit waits
        for runner in over:
            runner.close()  # a failed unit still lists its cases as being generated
        self._current = self._ahead.popleft()

    def _prepare(self, unit: UnitKey) -> _Prepared:
        context, module = self._context, self._modules[unit.path]
        takeover = takeover_of(context.run_dir, unit, module.name, context.session_number) if context.is_worker else None
        if takeover is None:
            made = (lambda case_id: None) if context.resumed is None else context.resumed.made(unit.engine, module.name)
            takeover = Takeover(None, made)
        cases = self._plan.cases_left(unit, takeover.nodeids)
        return _Prepared(unit, cases, takeover, asks_anything(cases, takeover.recorded, len(module.variants)))

    def _runner(self, prepared: _Prepared, engine: Engine, *, is_ahead: bool = False) -> UnitRunner:
        unit, cases, journal = prepared.unit, prepared.cases, self._context.journal
        module = self._modules[unit.path]
        self._num_begun += 1
        path = in_flight_path(journal.path, self._num_begun) if self._context.is_worker else None
        in_flight = InFlight(path, unit, [case.id for case in cases])
        line: UnitLine = {"engine": unit.engine, "eval": module.name}
        journal.write("unit_start", {**line, "ahead": True} if is_ahead else line)
        return UnitRunner(unit.engine, engine, module, cases, journal, self._progress, prepared.takeover, in_flight)

    def stop(self) -> None:
        """End the current unit and the units begun ahead; their generations stay in the journal."""
        if self._current is None:
            return
        unit, queue = self._current[0], self._queue
        runners = [self._current[1], *(runner for _, runner in self._ahead)]
        self._current, self._queue = None, None
        self._ahead.clear()
        if queue is not None and not queue.stop():
            self._note_hanging(unit)
        for runner in runners:
            runner.close()

    def _restart(self, engine: Engine, over: Sequence[UnitRunner]) -> None:
        """End the units in `over` and continue with those begun ahead. Raises `BackendError` if the engine does not stop."""
        assert self._current is not None
        assert self._queue is not None
        unit, kept = self._current[0], [runner for _, runner in self._ahead]
        has_ended = self._queue.stop(kept)
        if not has_ended:
            for runner in (*over, *kept):
                runner.close()
            self._current, self._queue = None, None
            self._ahead.clear()
            self._note_hanging(unit)
            raise BackendError(self._hanging[unit.engine])
        self._queue = EngineQueue(engine, self._progress, *kept)
        self._queue.start()

    def _note_hanging(self, unit: UnitKey) -> None:
        problem = f"engine {unit.engine} still generates for {unit.path}, though told to stop: it is left open until the process ends"
        self._hanging[unit.engine] = problem
        self._context.journal.write("problem", {"problem": problem})
