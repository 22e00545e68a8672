"""Calls the functions of evals when a run is over (`aggregate`, `across`, `tables`, `outputs`); their failures are problems of the run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.analysis.gates import BUILT_IN_METRICS, was_judged
from evalharness.api.cases import EngineComparison, OutputTarget, folder_name
from evalharness.api.checks import MAX_BITS, any_text, excerpt, plain_number, shown
from evalharness.api.errors import ContractValueError
from evalharness.config import RunConfig
from evalharness.runs.schema import Aggregate, EngineEntry, GateVerdict, OutputFile, Row, TableEntry

Table: TypeAlias = "Sequence[Mapping[str, str | int | float | None]]"


@contextmanager
def noting_failure(where: str, problems: list[str], what: str = "failed") -> Iterator[None]:
    """Make whatever user code raises in the block one of the `problems`: run when everything is over, it must not cost the report."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except _NoTable as problem:
        problems.append(f"{where} gave no tables: {problem}")
    except BaseException as error:  # SystemExit and pytest's outcomes are no `Exception`s
        problems.append(f"{where} {what}: {type(error).__name__}: {any_text(error)}")


class _NoTable(Exception):
    """Says why a value is not a table."""


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
    draws: int = 0
    """How often `aggregate` is called on cases drawn anew, for intervals."""
    suite: str | None = None
    """The group of evals that it is averaged with."""


def rows_by_engine(rows: Iterable[Row], name: str) -> dict[str, list[Row]]:
    """Return the rows of one eval by engine."""
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["eval"] == name:
            grouped[row["engine"]].append(row)
    return dict(grouped)


def _given(row: Row) -> Row:
    """Return a copy for an eval's function, whose changes must not get into the run: reports and gates go by its rows."""
    return {**row, "scores": {**row["scores"]}}


def judged_by_test(rows: Sequence[Row], name: str) -> Iterator[tuple[str, str, list[Row]]]:
    """Yield test, engine and judged rows (pass, miss or fail) of each test of an eval."""
    for engine, judged in rows_by_engine(filter(was_judged, rows), name).items():
        for test in dict.fromkeys(row["test"] for row in judged):
            yield test, engine, [_given(row) for row in judged if row["test"] == test]


def aggregate_rows(evals: Iterable[EvalFunctions], rows: Sequence[Row], problems: list[str]) -> list[Aggregate]:
    """Return the metrics of the `aggregate` functions, each called once per test and engine with the judged rows; adds to `problems`."""
    values: list[Aggregate] = []
    for functions in evals:
        for test, engine, judged in judged_by_test(rows, functions.name) if functions.aggregate else ():
            assert functions.aggregate is not None
            where = f"{functions.path}: aggregate for {test} on {engine}"
            with noting_failure(where, problems):
                entries = list(_metric_entries(functions.aggregate(judged), functions.name, test, engine, where, problems))
                values += entries  # whatever becomes of the draws
                if functions.draws:
                    _add_intervals(entries, judged, functions.aggregate, functions.draws)
    return values


def _add_intervals(
    entries: Sequence[Aggregate], rows: Sequence[Row], aggregate: Callable[[Sequence[Row]], Mapping[str, float]], num_draws: int
) -> None:
    """Add intervals to the metrics of these rows."""
    from evalharness.analysis.statistics.aggregates import draws_of, interval_of, num_groups, times_of  # loads numpy

    def metrics_of(drawn: list[Row]) -> Mapping[str, float | None]:
        return {str(name): _finite(value) for name, value in aggregate(list(map(_given, drawn))).items()}

    of_draws, groups = getattr(aggregate, "of_draws", None), num_groups(rows)
    if of_draws is None:
        draws = draws_of(rows, metrics_of, num_draws)
    else:
        together = of_draws(list(map(_given, rows)), times_of(rows, num_draws))
        draws = {str(name): list(map(_finite, values)) for name, values in together.items()}
        wrong = next((name for name, values in draws.items() if len(values) != num_draws), None)
        if wrong is not None:
            raise ContractValueError(f"of_draws must give a value for each of {num_draws} draws, got {len(draws[wrong])} of {wrong!r}")
    for entry in entries:
        drawn = draws.get(entry["metric"], [])
        entry["draws"] = [None if value is None else float(f"{value:.6g}") for value in drawn]
        entry["num_groups"] = groups
        interval = interval_of(entry["value"], drawn, groups)
        if interval is not None:
            entry["low"], entry["high"] = interval


def _metric_entries(
    metrics: Mapping[str, float | None], eval_name: str, test: str, engine: str, where: str, problems: list[str]
) -> Iterator[Aggregate]:
    """Yield the finite metrics that do not have the name of a rate; the others become `problems`, but None, which is no value."""
    for key, given in metrics.items():
        name, value = str(key), _finite(given)
        if name in BUILT_IN_METRICS:
            problems.append(f"{where} gave {name!r}, the name of a built-in metric; left out, give it another name")
        elif value is not None:
            yield {"eval": eval_name, "test": test, "engine": engine, "metric": name, "value": value}
        elif given is not None:
            problems.append(f"{where} gave {name}={shown(given)}, which is not a finite number; left out")


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is torch's, for a tensor of several
        return None
    return number if math.isfinite(number) else None


def table_entries(evals: Iterable[EvalFunctions], rows: Sequence[Row], problems: list[str]) -> list[TableEntry]:
    """Return the tables of the `tables` functions, each called once per test and engine with the judged rows; adds to `problems`."""
    entries: list[TableEntry] = []
    for functions in evals:
        for test, engine, judged in judged_by_test(rows, functions.name) if functions.tables else ():
            assert functions.tables is not None
            where = f"{functions.path}: tables for {test} on {engine}"
            with noting_failure(where, problems):
                entries += _checked_tables(functions.tables(judged), functions.name, test, engine, where, problems)
    return entries


def _checked_tables(
    tables: Mapping[str, Table], eval_name: str, test: str, engine: str, where: str, problems: list[str]
) -> Iterator[TableEntry]:
    """Yield the tables that can be shown; each of the others becomes one of the `problems`."""
    for title, lines in tables.items():
        with noting_failure(where, problems):
            if not isinstance(title, str):
                raise _NoTable(f"the title {shown(title)} must be a text")
            rows = [_line(title, line) for line in lines]
            yield {"eval": eval_name, "test": test, "engine": engine, "title": title, "rows": rows}


def _shown(value: object) -> str:
    return excerpt(shown(value), 2000, count_rest=True)


def _line(title: str, line: Any) -> dict[str, Any]:
    if not isinstance(line, Mapping):
        raise _NoTable(f"a row of {title!r} must be a mapping from column to value, got {_shown(line)}")
    cells = {column: plain_number(value) for column, value in line.items()}
    for column, value in cells.items():
        if not isinstance(column, str):
            raise _NoTable(f"a column of {title!r} is {shown(column)}; columns are texts")
        if value is not None and not isinstance(value, (str, bool, int, float)):
            raise _NoTable(f"{column!r} in {title!r} is {_shown(value)} ({type(value).__name__}); give a text, a number or None")
        if isinstance(value, int) and value.bit_length() >= MAX_BITS:
            raise _NoTable(f"{column!r} in {title!r} is an int of {value.bit_length():,} bits; give it as a text")
        if isinstance(value, float) and not math.isfinite(value):
            raise _NoTable(f"{column!r} in {title!r} is {value}; give None where there is no number")
    return cells


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
    groups = engines_to_compare(engines)
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
                with noting_failure(where, problems):
                    result = functions.across(compared, {engine: facts[engine] for engine in group})
                    comparison = result if isinstance(result, EngineComparison) else EngineComparison(result)
                    remarks = {(functions.name, test, engine): str(remark) for engine, remark in comparison.remarks.items()}
                    results.remarks.update(remarks)
                    for engine, each in comparison.metrics.items():
                        if engine in group:
                            with noting_failure(where, problems):
                                results.aggregates.extend(_metric_entries(each, functions.name, test, engine, where, problems))
                        else:
                            problems.append(f"{where} gave metrics of {engine!r}, which is not one of these engines; left out")
                    for engine in group:
                        with noting_failure(where, problems):
                            results.tables.extend(
                                _checked_tables(comparison.tables.get(engine, {}), functions.name, test, engine, where, problems)
                            )
    return results


def engines_to_compare(engines: Iterable[EngineEntry]) -> list[list[str]]:
    """Return the ids of engines that run the same checkpoint and so should agree, where there are several; fake scripts count as one."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for entry in engines:
        groups["fake" if entry["backend"] == "fake" else entry.get("fingerprint") or entry["checkpoint_path"]].append(entry["id"])
    return [group for group in groups.values() if len(group) > 1]


class _WatchedTarget(OutputTarget):
    """Notes whether an `outputs` function asks how many spot checks there are to be."""

    has_spot_checks = False

    def __getattribute__(self, name: str) -> Any:
        if name == "spot":
            type(self).has_spot_checks = True
        return super().__getattribute__(name)


def write_outputs(
    evals: Iterable[EvalFunctions], rows: Sequence[Row], run_dir: Path, run: RunConfig, problems: list[str]
) -> tuple[list[OutputFile], bool]:
    """Return the files that the `outputs` functions wrote, each called once per engine with all rows; adds to `problems`.

    Paths are relative to `run_dir`. Also returns whether any of the functions has spot checks.
    """
    _WatchedTarget.has_spot_checks = False
    entries: list[OutputFile] = []
    for functions in evals:
        for engine, engine_rows in rows_by_engine(rows, functions.name).items() if functions.outputs else ():
            folder = run_dir / "outputs" / folder_name(engine)
            target = _WatchedTarget(folder, engine, functions.data_dir, run.spot, run.seed)
            before = _files(folder)
            _write(functions, list(map(_given, engine_rows)), target, problems)
            for path, facts in _files(folder).items():
                if before.get(path) != facts:
                    name = path.relative_to(run_dir).as_posix()
                    entries.append({"eval": functions.name, "engine": engine, "path": name, "num_bytes": facts[0]})
    return entries, _WatchedTarget.has_spot_checks


def _write(functions: EvalFunctions, rows: Sequence[Row], target: OutputTarget, problems: list[str]) -> None:
    assert functions.outputs is not None
    with noting_failure(f"{functions.path}: outputs for {target.engine}", problems):
        target.folder.mkdir(parents=True, exist_ok=True)
        functions.outputs(rows, target)
    for folder in (target.folder, target.folder.parent):  # of one that wrote nothing
        with suppress(OSError):
            folder.rmdir()


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return size and modification time of every file below a folder."""
    stats = {path: path.stat() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {path: (facts.st_size, facts.st_mtime_ns) for path, facts in stats.items()}
