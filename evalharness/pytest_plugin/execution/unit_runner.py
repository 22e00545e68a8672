"""Runs one work unit: makes its cases' requests, step by step, writes every outcome into the journal, and hands it to the tests that wait.

The next requests of all cases go to the engine together, as soon as it has room. Except for `is_done` and `close`, only the thread of
`EngineQueue`, which runs several units on one engine, may use a `UnitRunner`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evalharness.api.cases import Case
from evalharness.api.errors import RecordError
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationFailure, GenerationResult, Outcome, Request
from evalharness.pytest_plugin.eval_module import EvalModule
from evalharness.pytest_plugin.execution.case_request import CaseRequest, Next, Step, asks_in_steps
from evalharness.pytest_plugin.execution.engines import asks_anything
from evalharness.pytest_plugin.execution.takeover import InFlight, Takeover
from evalharness.runs.journal import Journal
from evalharness.runs.recorded import outcome_of
from evalharness.runs.records import Failed, Recorded
from evalharness.runs.schema import OutcomeKind, OutcomeLine, UnitLine

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine


class JournaledCase(NamedTuple):
    """A case's outcome for each sample, and the results of its steps."""

    samples: dict[int, GenerationResult | GenerationFailure]
    steps: list[list[GenerationResult]]


def read_case_from_journal(journal: Path, engine_id: str, eval_name: str, case_id: str) -> JournaledCase:
    """Return the latest outcomes of a case that was released after its tests, for a test that runs again."""
    key = {"engine": engine_id, "eval": eval_name, "case_id": case_id}
    samples: dict[int, GenerationResult | GenerationFailure] = {}
    in_steps: dict[tuple[int, int], GenerationResult] = {}
    shape: list[int] = []
    for line in _outcome_lines(journal):
        if any(line[name] != value for name, value in key.items()):
            continue
        if line["kind"] == "step":
            in_steps[line["step"], line["request"]] = GenerationResult.from_json(line["generation"])
            continue
        if "generation" in line:
            samples[line["sample"]] = GenerationResult.from_json(line["generation"])
        else:
            samples[line["sample"]] = GenerationFailure.recorded(line["failure"], line["problem"], line.get("cause"))
        shape = line.get("steps", [])
    every = [[in_steps.get((step, request)) for request in range(size)] for step, size in enumerate(shape)]
    return JournaledCase(samples, [[result for result in step if result is not None] for step in every])


def _outcome_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the outcome lines of a journal to which another thread may be appending."""
    with path.open("rb") as lines:
        for line in lines:
            if line.startswith((b'{"kind":"generation"', b'{"kind":"failure"', b'{"kind":"step"')) and line.endswith(b"\n"):
                yield json.loads(line)


_POLL_S = 0.2  # how often a waiting test lets progress be shown


class UnitResults:
    """The outcomes of one unit: the engine's thread adds them, the tests' thread waits for them.

    Outcomes that no test needs any more are released; if a test runs again, they are read from the process's own journal.
    """

    def __init__(self, engine_id: str, eval_name: str, num_samples: int, case_ids: Iterable[str], journal: Path) -> None:
        self._engine_id = engine_id
        self._eval_name = eval_name
        self._num_samples = num_samples
        self._journal = journal
        self._held = set(case_ids)
        self._finished: dict[str, dict[int, Outcome]] = {}
        self._steps: dict[str, list[list[GenerationResult]]] = {}
        self._wanted: str | None = None
        self._hidden: tuple[str, ...] = ()
        self._changed = threading.Condition()
        self._broken: str | None = None
        self.fatal: RecordError | None = None
        """Set when the journal could not be written: going on would lose results."""
        self.engine_failure: str | None = None
        """Why the engine failed; it can generate nothing more."""

    # For the tests

    def outcomes(self, case_id: str, while_waiting: Callable[[], None]) -> list[Outcome]:
        """Return the case's generations, one per variant, as soon as all are there; released ones are read from the journal."""
        with self._changed:
            self._wanted = case_id
            self._changed.notify_all()
        if case_id not in self._held:
            recorded = self._recorded(case_id).samples
            missing = GenerationFailure("error", "the engine gave no generation for this case")
            return [recorded.get(sample, missing) for sample in range(self._num_samples)]
        while True:
            with self._changed:
                finished = self._finished.get(case_id, {})
                if len(finished) == self._num_samples and case_id not in self._hidden:
                    return [finished[sample] for sample in range(self._num_samples)]
                if self.fatal is not None:
                    raise self.fatal
                if self._broken is not None:
                    failure = GenerationFailure("error", self._broken)
                    return [finished.get(sample, failure) for sample in range(self._num_samples)]
                self._changed.wait(_POLL_S)
            while_waiting()

    def steps(self, case_id: str) -> list[list[GenerationResult]]:
        """Return the results of the case's steps. Call it after `outcomes`."""
        with self._changed:
            if case_id in self._held:
                return [list(step) for step in self._steps.get(case_id, ())]
        return self._recorded(case_id).steps

    def _recorded(self, case_id: str) -> JournaledCase:
        return read_case_from_journal(self._journal, self._engine_id, self._eval_name, case_id)

    def release(self, case_id: str) -> None:
        """Release a case's generations once no test needs them any more."""
        with self._changed:
            self._held.discard(case_id)
            self._finished.pop(case_id, None)
            self._steps.pop(case_id, None)

    # For the thread that generates

    def add(self, case_id: str, sample: int, outcome: Outcome) -> None:
        """Add the outcome of one sample."""
        with self._changed:
            if case_id in self._held:  # tests that were skipped early wait for nothing
                self._finished.setdefault(case_id, {})[sample] = outcome
            self._changed.notify_all()

    def add_step(self, case_id: str, results: list[GenerationResult]) -> None:
        """Add the results of a case's next step."""
        with self._changed:
            if case_id in self._held:
                self._steps.setdefault(case_id, []).append(results)

    def wait_for_any(self, groups: Sequence[tuple[str, ...]], is_over: Callable[[], bool]) -> tuple[str, ...]:
        """Return the first group with a case that a test waits for, () if `is_over()`. Hides the group's outcomes until `show`."""
        with self._changed:
            while not is_over() and not any(self._wanted in group for group in groups):
                self._changed.wait(_POLL_S)
            self._hidden = () if is_over() else next(group for group in groups if self._wanted in group)
            return self._hidden

    def show(self) -> None:
        """Let tests see the outcomes that were hidden from them."""
        with self._changed:
            self._hidden = ()
            self._changed.notify_all()

    def give_up(self, problem: str, error: BaseException | None = None, *, is_engine: bool = False) -> None:
        """Give every test that waits, now or later, this problem as its outcome. The first problem stands."""
        with self._changed:
            if self._broken is None:
                self._broken = problem
                self.engine_failure = problem if is_engine else None
            if isinstance(error, RecordError):
                self.fatal = error
            self._changed.notify_all()


class UnitProgress:
    """Running totals of one process, for the progress line."""

    def __init__(self) -> None:
        self.num_generations = 0
        self.num_step_generations = 0
        self.num_completion_tokens = 0
        self.num_signs = 0
        """Signs of life: phases of tests, generations, decoding steps."""
        self._num_tokens_taken = 0

    def take_new_tokens(self) -> int:
        """Return how many tokens were generated since the last call: tests share generations, and each counts once."""
        new = self.num_completion_tokens - self._num_tokens_taken
        self._num_tokens_taken += new
        return new


@dataclass
class _Open:
    """An unfinished case: its request, and the outcomes of its current step."""

    case: Case
    request: CaseRequest
    arrived: dict[int, Outcome] = field(default_factory=dict)


class PendingRequest(NamedTuple):
    """One request for the engine; `position` is the sample or, in a step, the place of the request; `known` its recorded outcome."""

    open: _Open
    step: Step | None
    position: int
    request: Request
    options: GenerationOptions
    known: Recorded | Failed | None = None


class UnitRunner:
    """Makes the requests of a unit's cases; the unit's tests wait for `results`.

    Every finished generation is in the journal before a test sees it. `takeover` holds the outcomes that a dead worker or an earlier
    session recorded: they are not generated again, and if none is missing, the engine is not used. In crash isolation, cases are generated
    in groups: a group starts when a test waits for one of its cases, and tests see its outcomes when all are finished. So at any time
    either one group is generating or one test is running.
    """

    def __init__(
        self,
        engine_id: str,
        engine: Engine,
        module: EvalModule,
        cases: Sequence[Case],
        journal: Journal,
        progress: UnitProgress,
        takeover: Takeover,
        in_flight: InFlight,
    ) -> None:
        self._engine_id = engine_id
        self._engine = engine
        self._module = module
        self._cases = cases
        self._journal = journal
        self._progress = progress
        self._recorded_before = takeover.recorded
        self._isolation = takeover.isolation
        self._in_flight = in_flight
        self._groups: list[tuple[str, ...]] | None = None
        self._group: tuple[str, ...] = ()
        self._open: list[_Open] = []
        self._waiting: list[PendingRequest] = []
        self._num_at_engine = 0
        self._num_outcomes = 0
        self._has_begun = False
        self._has_ended = False
        self._is_done = threading.Event()
        self.num_cases = len(cases)
        self.is_alone = takeover.is_alone
        """Whether no other unit is generated while this unit's cases and tests run."""
        self.plugins = module.plugins
        self.results = UnitResults(engine_id, module.name, len(module.variants), (case.id for case in cases), journal.path)

    @property
    def has_requests(self) -> bool:
        """Whether requests of the unit wait for the engine."""
        return bool(self._waiting)

    @property
    def is_done(self) -> bool:
        """Whether every request of the unit is answered or given up. For any thread."""
        return self._is_done.is_set()

    def _publish_if_done(self) -> None:
        """Tell other threads if the unit is done. Call it only when no case's own code is about to make more requests."""
        if self._has_ended or (self._has_begun and not self._waiting and not self._num_at_engine):
            self._is_done.set()

    def close(self) -> None:
        """Remove the file of in-flight cases, once the engine's thread has ended or was given up."""
        self._in_flight.close()

    def begin(self) -> None:
        """Make every case's first request. Idempotent."""
        if self._has_begun:
            return
        variants = self._module.variants
        if asks_in_steps(self._module.request) and asks_anything(self._cases, self._recorded_before, len(variants)):
            self._engine.check_options(variants)  # before the first step, not after the last one
        self._open = [_Open(case, self._request_of(case)) for case in self._cases]
        for case in self._open:
            self._go_on(case, self._begin(case))
        self._has_begun = True
        self._publish_if_done()

    def end(self, generation_s: float | None) -> None:
        """End the unit. `generation_s`: seconds of the engine's time, None if the engine failed. Idempotent."""
        if self._has_ended:
            return
        self._has_ended = True
        self._waiting = []
        for case in self._open:
            case.request.close()
        self._publish_if_done()
        self.results.show()
        if generation_s is not None:
            values: UnitLine = {"engine": self._engine_id, "eval": self._module.name, "generation_s": generation_s, "ended_s": time.time()}
            self._journal.write("unit", {**values, "num_outcomes": self._num_outcomes})
            self._in_flight.close()

    def _begin(self, case: _Open) -> Next:
        """Return a case's first request or step, or a failure if the case was confirmed to kill workers."""
        confirmed = {} if self._isolation is None else self._isolation.confirmed
        if case.case.id in confirmed:
            return GenerationFailure("error", confirmed[case.case.id])
        return self._worked_out(case, case.request.begin)

    def _worked_out(self, case: _Open, ask: Callable[[], Next]) -> Next:
        """Return the request or step that a case's own code makes, noted as in flight meanwhile: this code may kill the worker."""
        self._in_flight.begin(case.case.id)
        try:
            return ask()
        finally:
            self._in_flight.end(case.case.id)

    # Batches

    def next_batch(self, is_over: Callable[[], bool]) -> tuple[list[PendingRequest], Sequence[Any]]:
        """Return the next requests for one call of the engine, and the plugins that act on them. Takes recorded outcomes at once.

        The batch is empty if all pending requests were recorded. In crash isolation this waits for a test, or for `is_over()`.
        """
        batch = []
        for pending in self._next_pending(is_over):
            if pending.known is None:
                batch.append(pending)
            else:
                self._take(pending, outcome_of(pending.known))
        acting = self.plugins
        if self.plugins and (steps := [pending for pending in batch if pending.step is not None]):
            # Plugins act on the eval's questions only, so steps get a call of their own.
            self._waiting = [*(pending for pending in batch if pending.step is None), *self._waiting]
            batch, acting = steps, ()
        self._num_at_engine += len(batch)
        self._publish_if_done()
        return batch, acting

    def put_back(self, batch: Sequence[PendingRequest]) -> None:
        """Take back a batch that was not generated."""
        self._num_at_engine -= len(batch)
        self._waiting = [*batch, *self._waiting]

    def asks(self, pending: PendingRequest) -> None:
        """Note that a request is being prepared for the engine."""
        self._in_flight.begin(pending.open.case.id)

    def asks_no_more(self, pending: PendingRequest) -> None:
        """Note that the engine was stopped before it answered a prepared request."""
        self._in_flight.end(pending.open.case.id)

    def answer(self, pending: PendingRequest, outcome: Outcome) -> None:
        """Take the engine's outcome of a request."""
        self._in_flight.end(pending.open.case.id)
        self._take(pending, outcome)
        self._num_at_engine -= 1
        self._publish_if_done()

    def _next_pending(self, is_over: Callable[[], bool]) -> list[PendingRequest]:
        """Return the next batch: normally all pending requests; in crash isolation, recorded ones first, then one suspect group."""
        waiting, self._waiting = self._waiting, []
        if self._isolation is None:
            return waiting
        if known := [pending for pending in waiting if pending.known is not None]:
            self._waiting = [pending for pending in waiting if pending.known is None]
            return known
        case_ids = list(dict.fromkeys(pending.open.case.id for pending in waiting))
        if self._groups is None:
            self._groups = self._isolation.groups(case_ids)
        if not any(case_id in self._group for case_id in case_ids):
            self.results.show()
            self._group = self.results.wait_for_any(self._groups, is_over)
            if self._group:
                self._groups.remove(self._group)
        self._waiting = [pending for pending in waiting if pending.open.case.id not in self._group]
        return [pending for pending in waiting if pending.open.case.id in self._group]

    def _request_of(self, case: Case) -> CaseRequest:
        # The steps of a fully recorded case were checked when they ran.
        asks = asks_anything([case], self._recorded_before, len(self._module.variants))
        return self._module.request_of(case, self._engine.check_options) if asks else self._module.request_of(case)

    def _known(self, case: _Open, step: int | None, position: int) -> Recorded | Failed | None:
        recorded = self._recorded_before(case.case.id)
        if recorded is None:
            return None
        return recorded.samples.get(position) if step is None else recorded.in_steps.get((step, position))

    def _go_on(self, case: _Open, asks: Next) -> None:
        if isinstance(asks, Step):
            number = len(case.request.steps) - 1
            for place, (request, options) in enumerate(zip(asks.requests, asks.options, strict=True)):
                self._waiting.append(PendingRequest(case, asks, place, request, options, self._known(case, number, place)))
            return
        for sample, options in enumerate(self._module.options_for(case.case)):
            if isinstance(asks, GenerationFailure):
                self._finish(case, sample, asks)
            else:
                self._waiting.append(PendingRequest(case, None, sample, asks, options, self._known(case, None, sample)))

    # Answers

    def _take(self, pending: PendingRequest, outcome: Outcome) -> None:
        self._progress.num_signs += 1
        case, step = pending.open, pending.step
        copied: OutcomeLine = {"copied": True} if pending.known is not None else {}
        if step is None:
            self._finish(case, pending.position, outcome, copied)
            return
        place: OutcomeLine = {"step": len(case.request.steps) - 1, "request": pending.position}
        self._journal_outcome("step", "step_failure", case.case.id, {**place, **copied}, outcome)
        self._progress.num_step_generations += 1
        case.arrived[pending.position] = outcome
        if len(case.arrived) == len(step.requests):
            outcomes = [case.arrived[position] for position in range(len(step.requests))]
            case.arrived.clear()
            self.results.add_step(case.case.id, [result for result in outcomes if isinstance(result, GenerationResult)])
            self._go_on(case, self._worked_out(case, lambda: case.request.go_on(outcomes)))

    def _finish(self, case: _Open, sample: int, outcome: Outcome, copied: OutcomeLine | None = None) -> None:
        place: OutcomeLine = {"sample": sample, **(copied or {})}
        if case.request.in_steps:
            place["steps"] = [len(step.requests) for step in case.request.steps]
        self._journal_outcome("generation", "failure", case.case.id, place, outcome)
        self._progress.num_generations += 1
        self._num_outcomes += not copied
        self.results.add(case.case.id, sample, outcome)

    def _journal_outcome(self, kind: OutcomeKind, failure_kind: OutcomeKind, case_id: str, place: OutcomeLine, outcome: Outcome) -> None:
        values: OutcomeLine = {"engine": self._engine_id, "eval": self._module.name, "case_id": case_id, **place}
        if isinstance(outcome, GenerationResult):
            self._journal.write(kind, {**values, "generation": outcome.to_json()})
            if "copied" not in place and outcome.finish_reason != "scored":
                self._progress.num_completion_tokens += outcome.num_completion_tokens or 0
        else:
            self._journal.write(failure_kind, {**values, "failure": outcome.kind, "problem": outcome.problem, "cause": outcome.cause})
