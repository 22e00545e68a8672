"""Writes the report files of a run directory and its closing lines. Needs no model; the same input gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from evalharness.analysis.judge import judged_run
from evalharness.analysis.noise import measured_noise
from evalharness.api.errors import BROKEN, RecordError
from evalharness.report.csv import SampleNames, write_report_csv, write_samples_csv
from evalharness.report.markdown import markdown_report
from evalharness.report.score_tables import write_tables_csv
from evalharness.report.tables import RunTables, load_tables
from evalharness.report.terminal import terminal_lines, terminal_width
from evalharness.report.text import one_line
from evalharness.runs.files import write_atomically
from evalharness.runs.partial import stopped_evals
from evalharness.runs.records import generation_facts, read_records
from evalharness.runs.run_file import read_run, read_samples, write_run_file
from evalharness.runs.samples import write_rows
from evalharness.runs.schema import Row, RunFile, entries_of, items_of
from evalharness.runs.workers import engine_entries


@contextmanager
def report_file(path: Path) -> Iterator[TextIO]:
    """Give a UTF-8 text file (newlines as written) that takes the place of `path` as a whole; see `write_atomically`."""
    advice = "free space or choose another folder with --report-dir, then rebuild the report"
    with write_atomically(path, advice) as file, TextIOWrapper(file, encoding="utf-8", newline="") as text:
        yield text


def make_folder(folder: Path) -> None:
    """Make the folder of a report that --out names. Raises `RecordError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"{folder} cannot be made: {error.strerror}; choose another folder with --out") from error


_PAGE_PROBLEM = " could not be made:"


def report_rows(run_dir: Path, rows: list[Row]) -> RunTables:
    """Write all report files of a run whose rows are in memory, and release the rows one by one; return the run's tables.

    Saves the time to read them again: a fifth of a second for ten thousand rows.
    """
    with report_file(run_dir / "samples.csv") as file:
        write_samples_csv(file, rows, SampleNames.of(rows))
    tables = load_tables(run_dir, _drained(rows))
    _write_tables(tables)
    return tables


def _drained(rows: list[Row]) -> Iterator[Row]:
    """Yield the rows in order and release each: the tables that are made of them need memory too."""
    rows.reverse()
    while rows:
        yield rows.pop()


def write_reports(run: Path | RunTables) -> dict[str, Path]:
    """Write report.md, report.csv, samples.csv, tables.csv (where evals gave tables), the pages, and a timeline of several checkpoints.

    Returns the paths by file name. Raises `RecordError` when the run cannot be read or a file cannot be written. A page that
    cannot be made is left out, which becomes a problem of the run in run.json; the other files are written all the same.
    """
    tables = load_tables(run) if isinstance(run, Path) else run
    paths = _write_tables(tables)
    with report_file(paths["samples.csv"]) as file:
        names = SampleNames(tables.score_names, tables.tag_keys)
        write_samples_csv(file, read_samples(tables.run_dir), names)
    return paths


def _write_tables(tables: RunTables) -> dict[str, Path]:
    """Write all reports but samples.csv; return the paths of all, including samples.csv."""
    pages = _write_pages(tables)
    paths = {name: tables.run_dir / name for name in ("report.md", "report.csv", "samples.csv")}
    with report_file(paths["report.md"]) as file:
        for number, block in enumerate(markdown_report(tables)):
            file.write(f"\n{block}\n" if number else f"{block}\n")
    with report_file(paths["report.csv"]) as file:
        write_report_csv(tables, file)
    if entries_of(tables.run.get("tables")):
        paths["tables.csv"] = tables.run_dir / "tables.csv"
        with report_file(paths["tables.csv"]) as file:
            write_tables_csv(tables, file)
    return {**paths, **pages}


def _write_pages(tables: RunTables) -> dict[str, Path]:
    """Write the pages that can be made and return their paths; problems of an earlier attempt are dropped."""
    earlier = items_of(tables.run.get("problems"))
    known = tuple(name + _PAGE_PROBLEM for name in _PAGES)
    kept = [problem for problem in earlier if not (isinstance(problem, str) and problem.startswith(known))]
    pages: dict[str, Path] = {}
    for name, write in _PAGES.items():
        try:
            pages |= write(tables)
        except Exception as error:  # a page is for convenience: the other reports have every number
            kept.append(f"{name}{_PAGE_PROBLEM} {one_line(f'{type(error).__name__}: {error}', 500)}")
    if kept != earlier and tables.run:
        tables.run["problems"] = kept
        if len(kept) > len(earlier) and tables.run.get("exit_code") in (0, 1):
            tables.run["exit_code"] = BROKEN
        write_run_file(tables.run_dir, tables.run)
    return pages


def _report_pages(tables: RunTables) -> dict[str, Path]:
    from evalharness.report.html.report_page import write_report_pages

    return write_report_pages(tables)


def _timeline(tables: RunTables) -> dict[str, Path]:
    """Write a timeline where the run has several checkpoints; scripts of the fake backend are not checkpoints."""
    engines = entries_of(tables.run.get("engines"))
    if stopped_evals(tables.run):
        return {}
    if len({(engine.get("backend"), engine.get("checkpoint")) for engine in engines if engine.get("fingerprint")}) < 2:
        return {}
    from evalharness.report.timeline.files import write_run_timeline  # a fifth of a second

    return {path.name: path for path in write_run_timeline(tables.run_dir)}


_PAGES: dict[str, Callable[[RunTables], dict[str, Path]]] = {"report.html": _report_pages, "timeline.html": _timeline}


def terminal_summary(run: Path | RunTables, columns: int | None = None) -> str:
    """Return the closing lines of a run, at most `columns` wide (default: COLUMNS, else 80), safe to print.

    Raises `RecordError` when the run cannot be read.
    """
    tables = load_tables(run) if isinstance(run, Path) else run
    return "\n".join(terminal_lines(tables, terminal_width() if columns is None else columns))


_UNFINISHED = "the run was killed, or is still running"


def rebuild_run(run_dir: Path) -> bool:
    """Write samples.jsonl and run.json of a run that did not finish, from its journal; return whether that was needed.

    A finished run with samples stays as it is, and so does one without a journal. No gate passes. Raises `RecordError`
    where nothing was recorded.
    """
    run: RunFile = read_run(run_dir) if (run_dir / "run.json").exists() else {"run_id": run_dir.name}
    has_samples = (run_dir / "samples.jsonl").exists()
    if not (run_dir / "journal").is_dir() or (has_samples and (run.get("finished_at") or not (run_dir / "run.json").exists())):
        return False
    records = read_records(run_dir)
    if not (records.rows or records.collected):
        if has_samples:
            return False
        raise RecordError(f"{run_dir} holds no record of any case: its run ended before the first one; there is nothing to report")
    engines = {spec["id"]: spec for spec in records.collected.get("engines", [])}
    nodeids, run_id = records.collected.get("nodeids", []), run.get("run_id") or run_dir.name
    rows = write_rows(run_dir, records, engines, nodeids, run_id, reason=_UNFINISHED)
    if run.get("finished_at"):
        return True  # only its samples were lost
    entries = engine_entries(engines.values(), records.engine_lines)
    noise = measured_noise(rows, list(records.repeats.values()))
    judged: RunFile = {
        "rebuilt": True,
        **judged_run(records, rows, entries, interrupted=_UNFINISHED, unfinished=_UNFINISHED, noise=noise),
        "aggregates": [],
        "tables": [],
        "outputs": [],
        "problems": records.problems,
    }
    write_run_file(run_dir, {**run, **judged, **generation_facts(records)})
    return True
