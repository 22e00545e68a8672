"""Which run came before one: the newest finished, whole run beside it that has its evals, and the command that compares the two."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from pathlib import Path

from evalharness.api.errors import RecordError
from evalharness.report.tables import RunTables
from evalharness.report.text import terminal_text
from evalharness.runs.run_file import FINISHED, read_run, run_state
from evalharness.runs.schema import entries_of, mapping, text_of

_MOST_LOOKED_AT = 20
_LEAST_SHARE = 0.5
"""Of this run's rows that the run before must have at least as many: not one of three cases that somebody tried again."""
_NAME = re.compile(r"\w[\w.-]*")
_KEY = "run before"


def earlier_run(tables: RunTables) -> Path | None:
    """Return the folder of the run before this one, None where there is none in its folder, or none can be read."""
    if _KEY not in tables.derived:
        tables.derived[_KEY] = _find(tables)
    return next((tables.run_dir.parent / name for name in tables.derived[_KEY]), None)


def run_word(tables: RunTables, run_dir: Path) -> str:
    """Return what commands call a run beside the one of the tables: its name where they look for it by themselves, else its path."""
    report_dir = mapping(mapping(tables.run.get("config")).get("report_dir"))
    is_found = run_dir.absolute().parent.name == "reports" and report_dir.get("origin") != "command line"
    return run_dir.name if is_found and _NAME.fullmatch(run_dir.name) else str(run_dir)


def compare_command(tables: RunTables) -> str:
    """Return the command that compares a finished run with the one before; "" where there is none."""
    before = earlier_run(tables) if run_state(tables.run) == FINISHED else None
    if before is None:
        return ""
    words = [run_word(tables, run_dir) for run_dir in (before, tables.run_dir)]
    return terminal_text(shlex.join(["evalharness", "compare", *words]), 600)


def _find(tables: RunTables) -> list[str]:
    """Return the name of the run before, in a list as all that is derived."""
    folder = tables.run_dir.absolute()
    with suppress(OSError, RecordError):
        newest = sorted(folder.parent.glob("*/run.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        candidates = [path.parent for path in newest if path.parent != folder and (path.parent / "report.html").is_file()]
        before = [(started_at, run_dir) for run_dir in candidates[:_MOST_LOOKED_AT] if (started_at := _started_before(run_dir, tables))]
        return [max(before)[1].name] if before else []
    return []


def _started_before(run_dir: Path, tables: RunTables) -> str:
    """Return when a run started, "" where it does not come before the one of the tables."""
    try:
        run = read_run(run_dir)
    except RecordError:
        return ""
    evals = {text_of(entry.get("name")) for entry in entries_of(run.get("evals"))}
    num_rows = sum(count for count in mapping(run.get("counts")).values() if isinstance(count, int))
    is_whole = run_state(run) == FINISHED and not run.get("partial")
    has_cases = bool(evals & set(tables.evals.names)) and num_rows >= _LEAST_SHARE * tables.num_rows
    started_at = text_of(run.get("started_at"))
    return started_at if has_cases and is_whole and started_at < text_of(tables.run.get("started_at")) else ""
