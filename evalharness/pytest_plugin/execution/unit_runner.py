"""Runs one work unit: makes its cases' requests, step by step, and passes each outcome to the journal and to the tests that wait.

The next requests of all cases go to the engine together, as soon as it has room. Except for `is_done` and `in_flight`, only the thread of
`EngineQueue`, which runs several units on one engine, may use a `UnitRunner`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from evalharness.api.cases import Case
from evalharness.api.requests import GenerationFailure, GenerationResult, Outcome
from evalharness.api.scoring import ScoringRequest
from evalharness.pytest_plugin.eval_module import EvalModule
from evalharness.pytest_plugin.execution.case_request import CaseRequest, Next, Step, has_steps
from evalharness.pytest_plugin.execution.pending import IsolatedRequests, OrderedRequests, PendingRequest, PendingRequests
from evalharness.pytest_plugin.execution.takeover import InFlight, Takeover
from evalharness.pytest_plugin.execution.unit_results import Problem, UnitJournal, UnitResults
from evalharness.pytest_plugin.execution.units import UnitKey
from evalharness.pytest_plugin.progress.counts import UnitProgress
from evalharness.runs.journal import Journal
from evalharness.runs.recorded import outcome_of
from evalharness.runs.records import CaseRecords
from evalharness.runs.schema import OutcomeLine

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine
    from evalharness.engine.jobs import Draft
    from evalharness.pytest_plugin.execution.drafts import Drafts


def needs_engine(cases: Iterable[Case], recorded: Callable[[str], CaseRecords | None], num_samples: int) -> bool:
    """Return whether any case is not fully recorded: only then is an engine needed."""
    records = (recorded(case.id) for case in cases if case.invalid is None)
    return any(record is None or not record.has_all(num_samples) for record in records)


@dataclass(frozen=True)
class UnitWork:
    """What a unit has to do. `takeover` has the outcomes that a dead worker or an earlier session recorded.

    `may_end_early`: perhaps not all cases are needed (--until-certain).
    """

    unit: UnitKey
    module: EvalModule
    cases: Sequence[Case]
    takeover: Takeover
    drafts: Drafts | None = None
    may_end_early: bool = False

    @cached_property
    def needs_engine(self) -> bool:
        """Whether any outcome is not recorded yet."""
        return needs_engine(self.cases, self.takeover.recorded, len(self.module.variants))


class UnitRunner:
    """Makes the requests of a unit's cases; the unit's tests wait for `results`.

    Every finished generation is in the journal before a test sees it. Recorded outcomes are not generated again, and if none is missing,
    the engine is not used.
    """

    def __init__(self, work: UnitWork, engine: Engine, journal: Journal, progress: UnitProgress, in_flight: InFlight) -> None:
        self.work, self.unit = work, work.unit
        self._engine = engine
        self.in_flight = in_flight
        self._journal = UnitJournal(journal, progress, work.unit.engine, work.module.name)
        self._progress = progress
        self.results = UnitResults(len(work.module.variants), (case.id for case in work.cases), self._journal.read)
        isolation = work.takeover.isolation
        if isolation is not None:
            self.pending: PendingRequests = IsolatedRequests(isolation, self.results)
        elif work.may_end_early:
            self.pending = OrderedRequests((case.id for case in work.cases), len(work.module.variants))
        else:
            self.pending = PendingRequests()
        self._cases: list[CaseRequest] = []
        self._num_at_engine = 0
        self._state: Literal["new", "begun", "ended"] = "new"
        self._is_done = threading.Event()

    @property
    def is_alone(self) -> bool:
        """Whether no other unit is generated while this unit's cases and tests run."""
        return self.work.takeover.is_alone

    @property
    def can_join(self) -> bool:
        """Whether its requests may go into a call of the engine that another unit began."""
        return not self.is_alone and not self.work.module.plugins

    @property
    def is_done(self) -> bool:
        """Whether every request of the unit is answered or given up. For any thread."""
        return self._is_done.is_set()

    def _publish_if_done(self) -> None:
        """Tell other threads if the unit is done. Call it only when no case's own code is about to make more requests."""
        if self._state == "ended" or (self._state == "begun" and not self.pending and not self._num_at_engine):
            self._is_done.set()

    def begin(self) -> None:
        """Make every case's first request. Idempotent."""
        if self._state != "new":
            return
        module = self.work.module
        if has_steps(module.request) and self.work.needs_engine:
            self._engine.check_options(module.variants)  # before the first step, not after the last one
        self._cases = list(map(self._request_of, self.work.cases))
        for case in self._cases:
            self._add(case, self._first_of(case))
        self._state = "begun"
        self._publish_if_done()

    def end(self, problem: Problem, generation_s: float | None = None, work: dict[str, float] | None = None) -> None:
        """End the unit; tests that still wait get the problem. `generation_s`: of the engine's time, None if it broke; `work`: in it."""
        if self._state != "ended":
            self._state = "ended"
            self.pending.clear()
            for case in self._cases:
                case.close()
            self._publish_if_done()
            self.results.show()
            if generation_s is not None:
                self._journal.end(generation_s, work or {})
                self.in_flight.close()
        self.results.give_up(problem)

    # Requests

    def _request_of(self, case: Case) -> CaseRequest:
        module = self.work.module
        # The steps of a fully recorded case were checked when they ran.
        is_new = needs_engine([case], self.work.takeover.recorded, len(module.variants))
        return module.request_of(case, self._engine.check_options) if is_new else module.request_of(case)

    def _first_of(self, case: CaseRequest) -> Next:
        """Return a case's first request or step, or a failure if the case was confirmed to kill workers."""
        isolation = self.work.takeover.isolation
        if isolation is not None and case.case.id in isolation.confirmed:
            return GenerationFailure("error", isolation.confirmed[case.case.id])
        return self._made(case, case.begin)

    def _made(self, case: CaseRequest, make: Callable[[], Next]) -> Next:
        """Return the request or step that a case's own code makes, noted as in flight meanwhile: this code may kill the worker."""
        self.in_flight.begin(case.case.id)
        try:
            return make()
        finally:
            self.in_flight.end(case.case.id)

    def _add(self, case: CaseRequest, made: Next) -> None:
        """Let the requests of a step or a question wait for the engine; a failure is the outcome of each sample."""
        recorded = self.work.takeover.recorded(case.case.id)
        if isinstance(made, Step):
            number, in_steps = len(case.steps) - 1, {} if recorded is None else recorded.in_steps
            for place, (request, options) in enumerate(zip(made.requests, made.options, strict=True)):
                self.pending.add(PendingRequest(case, made, place, request, options, in_steps.get((number, place))))
            return
        samples = {} if recorded is None else recorded.samples
        variants = self.work.module.options_for(case.case)
        for sample, (options, scored) in enumerate(zip(variants, case.take_scored(made, variants), strict=True)):
            if isinstance(made, GenerationFailure):
                self._finish(case, sample, made)
            elif scored is not None and sample not in samples:
                self._finish(case, sample, scored, {"in_step": True})
            else:
                self.pending.add(PendingRequest(case, None, sample, made, options, samples.get(sample)))

    def next_batch(self, is_over: Callable[[], bool]) -> tuple[list[PendingRequest], Sequence[Any]]:
        """Return the next requests for one call of the engine, and the plugins that act on them. Takes recorded outcomes at once.

        The batch is empty if all pending requests were recorded. In crash isolation this waits for a test, or for `is_over()`.
        """
        batch = []
        for pending in self.pending.take(is_over):
            if pending.known is None:
                batch.append(pending)
            else:
                self._take(pending, outcome_of(pending.known))
        plugins = self.work.module.plugins
        if plugins and (steps := [pending for pending in batch if pending.step is not None]):
            # Plugins act on the eval's questions only, so steps get a call of their own.
            self.pending.put_back(pending for pending in batch if pending.step is None)
            batch, plugins = steps, ()
        if plugins and (given := [pending for pending in batch if isinstance(pending.request, ScoringRequest)]):
            # A given response is not generated: nothing there is for the run's plugins to act on; the engine refuses the eval's own.
            self.pending.put_back(pending for pending in batch if not isinstance(pending.request, ScoringRequest))
            batch, plugins = given, tuple(plugin for plugin in plugins if plugin not in self.work.module.run.plugins)
        self._num_at_engine += len(batch)
        self._publish_if_done()
        return batch, plugins

    def drafts_of(self, batch: Sequence[PendingRequest]) -> list[Draft | None]:
        """Return what gives the recorded answers to a batch's requests; nothing in a run without drafts."""
        drafts = self.work.drafts
        if drafts is None:
            return []
        engine, name = self.unit.engine, self.work.module.name
        return [drafts.of(engine, name, pending.case.case.id, pending.place) for pending in batch]

    def put_back(self, batch: Sequence[PendingRequest]) -> None:
        """Take back requests that were not generated."""
        self._num_at_engine -= len(batch)
        self.pending.put_back(batch)

    # Outcomes

    def answer(self, pending: PendingRequest, outcome: Outcome) -> None:
        """Take the engine's outcome of a request."""
        self.in_flight.end(pending.case.case.id)
        self._take(pending, outcome)
        self._num_at_engine -= 1
        self._publish_if_done()

    def _take(self, pending: PendingRequest, outcome: Outcome) -> None:
        self._progress.num_signs += 1
        case = pending.case
        copied: OutcomeLine = {"copied": True} if pending.known is not None else {}
        if pending.step is None:
            self._finish(case, pending.position, outcome, copied)
            return
        place: OutcomeLine = {"step": len(case.steps) - 1, "request": pending.position, **copied}
        self._journal.write(case.case.id, place, outcome)
        outcomes = case.take(pending.position, outcome)
        if outcomes is not None:
            self.results.add_step(case.case.id, [result for result in outcomes if isinstance(result, GenerationResult)])
            self._add(case, self._made(case, lambda: case.go_on(outcomes)))

    def _finish(self, case: CaseRequest, sample: int, outcome: Outcome, origin: OutcomeLine | None = None) -> None:
        place: OutcomeLine = {"sample": sample, **(origin or {})}
        if case.in_steps:
            place["steps"] = [len(step.requests) for step in case.steps]
        self._journal.write(case.case.id, place, outcome)
        self.pending.finish(case.case.id)
        self.results.add(case.case.id, sample, outcome)
