"""The cases of the run before, and where that run's pages show each of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from evalharness.api.errors import RecordError
from evalharness.report.earlier_run import earlier_run
from evalharness.report.html.cases import OUTCOME_CODES, page_ranges
from evalharness.report.tables import RunTables
from evalharness.report.text import printable
from evalharness.runs.run_file import sample_lines
from evalharness.runs.schema import mapping, text_of

_NAMES = ("eval", "test", "case_id", "engine", "outcome")
_TEXT = rb'"((?:[^"\\]|\\.)*)"'
# What the recorder writes; a row whose keys stand in another order is read whole.
_KEYS = (b"nodeid", b"eval", b"test", b"case_id", b"engine", b"checkpoint", b"backend", b"outcome")
HEAD = re.compile(rb"\{" + b",".join(b'"' + key + b'":' + _TEXT for key in _KEYS))
_PLACES = (2, 3, 4, 5, 8)

_Place: TypeAlias = "tuple[str, str, int]"
"""Engine, outcome, number of the page."""


class RunBefore:
    """A run that came before, and where its cases are: by eval and test, then by case id, a place for each engine."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.cases: dict[tuple[str, str], dict[str, tuple[_Place, ...]]] = {}
        shared: dict[tuple[_Place, ...], tuple[_Place, ...]] = {}  # thousands of cases have the same places
        heads = _heads(run_dir)
        for number, rows in enumerate(page_ranges(run_dir), start=1):
            for _, (eval_name, test, case_id, engine, outcome) in zip(rows, heads, strict=False):
                of_test = self.cases.setdefault((eval_name, test), {})
                places = (*of_test.get(case_id, ()), (engine, outcome, number))
                of_test[case_id] = shared.setdefault(places, places)

    def on_page(self, tables: RunTables, rows: range) -> dict[str, Any]:
        """Return, for rows of a run that came later: name and folder of this run, and per row its engine, outcome and page, or None.

        The engine is the same one where this run has it, else the first that was asked the case.
        """
        engines: dict[str, int] = {}
        found: list[tuple[int, int, int] | None] = []
        for row in rows:
            eval_code, test, engine = tables.row_keys[row]
            places = self.cases.get((tables.evals.names[eval_code], tables.tests.names[test]), {}).get(tables.case_ids[row])
            if places is None:
                found.append(None)
                continue
            name = tables.engines.names[engine]
            name, outcome, page = next((place for place in reversed(places) if place[0] == name), places[0])
            found.append((engines.setdefault(name, len(engines)), OUTCOME_CODES.get(outcome, OUTCOME_CODES["other"]), page))
        folder = quote(self.run_dir.name, safe="", errors="surrogatepass")
        return {"name": self.run_dir.name, "folder": f"../{folder}/", "engines": list(engines), "rows": found}


def run_before(tables: RunTables) -> RunBefore | None:
    """Return the run before this one, None where there is none in its folder, or it cannot be read."""
    before = earlier_run(tables)
    with suppress(OSError, RecordError, ValueError, RecursionError):  # its rows may be broken, which is no problem of this run
        return RunBefore(before) if before is not None else None
    return None


def _heads(run_dir: Path) -> Iterator[list[str]]:
    """Yield eval, test, case id, engine and outcome of each row."""
    for line in sample_lines(run_dir):
        head = HEAD.match(line)
        if head and b"\\" not in head[0]:
            yield [head[place].decode() for place in _PLACES]
        else:
            row = mapping(json.loads(line))
            yield [printable(text_of(row.get(name))) for name in _NAMES]
