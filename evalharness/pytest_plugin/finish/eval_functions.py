"""Calls the functions of evals when a run is over (`aggregate`, `across`, `tables`, `outputs`); their failures are problems of the run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import pytest

from evalharness.analysis.gates import BUILT_IN_METRICS, was_judged
from evalharness.api.cases import EngineComparison, OutputTarget, folder_name
from evalharness.config import RunConfig
from evalharness.pytest_plugin._pytest_internals import import_module
from evalharness.pytest_plugin.eval_module import data_folder
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec, engines_by_checkpoint
from evalharness.pytest_plugin.outcomes import shorten
from evalharness.pytest_plugin.session import STATE
from evalharness.runs.schema import Aggregate, EngineEntry, EvalLine, GateVerdict, OutputFile, Row, TableEntry

Table: TypeAlias = "Sequence[Mapping[str, str | int | float | None]]"

# User code, imported or run when everything is over: whatever it does must not cost the report. Pytest's own outcomes
# and SystemExit are no `Exception`s.
ANY_FAILURE = (Exception, SystemExit, pytest.fail.Exception, pytest.skip.Exception, pytest.exit.Exception)


@dataclass(frozen=True)
class EvalFunctions:
    """An eval's functions for the end of a run, from its marker; None for those not given."""

    name: str
    path: str
    data_dir: Path | None
    aggregate: Callable[[Sequence[Row]], Mapping[str, float]] | None
    across: Callable[[Mapping[str, Sequence[Row]], Mapping[str, EngineEntry]], Mapping[str, Mapping[str, float]]] | None
    tables: Callable[[Sequence[Row]], Mapping[str, Table]] | None
    outputs: Callable[[Sequence[Row], OutputTarget], object] | None


def load_functions(config: pytest.Config, evals: Mapping[str, EvalLine], problems: list[str]) -> list[EvalFunctions]:
    """Return the functions of every eval by path; a module that cannot be imported is one of the `problems`.

    Under xdist only the workers have imported the modules, so this imports them the same way.
    """
    state = config.stash[STATE]
    loaded = []
    for path, entry in evals.items():
        try:
            given = state.registry.marker_arguments(path) or _imported_marker(config, path)
        except ANY_FAILURE as error:
            problems.append(f"{path}: its functions for the end of the run cannot be loaded: {type(error).__name__}: {error}")
            continue
        asked = {name: given.get(name) for name in ("aggregate", "across", "tables", "outputs")}
        loaded.append(EvalFunctions(entry["name"], path, data_folder(given.get("data"), state.context.run, state.context.root), **asked))
    return loaded


def rows_by_engine(rows: Iterable[Row], name: str) -> dict[str, list[Row]]:
    """Return the rows of one eval by engine."""
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["eval"] == name:
            grouped[row["engine"]].append(row)
    return dict(grouped)


def _imported_marker(config: pytest.Config, path: str) -> Mapping[str, Any]:
    module = import_module(config.stash[STATE].context.root / path, config)  # as the workers did, so its own imports work here too
    return next((mark.kwargs for mark in _marks(module) if mark.name == "eval"), {})


def _marks(module: ModuleType) -> Iterator[pytest.Mark]:
    """Yield the markers of the module itself, then those of its classes and functions."""
    for holder in (module, *(value for value in vars(module).values() if isinstance(value, (type, FunctionType)))):
        marks = getattr(holder, "pytestmark", [])
        for mark in marks if isinstance(marks, (list, tuple)) else [marks]:
            mark = getattr(mark, "mark", mark)
            if isinstance(mark, pytest.Mark):
                yield mark


def judged_by_test(rows: Sequence[Row], name: str) -> Iterator[tuple[str, str, list[Row]]]:
    """Yield test, engine and judged rows (pass, miss or fail) of each test of an eval."""
    for engine, judged in rows_by_engine(filter(was_judged, rows), name).items():
        for test in dict.fromkeys(row["test"] for row in judged):
            yield test, engine, [row for row in judged if row["test"] == test]


def aggregate_rows(evals: Iterable[EvalFunctions], rows: Sequence[Row], problems: list[str]) -> list[Aggregate]:
    """Return the metrics of the `aggregate` functions, each called once per test and engine with the judged rows; adds to `problems`."""
    values: list[Aggregate] = []
    for functions in evals:
        for test, engine, judged in judged_by_test(rows, functions.name) if functions.aggregate else ():
            assert functions.aggregate is not None
            where = f"{functions.path}: aggregate for {test} on {engine}"
            try:
                metrics = {str(name): float(value) for name, value in functions.aggregate(judged).items()}
            except ANY_FAILURE as error:
                problems.append(f"{where} failed: {type(error).__name__}: {error}")
                continue
            for metric, value in finite_metrics(metrics, where, problems):
                values.append({"eval": functions.name, "test": test, "engine": engine, "metric": metric, "value": value})
    return values


def finite_metrics(metrics: Mapping[str, float], where: str, problems: list[str]) -> Iterator[tuple[str, float]]:
    """Yield the finite metrics that do not have the name of a rate; the others become `problems`."""
    for name, value in metrics.items():
        if name in BUILT_IN_METRICS:
            problems.append(f"{where} gave {name!r}, the name of a rate that every test has; left out, give it another name")
        elif math.isfinite(value):
            yield name, value
        else:
            problems.append(f"{where} gave {name}={value}; left out")


class _NoTable(Exception):
    """Says why a value is not a table."""


def table_entries(evals: Iterable[EvalFunctions], rows: Sequence[Row], problems: list[str]) -> list[TableEntry]:
    """Return the tables of the `tables` functions, each called once per test and engine with the judged rows; adds to `problems`."""
    entries: list[TableEntry] = []
    for functions in evals:
        for test, engine, judged in judged_by_test(rows, functions.name) if functions.tables else ():
            assert functions.tables is not None
            where = f"{functions.path}: tables for {test} on {engine}"
            for title, lines in checked_tables(partial(functions.tables, judged), where, problems):
                entries.append({"eval": functions.name, "test": test, "engine": engine, "title": title, "rows": lines})
    return entries


def checked_tables(
    tables: Callable[[], Mapping[str, Table]], where: str, problems: list[str]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield title and rows of each table that a function returns; faults are added to `problems`."""
    try:
        checked = [(_title(title), [_line(title, line) for line in lines]) for title, lines in tables().items()]
    except _NoTable as problem:
        problems.append(f"{where} gave no tables: {problem}")
        return
    except ANY_FAILURE as error:
        problems.append(f"{where} failed: {type(error).__name__}: {error}")
        return
    yield from checked


def _title(title: Any) -> str:
    if not isinstance(title, str):
        raise _NoTable(f"the title {title!r} must be a text")
    return title


def _line(title: str, line: Any) -> dict[str, Any]:
    if not isinstance(line, Mapping):
        raise _NoTable(f"a row of {title!r} must be a mapping from column to value, got {shorten(repr(line))}")
    cells: dict[str, Any] = {}
    for column, value in line.items():
        if not isinstance(column, str):
            raise _NoTable(f"a column of {title!r} is {column!r}; columns are texts")
        if not isinstance(value, (bool, int, float)) and hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
            value = value.item()  # numpy's numbers
        if value is not None and not isinstance(value, (str, bool, int, float)):
            raise _NoTable(f"{column!r} in {title!r} is {shorten(repr(value))} ({type(value).__name__}); give a text, a number or None")
        if isinstance(value, float) and not math.isfinite(value):
            raise _NoTable(f"{column!r} in {title!r} is {value}; give None where there is no number")
        cells[column] = value
    return cells


_SPEC_FIELDS = frozenset(field.name for field in fields(EngineSpec))


@dataclass(frozen=True)
class AcrossEngines:
    """The results of all `across` functions: entries like those of `aggregate` and `tables`, and remarks for gates."""

    aggregates: list[Aggregate] = field(default_factory=list)
    tables: list[TableEntry] = field(default_factory=list)
    remarks: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def remark(self, gates: Iterable[GateVerdict]) -> None:
        """Append an engine's remarks to the reasons of its failed gates on compared metrics."""
        compared = {(entry["eval"], entry["test"], entry["engine"], entry["metric"]) for entry in self.aggregates}
        for gate in gates:
            place = (gate["eval"], gate["test"], gate["engine"])
            if not gate["passed"] and (*place, gate["metric"]) in compared and place in self.remarks:
                gate["reason"] = f"{gate['reason']}; {self.remarks[place]}"


def across_engines(
    evals: Iterable[EvalFunctions], rows: Sequence[Row], engines: Sequence[EngineEntry], problems: list[str]
) -> AcrossEngines:
    """Return the results of the `across` functions; adds to `problems`.

    An `across` is called once per test and checkpoint that several engines ran: `across(rows, engines)` gets the judged rows and run.json's
    facts of each engine by id, and returns `{engine id: {metric: value}}` or an `EngineComparison`.
    """
    results = AcrossEngines()
    facts = {entry["id"]: entry for entry in engines}
    groups = _engines_together(engines)
    for functions in evals:
        if functions.across is None:
            continue
        judged: dict[str, dict[str, list[Row]]] = {}
        for test, engine, rows_of_test in judged_by_test(rows, functions.name):
            judged.setdefault(test, {})[engine] = rows_of_test
        for test, by_engine in judged.items():
            for group in groups:
                where = f"{functions.path}: across for {test} on {', '.join(group)}"
                compared = {engine: by_engine.get(engine, []) for engine in group}
                try:
                    result = functions.across(compared, {engine: facts[engine] for engine in group})
                    comparison = result if isinstance(result, EngineComparison) else EngineComparison(result)
                    metrics = {str(e): {str(name): float(value) for name, value in each.items()} for e, each in comparison.metrics.items()}
                    remarks = {(functions.name, test, e): str(remark) for e, remark in comparison.remarks.items()}
                except ANY_FAILURE as error:
                    problems.append(f"{where} failed: {type(error).__name__}: {error}")
                    continue
                results.remarks.update(remarks)
                for engine, each in metrics.items():
                    if engine not in group:
                        problems.append(f"{where} gave metrics of {engine!r}, which is none of these engines; left out")
                        continue
                    for metric, value in finite_metrics(each, where, problems):
                        results.aggregates.append(
                            {"eval": functions.name, "test": test, "engine": engine, "metric": metric, "value": value}
                        )
                for engine in group:
                    for title, lines in checked_tables(partial(_tables_of, comparison, engine), where, problems):
                        results.tables.append({"eval": functions.name, "test": test, "engine": engine, "title": title, "rows": lines})
    return results


def _tables_of(comparison: EngineComparison, engine: str) -> Mapping[str, Table]:
    return comparison.tables.get(engine, {})  # users may give anything


def _engines_together(engines: Sequence[EngineEntry]) -> list[list[str]]:
    specs = [EngineSpec.from_json({key: value for key, value in entry.items() if key in _SPEC_FIELDS}) for entry in engines]
    return [[spec.id for spec in group] for group in engines_by_checkpoint(specs).values() if len(group) > 1]


def write_outputs(
    evals: Iterable[EvalFunctions], rows: Sequence[Row], run_dir: Path, run: RunConfig, problems: list[str]
) -> list[OutputFile]:
    """Return the files that the `outputs` functions wrote, each called once per engine with all rows; adds to `problems`.

    Paths are relative to `run_dir`.
    """
    entries: list[OutputFile] = []
    for functions in evals:
        for engine, engine_rows in rows_by_engine(rows, functions.name).items() if functions.outputs else ():
            folder = run_dir / "outputs" / folder_name(engine)
            target = OutputTarget(folder, engine, functions.data_dir, run.spot, run.seed)
            before = _files(folder)
            _write(functions, engine_rows, target, problems)
            for path, facts in _files(folder).items():
                if before.get(path) != facts:
                    name = path.relative_to(run_dir).as_posix()
                    entries.append({"eval": functions.name, "engine": engine, "path": name, "num_bytes": facts[0]})
    return entries


def _write(functions: EvalFunctions, rows: Sequence[Row], target: OutputTarget, problems: list[str]) -> None:
    assert functions.outputs is not None
    try:
        target.folder.mkdir(parents=True, exist_ok=True)
        functions.outputs(rows, target)
    except ANY_FAILURE as error:
        problems.append(f"{functions.path}: outputs for {target.engine} failed: {type(error).__name__}: {error}")
    for folder in (target.folder, target.folder.parent):  # of one that wrote nothing
        with suppress(OSError):
            folder.rmdir()


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return size and modification time of every file below a folder."""
    stats = {path: path.stat() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {path: (facts.st_size, facts.st_mtime_ns) for path, facts in stats.items()}
