"""report.csv (every number, long and tidy) and samples.csv (one line per sample); every cell is defused.

Both are UTF-8 without a byte order mark, comma-separated, quoted where needed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

import pandas as pd

from evalharness.report.collecting import generations_of, mapping, text_of
from evalharness.report.reading import read_samples
from evalharness.report.safe_text import csv_cell
from evalharness.report.tables import COUNTS, RunTables, records

__all__ = ["REPORT_COLUMNS", "write_report_csv", "write_samples_csv"]

REPORT_COLUMNS = ["eval", "test", "engine", "group_key", "group_value", "kind", "metric", "value", "stderr", "low", "high", "interval", "n"]
"""`kind`: score (mean of a score), count (of cases), aggregate, gate (`metric` is its expression, `value` what was
measured), gate_passed (0 or 1, empty where it was not asked), throughput.

`group_key` and `group_value` are a tag, or empty for all cases. `stderr` is the standard error of a mean, cases of one group
taken together, `low` and `high` its 95 % interval, `interval` the kind of it (wilson, bootstrap, none), `n` what it is over.
"""

_NO_INTERVAL = ("", "", "", "")

_ROW_COLUMNS = ["run_id", "nodeid", "eval", "test", "case_id", "group", "engine", "checkpoint", "backend", "outcome", "problem"]
_GENERATION_COLUMNS = [
    "finish_reason",
    "stop_reason",
    "num_prompt_tokens",
    "num_completion_tokens",
    "seed",
    "weight_version",
    "fallback",
]
_LAST_COLUMNS = ["prompt_sha256", "worker", "started_at", "duration_s"]


def write_samples_csv(tables: RunTables, file: TextIO) -> None:
    """Write one line per row of samples.jsonl, read again row by row so that texts are never all in memory.

    Texts are those of the first generation; `num_generations` says how many there are. A text too long for a spreadsheet
    cell is cut with a marker; `text_chars` is its full length, and samples.jsonl has all of it.
    """
    write = csv.writer(file, lineterminator="\n").writerow
    score_names, tag_keys = tables.collected.score_names, tables.collected.tag_keys
    names = [*_ROW_COLUMNS, *(f"score.{name}" for name in score_names.names), *(f"tag.{key}" for key in tag_keys.names)]
    names += [*_GENERATION_COLUMNS, "ignored_options", "num_generations", "text_chars", "text", "raw_text", *_LAST_COLUMNS]
    write([csv_cell(name) for name in names])
    num_scores, num_tags = len(score_names.names), len(tag_keys.names)
    for row in read_samples(tables.run_dir):
        scores, tags = [""] * num_scores, [""] * num_tags
        for name, value in mapping(row.get("scores")).items():
            scores[score_names.of(name)] = csv_cell(value)
        for key, value in mapping(row.get("tags")).items():
            tags[tag_keys.of(key)] = csv_cell(value)
        cells = [csv_cell(row.get(name)) for name in _ROW_COLUMNS]
        write([*cells, *scores, *tags, *_generation_cells(row), *(csv_cell(row.get(name)) for name in _LAST_COLUMNS)])


def _generation_cells(row: Mapping[str, Any]) -> Iterator[str]:
    generations = generations_of(row)
    generation = generations[0] if generations else {}
    for name in _GENERATION_COLUMNS:
        yield csv_cell(generation.get(name))
    ignored = generation.get("ignored_options")
    yield csv_cell(", ".join(map(text_of, ignored))) if isinstance(ignored, list) else ""
    text = text_of(generation.get("text"))
    yield str(len(generations))
    yield str(len(text)) if generations else ""
    yield csv_cell(text)
    yield csv_cell(generation.get("raw_text"))


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
