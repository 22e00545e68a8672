"""report.csv, every number of a run, long and tidy, and samples.csv, one line per sample; every cell is defused.

UTF-8 without a byte order mark, comma-separated, quoted where needed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from evalharness.report.findings import gate_state
from evalharness.report.tables import Codes, RunTables, Summary
from evalharness.report.text import csv_cell
from evalharness.runs.schema import Row, entries_of, generations_of, items_of, mapping, text_of

REPORT_COLUMNS = ["eval", "test", "engine", "group_key", "group_value", "kind", "metric", "value", "stderr", "low", "high", "interval", "n"]
"""`kind`: score (mean of a score), count (of cases), aggregate, gate (`metric` is its expression, `value` what was
measured), gate_passed (0 or 1, empty where it was skipped or not judged), throughput.

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
    write_csv(file, REPORT_COLUMNS, lines)


def _score_lines(table: Mapping[tuple[str, ...], Summary], *, tagged: bool) -> Iterator[list[Any]]:
    for (*group, metric), score in table.items():
        numbers = score.mean, score.stderr, score.low, score.high, score.interval, score.n
        yield [*group, *(() if tagged else ("", "")), "score", metric, *numbers]


def _count_lines(table: Mapping[tuple[str, ...], Mapping[str, int]], *, tagged: bool) -> Iterator[list[Any]]:
    for group, counts in table.items():
        for name, count in counts.items():
            yield [*group, *(() if tagged else ("", "")), "count", name, count, *_NO_INTERVAL, counts["cases"]]


def _aggregate_lines(tables: RunTables) -> Iterator[list[Any]]:
    for entry in entries_of(tables.run.get("aggregates")):
        names = [entry.get("eval"), entry.get("test", ""), entry.get("engine")]
        has_interval = entry.get("low") is not None
        interval = ("", entry["low"], entry.get("high"), "bootstrap") if has_interval else _NO_INTERVAL
        yield [*names, "", "", "aggregate", entry.get("metric"), entry.get("value"), *interval, ""]


def _gate_lines(tables: RunTables) -> Iterator[list[Any]]:
    for gate in entries_of(tables.run.get("gates")):
        names = [gate.get(name) for name in ("eval", "test", "engine")]
        yield [*names, "", "", "gate", gate.get("expression"), gate.get("value"), *_NO_INTERVAL, gate.get("n")]
        passed = {"passed": 1, "failed": 0}.get(gate_state(gate), "")
        yield [*names, "", "", "gate_passed", gate.get("expression"), passed, *_NO_INTERVAL, gate.get("n")]
        for part in entries_of(gate.get("failed_slices")):
            place = text_of(gate.get("tag")), text_of(part.get("value"))
            yield [*names, *place, "gate_slice", gate.get("expression"), part.get("measured"), *_NO_INTERVAL, part.get("n")]


def _throughput_lines(tables: RunTables) -> Iterator[list[Any]]:
    for entry in entries_of(tables.run.get("throughput")):
        for name, value in entry.items():
            if isinstance(value, (int, float)):
                yield ["", "", entry.get("engine"), "", "", "throughput", name, value, *_NO_INTERVAL, ""]


def write_csv(file: TextIO, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write a header, as it is, and lines of any values, one by one."""
    write = csv.writer(file, lineterminator="\n").writerow
    write(header)
    for line in lines:
        write([csv_cell(cell) for cell in line])


_ROW_COLUMNS = ["run_id", "nodeid", "eval", "test", "case_id", "group", "engine", "checkpoint", "backend", "outcome", "problem"]
_GENERATION_COLUMNS = ["finish_reason", "stop_reason", "num_prompt_tokens", "num_completion_tokens", "seed", "weight_version", "fallback"]
_LAST_COLUMNS = ["prompt_sha256", "worker", "started_at", "duration_s"]


class SampleNames(NamedTuple):
    """The names of scores and tags, each a column, in the order of their first use."""

    scores: Codes
    tags: Codes

    @classmethod
    def of(cls, rows: Iterable[Row]) -> SampleNames:
        """Return those that rows use."""
        names = cls(Codes(), Codes())
        for row in rows:
            for name in mapping(row.get("scores")):
                names.scores.of(name)
            for key in mapping(row.get("tags")):
                names.tags.of(key)
        return names


def write_samples_csv(file: TextIO, rows: Iterable[Row], names: SampleNames) -> None:
    """Write one line per row of samples.jsonl, one by one so that texts need not all be in memory.

    Texts are those of the first generation; `num_generations` says how many there are. A text too long for a spreadsheet
    cell is cut with a marker; `text_chars` is its full length, and samples.jsonl has all of it.
    """
    write = csv.writer(file, lineterminator="\n").writerow
    header = [*_ROW_COLUMNS, *(f"score.{name}" for name in names.scores.names), *(f"tag.{key}" for key in names.tags.names)]
    header += [*_GENERATION_COLUMNS, "ignored_options", "num_generations", "text_chars", "text", "raw_text", *_LAST_COLUMNS]
    write([csv_cell(name) for name in header])
    num_scores, num_tags = len(names.scores.names), len(names.tags.names)
    for row in rows:
        scores, tags = [""] * num_scores, [""] * num_tags
        for name, value in mapping(row.get("scores")).items():
            scores[names.scores.of(name)] = csv_cell(value)
        for key, tag in mapping(row.get("tags")).items():
            tags[names.tags.of(key)] = csv_cell(tag)
        cells = [csv_cell(row.get(name)) for name in _ROW_COLUMNS]
        write([*cells, *scores, *tags, *_generation_cells(row), *[csv_cell(row.get(name)) for name in _LAST_COLUMNS]])


def _generation_cells(row: Row) -> list[str]:
    generations = generations_of(row)
    generation = generations[0] if generations else {}
    cells = [csv_cell(generation.get(name)) for name in _GENERATION_COLUMNS]
    cells.append(csv_cell(", ".join(map(text_of, items_of(generation.get("ignored_options"))))))
    text = text_of(generation.get("text"))
    cells += str(len(generations)), str(len(text)) if generations else "", csv_cell(text), csv_cell(generation.get("raw_text"))
    return cells
