"""Runs the eval tests of one process: opens and closes engines, waits for a case's generations, writes each test's row.

While a unit's tests run, the engine generates for the units after it.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import pytest

from evalharness.api.errors import BackendError
from evalharness.api.requests import GenerationFailure, GenerationResult, Outcome
from evalharness.pytest_plugin.distributed.worker import exit_worker_if_engine_failed
from evalharness.pytest_plugin.execution.drafts import Drafts
from evalharness.pytest_plugin.execution.engine_queue import EngineQueue
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec
from evalharness.pytest_plugin.execution.engines import EngineOpening, opened_engine
from evalharness.pytest_plugin.execution.metering import EngineMeter
from evalharness.pytest_plugin.execution.takeover import InFlight, Takeover, in_flight_path, takeover_of
from evalharness.pytest_plugin.execution.unit_results import UnitResults
from evalharness.pytest_plugin.execution.unit_runner import UnitRunner, UnitWork
from evalharness.pytest_plugin.execution.units import UnitKey, UnitPlan, num_cases_ahead
from evalharness.pytest_plugin.outcomes import ItemRecord, reference_of
from evalharness.pytest_plugin.progress.counts import UnitProgress
from evalharness.pytest_plugin.registry import EvalRegistry
from evalharness.pytest_plugin.run_context import RunContext
from evalharness.runs.schema import Row, RunFile, UnitLine

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine
    from evalharness.pytest_plugin.eval_module import EvalModule
    from evalharness.runs.records import GenerationFacts


_LOOK_EVERY_S = 0.05


class RunningUnits:
    """The units that have begun: the current one, whose tests run, then those ahead of it. Used by the main thread only.

    `modules`: the evals by path. `units_ahead` (workers only) returns the units of the worker's queued tests, in order.
    """

    def __init__(self, context: RunContext, plan: UnitPlan, modules: Mapping[str, EvalModule], progress: UnitProgress) -> None:
        self._context = context
        self._plan = plan
        self._modules = modules
        self._progress = progress
        self._queue: EngineQueue | None = None
        self._begun: deque[UnitRunner] = deque()
        self._num_begun = 0
        self._next: UnitWork | None = None
        """The unit after those that have begun, once `look_ahead` has read it."""
        self._look_at_s = 0.0
        self._hanging: dict[str, str] = {}
        self.units_ahead: Callable[[], Sequence[UnitKey]] | None = None
        self.meter: EngineMeter | None = None
        self.drafts: Drafts | None = None

    @property
    def is_generating(self) -> bool:
        """Whether an engine is at work."""
        return self._queue is not None and self._queue.is_generating

    def engine_failure(self) -> tuple[str, str] | None:
        """Return the engine of the current unit and why it failed; None if it has not failed."""
        failure = self._begun[0].results.engine_failure if self._begun else None
        return None if failure is None else (self._begun[0].unit.engine, failure)

    def hangs(self, engine_id: str) -> bool:
        """Return whether an engine still generates although it was told to stop."""
        return engine_id in self._hanging

    def results(self, unit: UnitKey, engine: Engine) -> UnitResults:
        """Return the results of a unit; the unit begins now if it has not yet. Raises `BackendError` if the engine hangs."""
        if not self._begun or self._begun[0].unit != unit:
            if any(runner.unit == unit for runner in self._begun):
                self._go_on_to(unit, engine)
            else:  # it runs alone, or tests run in an unexpected order
                self.stop()
                if unit.engine in self._hanging:
                    raise BackendError(self._hanging[unit.engine])
                work = self._prepare(unit)
                if work.needs_engine:
                    opened_engine(engine, wanted=True)  # here, not in the thread that generates: libraries start in the main thread only
                runner = self._runner(work, engine)
                self._begun.append(runner)
                self._queue = self._queue_of(engine, runner)  # known to `stop` before it starts: Ctrl-C may come any time
                self._queue.start()
            self._look_at_s = 0.0
            self._next = None
        self.look_ahead(engine)
        return self._begun[0].results

    def release(self, unit: UnitKey, case_id: str) -> None:
        """Release the generations of a unit's case."""
        for runner in self._begun:  # the first, unless its tests were skipped before they asked for results
            if runner.unit == unit:
                runner.results.release(case_id)
                return

    def look_ahead(self, engine: Engine) -> None:
        """Begin the next units on the same engine, up to the limit of cases ahead. Cheap to call often."""
        now = time.monotonic()
        if now < self._look_at_s:
            return
        self._look_at_s = now + _LOOK_EVERY_S
        if not self._begun or self._begun[0].is_alone or self._begun[0].results.engine_failure is not None:
            return
        unit, *ahead = [runner.unit for runner in self._begun]
        num_ahead = sum(len(runner.work.cases) for runner in self._begun) - len(self._begun[0].work.cases)
        following = self._units_after(unit)
        if list(following[: len(ahead)]) != ahead:
            return  # tests were put in another order meanwhile
        for after in following[len(ahead) :]:
            if after.engine != unit.engine or num_ahead >= num_cases_ahead(unit.engine):
                return
            if self._next is None or self._next.unit != after:
                self._next = self._prepare(after)  # kept until it can begin: after a crash or in a resumed run this reads all journals
            work = self._next
            if work.takeover.is_alone or (work.needs_engine and opened_engine(engine) is None):
                return  # the test that needs an engine opens it, so that this test reports a failed start
            runner = self._runner(work, engine, is_ahead=True)
            self._begun.append(runner)
            if self._queue is None or not self._queue.add(runner):
                self._queue = self._queue_of(engine, runner)
                self._queue.start()
            num_ahead += len(work.cases)

    def _units_after(self, unit: UnitKey) -> Sequence[UnitKey]:
        if self.units_ahead is None:
            return self._plan.units_after(unit)
        listed = self.units_ahead()
        return listed[listed.index(unit) + 1 :] if unit in listed else listed

    def _go_on_to(self, unit: UnitKey, engine: Engine) -> None:
        """Make a unit that was begun ahead the current unit, and end the units before it: their tests have ended or were skipped."""
        over = list(itertools.takewhile(lambda runner: runner.unit != unit, self._begun))
        if not all(runner.is_done for runner in over):
            self._restart(engine, list(self._begun)[len(over) :])  # nothing waits for the rest of those, but the next unit waits
        for runner in over:
            runner.in_flight.close()  # a failed unit still lists its cases as being generated
            self._begun.popleft()

    def _prepare(self, unit: UnitKey) -> UnitWork:
        context, module = self._context, self._modules[unit.path]
        takeover = takeover_of(context.run_dir, unit, module.name, context.session_number) if context.is_worker else None
        if takeover is None:
            made = (lambda case_id: None) if context.resumed is None else context.resumed.made(unit.engine, module.name)
            takeover = Takeover(None, made)
        cases = self._plan.cases_left(unit, takeover.nodeids)
        return UnitWork(unit, module, cases, takeover, self.drafts, may_end_early=bool(context.run.until_certain))

    def _runner(self, work: UnitWork, engine: Engine, *, is_ahead: bool = False) -> UnitRunner:
        journal, home = self._context.journal, self._context.home
        self._num_begun += 1
        path = in_flight_path(journal.path, self._num_begun) if self._context.is_worker else None
        in_flight = (InFlight if home is None else home.in_flight)(path, work.unit, [case.id for case in work.cases])
        line: UnitLine = {"engine": work.unit.engine, "eval": work.module.name}
        journal.write("unit_start", {**line, "ahead": True} if is_ahead else line)
        return UnitRunner(work, engine, journal, self._progress, in_flight)

    def leave(self, engine_id: str, path: str) -> None:
        """Stop generating for an eval that needs no more, unless others are generated with it: then its units end when those go on."""
        if self._begun and all((runner.unit.engine, runner.unit.path) == (engine_id, path) for runner in self._begun):
            self.stop()

    def stop(self) -> None:
        """End the current unit and the units begun ahead; their generations stay in the journal."""
        runners, queue = list(self._begun), self._queue
        self._begun.clear()
        self._queue = None
        if queue is not None and not queue.stop():
            self._note_hanging(runners[0].unit)
        for runner in runners:
            runner.in_flight.close()

    def _restart(self, engine: Engine, kept: Sequence[UnitRunner]) -> None:
        """Stop generating, and continue with the units in `kept`. Raises `BackendError` if the engine does not stop."""
        assert self._queue is not None
        unit = self._begun[0].unit
        if not self._queue.stop(kept):
            self._queue = None
            self._note_hanging(unit)
            self.stop()
            raise BackendError(self._hanging[unit.engine])
        self._queue = self._queue_of(engine, *kept)
        self._queue.start()

    def _queue_of(self, engine: Engine, *runners: UnitRunner) -> EngineQueue:
        return EngineQueue(engine, self._progress, *runners, meter=self.meter)

    def _note_hanging(self, unit: UnitKey) -> None:
        problem = f"engine {unit.engine} still generates for {unit.path}, though told to stop: it is left open until the process ends"
        self._hanging[unit.engine] = problem
        self._context.journal.write("problem", {"problem": problem})


@dataclass(frozen=True)
class Origin:
    """The run that generated what this run judges, where that is another run."""

    facts: RunFile = field(default_factory=RunFile)
    """What run.json says of it."""
    generation_facts: GenerationFacts | None = None
    """How that run made its generations."""
    why_not_run: str | None = None
    """Why tests did not run, if not because this session ended."""


class Execution:
    """The running tests of one process, and what they need from engines."""

    def __init__(self, context: RunContext, registry: EvalRegistry) -> None:
        self.context = context
        self.registry = registry
        self.plan = UnitPlan()
        self.progress = UnitProgress()
        self.engines = EngineOpening(context)
        self.units = RunningUnits(context, self.plan, registry.modules, self.progress)
        self.units.meter = self.engines.meter
        self.units.drafts = self.engines.drafts
        self.origin = Origin()
        self._has_noted_evals = False

    @cached_property
    def asked(self) -> list[list[Any]]:
        """Engine, eval and number of answers that the tests of the whole run need; asked for once tests are collected."""
        return [
            [engine, module.name, num_cases * len(module.variants)]
            for (engine, path), num_cases in self.plan.num_cases().items()
            if (module := self.registry.modules.get(path)) is not None
        ]

    def note_evals(self, items: Sequence[pytest.Item]) -> None:
        """Write, once, each eval's cases, tests and gates into the journal."""
        if not self._has_noted_evals:
            self._has_noted_evals = True
            for line in self.registry.eval_lines(items, self.plan.units):
                self.context.journal.write("eval", line)

    def open_engine(self, spec: EngineSpec) -> Engine:
        """Open and return the engine of a spec. Errors of its start propagate."""
        return self.engines.open(spec)

    def close_engine(self, spec: EngineSpec, engine: Engine) -> None:
        """Stop generating and keep the engine for the next checkpoint, unless its thread hangs."""
        self.units.stop()
        if not self.units.hangs(spec.id):
            self.engines.give_back(spec, engine)

    def wait_for_outcomes(self, record: ItemRecord, engine: Engine) -> list[Outcome]:
        """Wait for and return the generations of a test's case. Raises `RecordError` if they cannot be recorded.

        Ends this worker if its engine can generate nothing more.
        """

        try:
            results = self.units.results(self.plan.units[record.nodeid], engine)
            outcomes = results.outcomes(record.case.id, lambda: self.units.look_ahead(engine))
        except BackendError as error:
            outcomes = [GenerationFailure("error", str(error), error)]
        self.engines.warn_of_notices()
        if any(isinstance(outcome, GenerationFailure) for outcome in outcomes):
            exit_worker_if_engine_failed(self.context, self.units)
        return outcomes

    def steps(self, record: ItemRecord, engine: Engine) -> list[list[GenerationResult]]:
        """Return the results of the case's steps. Call it after `wait_for_outcomes`."""
        return self.units.results(self.plan.units[record.nodeid], engine).steps(record.case.id)

    def test_ended(self, record: ItemRecord, duration_s: float) -> None:
        """Write the test's row, and release its case's generations when no other test needs them."""
        unit = self.plan.units[record.nodeid]
        if self.plan.test_ended(record.nodeid, record.case.id):
            self.units.release(unit, record.case.id)
        journal = self.context.journal
        facts: Row = {"run_id": self.context.run.run_id, "worker": journal.worker, "duration_s": round(duration_s, 6)}
        kind: Literal["row", "repeat"] = "row" if record.original is None else "repeat"
        journal.write(kind, {**record.to_json(), **reference_of(record.case), **facts})

    def close(self) -> None:
        """Stop generating and close the engine that was kept. Nothing runs after it."""
        self.units.stop()
        self.engines.close()
        self.plan.release_cases()
