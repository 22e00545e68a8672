"""The tables of report.md: scores by test and engine and by tag, each beside its validity, and the evals' own, whole in tables.csv."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO, TypeVar

from tabulate import tabulate

from evalharness.report.tables import COUNTS, Codes, RunTables, Summary
from evalharness.report.text import cell_text, csv_cell, markdown_cell, plural, score_text
from evalharness.runs.schema import entries_of, items_of, mapping, text_of

_Line = TypeVar("_Line")

NUM_SCORE_COLUMNS = 8
"""More scores than this go to further tables, each with the validity columns again; by tag they are left out."""
NUM_TAG_KEYS = 8
NUM_TAG_LINES = 40

_VALIDITY = ("cases", "malformed", "length_cap", "empty", "unclosed", "invalid", "error", "skip", "pass", "miss", "fail", "other")
_ALWAYS_SHOWN = ("cases", "malformed", "length_cap", "empty", "invalid", "error")
_SCORE_NOTE = (
    "Scores are means over the cases that have one (n) with a 95 % interval: Wilson's where every case scores 0 or 1, a bootstrap"
    " (seed 0) otherwise, none where no case differs from another. Cases of one group are taken together. Invalid, skipped and"
    " broken cases count towards no mean."
    " Malformed: the score `valid` is 0; whether that means unreadable or not exactly in the requested form is up to the eval."
    " Hit length cap, empty, unclosed thoughts: cases with at least one such answer."
)


def markdown_table(headers: Sequence[str], lines: Sequence[Sequence[str]], num_text_columns: int) -> str:
    """Return a pipe table of cells that are escaped already; columns after the first `num_text_columns` are set right."""
    align = ["left" if column < num_text_columns else "right" for column in range(len(headers))]
    return tabulate(lines, headers=list(headers), tablefmt="pipe", disable_numparse=True, colalign=align)


def score_sections(tables: RunTables) -> Iterator[str]:
    """Yield the section with one line per eval × test × engine."""
    if not tables.num_rows:
        return
    yield "## Scores and their validity"
    for test in tests_of(tables.counts):
        yield f"### {_title(test)}"
        yield from _score_tables(_part(tables.counts, test), _part(tables.scores, test), ["engine"], tables.metrics(*test))
    yield _SCORE_NOTE


def breakdown_sections(tables: RunTables) -> Iterator[str]:
    """Yield the section with one table per test and tag key; it names omitted parts."""
    if not tables.row_tags:
        return
    yield "## Breakdowns"
    for test in tests_of(tables.tag_counts):
        counts, scores = _part(tables.tag_counts, test), _part(tables.tag_scores, test)
        metrics = tables.metrics(*test)
        keys = list(dict.fromkeys(key for _, key, _ in counts))
        for key in keys[:NUM_TAG_KEYS]:
            yield f"### {_title(test)} by {markdown_cell(key, 60)}"
            yield from _breakdown(
                {(value, engine): line for (engine, tag, value), line in counts.items() if tag == key},
                {(value, engine, metric): line for (engine, tag, value, metric), line in scores.items() if tag == key},
                metrics[:NUM_SCORE_COLUMNS],
                tables.tag_values,
            )
        if len(metrics) > NUM_SCORE_COLUMNS:
            yield f"{plural(len(metrics) - NUM_SCORE_COLUMNS, 'more score')} by tag left out here; report.csv has them."
        if len(keys) > NUM_TAG_KEYS:
            yield f"{plural(len(keys) - NUM_TAG_KEYS, 'more tag key')} left out here; report.csv has them."


def tests_of(table: Mapping[tuple[str, ...], Any]) -> list[tuple[str, str]]:
    """Return eval and test of the lines of a table of `RunTables`, each once."""
    return list(dict.fromkeys((key[0], key[1]) for key in table))


def _title(test: tuple[str, str]) -> str:
    return f"{markdown_cell(test[0], 80)} · {markdown_cell(test[1], 80)}"


def _part(table: Mapping[tuple[str, ...], _Line], test: tuple[str, str]) -> dict[tuple[str, ...], _Line]:
    """Return the lines of one test, without the names that say so."""
    return {key[2:]: line for key, line in table.items() if key[:2] == test}


def _breakdown(
    counts: Mapping[tuple[str, ...], Mapping[str, int]], scores: Mapping[tuple[str, ...], Summary], metrics: list[str], values: Codes
) -> Iterator[str]:
    """Yield the table of one tag key, engines side by side; the values with the most cases if there are too many lines."""
    order = sorted(counts, key=lambda key: values.of(key[0]))
    per_value: Counter[str] = Counter()
    for key in order:
        per_value[key[0]] += counts[key]["cases"]
    if len(per_value) == 1:
        yield f"The only value is {markdown_cell(order[0][0])}."
        return
    num_shown = max(1, NUM_TAG_LINES * len(per_value) // len(counts))
    shown = {value for value, _ in per_value.most_common(num_shown)}
    yield from _score_tables({key: counts[key] for key in order if key[0] in shown}, scores, ["value", "engine"], metrics)
    if len(per_value) > len(shown):
        yield f"{plural(len(per_value) - len(shown), 'more value')} with fewer cases left out here; report.csv has them."


def _score_tables(
    counts: Mapping[tuple[str, ...], Mapping[str, int]], scores: Mapping[tuple[str, ...], Summary], by: list[str], metrics: list[str]
) -> Iterator[str]:
    """Yield tables with a line for each of `counts`: scores, and beside them the columns that say what they are worth."""
    cells = {key: score_text(key[-1], score.mean, score.low, score.high, score.n, score.num_groups) for key, score in scores.items()}
    validity = [name for name in _VALIDITY if name in _ALWAYS_SHOWN or any(line[name] for line in counts.values())]
    for start in range(0, max(len(metrics), 1), NUM_SCORE_COLUMNS):
        shown = metrics[start : start + NUM_SCORE_COLUMNS]
        lines = [
            [
                *(markdown_cell(part, 80) for part in key),
                *(cells.get((*key, name), "-") for name in shown),
                *("-" if name == "malformed" and not row["form_judged"] else f"{row[name]:,}" for name in validity),
            ]
            for key, row in counts.items()
        ]
        headers = [*by, *(markdown_cell(name, 60) for name in shown), *(COUNTS[name] for name in validity)]
        yield markdown_table(headers, lines, len(by))


NUM_TABLES = 40
NUM_TABLE_LINES = 40
"""Lines of one table and engine in report.md."""
NUM_TABLE_COLUMNS = 12
TABLE_COLUMNS = ["eval", "test", "engine", "title", "row", "column", "value"]
"""tables.csv has one line per cell: tables differ in their columns. `row` counts from 1 within a table."""

_Lines = list[Mapping[str, Any]]


def table_sections(tables: RunTables) -> Iterator[str]:
    """Yield the section with one table per eval, test and title; it names omitted parts."""
    grouped = tables_by_title(tables)
    if not grouped:
        return
    yield "## Tables"
    yield "As the evals computed them; tables.csv has them whole and unrounded."
    for (name, test, title), engines in list(grouped.items())[:NUM_TABLES]:
        yield f"### {markdown_cell(name, 80)} · {markdown_cell(test, 80)} · {markdown_cell(title, 120)}"
        yield from _table(engines)
    if len(grouped) > NUM_TABLES:
        yield f"{plural(len(grouped) - NUM_TABLES, 'more table')} left out here; tables.csv has them."


def tables_by_title(tables: RunTables) -> dict[tuple[str, str, str], dict[str, _Lines]]:
    """Return the lines of each table by engine."""
    grouped: dict[tuple[str, str, str], dict[str, _Lines]] = {}
    for entry in entries_of(tables.run.get("tables")):
        key = (text_of(entry.get("eval")), text_of(entry.get("test")), text_of(entry.get("title")))
        lines = grouped.setdefault(key, {}).setdefault(text_of(entry.get("engine")), [])
        lines += map(mapping, items_of(entry.get("rows")))
    return grouped


def _table(engines: Mapping[str, _Lines]) -> Iterator[str]:
    shown = [(engine, line) for engine, lines in engines.items() for line in lines[:NUM_TABLE_LINES]]
    if not shown:
        yield "No rows."
        return
    columns = list(dict.fromkeys(column for _, line in shown for column in line))
    named = columns[:NUM_TABLE_COLUMNS]
    headers = [markdown_cell(column, 60) for column in named]
    align = ["right" if all(isinstance(line.get(column), (int, float, type(None))) for _, line in shown) else "left" for column in named]
    place = None
    if len(engines) > 1:
        place = 1 if align[:1] == ["left"] and _names_lines(columns[0], shown) else 0
        headers.insert(place, "engine")
        align.insert(place, "left")
    cells = []
    for engine, line in _compared(columns[0], shown) if place else shown:
        values = (line.get(column) for column in named)
        cells.append(["-" if value is None else markdown_cell(cell_text(value), 160) for value in values])
        if place is not None:
            cells[-1].insert(place, markdown_cell(engine, 80))
    yield tabulate(cells, headers=headers, tablefmt="pipe", disable_numparse=True, colalign=align)
    left_out = sum(len(lines) for lines in engines.values()) - len(shown)
    cut = [plural(count, f"more {noun}") for count, noun in ((left_out, "row"), (len(columns) - NUM_TABLE_COLUMNS, "column")) if count > 0]
    if cut:
        yield f"{' and '.join(cut)} left out here; tables.csv has them."


def _names_lines(column: str, shown: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
    """Return whether a column tells each engine's lines apart, so that lines of one name can stand together."""
    return len({(engine, text_of(line.get(column))) for engine, line in shown}) == len(shown)


def _compared(column: str, shown: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the lines by name, in the order of their first use, each engine's below the other's."""
    order = {name: place for place, name in enumerate(dict.fromkeys(text_of(line.get(column)) for _, line in shown))}
    return sorted(shown, key=lambda entry: order[text_of(entry[1].get(column))])


def write_tables_csv(tables: RunTables, file: TextIO) -> None:
    """Write one line per cell of every table, with the columns `TABLE_COLUMNS`."""
    write = csv.writer(file, lineterminator="\n").writerow
    write(TABLE_COLUMNS)
    for entry in entries_of(tables.run.get("tables")):
        names = [csv_cell(text_of(name)) for name in (entry.get("eval"), entry.get("test"), entry.get("engine"), entry.get("title"))]
        for number, line in enumerate(map(mapping, items_of(entry.get("rows"))), start=1):
            for column, value in line.items():
                write([*names, number, csv_cell(column), csv_cell(value)])
