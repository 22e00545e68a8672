"""The tables that evals gave (`tables=`): in report.md, engines side by side and long ones cut, and whole in tables.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from tabulate import tabulate

from evalharness.report.collecting import mapping, text_of
from evalharness.report.tables import RunTables, records
from evalharness.report.text import csv_cell, markdown_cell
from evalharness.report.wording import number_text, plural

__all__ = ["NUM_TABLE_COLUMNS", "NUM_TABLE_LINES", "TABLE_COLUMNS", "table_sections", "tables_by_title", "write_tables_csv"]

NUM_TABLES = 40
NUM_TABLE_LINES = 40
"""Lines of one table and engine in report.md."""
NUM_TABLE_COLUMNS = 12
TABLE_COLUMNS = ["eval", "test", "engine", "title", "row", "column", "value"]
"""tables.csv has one line per cell: tables differ in their columns. `row` counts from 1 within a table."""

_Lines = list[Mapping[str, Any]]


def table_sections(tables: RunTables) -> Iterator[str]:
    """Yield the section with one table per eval, test and title; what is left out is said."""
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
    for entry in records(tables.run, "tables"):
        key = (text_of(entry.get("eval")), text_of(entry.get("test")), text_of(entry.get("title")))
        lines = grouped.setdefault(key, {}).setdefault(text_of(entry.get("engine")), [])
        lines += _lines_of(entry)
    return grouped


def _lines_of(entry: Mapping[str, Any]) -> _Lines:
    lines = entry.get("rows")
    return [mapping(line) for line in lines] if isinstance(lines, list) else []


def _table(engines: Mapping[str, _Lines]) -> Iterator[str]:
    shown = [(engine, line) for engine, lines in engines.items() for line in lines[:NUM_TABLE_LINES]]
    if not shown:
        yield "No rows."
        return
    columns = list(dict.fromkeys(column for _, line in shown for column in line))
    named = columns[:NUM_TABLE_COLUMNS]
    headers = [markdown_cell(column, 60) for column in named]
    align = ["right" if all(_is_number(line.get(column)) for _, line in shown) else "left" for column in named]
    place = None
    if len(engines) > 1:
        place = 1 if align[:1] == ["left"] and _names_lines(columns[0], shown) else 0
        headers.insert(place, "engine")
        align.insert(place, "left")
    cells = []
    for engine, line in _compared(columns[0], shown) if place else shown:
        cells.append([_cell(line.get(column)) for column in named])
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


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, (int, float))


def _cell(value: object) -> str:
    """Return a cell for people: a whole number as it is, other numbers with three decimals, None as "-"."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**15 else markdown_cell(number_text(value), 160)


def write_tables_csv(tables: RunTables, file: TextIO) -> None:
    """Write one line per cell of every table, with the columns `TABLE_COLUMNS`."""
    write = csv.writer(file, lineterminator="\n").writerow
    write(TABLE_COLUMNS)
    for entry in records(tables.run, "tables"):
        names = [csv_cell(text_of(entry.get(name))) for name in TABLE_COLUMNS[:4]]
        for number, line in enumerate(_lines_of(entry), start=1):
            for column, value in line.items():
                write([*names, number, csv_cell(column), csv_cell(value)])
