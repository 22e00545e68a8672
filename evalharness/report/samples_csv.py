"""samples.csv: one line per sample, every cell defused. Knows no pandas.

UTF-8 without a byte order mark, comma-separated, quoted where needed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TextIO

from evalharness.report.collecting import Codes, generations_of, mapping, text_of
from evalharness.report.text import csv_cell

__all__ = ["SampleNames", "write_samples_csv"]

_ROW_COLUMNS = ["run_id", "nodeid", "eval", "test", "case_id", "group", "engine", "checkpoint", "backend", "outcome", "problem"]
_GENERATION_COLUMNS = [
    "finish_reason",
    "stop_reason",
    "num_prompt_tokens",
    "num_completion_tokens",
    "seed",
    "weight_version",
    "fallback",
]
_LAST_COLUMNS = ["prompt_sha256", "worker", "started_at", "duration_s"]


class SampleNames(NamedTuple):
    """The names of scores and tags, each a column, in the order of their first use."""

    scores: Codes
    tags: Codes

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> SampleNames:
        """Return those that rows use."""
        names = cls(Codes(), Codes())
        for row in rows:
            for codes, field in ((names.scores, "scores"), (names.tags, "tags")):
                for name in mapping(row.get(field)):
                    codes.of(name)
        return names


def write_samples_csv(file: TextIO, rows: Iterable[Mapping[str, Any]], names: SampleNames) -> None:
    """Write one line per row of samples.jsonl, one by one so that texts need not all be in memory.

    Texts are those of the first generation; `num_generations` says how many there are. A text too long for a spreadsheet
    cell is cut with a marker; `text_chars` is its full length, and samples.jsonl has all of it.
    """
    write = csv.writer(file, lineterminator="\n").writerow
    header = [*_ROW_COLUMNS, *(f"score.{name}" for name in names.scores.names), *(f"tag.{key}" for key in names.tags.names)]
    header += [*_GENERATION_COLUMNS, "ignored_options", "num_generations", "text_chars", "text", "raw_text", *_LAST_COLUMNS]
    write([csv_cell(name) for name in header])
    num_scores, num_tags = len(names.scores.names), len(names.tags.names)
    for row in rows:
        scores, tags = [""] * num_scores, [""] * num_tags
        for name, value in mapping(row.get("scores")).items():
            scores[names.scores.of(name)] = csv_cell(value)
        for key, value in mapping(row.get("tags")).items():
            tags[names.tags.of(key)] = csv_cell(value)
        cells = [csv_cell(row.get(name)) for name in _ROW_COLUMNS]
        write([*cells, *scores, *tags, *_generation_cells(row), *[csv_cell(row.get(name)) for name in _LAST_COLUMNS]])


def _generation_cells(row: Mapping[str, Any]) -> list[str]:
    generations = generations_of(row)
    generation = generations[0] if generations else {}
    cells = [csv_cell(generation.get(name)) for name in _GENERATION_COLUMNS]
    ignored = generation.get("ignored_options")
    cells.append(csv_cell(", ".join(map(text_of, ignored))) if isinstance(ignored, list) else "")
    text = text_of(generation.get("text"))
    cells += str(len(generations)), str(len(text)) if generations else "", csv_cell(text), csv_cell(generation.get("raw_text"))
    return cells
