"""Metrics that are no mean: the `aggregate` and `across` functions of evals, run over the judged rows once all are there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from evalharness.gates import BUILT_IN_METRICS, was_judged
from evalharness.pytest_plugin.engines import EngineSpec, engines_by_checkpoint
from evalharness.pytest_plugin.eval_functions import ANY_FAILURE, EvalFunctions, Row, rows_by_engine

__all__ = ["across_rows", "aggregate_rows", "judged_by_test"]

_SPEC_FIELDS = frozenset(field.name for field in fields(EngineSpec))


def judged_by_test(rows: Sequence[Row], name: str) -> Iterator[tuple[str, str, list[Row]]]:
    """Yield test, engine and judged rows (pass, miss or fail) of each test of an eval."""
    for engine, own in rows_by_engine(filter(was_judged, rows), name).items():
        for test in dict.fromkeys(row["test"] for row in own):
            yield test, engine, [row for row in own if row["test"] == test]


def aggregate_rows(evals: Iterable[EvalFunctions], rows: Sequence[Row], problems: list[str]) -> list[dict[str, Any]]:
    """Return `{eval, test, engine, metric, value}` for every value that an `aggregate` gave; what went wrong is added to `problems`.

    An `aggregate` is asked once per test and engine, with the rows that were judged.
    """
    values: list[dict[str, Any]] = []
    for functions in evals:
        for test, engine, mine in judged_by_test(rows, functions.name) if functions.aggregate else ():
            assert functions.aggregate is not None
            where = f"{functions.path}: aggregate for {test} on {engine}"
            try:
                metrics = {str(name): float(value) for name, value in functions.aggregate(mine).items()}
            except ANY_FAILURE as error:
                problems.append(f"{where} failed: {type(error).__name__}: {error}")
                continue
            for metric, value in _finite(metrics, where, problems):
                values.append({"eval": functions.name, "test": test, "engine": engine, "metric": metric, "value": value})
    return values


def across_rows(
    evals: Iterable[EvalFunctions], rows: Sequence[Row], engines: Sequence[Mapping[str, Any]], problems: list[str]
) -> list[dict[str, Any]]:
    """Return `{eval, test, engine, metric, value}` for every value that an `across` gave; what went wrong is added to `problems`.

    An `across` is asked once per test and checkpoint that several engines ran, with the judged rows of each engine, by its
    id, and with what run.json says of each (`engines`): `across(rows, engines) -> {engine id: {metric: value}}`.
    """
    values: list[dict[str, Any]] = []
    facts = {entry["id"]: entry for entry in engines}
    groups = _engines_together(engines)
    for functions in (functions for functions in evals if functions.across is not None):
        judged: dict[str, dict[str, list[Row]]] = {}
        for test, engine, mine in judged_by_test(rows, functions.name):
            judged.setdefault(test, {})[engine] = mine
        for test, by_engine in judged.items():
            for group in groups:
                mine_of = {engine: by_engine.get(engine, []) for engine in group}
                where = f"{functions.path}: across for {test} on {', '.join(group)}"
                for engine, metric, value in _across(functions, mine_of, {engine: facts[engine] for engine in group}, where, problems):
                    values.append({"eval": functions.name, "test": test, "engine": engine, "metric": metric, "value": value})
    return values


def _engines_together(engines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    specs = [EngineSpec.from_json({key: value for key, value in entry.items() if key in _SPEC_FIELDS}) for entry in engines]
    return [[spec.id for spec in group] for group in engines_by_checkpoint(specs).values() if len(group) > 1]


def _across(
    functions: EvalFunctions,
    rows: Mapping[str, Sequence[Row]],
    facts: Mapping[str, Mapping[str, Any]],
    where: str,
    problems: list[str],
) -> Iterator[tuple[str, str, float]]:
    assert functions.across is not None
    try:
        given = functions.across(rows, facts)
        metrics = {str(engine): {str(name): float(value) for name, value in each.items()} for engine, each in given.items()}
    except ANY_FAILURE as error:
        problems.append(f"{where} failed: {type(error).__name__}: {error}")
        return
    for engine, each in metrics.items():
        if engine not in rows:
            problems.append(f"{where} gave metrics of {engine!r}, which is none of these engines; left out")
            continue
        for metric, value in _finite(each, where, problems):
            yield engine, metric, value


def _finite(metrics: Mapping[str, float], where: str, problems: list[str]) -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        if name in BUILT_IN_METRICS:
            problems.append(f"{where} gave {name!r}, the name of a rate that every test has; left out, give it another name")
        elif math.isfinite(value):
            yield name, value
        else:
            problems.append(f"{where} gave {name}={value}; left out")
