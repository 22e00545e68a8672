"""Runs the tests of any module on every stored generation of a run, for questions that come up after the run.

Each test runs once per engine, eval and case; ids read `eval-engine-case`, and gates are judged per eval and engine.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evalharness.analysis.slice_gates import refuse_unknown_slices
from evalharness.api.cases import Case
from evalharness.api.errors import ConfigError, RecordError
from evalharness.api.options import GenerationOptions
from evalharness.config import RunConfig
from evalharness.pytest_plugin.eval_module import EvalModule, marks_of, read_eval, takes
from evalharness.pytest_plugin.execution.units import UnitKey
from evalharness.pytest_plugin.gate_names import gates_of, refuse_unknown_metrics
from evalharness.pytest_plugin.loading import CasesNotLoaded
from evalharness.pytest_plugin.outcomes import ItemRecord
from evalharness.pytest_plugin.replay.recorded_execution import RecordedExecution, RecordedRegistry
from evalharness.pytest_plugin.replay.trust import eval_file, project_folders
from evalharness.pytest_plugin.run_context import RunContext
from evalharness.runs.recorded import RecordedRun
from evalharness.runs.records import CaseRecords, RunRecords
from evalharness.runs.repeats import split_repeat
from evalharness.runs.schema import CaseFacts, Row, entries_of


class OriginalCases:
    """The cases of a run's evals as their loaders return them today, each eval loaded at most once."""

    def __init__(self, recorded: RecordedRun, run: RunConfig, project: Path | None) -> None:
        self._recorded = recorded
        self._run = run
        self._project = project
        self._by_eval: dict[str, Mapping[str, Case] | str] = {}

    def find(self, eval_name: str, case_id: str) -> Case:
        """Return the case that the eval's loader returns under this id; `RecordError` says why there is none."""
        if eval_name not in self._by_eval:
            self._by_eval[eval_name] = self._load(eval_name)
        cases = self._by_eval[eval_name]
        if isinstance(cases, str):
            raise RecordError(f"a run records id, group and tags of case {case_id!r}; for more its eval is needed: {cases}")
        if case_id not in cases:
            raise RecordError(f"eval {eval_name!r} has no case {case_id!r} any more, so nothing is known of it but id, group and tags")
        return cases[case_id]

    def _load(self, eval_name: str) -> Mapping[str, Case] | str:
        """Return the cases by id, or why they cannot be loaded."""
        path = next((path for path, entry in self._recorded.records.evals.items() if entry["name"] == eval_name), None)
        try:
            roots = project_folders(self._project)
            root = next((root for root in roots if path is not None and eval_file(root, path, self._recorded.run_dir)), None)
            if path is None or root is None:
                return f"{path or eval_name} is not here; run this in the project that it belongs to, or name it with --project"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # faults of the data were reported in the original run
                module = _imported(root / path)
                return {case.id: case for case in read_eval(_eval_marker(module), path, self._run, root).cases}
        except (Exception, SystemExit) as raised:  # whatever a user's module or data may raise
            error = raised.error if isinstance(raised, CasesNotLoaded) else raised
            return f"{path} cannot be loaded: {type(error).__name__}: {error}"


def _imported(path: Path) -> ModuleType:
    """Import the module of a file under a name of its own and return it; neighbouring modules can be imported meanwhile."""
    spec = importlib.util.spec_from_file_location(f"_evalharness_original_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def _eval_marker(module: ModuleType) -> pytest.Mark:
    """Return the eval marker of a module; `RecordError` if it no longer has one."""
    marker = next((mark for mark in marks_of(module) if mark.name == "eval"), None)
    if marker is None:
        raise RecordError("it has no pytestmark = pytest.mark.eval(...)")
    return marker


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StoredCase(Case):
    """A case as a run recorded it: id, group and tags of its row; `eval` names its eval.

    A `reference` missing from its row, and all other fields of the eval's own cases, are looked up in `original` when a test asks for them.
    """

    eval: str
    original: OriginalCases

    def __repr__(self) -> str:
        return f"StoredCase({self.eval!r}, {self.id!r})"

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return self.original.find(self.eval, self.id).reference if name == "reference" and value is None else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            original = self.original.find(self.eval, self.id)
        except RecordError as error:
            raise AttributeError(f"case {self.id!r} has no {name!r}: {error}") from error
        return getattr(original, name)


def stored_cases(records: RunRecords, original: OriginalCases) -> dict[tuple[str, str, str], StoredCase]:
    """Return every case that has a recorded outcome, by engine, eval and case id, in the order of the run."""
    known = {entry["name"]: entry["cases"] for entry in records.evals.values()}
    keys = [(row["engine"], row["eval"], row["case_id"]) for row in records.rows.values()]
    recorded = ((engine, name, case_id, case) for (_, engine, name), of_eval in records.cases.items() for case_id, case in of_eval.items())
    asked = {(engine, name, case_id): None for engine, name, case_id, case in recorded if case.samples and not split_repeat(case_id)[1]}
    references = {(row["eval"], row["case_id"]): row["reference"] for row in records.rows.values() if "reference" in row}
    cases = {}
    for engine, name, case_id in dict.fromkeys([*(key for key in keys if key in asked), *asked]):
        facts = known.get(name, {}).get(case_id, CaseFacts())
        group, tags, reference = facts.get("group"), facts.get("tags", {}), references.get((name, case_id))
        cases[engine, name, case_id] = StoredCase(id=case_id, eval=name, original=original, group=group, tags=tags, reference=reference)
    return cases


@dataclass(slots=True)
class _StoredRecord(ItemRecord):
    """A test of a stored case of any eval; the decoding options stand in the run's own row."""

    stored_options: Any = None

    def to_json(self) -> Row:
        tags = dict(self.case.tags)
        own: Row = {"group": self.case.group, "tags": tags, "num_samples": len(self.options), "options": self.stored_options}
        return {**ItemRecord.to_json(self), **own}


class StoredTestsRegistry(RecordedRegistry):
    """Tests of any module, each parametrised over all stored cases of all engines."""

    def __init__(self, context: RunContext, recorded: RecordedRun, project: Path | None = None) -> None:
        super().__init__(context, recorded)
        self._stored = stored_cases(recorded.records, OriginalCases(recorded, context.run, project))
        rows = recorded.records.rows.values()
        self._options = {(row["engine"], row["eval"], row["case_id"]): row["options"] for row in rows if row.get("options")}

    def parametrize(self, metafunc: pytest.Metafunc, marker: pytest.Mark | None) -> None:
        """Parametrise a test over all stored cases of all engines."""
        if not takes(metafunc, "case"):
            raise ConfigError(f"{metafunc.definition.nodeid} takes an engine but no `case`: recorded engines cannot generate")
        several = next((key for key in self._stored if self._num_stored(key) > 1), None)
        if takes(metafunc, "generation") and several is not None:
            raise ConfigError(
                f"{metafunc.definition.nodeid} takes `generation`, but eval {several[1]!r} has {self._num_stored(several)} of each case; "
                "take `generations`"
            )
        path = metafunc.definition.nodeid.partition("::")[0]
        self.facts["tests"] = path
        name = Path(path).stem.removeprefix("test_")
        given = marker.kwargs if marker is not None else {}
        cases, gates = list(self._stored.values()), gates_of(metafunc.definition)
        refuse_unknown_metrics(metafunc, given, gates, cases)
        refuse_unknown_slices(gates, (case.tags for case in cases), are_all=not self.recorded.run.get("partial"))
        module = EvalModule(name, path, cases, lambda case: None, (GenerationOptions(),), 1, self.context.run, given)
        num_left_out = sum(part["of"] - part["num"] for part in entries_of(self.recorded.run.get("partial")))
        self.modules[path] = replace(module, num_loaded=len({case.id for case in cases}) + num_left_out)
        metafunc.parametrize(
            ("engine", "case"),
            [(engine, case) for (engine, _, _), case in self._stored.items()],
            ids=[f"{name}-{engine}-{case_id}" for engine, name, case_id in self._stored],
            indirect=["engine"],
        )

    def _repeats_of(self, module: EvalModule, selected: Collection[str]) -> Mapping[str, Case]:
        """Return none: they are cases of other evals."""
        return {}

    def is_wanted(self, item: pytest.Item) -> bool:
        """Return whether the test judges a stored case."""
        return isinstance(getattr(getattr(item, "callspec", None), "params", {}).get("case"), StoredCase)

    def record_for(self, item: pytest.Item, unit: UnitKey) -> ItemRecord:
        """Return a new record for a test of a stored case."""
        record = super().record_for(item, unit)
        assert isinstance(record.case, StoredCase)
        key = (unit.engine, record.case.eval, record.case.id)
        known = {field.name: getattr(record, field.name) for field in fields(record)}
        known["options"] = [*record.options] * self._num_stored(key)
        return _StoredRecord(**known, stored_options=self._options.get(key, {}))

    def _num_stored(self, key: tuple[str, str, str]) -> int:
        case = self.recorded.find(*key)
        return 0 if case is None else len(case.outcomes)


class StoredTestsExecution(RecordedExecution):
    """Gives the tests of another module the recorded generations of its cases."""

    def _compare_evals(self) -> None:
        """Do nothing: cases are as the run recorded them."""

    def _find(self, record: ItemRecord) -> CaseRecords | None:
        assert isinstance(record.case, StoredCase)
        return self.recorded.find(record.engine.id, record.case.eval, record.case.id)

    def _compare_prompt(self, record: ItemRecord, entry: CaseRecords) -> None:
        """Do nothing: the case is as the run recorded it."""
