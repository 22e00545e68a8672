"""report.csv: every number, long and tidy; every cell is defused.

It is UTF-8 without a byte order mark, comma-separated, quoted where needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TextIO

import pandas as pd

from evalharness.report.tables import COUNTS, RunTables, records
from evalharness.report.text import csv_cell

__all__ = ["REPORT_COLUMNS", "write_report_csv"]

REPORT_COLUMNS = ["eval", "test", "engine", "group_key", "group_value", "kind", "metric", "value", "stderr", "low", "high", "interval", "n"]
"""`kind`: score (mean of a score), count (of cases), aggregate, gate (`metric` is its expression, `value` what was
measured), gate_passed (0 or 1, empty where it was not asked), throughput.

`group_key` and `group_value` are a tag, or empty for all cases. `stderr` is the standard error of a mean, cases of one group
taken together, `low` and `high` its 95 % interval, `interval` the kind of it (wilson, bootstrap, none), `n` what it is over.
"""

_NO_INTERVAL = ("", "", "", "")


def write_report_csv(tables: RunTables, file: TextIO) -> None:
    """Write one line per eval, test, engine, group and metric, with the columns `REPORT_COLUMNS`."""
    parts = [
        _score_lines(tables.scores, tagged=False),
        _count_lines(tables.counts, tagged=False),
        _score_lines(tables.tag_scores, tagged=True),
        _count_lines(tables.tag_counts, tagged=True),
    ]
    lines = [line for part in parts for line in part]
    lines += [*_aggregate_lines(tables), *_gate_lines(tables), *_throughput_lines(tables)]
    frame = pd.DataFrame([[csv_cell(cell) for cell in line] for line in lines], columns=REPORT_COLUMNS, dtype=object)
    frame.to_csv(file, index=False, lineterminator="\n")


def _score_lines(table: pd.DataFrame, *, tagged: bool) -> Iterator[list[Any]]:
    for key, *numbers in table[["mean", "stderr", "low", "high", "interval", "n"]].itertuples(name=None):
        *group, metric = key
        yield [*group[:3], *(group[3:] if tagged else ("", "")), "score", metric, *numbers]


def _count_lines(table: pd.DataFrame, *, tagged: bool) -> Iterator[list[Any]]:
    for key, *counts in table[COUNTS].itertuples(name=None):
        for name, count in zip(COUNTS, counts, strict=True):
            yield [*key[:3], *(key[3:] if tagged else ("", "")), "count", name, count, *_NO_INTERVAL, counts[0]]


def _aggregate_lines(tables: RunTables) -> Iterator[list[Any]]:
    for entry in records(tables.run, "aggregates"):
        names = [entry.get("eval"), entry.get("test", ""), entry.get("engine")]
        yield [*names, "", "", "aggregate", entry.get("metric"), entry.get("value"), *_NO_INTERVAL, entry.get("n")]


def _gate_lines(tables: RunTables) -> Iterator[list[Any]]:
    for gate in records(tables.run, "gates"):
        names = [gate.get(name) for name in ("eval", "test", "engine")]
        yield [*names, "", "", "gate", gate.get("expression"), gate.get("value"), *_NO_INTERVAL, gate.get("n")]
        passed = "" if gate.get("asked") is False else int(gate.get("passed") is True)
        yield [*names, "", "", "gate_passed", gate.get("expression"), passed, *_NO_INTERVAL, gate.get("n")]


def _throughput_lines(tables: RunTables) -> Iterator[list[Any]]:
    for entry in records(tables.run, "throughput"):
        for name, value in entry.items():
            if isinstance(value, (int, float)):
                yield ["", "", entry.get("engine"), "", "", "throughput", name, value, *_NO_INTERVAL, ""]
