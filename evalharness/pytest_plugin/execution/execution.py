"""Runs the eval tests of one process: opens and closes engines, waits for a case's generations, writes each test's row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from evalharness.api.errors import BackendError
from evalharness.api.requests import GenerationFailure, GenerationResult, Outcome
from evalharness.pytest_plugin.distributed.worker import exit_worker_if_engine_failed
from evalharness.pytest_plugin.execution.engine_queue import RunningUnits
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec
from evalharness.pytest_plugin.execution.engines import EngineOpening
from evalharness.pytest_plugin.execution.unit_runner import UnitProgress
from evalharness.pytest_plugin.execution.units import UnitPlan
from evalharness.pytest_plugin.outcomes import ItemRecord, reference_of
from evalharness.pytest_plugin.registry import EvalRegistry
from evalharness.pytest_plugin.run_context import RunContext
from evalharness.runs.schema import Row, RunFile

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine
    from evalharness.runs.records import GenerationFacts


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
        self.while_waiting: Callable[[], None] = lambda: None
        """Called now and then while a test waits for its generations."""
        self.origin = Origin()
        self._has_noted_evals = False

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

        def while_waiting() -> None:
            self.units.look_ahead(engine)
            self.while_waiting()

        outcomes: list[Outcome]
        try:
            outcomes = self.units.results(self.plan.units[record.nodeid], engine).outcomes(record.case.id, while_waiting)
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
        journal.write("row", {**record.to_json(), **reference_of(record.case), **facts})

    def close(self) -> None:
        """Stop generating and close the engine that was kept."""
        self.units.stop()
        self.engines.close()
