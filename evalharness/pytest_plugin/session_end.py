"""The end of a session: everything is written, gates are judged, the scores are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import RecordError
from evalharness.pytest_plugin.outcomes import shorten
from evalharness.pytest_plugin.reporting import CONTROLLER_NAMES, REPORTING
from evalharness.pytest_plugin.session import STATE, EvalSession

__all__ = ["pytest_sessionfinish", "pytest_terminal_summary"]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write everything and judge the gates; after the fixtures are torn down."""
    state, reporting = session.config.stash[STATE], session.config.stash[REPORTING]
    try:
        state.close()
        if state.worker in CONTROLLER_NAMES and state.started_run:
            _finish(session, exitstatus)
    except KeyboardInterrupt:  # the second one: who presses it wants to be out, not to read a traceback
        session.exitstatus = pytest.ExitCode.INTERRUPTED
        if state.started_run:
            again = f"evalharness report {state.run_dir} makes the reports of it"
            reporting.problem = f"interrupted while the end of the run was written; the results are safe in the journal: {again}"


def _finish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    state, reporting = config.stash[STATE], config.stash[REPORTING]
    if reporting.progress is not None:
        reporting.progress.clear()
    from evalharness.pytest_plugin.finish import finish_run
    from evalharness.pytest_plugin.finish.ci_files import add_to_junit_file

    try:
        run, rows = finish_run(
            config,
            exit_code=int(exitstatus),
            interrupted=_interruption(session, exitstatus),
            crashes={**reporting.put_back, **reporting.crashes},
        )
        reporting.summary = _write_reports(config, state, run, rows)
        add_to_junit_file(config, run)
        reporting.summary += _renewed_index(state.run_dir.parent)
    except RecordError as error:
        reporting.problem = str(error)
    except Exception as error:  # whatever breaks here, the journal holds every result and must be named
        reporting.problem = f"{type(error).__name__}: {error}; the results are safe in {state.run_dir / 'journal'}"
    if reporting.problem is not None:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        return
    reporting.run = run
    session.exitstatus = run["exit_code"]


def _write_reports(config: pytest.Config, state: EvalSession, run: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Write the reports and return the closing lines; what could not be made is noted in `run`, as in run.json."""
    from evalharness.pytest_plugin.finish.ci_files import write_github_summary
    from evalharness.report.writing import report_rows, terminal_summary  # pandas, only now

    tables = report_rows(state.run_dir, rows)
    run.update({name: tables.run[name] for name in ("problems", "exit_code")})
    write_github_summary(tables)
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    return terminal_summary(tables, None if reporter is None else reporter._tw.fullwidth)


def _renewed_index(report_dir: Path) -> str:
    """Renew the index of all runs and return "", or the line that says why it could not be: that is no problem of this run."""
    from evalharness.report.html.index_page import INDEX, write_index

    try:
        write_index(report_dir)
    except Exception as error:  # whatever another run's folder holds, this run has its reports
        return f"\n{INDEX} of all runs could not be renewed: {type(error).__name__}: {shorten(str(error))}"
    return ""


def _interruption(session: pytest.Session, exitstatus: int) -> str | None:
    if session.shouldfail or session.shouldstop:
        return str(session.shouldfail or session.shouldstop)
    return session.config.stash[REPORTING].interrupted or ("internal error" if exitstatus == pytest.ExitCode.INTERNAL_ERROR else None)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the scores, the misses where `-rm` asks for them, and where the report lies."""
    reporting = config.stash[REPORTING]
    state = config.stash[STATE]
    if reporting.problem is None and reporting.run is None:
        return
    from evalharness.report.text import terminal_text

    if reporting.problem is not None:
        terminalreporter.write_sep("=", "evalharness", red=True)
        terminalreporter.write_line(f"no report: {terminal_text(reporting.problem, 2000)}", red=True)
        return
    if "m" in terminalreporter.reportchars and reporting.misses:
        terminalreporter.write_sep("=", "misses")
        for nodeid, location, problem in reporting.misses:
            terminalreporter.write_line(f"MISS {nodeid} ({location})", yellow=True)
            for line in problem.splitlines():
                terminalreporter.write_line(f"E   {terminal_text(line)}")
    terminalreporter.write_sep("=", "evalharness")
    for line in reporting.summary.splitlines():  # one by one: a terminal that lacks a character gets that line escaped
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"report: {state.run_dir / 'report.md'}")
    if (page := state.run_dir / "report.html").exists():
        terminalreporter.write_line(f"page: {page}")
