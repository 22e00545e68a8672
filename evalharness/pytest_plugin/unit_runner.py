"""Runs one work unit: its requests go to the engine together while the tests of finished ones already run.

Requests in steps go in rounds: whatever all cases ask next is one call of the engine. Only between rounds does the engine
run empty, which with many cases is little; feeding a running call would need every backend to wait for prompts that depend
on its own answers. A little over 300 lines: one thread and its lock, whose parts are safe only when read together.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from evalharness.cases import Case
from evalharness.contracts import GenerationFailure, GenerationOptions, GenerationResult
from evalharness.errors import BackendError, EvalHarnessError, RecordError
from evalharness.journal import Journal
from evalharness.pytest_plugin.asking import CaseRequest, Next, Outcome, Request, Step, asks_in_steps, last_frame
from evalharness.pytest_plugin.collection import EvalModule
from evalharness.pytest_plugin.deferred_engine import asks_anything
from evalharness.pytest_plugin.in_flight import InFlight
from evalharness.pytest_plugin.own_record import OwnRecord, read_own_record
from evalharness.pytest_plugin.takeover import Suspicion
from evalharness.recorded import outcome_of
from evalharness.run_records import CaseRecords, Failed, Recorded

if TYPE_CHECKING:
    from evalharness.engine import Engine

__all__ = ["UnitProgress", "UnitRunner"]

STOP_TIMEOUT_S = 60.0
"""How long a unit may take to end once it is told to; a backend looks at least once per generated token."""
_POLL_S = 0.2  # how often a waiting test lets progress be shown


class UnitProgress:
    """Running totals of one process, for the progress line."""

    def __init__(self) -> None:
        self.num_generations = 0
        self.num_step_generations = 0
        self.num_completion_tokens = 0
        self.num_signs = 0
        """Grows with everything that shows that tests and engine go on: phases of tests, generations, decoding steps."""
        self._num_told = 0

    def take_new_tokens(self) -> int:
        """Return how many tokens were generated since this was last asked: tests share generations, and each counts once."""
        new = self.num_completion_tokens - self._num_told
        self._num_told += new
        return new


@dataclass
class _Open:
    """A case that has not come to its end: what it asks, and what came back of the step that runs."""

    case: Case
    request: CaseRequest
    arrived: dict[int, Outcome] = field(default_factory=dict)


class _Asked(NamedTuple):
    """One request for the engine: `position` is the sample, or, in a step, the place of the request."""

    open: _Open
    step: Step | None
    position: int
    request: Request
    options: GenerationOptions
    known: Recorded | Failed | None = None
    """What is recorded of it already."""


class UnitRunner:
    """Generates a unit's cases in a thread of its own; `outcomes` waits for one case.

    Every finished generation is in the journal before a test can see it. `recorded` gives what the run has of a case from
    a worker that died, or from an earlier session: that is not generated again, and where it is all, the engine is not
    touched. `suspicion`: cases are asked in groups, each only once a test waits for one of its cases, and handed out when all
    of it is there; so at any time either one group is generated or one test runs.
    """

    def __init__(
        self,
        engine_id: str,
        engine: Engine,
        module: EvalModule,
        cases: Sequence[Case],
        journal: Journal,
        progress: UnitProgress,
        *,
        recorded: Callable[[str], CaseRecords | None] = lambda case_id: None,
        suspicion: Suspicion | None = None,
        in_flight: InFlight | None = None,
    ) -> None:
        self._engine_id = engine_id
        self._engine = engine
        self._module = module
        self._cases = cases
        self._journal = journal
        self._progress = progress
        self._recorded_before = recorded
        self._suspicion = suspicion
        self._in_flight = in_flight or InFlight(None)
        self._groups: list[tuple[str, ...]] | None = None
        self._group: tuple[str, ...] = ()
        self._wanted: str | None = None
        self._held = {case.id for case in cases}
        self._finished: dict[str, dict[int, Outcome]] = {}
        self._steps: dict[str, list[list[GenerationResult]]] = {}
        self._waiting: list[_Asked] = []
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._broken: str | None = None
        self.fatal: RecordError | None = None
        """Set when the journal could not be written: going on would lose results."""
        self.engine_failure: str | None = None
        """What the engine broke of; it can generate nothing more."""
        self._thread = threading.Thread(target=self._run, name=f"unit-{module.name}", daemon=True)
        self._thread.start()

    def outcomes(self, case_id: str, while_waiting: Callable[[], None]) -> list[Outcome]:
        """Return the case's generations, one per variant, as soon as all are there; what was let go comes from the journal."""
        wanted = len(self._module.variants)
        with self._changed:
            self._wanted = case_id
            self._changed.notify_all()
        if case_id not in self._held:
            recorded = self._recorded(case_id).samples
            missing = GenerationFailure("error", "the engine gave no generation for this case")
            return [recorded.get(sample, missing) for sample in range(wanted)]
        while True:
            with self._changed:
                found = self._finished.get(case_id, {})
                if len(found) == wanted and case_id not in self._group:
                    return [found[sample] for sample in range(wanted)]
                if self.fatal is not None:
                    raise self.fatal
                if self._broken is not None:
                    failure = GenerationFailure("error", self._broken)
                    return [found.get(sample, failure) for sample in range(wanted)]
                self._changed.wait(_POLL_S)
            while_waiting()

    def steps(self, case_id: str) -> list[list[GenerationResult]]:
        """Return the results of the steps that led to the case's question, once `outcomes` has given what became of it."""
        with self._changed:
            if case_id in self._held:
                return [list(step) for step in self._steps.get(case_id, ())]
        return self._recorded(case_id).steps

    def _recorded(self, case_id: str) -> OwnRecord:
        return read_own_record(self._journal.path, self._engine_id, self._module.name, case_id)

    def release(self, case_id: str) -> None:
        """Let a case's generations go once no test needs them any more."""
        with self._changed:
            self._held.discard(case_id)
            self._finished.pop(case_id, None)
            self._steps.pop(case_id, None)

    @property
    def is_generating(self) -> bool:
        """Whether the engine is still at work on this unit."""
        return self._thread.is_alive()

    def stop(self) -> bool:
        """End what still runs, wait for the thread, and return whether it has ended: it may hang in a library or a device."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(STOP_TIMEOUT_S)
        self._in_flight.close()
        return not self._thread.is_alive()

    def _run(self) -> None:
        started = time.monotonic()
        try:
            self._generate()
        except RecordError as error:
            self.fatal = error
            self._broken = str(error)
        except EvalHarnessError as error:
            self._broken = str(error)
            if isinstance(error, BackendError):
                self.engine_failure = self._broken
        except BaseException as error:  # nothing may die unseen in a thread: every waiting case gets this as its error row
            self._broken = f"{type(error).__name__}: {error} (at {last_frame(error)})"
        else:
            self._note_end(time.monotonic() - started)
            self._broken = (
                "the engine was stopped before this generation" if self._stop.is_set() else "the engine gave no generation for this case"
            )
        finally:
            with self._changed:
                self._changed.notify_all()

    def _note_end(self, duration_s: float) -> None:
        try:
            values = {"engine": self._engine_id, "eval": self._module.name, "generation_s": duration_s, "ended_s": time.time()}
            self._journal.write("unit", values)
        except RecordError as error:
            self.fatal = error

    def _generate(self) -> None:
        variants = self._module.variants
        if asks_in_steps(self._module.request) and asks_anything(self._cases, self._recorded_before, len(variants)):
            self._engine.check_options(variants)  # before the first step, not after the last one
        cases = [_Open(case, self._request_of(case)) for case in self._cases]
        try:
            for case in cases:
                self._go_on(case, self._begin(case))
            while self._waiting and not self._stop.is_set():
                asked = self._next_round()
                for one in asked:
                    if one.known is not None:
                        self._take(one, outcome_of(one.known))
                self._ask([one for one in asked if one.known is None])
            self._end_group()
        finally:
            for case in cases:
                case.request.close()

    def _begin(self, case: _Open) -> Next:
        """Return what a case asks first; nothing, if it has been found guilty of killing workers."""
        guilty = {} if self._suspicion is None else self._suspicion.guilty
        if case.case.id in guilty:
            return GenerationFailure("error", guilty[case.case.id])
        return self._worked_out(case, case.request.begin)

    def _worked_out(self, case: _Open, ask: Callable[[], Next]) -> Next:
        """Return what a case's own code asks; that code may be what kills the worker."""
        self._in_flight.begin(case.case.id)
        try:
            return ask()
        finally:
            self._in_flight.end(case.case.id)

    def _ask(self, asked: Sequence[_Asked]) -> None:
        plugins = self._module.plugins
        # Plugins act on the eval's questions alone, so only with them does a round take two calls.
        questions = [one for one in asked if one.step is None] if plugins else list(asked)
        steps = [one for one in asked if one.step is not None] if plugins else []
        for group, acting in ((steps, ()), (questions, plugins)):
            if not group:
                continue
            requests, options = [one.request for one in group], [one.options for one in group]
            case_ids = [one.open.case.id for one in group]

            def on_asked(number: int, case_ids: Sequence[str] = case_ids) -> None:
                self._in_flight.begin(case_ids[number])

            stream = self._engine.stream(requests, options, plugins=acting, should_stop=self._should_stop, on_asked=on_asked)
            with contextlib.closing(stream) as outcomes:  # in this thread, whatever `_take` raises: the engine's lock is held
                for number, outcome in outcomes:
                    self._in_flight.end(case_ids[number])
                    self._take(group[number], outcome)

    def _should_stop(self) -> bool:
        self._progress.num_signs += 1  # engines ask at least once per decoding step
        return self._stop.is_set()

    def _next_round(self) -> list[_Asked]:
        """Return what is asked together next: all that waits, or, under suspicion, what is recorded, then what one group asks."""
        asked, self._waiting = self._waiting, []
        if self._suspicion is None:
            return asked
        known = [one for one in asked if one.known is not None]
        if known:
            self._waiting = [one for one in asked if one.known is None]
            return known
        case_ids = list(dict.fromkeys(one.open.case.id for one in asked))
        if self._groups is None:
            self._groups = self._suspicion.groups(case_ids)
        if not any(case_id in self._group for case_id in case_ids):
            self._end_group()
            self._begin_group(self._groups)
        self._waiting = [one for one in asked if one.open.case.id not in self._group]
        return [one for one in asked if one.open.case.id in self._group]

    def _begin_group(self, groups: list[tuple[str, ...]]) -> None:
        """Wait until a test waits for a case; its group is asked next."""
        with self._changed:
            while not self._stop.is_set() and not any(self._wanted in group for group in groups):
                self._changed.wait(_POLL_S)
            self._group = next((group for group in groups if self._wanted in group), ())
        if self._group:
            groups.remove(self._group)

    def _end_group(self) -> None:
        with self._changed:
            self._group = ()
            self._changed.notify_all()

    def _request_of(self, case: Case) -> CaseRequest:
        # Steps of what is recorded in full were checked when they were asked.
        asks = asks_anything([case], self._recorded_before, len(self._module.variants))
        return self._module.request_of(case, self._engine.check_options) if asks else self._module.request_of(case)

    def _known(self, case: _Open, step: int | None, position: int) -> Recorded | Failed | None:
        found = self._recorded_before(case.case.id)
        if found is None:
            return None
        return found.samples.get(position) if step is None else found.in_steps.get((step, position))

    def _go_on(self, case: _Open, asks: Next) -> None:
        if isinstance(asks, Step):
            number = len(case.request.steps) - 1
            each = zip(asks.requests, asks.options, strict=True)
            self._waiting += [_Asked(case, asks, place, *one, self._known(case, number, place)) for place, one in enumerate(each)]
            return
        for sample, options in enumerate(self._module.options_for(case.case)):
            if isinstance(asks, GenerationFailure):
                self._finish(case, sample, asks)
            else:
                self._waiting.append(_Asked(case, None, sample, asks, options, self._known(case, None, sample)))

    def _take(self, asked: _Asked, outcome: Outcome) -> None:
        self._progress.num_signs += 1
        case, step = asked.open, asked.step
        copied = {"copied": True} if asked.known is not None else {}
        if step is None:
            self._finish(case, asked.position, outcome, copied)
            return
        place = {"step": len(case.request.steps) - 1, "request": asked.position, **copied}
        self._journal_outcome("step", "step_failure", case.case.id, place, outcome)
        self._progress.num_step_generations += 1
        case.arrived[asked.position] = outcome
        if len(case.arrived) == len(step.requests):
            outcomes = [case.arrived[position] for position in range(len(step.requests))]
            case.arrived.clear()
            with self._changed:
                if case.case.id in self._held:
                    results = [one for one in outcomes if isinstance(one, GenerationResult)]
                    self._steps.setdefault(case.case.id, []).append(results)
            self._go_on(case, self._worked_out(case, lambda: case.request.go_on(outcomes)))

    def _finish(self, case: _Open, sample: int, outcome: Outcome, copied: Mapping[str, bool] = MappingProxyType({})) -> None:
        place: dict[str, Any] = {"sample": sample, **copied}
        if case.request.in_steps:
            place["steps"] = [len(step.requests) for step in case.request.steps]
        self._journal_outcome("generation", "failure", case.case.id, place, outcome)
        self._progress.num_generations += 1
        with self._changed:
            if case.case.id in self._held:  # tests that were skipped early wait for nothing
                self._finished.setdefault(case.case.id, {})[sample] = outcome
            self._changed.notify_all()

    def _journal_outcome(self, kind: str, failure_kind: str, case_id: str, place: dict[str, Any], outcome: Outcome) -> None:
        values = {"engine": self._engine_id, "eval": self._module.name, "case_id": case_id, **place}
        if isinstance(outcome, GenerationResult):
            self._journal.write(kind, {**values, "generation": outcome.to_json()})
            if "copied" not in place and outcome.finish_reason != "scored":
                self._progress.num_completion_tokens += outcome.num_completion_tokens or 0
        else:
            self._journal.write(failure_kind, {**values, "failure": outcome.kind, "problem": outcome.problem, "cause": outcome.cause})
