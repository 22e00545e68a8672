"""From the end of a run to the run before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evalharness.report.earlier_run import compare_command, run_word
from evalharness.report.markdown import markdown_report
from evalharness.report.tables import RunTables, load_tables
from evalharness.report.terminal import terminal_lines
from tests.report.runs import rows, write_run


def written(folder: Path, name: str, day: int, **more: Any) -> RunTables:
    facts = {"evals": [{"name": "stage_a"}], "counts": {"pass": 4}, "started_at": f"2030-01-{day:02}T00:00:00", "run_id": name}
    run_dir = write_run(folder / name, rows(4), **{**facts, **more})
    (run_dir / "report.html").touch()
    return load_tables(run_dir)


def test_the_end_of_a_run_leads_to_the_comparison_with_the_one_before(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    first = written(reports, "monday", 1)
    written(reports, "a part", 2, partial={"stage_a": "2 of 4 cases"})
    second = written(reports, "tuesday", 3)
    command = "evalharness compare monday tuesday"
    assert f"compare: {command}" in terminal_lines(second, 60)
    assert any(command in block for block in markdown_report(second))
    assert compare_command(first) == ""
    assert compare_command(written(reports, "killed", 4, finished_at=None)) == ""


def test_a_run_is_named_where_commands_find_it_by_its_name_else_by_its_path(tmp_path: Path) -> None:
    tables = written(tmp_path / "reports", "r", 1)
    assert run_word(tables, tables.run_dir) == "r"
    assert run_word(tables, tables.run_dir / "../a b") == str(tables.run_dir / "../a b")
    tables = written(tmp_path / "reports", "s", 1, config={"report_dir": {"value": "x", "origin": "command line"}})
    assert run_word(tables, tables.run_dir) == str(tables.run_dir)
