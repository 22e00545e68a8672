"""The run before: the newest finished run beside this one that has its cases, and where that run's pages show each of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from evalharness.api.errors import RecordError
from evalharness.report.html.cases import OUTCOME_CODES, page_ranges
from evalharness.report.tables import RunTables
from evalharness.report.text import printable
from evalharness.runs.run_file import FINISHED, read_run, run_state, sample_lines
from evalharness.runs.schema import entries_of, mapping, text_of

_MOST_LOOKED_AT = 20
_LEAST_SHARE = 0.5
"""Of this run's rows that the run before must have at least as many: not one of three cases that somebody tried again."""
_NAMES = ("eval", "test", "case_id", "engine", "outcome")
_TEXT = rb'"((?:[^"\\]|\\.)*)"'
# What the recorder writes; a row whose keys stand in another order is read whole.
_KEYS = (b"nodeid", b"eval", b"test", b"case_id", b"engine", b"checkpoint", b"backend", b"outcome")
_HEAD = re.compile(rb"\{" + b",".join(b'"' + key + b'":' + _TEXT for key in _KEYS))
_PLACES = (2, 3, 4, 5, 8)


class RunBefore:
    """A run that came before, and its cases: by eval, test and case id, for each engine, the outcome and the number of the page."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.cases: dict[tuple[str, str, str], dict[str, tuple[str, int]]] = {}
        heads = _heads(run_dir)
        for number, rows in enumerate(page_ranges(run_dir), start=1):
            for _, (eval_name, test, case_id, engine, outcome) in zip(rows, heads, strict=False):
                self.cases.setdefault((eval_name, test, case_id), {})[engine] = (outcome, number)

    def on_page(self, tables: RunTables, rows: range) -> dict[str, Any]:
        """Return, for rows of a run that came later: name and folder of this run, and per row its engine, outcome and page, or None.

        The engine is the same one where this run has it, else the first that was asked the case.
        """
        engines: dict[str, int] = {}
        found: list[tuple[int, int, int] | None] = []
        for row in rows:
            eval_code, test, engine = tables.row_keys[row]
            by_engine = self.cases.get((tables.evals.names[eval_code], tables.tests.names[test], tables.case_ids[row]))
            if by_engine is None:
                found.append(None)
                continue
            name = tables.engines.names[engine]
            name = name if name in by_engine else next(iter(by_engine))
            outcome, page = by_engine[name]
            found.append((engines.setdefault(name, len(engines)), OUTCOME_CODES.get(outcome, OUTCOME_CODES["other"]), page))
        folder = quote(self.run_dir.name, safe="", errors="surrogatepass")
        return {"name": self.run_dir.name, "folder": f"../{folder}/", "engines": list(engines), "rows": found}


def run_before(tables: RunTables) -> RunBefore | None:
    """Return the run before this one, None where there is none in its folder, or it cannot be read."""
    folder = tables.run_dir.absolute()
    with suppress(OSError, RecordError, ValueError, RecursionError):  # its rows may be broken, which is no problem of this run
        newest = sorted(folder.parent.glob("*/run.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        candidates = [path.parent for path in newest if path.parent != folder and (path.parent / "report.html").is_file()]
        before = [(started_at, run_dir) for run_dir in candidates[:_MOST_LOOKED_AT] if (started_at := _started_before(run_dir, tables))]
        if before:
            return RunBefore(max(before)[1])
    return None


def _started_before(run_dir: Path, tables: RunTables) -> str:
    """Return when a run started, "" where it does not come before the one of the tables."""
    try:
        run = read_run(run_dir)
    except RecordError:
        return ""
    evals = {text_of(entry.get("name")) for entry in entries_of(run.get("evals"))}
    num_rows = sum(count for count in mapping(run.get("counts")).values() if isinstance(count, int))
    has_cases = bool(evals & set(tables.evals.names)) and num_rows >= _LEAST_SHARE * tables.num_rows
    started_at = text_of(run.get("started_at"))
    return started_at if has_cases and run_state(run) == FINISHED and started_at < text_of(tables.run.get("started_at")) else ""


def _heads(run_dir: Path) -> Iterator[list[str]]:
    """Yield eval, test, case id, engine and outcome of each row."""
    for line in sample_lines(run_dir):
        head = _HEAD.match(line)
        if head and b"\\" not in head[0]:
            yield [head[place].decode() for place in _PLACES]
        else:
            row = mapping(json.loads(line))
            yield [printable(text_of(row.get(name))) for name in _NAMES]
