"""From a run directory to its report files and its closing lines. Needs no model; the same input gives the same bytes."""

from __future__ import annotations

from pathlib import Path

from evalharness.report.csv_files import write_report_csv, write_samples_csv
from evalharness.report.eval_tables import write_tables_csv
from evalharness.report.files import replacing
from evalharness.report.markdown import markdown_report
from evalharness.report.tables import RunTables, load_tables, records
from evalharness.report.terminal import terminal_lines, terminal_width

__all__ = ["terminal_summary", "write_reports"]


def write_reports(run: Path | RunTables) -> dict[str, Path]:
    """Write report.md, report.csv, samples.csv and, where evals gave tables, tables.csv; return their paths by file name.

    Each file is replaced as a whole. Raises `RecordError` when the run cannot be read or a file cannot be written.
    """
    tables = load_tables(run) if isinstance(run, Path) else run
    paths = {name: tables.run_dir / name for name in ("report.md", "report.csv", "samples.csv")}
    with replacing(paths["report.md"]) as file:
        for number, block in enumerate(markdown_report(tables)):
            file.write(f"\n{block}\n" if number else f"{block}\n")
    with replacing(paths["report.csv"]) as file:
        write_report_csv(tables, file)
    with replacing(paths["samples.csv"]) as file:
        write_samples_csv(tables, file)
    if records(tables.run, "tables"):
        paths["tables.csv"] = tables.run_dir / "tables.csv"
        with replacing(paths["tables.csv"]) as file:
            write_tables_csv(tables, file)
    return paths


def terminal_summary(run: Path | RunTables, columns: int | None = None) -> str:
    """Return the closing lines of a run, at most `columns` wide (default: COLUMNS, else 80), safe to print.

    Raises `RecordError` when the run cannot be read.
    """
    tables = load_tables(run) if isinstance(run, Path) else run
    return "\n".join(terminal_lines(tables, terminal_width() if columns is None else columns))
