"""Where a unit's outcomes go: into the journal first, then to the tests that wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from evalharness.api.checks import any_text
from evalharness.api.errors import BackendError, EvalHarnessError, RecordError
from evalharness.api.requests import GenerationFailure, GenerationResult, Outcome
from evalharness.pytest_plugin.execution.case_request import last_frame
from evalharness.pytest_plugin.progress.counts import UnitProgress
from evalharness.runs.journal import Journal
from evalharness.runs.recorded import outcome_of
from evalharness.runs.records import CaseRecords, read_case
from evalharness.runs.schema import OutcomeLine, UnitLine

_POLL_S = 0.2  # how often a waiting test looks for units that may begin


class UnitJournal:
    """One unit's part of the process's journal. Counts what it writes in `progress`."""

    def __init__(self, journal: Journal, progress: UnitProgress, engine_id: str, eval_name: str) -> None:
        self._journal = journal
        self._progress = progress
        self._counts = progress.of(engine_id, eval_name)
        self._engine_id = engine_id
        self._eval_name = eval_name
        self._num_outcomes = 0

    def write(self, case_id: str, place: OutcomeLine, outcome: Outcome) -> None:
        """Write an outcome; `place` says of which sample, or of which request of which step, and whether it is a copy."""
        counts, is_sample, is_new = self._counts, "sample" in place, "copied" not in place
        line: OutcomeLine = {"engine": self._engine_id, "eval": self._eval_name, "case_id": case_id, **place}
        if isinstance(outcome, GenerationResult):
            self._journal.write("generation" if is_sample else "step", {**line, "generation": outcome.to_json()})
            if is_new and outcome.finish_reason != "scored":
                counts.num_tokens += outcome.num_completion_tokens or 0
        else:
            failure: OutcomeLine = {**line, "failure": outcome.kind, "problem": outcome.problem, "cause": outcome.cause}
            self._journal.write("failure" if is_sample else "step_failure", failure)
        if is_sample:
            counts.num_new += is_new
            counts.num_copied += not is_new
            self._num_outcomes += is_new
        self._progress.at_work = (self._engine_id, self._eval_name)

    def end(self, generation_s: float, work: dict[str, float]) -> None:
        """Write that the unit has ended, after so many seconds of the engine's time, in which it did this work."""
        line: UnitLine = {"engine": self._engine_id, "eval": self._eval_name, "generation_s": generation_s, "ended_s": time.time()}
        self._journal.write("unit", {**line, "num_outcomes": self._num_outcomes, **({"work": work} if work else {})})

    def read(self, case_id: str) -> CaseRecords:
        """Return what has been written about a case."""
        return read_case(self._journal.path, self._engine_id, self._eval_name, case_id)


class Problem(NamedTuple):
    """Why a unit's tests get no more generations."""

    text: str
    is_engine: bool = False
    """Whether the engine failed; it can generate nothing more."""
    fatal: RecordError | None = None
    """Set where the journal could not be written: going on would lose results."""

    @classmethod
    def of(cls, error: BaseException) -> Problem:
        """Return the problem that an error is; one that is not ours is told with its place."""
        text = (
            any_text(error)
            if isinstance(error, EvalHarnessError)
            else f"{type(error).__name__}: {any_text(error)} (at {last_frame(error)})"
        )
        return cls(text, isinstance(error, BackendError), error if isinstance(error, RecordError) else None)


@dataclass(slots=True)
class _Finished:
    """The outcomes of a case that tests still need: by sample, and the results of its steps."""

    samples: dict[int, Outcome] = field(default_factory=dict)
    steps: tuple[list[GenerationResult], ...] = ()


class UnitResults:
    """The outcomes of one unit: the engine's thread adds them, the tests' thread waits for them.

    Outcomes that no test needs any more are released; if a test runs again, `read_back(case id)` gives what the journal has of them.
    """

    def __init__(self, num_samples: int, case_ids: Iterable[str], read_back: Callable[[str], CaseRecords]) -> None:
        self._num_samples = num_samples
        self._read_back = read_back
        self._held: dict[str, _Finished | None] = dict.fromkeys(case_ids)
        """By case, until it is released; None before its first outcome."""
        self._wanted: str | None = None
        self._hidden: tuple[str, ...] = ()
        self._problem: Problem | None = None
        self._changed = threading.Condition()

    @property
    def engine_failure(self) -> str | None:
        """Why the engine failed, None if it has not."""
        return self._problem.text if self._problem is not None and self._problem.is_engine else None

    # For the tests

    def outcomes(self, case_id: str, while_waiting: Callable[[], None]) -> list[Outcome]:
        """Return the case's generations, one per variant, as soon as all are there; released ones are read from the journal."""
        with self._changed:
            self._wanted = case_id
            self._changed.notify_all()
        if case_id not in self._held:
            recorded = {sample: outcome_of(outcome) for sample, outcome in self._read_back(case_id).samples.items()}
            return self._all_samples(recorded, "the engine gave no generation for this case")
        while True:
            with self._changed:
                finished = self._held[case_id]
                samples = {} if finished is None else finished.samples
                if len(samples) == self._num_samples and case_id not in self._hidden:
                    return self._all_samples(samples, "")
                if self._problem is not None:
                    if self._problem.fatal is not None:
                        raise self._problem.fatal
                    return self._all_samples(samples, self._problem.text)
                self._changed.wait(_POLL_S)
            while_waiting()

    def _all_samples(self, outcomes: dict[int, Outcome], problem: str) -> list[Outcome]:
        return [outcomes[sample] if sample in outcomes else GenerationFailure("error", problem) for sample in range(self._num_samples)]

    def steps(self, case_id: str) -> list[list[GenerationResult]]:
        """Return the results of the case's steps. Call it after `outcomes`."""
        with self._changed:
            if case_id in self._held:
                finished = self._held[case_id]
                return [] if finished is None else [list(step) for step in finished.steps]
        steps = self._read_back(case_id).steps() or []
        return [[GenerationResult.from_json(made.whole()) for made in step if made is not None] for step in steps]

    def release(self, case_id: str) -> None:
        """Release a case's generations once no test needs them any more."""
        with self._changed:
            self._held.pop(case_id, None)

    # For the thread that generates

    def _finished(self, case_id: str) -> _Finished:
        """Return where the outcomes of a case go; nowhere if its tests were skipped early and wait for nothing."""
        finished = self._held.get(case_id) or _Finished()
        if case_id in self._held:
            self._held[case_id] = finished
        return finished

    def add(self, case_id: str, sample: int, outcome: Outcome) -> None:
        """Add the outcome of one sample."""
        with self._changed:
            self._finished(case_id).samples[sample] = outcome
            self._changed.notify_all()

    def add_step(self, case_id: str, results: list[GenerationResult]) -> None:
        """Add the results of a case's next step."""
        with self._changed:
            finished = self._finished(case_id)
            finished.steps = (*finished.steps, results)

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

    def give_up(self, problem: Problem) -> None:
        """Give every test that waits, now or later, this problem as its outcome. The first problem stands, but for a fatal one."""
        with self._changed:
            if self._problem is None or problem.fatal is not None:
                self._problem = problem
            self._changed.notify_all()
