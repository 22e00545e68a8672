"""What a page knows of its cases before any row is opened: enough to filter, sort and name them. In columns, codes for names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from evalharness.report.collecting import OUTCOMES, Collected
from evalharness.report.html.case_rows import PageRows
from evalharness.report.text import printable

__all__ = ["case_anchor", "case_columns"]

_OUTCOMES = (*OUTCOMES, "other")
_DIGITS = 6


def case_anchor(eval_name: str, test: str, engine: str, case_id: str) -> str:
    """Return the fragment of a case's link on its report page; `anchorOf` of report.js makes the same."""
    return "case=" + quote(printable(f"{eval_name}::{test}[{engine}-{case_id}]"), safe="-_.!~*'()")


def case_columns(collected: Collected, page: PageRows) -> dict[str, Any]:
    """Return the columns of the page's rows; the page's blocks must have been written."""
    rows = page.rows
    evals, tests, engines = zip(*collected.row_keys[rows.start : rows.stop], strict=True) if rows else ((), (), ())
    numbers = {outcome: number for number, outcome in enumerate(_OUTCOMES)}
    return {
        "names": {
            "evals": collected.evals.names,
            "tests": collected.tests.names,
            "engines": collected.engines.names,
            "checkpoints": [collected.checkpoints.get(engine, "") for engine in collected.engines.names],
            "outcomes": _OUTCOMES,
            "tag_values": collected.tag_values.names,
        },
        "first": rows.start,
        "eval": evals,
        "test": tests,
        "engine": engines,
        "case": collected.case_ids[rows.start : rows.stop],
        "outcome": [numbers[outcome] for outcome in collected.outcomes[rows.start : rows.stop]],
        "problem": collected.row_problems[rows.start : rows.stop],
        "scores": _sparse(collected.scores, collected.score_names.names, rows, round_values=True),
        "tags": _sparse(collected.tags, collected.tag_keys.names, rows),
        "blocks": page.starts,
        "pictures": page.pictures,
    }


def _sparse(
    entries: Sequence[tuple[int, int, Any]], names: Sequence[str], rows: range, *, round_values: bool = False
) -> dict[str, list[Any]]:
    """Return, by name, one value per row, None where it has none; names that no row of the page has are left out."""
    columns: dict[int, list[Any]] = {}
    for row, name, value in entries:
        if row in rows:
            column = columns.get(name)
            if column is None:
                column = columns[name] = [None] * len(rows)
            column[row - rows.start] = round(value, _DIGITS) if round_values else value
    return {names[name]: column for name, column in columns.items()}
