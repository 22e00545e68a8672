"""Metrics that are no mean: the `aggregate` functions of evals, run over the judged rows of each test and engine once all are there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from evalharness.analysis.gates import BUILT_IN_METRICS, was_judged
from evalharness.pytest_plugin.finish.eval_functions import ANY_FAILURE, EvalFunctions, Row, rows_by_engine

__all__ = ["aggregate_rows", "finite_metrics", "judged_by_test"]


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
            for metric, value in finite_metrics(metrics, where, problems):
                values.append({"eval": functions.name, "test": test, "engine": engine, "metric": metric, "value": value})
    return values


def finite_metrics(metrics: Mapping[str, float], where: str, problems: list[str]) -> Iterator[tuple[str, float]]:
    """Yield those metrics that are finite numbers under names of their own; the others are told in `problems`."""
    for name, value in metrics.items():
        if name in BUILT_IN_METRICS:
            problems.append(f"{where} gave {name!r}, the name of a rate that every test has; left out, give it another name")
        elif math.isfinite(value):
            yield name, value
        else:
            problems.append(f"{where} gave {name}={value}; left out")
