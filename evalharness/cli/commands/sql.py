"""`evalharness sql`: a query over all runs of a report folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evalharness.api.errors import DONE
from evalharness.cli.framework import PATH, command, find_run, report_folder, run_names

if TYPE_CHECKING:
    from evalharness.interop.sql import QueryResult

_WIDEST = 60


@command(
    "sql",
    examples=[
        "evalharness sql \"SELECT run, metric, avg(value) FROM scores WHERE outcome IN ('pass', 'miss', 'fail') GROUP BY ALL\"",
        "evalharness sql \"SELECT run, case_id, text FROM samples WHERE scores['exact'] = 0 AND tags['site'] = 'roof' LIMIT 20\"",
        'evalharness sql "SELECT run, expression, reason FROM gates WHERE NOT passed" --format csv',
        'evalharness sql "DESCRIBE samples"',
    ],
    exit_codes={DONE: "the answer was printed, even if it has no row"},
)
@click.argument("query", metavar="QUERY")
@click.option("--run", "runs", multiple=True, metavar="RUN", help="Only this run; may be given several times (default: all)")
@click.option("--report-dir", type=PATH, metavar="FOLDER", help="Report folder (default: the project's)")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True, max=1e6),
    default=300,
    metavar="SECONDS",
    help="Longest time that it may take (default: 300)",
)
@click.option("--memory", type=click.FloatRange(min=0.25, max=1e5), default=4, metavar="GIB", help="Memory that it may take (default: 4)")
@click.option("--format", "kind", type=click.Choice(["table", "csv", "jsonl"]), default="table", help="How to print it (default: table)")
def sql(query: str, runs: tuple[str, ...], report_dir: Path | None, timeout: float, memory: float, kind: str) -> int:
    """Ask all runs a question in SQL: samples, scores, runs, gates, aggregates, engines and speed are tables.

    DuckDB reads samples.jsonl and run.json where they lie. A query only reads, and sees nothing but the runs. Needs the extra sql.
    """
    from evalharness.interop.sql import query as ask

    folder = report_dir or report_folder()
    names = [find_run(word, quiet=True) for word in runs] or [folder / name for name in run_names(folder)]
    notes: list[str] = []
    answer = ask(query, [path for path in names if (path / "run.json").is_file()], notes, timeout_s=timeout, memory_gib=memory)
    {"table": _print_table, "csv": _print_csv, "jsonl": _print_jsonl}[kind](answer)
    for note in notes:
        print(f"evalharness: {_cell(note, 300)}", file=sys.stderr)
    return DONE


def _cell(value: Any, most: int = _WIDEST) -> str:
    from evalharness.report.text import one_line

    return one_line(value if isinstance(value, str) else _number(value), most)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _print_table(answer: QueryResult) -> None:
    from rich.cells import cell_len

    def padded(line: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
        cells = (cell.rjust(width - cell_len(cell) + len(cell)) if is_right else cell + " " * (width - cell_len(cell))
                 for cell, width, is_right in zip(line, widths, right, strict=True))  # fmt: skip
        return "  ".join(cells).rstrip()

    head = [_cell(name) for name in answer.columns]
    lines = [[_cell(value) for value in row] for row in answer.rows]
    widths = [max(map(cell_len, column)) for column in zip(head, *lines, strict=True)]
    right = [all(isinstance(row[column], (int, float)) or row[column] is None for row in answer.rows) for column in range(len(head))]
    for line in (head, *lines):
        print(padded(line, widths, right))
    print(f"evalharness: {len(lines):,} {'row' if len(lines) == 1 else 'rows'}", file=sys.stderr)


def _print_csv(answer: QueryResult) -> None:
    from evalharness.report.csv import write_csv

    rows = ([value if isinstance(value, (int, float)) else _number(value) for value in row] for row in answer.rows)
    write_csv(sys.stdout, answer.columns, rows)


def _print_jsonl(answer: QueryResult) -> None:
    for row in answer.rows:
        print(json.dumps(dict(zip(answer.columns, row, strict=True)), allow_nan=False))
