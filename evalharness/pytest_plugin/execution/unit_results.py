"""What a unit's tests wait for: the generations of its cases, put here by the thread that generates, taken by the one that tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from evalharness.api.errors import RecordError
from evalharness.api.requests import GenerationFailure, GenerationResult
from evalharness.pytest_plugin.execution.case_request import Outcome
from evalharness.pytest_plugin.execution.own_record import OwnRecord, read_own_record

__all__ = ["UnitResults"]

_POLL_S = 0.2  # how often a waiting test lets progress be shown


class UnitResults:
    """The generations of one unit. What tests need no more is let go, and read from the process's own journal if asked for again."""

    def __init__(self, engine_id: str, eval_name: str, num_samples: int, case_ids: Iterable[str], journal: Path) -> None:
        self._engine_id = engine_id
        self._eval_name = eval_name
        self._num_samples = num_samples
        self._journal = journal
        self._held = set(case_ids)
        self._finished: dict[str, dict[int, Outcome]] = {}
        self._steps: dict[str, list[list[GenerationResult]]] = {}
        self._wanted: str | None = None
        self._hidden: Sequence[str] = ()
        self._changed = threading.Condition()
        self._broken: str | None = None
        self.fatal: RecordError | None = None
        """Set when the journal could not be written: going on would lose results."""
        self.engine_failure: str | None = None
        """What the engine broke of; it can generate nothing more."""

    # For the tests

    def outcomes(self, case_id: str, while_waiting: Callable[[], None]) -> list[Outcome]:
        """Return the case's generations, one per variant, as soon as all are there; what was let go comes from the journal."""
        wanted = self._num_samples
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
                if len(found) == wanted and case_id not in self._hidden:
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
        return read_own_record(self._journal, self._engine_id, self._eval_name, case_id)

    def release(self, case_id: str) -> None:
        """Let a case's generations go once no test needs them any more."""
        with self._changed:
            self._held.discard(case_id)
            self._finished.pop(case_id, None)
            self._steps.pop(case_id, None)

    # For the thread that generates

    def add(self, case_id: str, sample: int, outcome: Outcome) -> None:
        """Put one sample's outcome here."""
        with self._changed:
            if case_id in self._held:  # tests that were skipped early wait for nothing
                self._finished.setdefault(case_id, {})[sample] = outcome
            self._changed.notify_all()

    def add_step(self, case_id: str, results: list[GenerationResult]) -> None:
        """Put the results of a case's next step here."""
        with self._changed:
            if case_id in self._held:
                self._steps.setdefault(case_id, []).append(results)

    def wait_for_any(self, groups: Sequence[tuple[str, ...]], is_over: Callable[[], bool]) -> tuple[str, ...]:
        """Return the group of which a test waits for a case, as soon as one does; none if `is_over`. No test sees it until `show`."""
        with self._changed:
            while not is_over() and not any(self._wanted in group for group in groups):
                self._changed.wait(_POLL_S)
            found = () if is_over() else next(group for group in groups if self._wanted in group)
            self._hidden = found
            return found

    def show(self) -> None:
        """Let tests see what was hidden from them."""
        with self._changed:
            self._hidden = ()
            self._changed.notify_all()

    def give_up(self, problem: str, error: BaseException | None = None, *, is_engine: bool = False) -> None:
        """Tell all who wait, now or later, that nothing more comes. May be called again: the first reason stands."""
        with self._changed:
            if self._broken is None:
                self._broken = problem
                self.engine_failure = problem if is_engine else None
            if isinstance(error, RecordError):
                self.fatal = error
            self._changed.notify_all()
