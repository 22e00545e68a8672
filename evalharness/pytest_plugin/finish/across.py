"""Metrics of engines against each other: the `across` functions of evals, run over the judged rows once all are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from evalharness.api.engine_comparison import EngineComparison
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec, engines_by_checkpoint
from evalharness.pytest_plugin.finish.aggregates import finite_metrics, judged_by_test
from evalharness.pytest_plugin.finish.eval_functions import ANY_FAILURE, EvalFunctions, Row
from evalharness.pytest_plugin.finish.eval_tables import checked_tables

__all__ = ["AcrossEngines", "across_engines"]

_SPEC_FIELDS = frozenset(field.name for field in fields(EngineSpec))


@dataclass(frozen=True)
class AcrossEngines:
    """What all comparisons of a run gave: entries like those of `aggregate` and `tables`, and remarks for gates."""

    aggregates: list[dict[str, Any]] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    remarks: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def remark(self, gates: Iterable[dict[str, Any]]) -> None:
        """Add to the reason of each failed gate on a metric that was compared what was remarked about its engine."""
        compared = {(entry["eval"], entry["test"], entry["engine"], entry["metric"]) for entry in self.aggregates}
        for gate in gates:
            place = (gate["eval"], gate["test"], gate["engine"])
            if not gate["passed"] and (*place, gate["metric"]) in compared and place in self.remarks:
                gate["reason"] = f"{gate['reason']}; {self.remarks[place]}"


def across_engines(
    evals: Iterable[EvalFunctions], rows: Sequence[Row], engines: Sequence[Mapping[str, Any]], problems: list[str]
) -> AcrossEngines:
    """Return what the `across` functions gave; what went wrong is added to `problems`.

    An `across` is asked once per test and checkpoint that several engines ran, with the judged rows of each engine by its
    id and with what run.json says of each: `across(rows, engines)` gives `{engine id: {metric: value}}` or an
    `EngineComparison`.
    """
    found = AcrossEngines()
    facts = {entry["id"]: entry for entry in engines}
    groups = _engines_together(engines)
    for functions in evals:
        if functions.across is None:
            continue
        judged: dict[str, dict[str, list[Row]]] = {}
        for test, engine, mine in judged_by_test(rows, functions.name):
            judged.setdefault(test, {})[engine] = mine
        for test, by_engine in judged.items():
            for group in groups:
                where = f"{functions.path}: across for {test} on {', '.join(group)}"
                mine_of = {engine: by_engine.get(engine, []) for engine in group}
                try:
                    given = functions.across(mine_of, {engine: facts[engine] for engine in group})
                    comparison = given if isinstance(given, EngineComparison) else EngineComparison(given)
                    metrics = {str(e): {str(name): float(value) for name, value in each.items()} for e, each in comparison.metrics.items()}
                    remarks = {(functions.name, test, e): str(remark) for e, remark in comparison.remarks.items()}
                except ANY_FAILURE as error:
                    problems.append(f"{where} failed: {type(error).__name__}: {error}")
                    continue
                found.remarks.update(remarks)
                _add(found, {"eval": functions.name, "test": test}, group, metrics, comparison, (where, problems))
    return found


def _engines_together(engines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    specs = [EngineSpec.from_json({key: value for key, value in entry.items() if key in _SPEC_FIELDS}) for entry in engines]
    return [[spec.id for spec in group] for group in engines_by_checkpoint(specs).values() if len(group) > 1]


def _add(
    found: AcrossEngines,
    place: Mapping[str, str],
    group: Sequence[str],
    metrics: Mapping[str, Mapping[str, float]],
    comparison: EngineComparison,
    telling: tuple[str, list[str]],
) -> None:
    where, problems = telling
    for engine, each in metrics.items():
        if engine not in group:
            problems.append(f"{where} gave metrics of {engine!r}, which is none of these engines; left out")
            continue
        for metric, value in finite_metrics(each, where, problems):
            found.aggregates.append({**place, "engine": engine, "metric": metric, "value": value})
    for engine in group:
        for title, lines in checked_tables(lambda mine=engine: comparison.tables.get(mine, {}), where, problems):  # type: ignore[misc]
            found.tables.append({**place, "engine": engine, "title": title, "rows": lines})
