"""The cases of a page: an index to filter, sort and name them, and the rows of samples.jsonl, packed, with their pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from evalharness.report.html.page import packed_block, text_block
from evalharness.report.html.pictures import PictureFile, picture_files, small_copies
from evalharness.report.tables import OUTCOMES, RunTables
from evalharness.report.text import one_line, printable
from evalharness.runs.run_file import sample_lines
from evalharness.runs.schema import Generation, Row, generations_of, items_of, mapping

ROWS_PER_PAGE = 5_000
BYTES_PER_PAGE = 48_000_000
"""Of samples.jsonl; packed they are a fifth of it or less, unless a model wrote noise."""
_ROWS_PER_BLOCK = 100
_BYTES_PER_BLOCK = 400_000
MAX_PICTURES_PER_ROW = 24
_MOST_COPIES = 5_000
"""Kept for the next page of a run; pages in a row share photos where several engines were asked about them."""

# Only keys: a quote inside a text has a backslash before it, so `,"` never stands in one.
_IDS = re.compile(rb',\s*"(?:token_ids|logprobs|entropies)":\s*\[(?:[^\]"]|"-inf")*\]')
_HAS_PICTURES = re.compile(rb'"images":\s*\[\s*\{')


def page_ranges(run_dir: Path) -> list[range]:
    """Return which rows stand on which page; there is always a first page. Raises `RecordError` where rows cannot be read."""
    ranges: list[range] = []
    start = end = num_bytes = 0
    for line in sample_lines(run_dir):
        if end > start and (end - start >= ROWS_PER_PAGE or num_bytes + len(line) > BYTES_PER_PAGE):
            ranges.append(range(start, end))
            start, num_bytes = end, 0
        num_bytes += len(line)
        end += 1
    return [*ranges, range(start, end)]


@dataclass
class PageRows:
    """The rows of one page. `blocks` writes them and fills the other fields."""

    run_dir: Path
    rows: range
    starts: list[int] = field(default_factory=list)
    """The first row of each block, counted on this page."""
    pictures: dict[int, list[int]] = field(default_factory=dict)
    """Row on this page → numbers of its pictures."""
    copies: dict[PictureFile, bytes | None] = field(default_factory=dict)
    """Small copies that other pages of the run have made, and this one adds to."""
    num_missing: int = 0
    """Pictures that are recorded, but gone or changed."""
    _files: dict[PictureFile, int] = field(default_factory=dict)

    def blocks(self) -> Iterator[str]:
        """Yield blocks `rows-0`, `rows-1`… of lines of JSON, then `picture-0`… of JPEGs."""
        lines: list[bytes] = []
        num_bytes = 0
        for number, line in enumerate(islice(sample_lines(self.run_dir), self.rows.start, self.rows.stop)):
            if lines and (len(lines) >= _ROWS_PER_BLOCK or num_bytes + len(line) > _BYTES_PER_BLOCK):
                yield self._packed(lines, number)
                num_bytes = 0
            if _HAS_PICTURES.search(line):
                self._note_pictures(number, line)
            lines.append(_IDS.sub(b"", line))
            num_bytes += len(line)
        if lines:
            yield self._packed(lines, len(self.rows))
        if len(self.copies) > _MOST_COPIES:
            self.copies.clear()
        wanted = [file for file in self._files if file not in self.copies]
        self.copies.update(zip(wanted, small_copies(wanted, len(self._files)), strict=True))
        for file, number in self._files.items():
            copy = self.copies[file]
            if copy is not None:
                yield text_block(f"picture-{number}", copy)
            else:
                self.num_missing += 1

    def _packed(self, lines: list[bytes], end: int) -> str:
        block = packed_block(f"rows-{len(self.starts)}", b"\n".join(line.strip() for line in lines))
        self.starts.append(end - len(lines))
        lines.clear()
        return block

    def _note_pictures(self, number: int, line: bytes) -> None:
        row: Row = json.loads(line)
        files = list(dict.fromkeys(file for made in _shown_generations(row) for file in picture_files(made)))
        if files:
            shown = files[:MAX_PICTURES_PER_ROW]
            self.pictures[number] = [self._files.setdefault(file, len(self._files)) for file in shown]


def _shown_generations(row: Row) -> Iterator[Generation]:
    """Yield the row's generations, those of its steps first, as they were made."""
    yield from (mapping(made) for step in items_of(row.get("steps")) for made in items_of(step))
    yield from generations_of(row)


_OUTCOMES = (*OUTCOMES, "other")
OUTCOME_CODES = {outcome: number for number, outcome in enumerate(_OUTCOMES)}
_DIGITS = 6
_PROBLEM_CHARS = 60


def case_anchor(eval_name: str, test: str, engine: str, case_id: str) -> str:
    """Return the fragment of a case's link on its report page; `anchorOf` of report.js makes the same."""
    return "case=" + quote(printable(f"{eval_name}::{test}[{engine}-{case_id}]"), safe="-_.!~*'()")


def case_columns(tables: RunTables, page: PageRows, order: Sequence[int]) -> dict[str, Any]:
    """Return the columns of the page's rows; the page's blocks must have been written. `order`: the run's rows, the worst first."""
    rows = page.rows
    evals, tests, engines = zip(*tables.row_keys[rows.start : rows.stop], strict=True) if rows else ((), (), ())
    return {
        "names": {
            "evals": tables.evals.names,
            "tests": tables.tests.names,
            "engines": tables.engines.names,
            "checkpoints": [tables.checkpoints.get(engine, "") for engine in tables.engines.names],
            "outcomes": _OUTCOMES,
            "tag_values": tables.tag_values.names,
            "problems": _problem_names(tables, rows),
        },
        "first": rows.start,
        "eval": evals,
        "test": tests,
        "engine": engines,
        "case": tables.case_ids[rows.start : rows.stop],
        "outcome": [OUTCOME_CODES[outcome] for outcome in tables.outcomes[rows.start : rows.stop]],
        "problem": tables.row_problems[rows.start : rows.stop],
        "scores": _sparse(tables.row_scores, tables.score_names.names, rows, round_values=True),
        "tags": _sparse(tables.row_tags, tables.tag_keys.names, rows),
        "worst": [row - rows.start for row in order if row in rows],
        "flags": {name: [row - rows.start for row in flagged if row in rows] for name, flagged in tables.flagged.items()},
        "blocks": page.starts,
        "pictures": page.pictures,
    }


def _problem_names(tables: RunTables, rows: range) -> dict[int, str]:
    """Return how a filter by reason is called, by the number of the reason."""
    used = set(tables.row_problems[rows.start : rows.stop])
    return {group.number: one_line(group.problem, _PROBLEM_CHARS) for group in tables.problems.values() if group.number in used}


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
