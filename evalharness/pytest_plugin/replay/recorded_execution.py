"""Runs tests on the generations of an earlier run: its engines are recorded ones, and nothing is generated.

The same code as in a live run makes rows, aggregates, gates and reports. Differences are listed: cases that are gone or new, and prompts
that would differ today.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest

from evalharness.api.cases import Case
from evalharness.api.errors import BackendError, RecordError
from evalharness.api.requests import GenerationFailure, GenerationResult, Outcome
from evalharness.pytest_plugin.eval_module import EvalModule
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec
from evalharness.pytest_plugin.execution.execution import Execution, Origin
from evalharness.pytest_plugin.execution.until_certain import UntilCertain, recorded_edges
from evalharness.pytest_plugin.outcomes import ItemRecord
from evalharness.pytest_plugin.registry import EvalRegistry
from evalharness.pytest_plugin.replay.changes import case_changes, judging_changes, prompt_change
from evalharness.pytest_plugin.run_context import RunContext
from evalharness.runs.journal import parse_nodeid
from evalharness.runs.recorded import RecordedRun, outcome_of
from evalharness.runs.records import CaseRecords, Failed, Recorded
from evalharness.runs.repeats import split_repeat
from evalharness.runs.schema import OutcomeKind, OutcomeLine

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine


class RecordedEngine:
    """Stands for a recorded run's engine: describes it, and refuses to generate."""

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


class RecordedRegistry(EvalRegistry):
    """The evals of a recorded run that is scored again."""

    def __init__(self, context: RunContext, recorded: RecordedRun) -> None:
        try:
            engines = [EngineSpec.from_json(spec) for spec in recorded.records.collected["engines"]]
        except (KeyError, TypeError) as error:
            raise RecordError(f"the engines of run {recorded.run_id} cannot be understood: {type(error).__name__}: {error}") from error
        edges = recorded_edges(recorded.records.evals.values()) if context.run.until_certain else None
        super().__init__(context, engines, UntilCertain(context, edges))
        self.recorded = recorded
        self.facts: dict[str, Any] = {**recorded.facts(), "changes": []}
        """What run.json says of the run that is scored again."""
        self.collected_then = frozenset(recorded.records.collected["nodeids"])
        nodes = (parse_nodeid(nodeid, self.engine_ids) for nodeid in self.collected_then)
        self._tests_then = {(node.path, node.test) for node in nodes if node is not None}

    def _repeats_of(self, module: EvalModule, selected: Collection[str]) -> Mapping[str, Case]:
        """Return the repeats that the run made: those of its parts, if it had some."""
        known = {case.id: case for case in module.cases if case.id in selected}
        made = dict.fromkeys(
            case_id for (_, _, name), cases in self.recorded.records.cases.items() if name == module.name for case_id in cases
        )
        originals = {case_id: split_repeat(case_id)[0] for case_id in made if split_repeat(case_id)[1]}
        return {case_id: known[original] for case_id, original in originals.items() if original in known}

    def is_wanted(self, item: pytest.Item) -> bool:
        """Return whether a collected test is scored: it ran then, or it or its case is new. All other tests were deselected then."""
        case = getattr(getattr(item, "callspec", None), "params", {}).get("case")
        node = parse_nodeid(item.nodeid, self.engine_ids)
        if not isinstance(case, Case) or node is None:
            return False
        if item.nodeid in self.collected_then:
            return True
        entry = self.recorded.records.evals.get(node.path, {})
        if case.id not in entry.get("cases", {}):
            return True
        is_new_test = (node.path, node.test) not in self._tests_then
        return is_new_test and self.recorded.find(node.engine, entry["name"], case.id) is not None


class RecordedExecution(Execution):
    """Gives tests the recorded generations of their cases."""

    registry: RecordedRegistry

    def __init__(self, context: RunContext, registry: RecordedRegistry) -> None:
        super().__init__(context, registry)
        self.recorded = recorded = registry.recorded
        self.origin = Origin({"rescored": registry.facts}, recorded.generation_facts, recorded.why_incomplete)
        self._changes: dict[tuple[str, str], tuple[list[str], set[str]]] = {}
        self._journaled: dict[tuple[str, str, str], CaseRecords] = {}

    def note_evals(self, items: Sequence[pytest.Item]) -> None:
        """Write the evals and the recorded engines into the journal; list the cases that have changed."""
        if not self._has_noted_evals:
            super().note_evals(items)
            for line in self.recorded.records.engine_lines:
                self.context.journal.write("engine", line)
            self._compare_evals()

    def _compare_evals(self) -> None:
        modules = self.registry.modules
        for path, entry in self.recorded.records.evals.items():
            if path in modules:
                for case_id, what in case_changes(entry.get("cases", {}), modules[path].cases):
                    self._note_change(entry["name"], what, case_id)
                for change in judging_changes(self.recorded, modules[path], self.context.root):
                    for case_id in change.case_ids:
                        self._note_change(entry["name"], change.what, case_id, change.detail)
            else:
                self.context.journal.write("problem", {"problem": f"{path} is not there any more: its tests could not run again"})

    def _note_change(self, eval_name: str, what: str, case_id: str, detail: str | None = None) -> None:
        """Add a case to run.json's list of changes; several engines may have run it, but it is listed once."""
        if (eval_name, what) not in self._changes:
            entry: dict[str, Any] = {"eval": eval_name, "what": what, "cases": [], "first": detail}
            self.registry.facts["changes"].append(entry)
            self._changes[eval_name, what] = entry["cases"], set()
        listed, known = self._changes[eval_name, what]
        if case_id not in known:
            known.add(case_id)
            listed.append(case_id)

    def open_engine(self, spec: EngineSpec) -> Engine:
        """Return the stand-in for the engine."""
        lines = [line["settings"] for line in self.recorded.records.engine_lines if line["id"] == spec.id]
        return cast("Engine", RecordedEngine(spec, lines[-1] if lines else {}))

    def close_engine(self, spec: EngineSpec, engine: Engine) -> None:
        """Do nothing: nothing is open."""

    def wait_for_outcomes(self, record: ItemRecord, engine: Engine) -> list[Outcome]:
        """Return the recorded outcome of every sample; skips the test of a case that has neither outcome nor failure."""
        entry = self._find(record)
        samples = list(map(({} if entry is None else entry.samples).get, range(len(record.options))))
        row = self.recorded.records.rows.get(record.nodeid, {})
        if None in samples and row.get("outcome") not in ("error", "invalid"):
            record.started_at = None  # as for every test that was not run
            was_collected = record.nodeid in self.registry.collected_then
            why = self.recorded.why_incomplete if was_collected else f"run {self.recorded.run_id} did not have this test for it"
            pytest.skip(f"not run: no generation of this case is recorded: {why}")
        if entry is not None:
            self._copy_to_journal(record, entry)
        failure = GenerationFailure.recorded(row.get("outcome", "error"), row.get("problem") or "no reason was recorded", row.get("cause"))
        altered = [step for step in ({} if entry is None else entry.in_steps).values() if isinstance(step, Recorded) and step["hidden"]]
        return [failure if sample is None else outcome_of(altered[0] if altered else sample) for sample in samples]

    def steps(self, record: ItemRecord, engine: Engine) -> list[list[GenerationResult]]:
        """Return the recorded results of the test's steps."""
        entry = self._find(record)
        steps = (entry.steps() if entry is not None else None) or []
        return [[GenerationResult.from_json(result.whole()) for result in step if result is not None] for step in steps]

    def _find(self, record: ItemRecord) -> CaseRecords | None:
        return self.recorded.find(record.engine.id, record.eval, record.case.id, record.nodeid)

    def _copy_to_journal(self, record: ItemRecord, entry: CaseRecords) -> None:
        """Copy the case's recorded outcomes into this run's journal, before its test sees them."""
        key = (record.engine.id, record.eval, record.case.id)
        if self._journaled.get(key) is entry:
            return
        self._compare_prompt(record, entry)
        case: OutcomeLine = {"engine": record.engine.id, "eval": record.eval, "case_id": record.case.id}
        shape: OutcomeLine = {} if entry.shape is None else {"steps": entry.shape}
        for (step, request), outcome in entry.in_steps.items():
            if entry.shape is not None and (step >= len(entry.shape) or request >= entry.shape[step]):
                continue  # of an earlier time that the case was asked
            self._write("step", "step_failure", {**case, "step": step, "request": request}, outcome)
        for sample, outcome in entry.samples.items():
            self._write("generation", "failure", {**case, "sample": sample, **shape}, outcome)
        self._journaled[key] = entry

    def _write(self, kind: OutcomeKind, failure_kind: OutcomeKind, place: OutcomeLine, outcome: Recorded | Failed) -> None:
        if isinstance(outcome, Recorded):
            self.context.journal.write(kind, {**place, "generation": outcome.whole()})
        else:
            self.context.journal.write(failure_kind, {**place, "failure": outcome.kind, "problem": outcome.problem, "cause": outcome.cause})

    def _compare_prompt(self, record: ItemRecord, entry: CaseRecords) -> None:
        module = next(module for module in self.registry.modules.values() if module.name == record.eval)
        change = prompt_change(module.request_of(record.case), entry)
        if change is not None:
            self._note_change(record.eval, change.what, record.case.id, change.detail)
