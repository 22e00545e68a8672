"""Tables for the report: the `tables` functions of evals, run over the judged rows of each test and engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from evalharness.pytest_plugin.finish.aggregates import judged_by_test
from evalharness.pytest_plugin.finish.eval_functions import ANY_FAILURE, EvalFunctions, Row, Table
from evalharness.pytest_plugin.outcomes import shorten

__all__ = ["checked_tables", "table_entries"]


class _NoTable(Exception):
    """Says why something given as a table is none."""


def table_entries(evals: Iterable[EvalFunctions], rows: Sequence[Row], problems: list[str]) -> list[dict[str, Any]]:
    """Return `{eval, test, engine, title, rows}` for every table; what went wrong is added to `problems`.

    `tables` is asked once per test and engine, with the rows that were judged. A table that is none is left out.
    """
    entries: list[dict[str, Any]] = []
    for functions in evals:
        for test, engine, mine in judged_by_test(rows, functions.name) if functions.tables else ():
            assert functions.tables is not None
            for title, lines in checked_tables(
                partial(functions.tables, mine), f"{functions.path}: tables for {test} on {engine}", problems
            ):
                entries.append({"eval": functions.name, "test": test, "engine": engine, "title": title, "rows": lines})
    return entries


def checked_tables(
    tables: Callable[[], Mapping[str, Table]], where: str, problems: list[str]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield title and rows of each table that a function gives; what is wrong with them is added to `problems`."""
    try:
        made = [(_title(title), [_line(title, line) for line in lines]) for title, lines in tables().items()]
    except _NoTable as problem:
        problems.append(f"{where} gave no tables: {problem}")
        return
    except ANY_FAILURE as error:
        problems.append(f"{where} failed: {type(error).__name__}: {error}")
        return
    yield from made


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
