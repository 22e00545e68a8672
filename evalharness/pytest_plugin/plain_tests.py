"""Tests without cases that ask the engine themselves: each becomes a row, with the generations that it asked for."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from evalharness.api.cases import Case
from evalharness.api.errors import EvalHarnessError
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationResult, Outcome
from evalharness.pytest_plugin._pytest_internals import fixtures_of_item
from evalharness.pytest_plugin.eval_module import is_ours
from evalharness.pytest_plugin.execution.engine_queue import EngineQueue
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec
from evalharness.pytest_plugin.execution.unit_results import UnitJournal
from evalharness.pytest_plugin.outcomes import ItemRecord
from evalharness.pytest_plugin.progress.counts import UnitProgress
from evalharness.pytest_plugin.registry import EvalRegistry
from evalharness.pytest_plugin.run_context import RunContext
from evalharness.runs.journal import Journal, plain_eval, plain_node
from evalharness.runs.run_file import utc_now
from evalharness.runs.schema import OutcomeLine, UnitLine

_NO_ENGINE = EngineSpec("", "", "", "")


def takes_engine(item: pytest.Item) -> bool:
    """Return whether a test, or one of its fixtures, takes the plugin's `engine` by name; that of an eval without cases has none."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    has_one = isinstance(params.get("engine", ""), str)  # else None, or what pytest puts for an empty list of parameters
    return has_one and isinstance(item, pytest.Function) and is_ours(fixtures_of_item(item, "engine"))


@dataclass
class PlainTest:
    """A running test without a case: its record, and how the engine was asked. Thread-safe, as a test may ask in threads of its own."""

    record: ItemRecord
    takes_engine: bool
    asked: list[GenerationOptions] = field(default_factory=list)
    generation_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, item: pytest.Item, registry: EvalRegistry) -> PlainTest:
        """Return a test that begins."""
        params = getattr(getattr(item, "callspec", None), "params", {})
        spec, taken = _NO_ENGINE, takes_engine(item)
        if taken:
            with suppress(EvalHarnessError):  # the fixture says what is wrong
                spec = registry.engine_of(params.get("engine"))
        node = plain_node(item.nodeid, spec.id)
        record = ItemRecord(
            nodeid=item.nodeid,
            eval=plain_eval(node.path, beside_eval=node.path in registry.modules),
            test=node.test,
            case=Case(id=node.case_id),
            engine=spec,
            options=(),
            gated=False,
            started_at=utc_now(),
        )
        return cls(record, taken)

    @property
    def asks(self) -> bool:
        """Whether the test is about an engine: it takes one, or has asked one."""
        return bool(self.takes_engine or self.asked) and self.record.engine is not _NO_ENGINE

    def take(
        self, spec: EngineSpec, options: GenerationOptions, outcome: Outcome, seconds: float, journal: Journal, progress: UnitProgress
    ) -> None:
        """Write an outcome into the journal, before the test sees it."""
        with self._lock:
            self.record.engine = spec
            if isinstance(outcome, GenerationResult) and options.seed is None and outcome.seed is not None:
                options = replace(options, seed=outcome.seed)
            place: OutcomeLine = {"sample": len(self.asked)}
            self.asked.append(options)
            self.generation_s += seconds
            UnitJournal(journal, progress, spec.id, self.record.eval).write(self.record.case.id, place, outcome)

    def write(self, context: RunContext, duration_s: float, *, is_alone: bool) -> None:
        """Write the row of the test, which has ended. `is_alone`: the run has no work units, whose seconds would be mixed with these."""
        if self.asked and is_alone:
            unit: UnitLine = {"engine": self.record.engine.id, "eval": self.record.eval}
            ended: UnitLine = {"generation_s": self.generation_s, "ended_s": time.time(), "num_outcomes": len(self.asked)}
            context.journal.write("unit", {**unit, **ended})
        options: list[Any] = [options.to_json() for options in self.asked]
        facts: Any = {
            "group": None,
            "tags": {},
            "options": options[0] if len(options) == 1 else options,
            "num_samples": max(1, len(options)),
            "run_id": context.run.run_id,
            "worker": context.journal.worker,
            "duration_s": round(duration_s, 6),
        }
        context.journal.write("row", {**self.record.to_json(), **facts})


def asks_outside_of_units() -> bool:
    """Return whether this thread's calls of an engine are a test's own: those of a unit's cases are recorded by the unit."""
    return not isinstance(threading.current_thread(), EngineQueue)
