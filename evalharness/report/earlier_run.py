"""Which run came before one: the newest finished, whole run beside it that has its evals, and the command that compares the two."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from evalharness.api.errors import RecordError
from evalharness.report.tables import OUTCOMES, RunTables
from evalharness.report.text import terminal_text
from evalharness.runs.partial import stopped_evals
from evalharness.runs.run_file import FINISHED, read_run, run_state
from evalharness.runs.schema import RunFile, entries_of, mapping, text_of

_MOST_LOOKED_AT = 20
_LEAST_SHARE = 0.5
"""Of this run's rows the run before must have judged at least as many: not three cases that somebody tried again, nor errors alone."""
_JUDGED = ("pass", "miss", "fail")
_NAME = re.compile(r"\w[\w.-]*")
_KEY = "run before"


def earlier_run(tables: RunTables) -> Path | None:
    """Return the folder of the run before this one, None where there is none in its folder, or none can be read."""
    if _KEY not in tables.derived:
        found = find_earlier(tables.run_dir, tables.run)
        tables.derived[_KEY] = [found.name] if found else []
    return next((tables.run_dir.parent / name for name in tables.derived[_KEY]), None)


def run_word(run: RunFile, run_dir: Path) -> str:
    """Return what commands call a run, or one beside it: its name where they look for it by themselves, else its path."""
    report_dir = mapping(mapping(run.get("config")).get("report_dir"))
    is_found = run_dir.absolute().parent.name == "reports" and report_dir.get("origin") != "command line"
    return run_dir.name if is_found and _NAME.fullmatch(run_dir.name) else str(run_dir)


def show_command(run: str, case_id: str) -> str:
    """Return the command that shows a case; one whose id begins with a dash is no option."""
    return shlex.join(["evalharness", "show", run, *(["--"] if case_id.startswith("-") else []), case_id])


def compare_command(tables: RunTables) -> str:
    """Return the command that compares a finished run with the one before; "" where there is none."""
    can_be = run_state(tables.run) == FINISHED and any(map(tables.total, _JUDGED)) and not stopped_evals(tables.run)
    before = earlier_run(tables) if can_be else None
    if before is None:
        return ""
    words = [run_word(tables.run, run_dir) for run_dir in (before, tables.run_dir)]
    return terminal_text(shlex.join(["evalharness", "compare", *words]), 600)


def find_earlier(run_dir: Path, run: RunFile) -> Path | None:
    """Return the same of a run whose rows were not read."""
    folder = run_dir.absolute()
    with suppress(OSError, RecordError):
        newest = sorted(folder.parent.glob("*/run.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        candidates = [path.parent for path in newest if path.parent != folder and (path.parent / "report.html").is_file()]
        before = [(started_at, path) for path in candidates[:_MOST_LOOKED_AT] if (started_at := _started_before(path, run))]
        return run_dir.parent / max(before)[1].name if before else None
    return None


def _started_before(run_dir: Path, later: RunFile) -> str:
    """Return when a run started, "" where it does not come before the later one, is not whole, or has not its cases."""
    try:
        run = read_run(run_dir)
    except RecordError:
        return ""
    has_cases = bool(_evals(run) & _evals(later)) and _num_rows(run, _JUDGED) >= _LEAST_SHARE * _num_rows(later, OUTCOMES)
    is_whole = run_state(run) == FINISHED and not run.get("partial")
    started_at = text_of(run.get("started_at"))
    return started_at if has_cases and is_whole and started_at < text_of(later.get("started_at")) else ""


def _evals(run: RunFile) -> set[str]:
    return {text_of(entry.get("name")) for entry in entries_of(run.get("evals"))}


def _num_rows(run: RunFile, outcomes: Collection[str]) -> int:
    return sum(count for name, count in mapping(run.get("counts")).items() if name in outcomes and isinstance(count, int))
