"""Metrics that are no mean: the `aggregate` functions of evals, run over the judged rows of each test and engine once all are there."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import pytest
from _pytest.pathlib import import_path

from evalharness.gates import BUILT_IN_METRICS, was_judged
from evalharness.pytest_plugin.session import STATE

__all__ = ["aggregate_rows", "rows_by_engine"]

Row: TypeAlias = "dict[str, Any]"
Aggregate: TypeAlias = "Callable[[Sequence[Row]], Mapping[str, float]]"

# User code, imported or run when everything is over: whatever it does must not cost the report. Pytest's own outcomes
# and SystemExit are no `Exception`s.
_ANY_FAILURE = (Exception, SystemExit, pytest.fail.Exception, pytest.skip.Exception, pytest.exit.Exception)


def aggregate_rows(
    config: pytest.Config, evals: Mapping[str, Mapping[str, Any]], rows: Sequence[Row], problems: list[str]
) -> list[dict[str, Any]]:
    """Return `{eval, test, engine, metric, value}` for every value that an `aggregate` gave; what went wrong is added to `problems`.

    An `aggregate` is asked once per test and engine, with the rows that were judged: pass, miss or fail.
    """
    values: list[dict[str, Any]] = []
    for path, entry in evals.items():
        try:
            aggregate = _aggregate_of(config, path)
        except _ANY_FAILURE as error:
            problems.append(f"{path}: its aggregate cannot be loaded: {type(error).__name__}: {error}")
            continue
        if aggregate is None:
            continue
        for engine, own in rows_by_engine(filter(was_judged, rows), entry["name"]).items():
            for test in dict.fromkeys(row["test"] for row in own):
                mine = [row for row in own if row["test"] == test]
                for metric, value in _finite_metrics(aggregate, mine, f"{path}: aggregate for {test} on {engine}", problems):
                    values.append({"eval": entry["name"], "test": test, "engine": engine, "metric": metric, "value": value})
    return values


def _finite_metrics(aggregate: Aggregate, rows: Sequence[Row], where: str, problems: list[str]) -> Iterator[tuple[str, float]]:
    try:
        metrics = {str(name): float(value) for name, value in aggregate(rows).items()}
    except _ANY_FAILURE as error:
        problems.append(f"{where} failed: {type(error).__name__}: {error}")
        return
    for name, value in metrics.items():
        if name in BUILT_IN_METRICS:
            problems.append(f"{where} gave {name!r}, the name of a rate that every test has; left out, give it another name")
        elif math.isfinite(value):
            yield name, value
        else:
            problems.append(f"{where} gave {name}={value}; left out")


def rows_by_engine(rows: Iterable[Row], name: str) -> dict[str, list[Row]]:
    """Return the rows of one eval by engine."""
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["eval"] == name:
            grouped[row["engine"]].append(row)
    return dict(grouped)


def _aggregate_of(config: pytest.Config, path: str) -> Aggregate | None:
    state = config.stash[STATE]
    if path in state.modules:
        return state.modules[path].aggregate
    # Under xdist only the workers have imported the module; imported as they did, its own imports work here too.
    module = import_path(
        state.root / path,
        mode=config.getoption("importmode"),
        root=config.rootpath,
        consider_namespace_packages=config.getini("consider_namespace_packages"),
    )
    return next((mark.kwargs.get("aggregate") for mark in _marks(module) if mark.name == "eval"), None)


def _marks(module: ModuleType) -> Iterator[pytest.Mark]:
    """Yield the markers of the module itself, then those of its classes and functions."""
    for holder in (module, *(value for value in vars(module).values() if isinstance(value, (type, FunctionType)))):
        marks = getattr(holder, "pytestmark", [])
        for mark in marks if isinstance(marks, (list, tuple)) else [marks]:
            found = getattr(mark, "mark", mark)
            if isinstance(found, pytest.Mark):
                yield found
