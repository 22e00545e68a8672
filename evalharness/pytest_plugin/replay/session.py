"""A session whose engines are recorded ones: tests get the generations of an earlier run, and nothing is generated.

Rows, aggregates, gates and reports are made by the same code as in a live run. What cannot be the same is listed: cases
that are gone or new, prompts that would be others now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from evalharness.api.cases import Case
from evalharness.api.errors import BackendError, RecordError
from evalharness.api.requests import GenerationFailure, GenerationResult
from evalharness.config import RunConfig
from evalharness.pytest_plugin.execution.case_request import Outcome
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec
from evalharness.pytest_plugin.outcomes import ItemRecord, NotRecorded
from evalharness.pytest_plugin.replay.prompt_changes import case_changes, prompt_change
from evalharness.pytest_plugin.session import EvalSession
from evalharness.runs.journal import parse_nodeid
from evalharness.runs.recorded import RecordedRun, outcome_of
from evalharness.runs.records import CaseRecords, Recorded

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine

__all__ = ["RecordedEngine", "RescoringSession"]


class RecordedEngine:
    """Stands where a run has its engine; tells what is known of it and refuses to generate."""

    def __init__(self, spec: EngineSpec, facts: dict[str, Any]) -> None:
        self.name = spec.backend
        self._id = spec.id
        self._facts = facts

    def describe(self) -> dict[str, Any]:
        """Return what the run recorded of the engine."""
        return dict(self._facts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise BackendError(f"engine {self._id} is that of a recorded run and nothing is loaded: it has no {name!r} when scored again")


class RescoringSession(EvalSession):
    """The state of a session that scores a recorded run again."""

    def __init__(self, recorded: RecordedRun, run: RunConfig, root: Path) -> None:
        try:
            engines = [EngineSpec.from_json(spec) for spec in recorded.records.collected["engines"]]
        except (KeyError, TypeError) as error:
            raise RecordError(f"the engines of run {recorded.run_id} cannot be understood: {type(error).__name__}: {error}") from error
        super().__init__(run, root, "main", 0, engines)
        self.recorded = recorded
        self.generation_facts = recorded.generation_facts
        self.why_not_run = recorded.why_incomplete
        self._changes: dict[tuple[str, str], dict[str, Any]] = {}
        self._named: set[tuple[str, str, str]] = set()
        self._journaled: dict[tuple[str, str, str], CaseRecords] = {}
        self.origin = {"rescored": {**recorded.facts(), "changes": []}}
        collected = [parse_nodeid(nodeid, [spec.id for spec in engines]) for nodeid in recorded.records.collected["nodeids"]]
        self._collected = set(recorded.records.collected["nodeids"])
        self._tests_then = {(node.path, node.test) for node in collected if node is not None}

    # Which tests run

    def is_wanted(self, item: pytest.Item) -> bool:
        """Return whether a collected test belongs here: it ran then, or it or its case is new. Others were deselected then."""
        case = getattr(getattr(item, "callspec", None), "params", {}).get("case")
        node = parse_nodeid(item.nodeid, [spec.id for spec in self.known_engines])
        if not isinstance(case, Case) or node is None:
            return False
        if item.nodeid in self._collected:
            return True
        entry = self.recorded.records.evals.get(node.path, {})
        if case.id not in entry.get("cases", {}):
            return True
        is_new_test = (node.path, node.test) not in self._tests_then
        return is_new_test and self.recorded.find(node.engine, entry["name"], case.id) is not None

    def note_evals(self, items: Sequence[pytest.Item]) -> None:
        """Write what the run wrote of evals, and of its engines; list the cases that are others now."""
        if self._evals_noted:
            return
        super().note_evals(items)
        for line in self.recorded.records.engine_lines:
            self.journal.write("engine", line)
        self._compare_evals()

    def _compare_evals(self) -> None:
        for path, entry in self.recorded.records.evals.items():
            if path in self.modules:
                for case_id, what in case_changes(entry.get("cases", {}), self.modules[path].cases):
                    self._note_change(entry["name"], what, case_id)
            else:
                self.journal.write("problem", {"problem": f"{path} is not there any more: its tests could not run again"})

    def _note_change(self, eval_name: str, what: str, case_id: str, detail: str | None = None) -> None:
        """Add a case to run.json's list of changes; each engine asked it, and it is named once."""
        entry = self._changes.get((eval_name, what))
        if entry is None:
            entry = self._changes[eval_name, what] = {"eval": eval_name, "what": what, "cases": [], "first": detail}
            self.origin["rescored"]["changes"].append(entry)
        if (eval_name, what, case_id) not in self._named:
            self._named.add((eval_name, what, case_id))
            entry["cases"].append(case_id)

    # What they get

    def open_engine(self, spec: EngineSpec) -> Engine:
        """Return what stands for the engine."""
        lines = [line["settings"] for line in self.recorded.records.engine_lines if line["id"] == spec.id]
        return cast("Engine", RecordedEngine(spec, lines[-1] if lines else {}))

    def close_engine(self, spec: EngineSpec, engine: Engine) -> None:
        """Do nothing: nothing is open."""

    def outcomes(self, record: ItemRecord, engine: Engine, while_waiting: Callable[[], None]) -> list[Outcome]:
        """Return the recorded outcome of every sample; `NotRecorded` for a case that has none and was no failure either."""
        found = self._find(record)
        samples = [found.samples.get(sample) if found is not None else None for sample in range(self._num_samples(record, found))]
        row = self.recorded.records.rows.get(record.nodeid, {})
        if None in samples and row.get("outcome") not in ("error", "invalid"):
            raise NotRecorded(f"no generation of this case is recorded: {self._why_not(record)}")
        if found is not None:
            self._take(record, found)
        failure = GenerationFailure.recorded(row.get("outcome", "error"), row.get("problem") or "no reason was recorded", row.get("cause"))
        return [failure if sample is None else outcome_of(sample) for sample in samples]

    def steps(self, record: ItemRecord, engine: Engine) -> list[list[GenerationResult]]:
        """Return the recorded results of the test's steps."""
        found = self._find(record)
        steps = (found.steps() if found is not None else None) or []
        return [[GenerationResult.from_json(one.whole()) for one in step if one is not None] for step in steps]

    def _find(self, record: ItemRecord) -> CaseRecords | None:
        return self.recorded.find(record.engine.id, record.eval, record.case.id, record.nodeid)

    def _num_samples(self, record: ItemRecord, found: CaseRecords | None) -> int:
        return len(record.options)

    def _why_not(self, record: ItemRecord) -> str:
        is_old = record.nodeid in self._collected
        return self.recorded.why_incomplete if is_old else f"run {self.recorded.run_id} did not have this test for it"

    def _take(self, record: ItemRecord, found: CaseRecords) -> None:
        """Write what the run recorded of the case into this run's journal, before its test sees it."""
        key = (record.engine.id, record.eval, record.case.id)
        if self._journaled.get(key) is found:
            return
        self._compare_prompt(record, found)
        case = dict(zip(("engine", "eval", "case_id"), key, strict=True))
        shape = {} if found.shape is None else {"steps": found.shape}
        for (step, request), outcome in found.in_steps.items():
            if found.shape is not None and (step >= len(found.shape) or request >= found.shape[step]):
                continue  # of an earlier time that the case was asked
            self._write("step", "step_failure", {**case, "step": step, "request": request}, outcome)
        for sample, outcome in found.samples.items():
            self._write("generation", "failure", {**case, "sample": sample, **shape}, outcome)
        self._journaled[key] = found

    def _write(self, kind: str, failure_kind: str, place: dict[str, Any], outcome: Any) -> None:
        if isinstance(outcome, Recorded):
            self.journal.write(kind, {**place, "generation": outcome.whole()})
        else:
            self.journal.write(failure_kind, {**place, "failure": outcome.kind, "problem": outcome.problem, "cause": outcome.cause})

    def _compare_prompt(self, record: ItemRecord, found: CaseRecords) -> None:
        module = next(module for module in self.modules.values() if module.name == record.eval)
        change = prompt_change(module.request_of(record.case), found)
        if change is not None:
            self._note_change(record.eval, change.what, record.case.id, change.detail)
