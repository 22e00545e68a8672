"""The score tables of report.md: per test and engine, and broken down by tag, each score beside its validity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from tabulate import tabulate

from evalharness.report.tables import RunTables
from evalharness.report.text import markdown_cell
from evalharness.report.wording import plural, score_text

__all__ = ["breakdown_sections", "markdown_table", "score_sections"]

NUM_SCORE_COLUMNS = 8
"""More scores than this go to further tables, each with the validity columns again; by tag they are left out."""
NUM_TAG_KEYS = 8
NUM_TAG_LINES = 40

_VALIDITY = {
    "cases": "cases",
    "malformed": "malformed",
    "length_cap": "hit length cap",
    "empty": "empty",
    "unclosed": "unclosed thoughts",
    "invalid": "invalid",
    "error": "errors",
    "skip": "skipped",
    "pass": "pass",
    "miss": "miss",
    "fail": "fail",
    "other": "unknown outcome",
}
_ALWAYS_SHOWN = ("cases", "malformed", "length_cap", "empty", "invalid", "error")
_SCORE_NOTE = (
    "Scores are means over the cases that have one (n) with a 95 % interval: Wilson's where every case scores 0 or 1, a bootstrap"
    " (seed 0) otherwise, none where no case differs from another. Cases of one group are taken together. Invalid, skipped and"
    " broken cases are in no mean."
    " Malformed: the score `valid` is 0; whether that means unreadable, or not exactly in the form asked for, is the eval's to say."
    " Hit length cap, empty, unclosed thoughts: cases with at least one such answer."
)


def markdown_table(headers: Sequence[str], lines: Sequence[Sequence[str]], num_text_columns: int) -> str:
    """Return a pipe table of cells that are escaped already; columns after the first `num_text_columns` are set right."""
    align = ["left" if column < num_text_columns else "right" for column in range(len(headers))]
    return tabulate(lines, headers=list(headers), tablefmt="pipe", disable_numparse=True, colalign=align)


def score_sections(tables: RunTables) -> Iterator[str]:
    """Yield the section with one line per eval × test × engine."""
    if tables.rows.empty:
        return
    yield "## Scores and their validity"
    for test in _tests(tables.counts):
        yield f"### {_title(test)}"
        yield from _score_tables(_part(tables.counts, test), _part(tables.scores, test), ["engine"], tables.metrics(*test))
    yield _SCORE_NOTE


def breakdown_sections(tables: RunTables) -> Iterator[str]:
    """Yield the section with one table per test and tag key; what is left out is said."""
    if tables.row_tags.empty:
        return
    yield "## Breakdowns"
    for test in _tests(tables.tag_counts):
        counts, scores = _part(tables.tag_counts, test), _part(tables.tag_scores, test)
        metrics = tables.metrics(*test)
        keys = list(dict.fromkeys(counts.index.get_level_values("key")))
        for key in keys[:NUM_TAG_KEYS]:
            yield f"### {_title(test)} by {markdown_cell(key, 60)}"
            yield from _breakdown(_of_key(counts, key), _of_key(scores, key), metrics[:NUM_SCORE_COLUMNS])
        if len(metrics) > NUM_SCORE_COLUMNS:
            yield f"{plural(len(metrics) - NUM_SCORE_COLUMNS, 'more score')} by tag left out here; report.csv has them."
        if len(keys) > NUM_TAG_KEYS:
            yield f"{plural(len(keys) - NUM_TAG_KEYS, 'more tag key')} left out here; report.csv has them."


def _tests(table: pd.DataFrame) -> list[tuple[str, str]]:
    return list(dict.fromkeys(zip(table.index.get_level_values("eval"), table.index.get_level_values("test"), strict=True)))


def _title(test: tuple[str, str]) -> str:
    return f"{markdown_cell(test[0], 80)} · {markdown_cell(test[1], 80)}"


def _part(table: pd.DataFrame, test: tuple[str, str]) -> pd.DataFrame:
    """Return the lines of one test, without the index levels that say so."""
    chosen = (table.index.get_level_values("eval") == test[0]) & (table.index.get_level_values("test") == test[1])
    return table[chosen].droplevel(["eval", "test"])


def _of_key(table: pd.DataFrame, key: str) -> pd.DataFrame:
    return table[table.index.get_level_values("key") == key].droplevel("key")


def _breakdown(counts: pd.DataFrame, scores: pd.DataFrame, metrics: list[str]) -> Iterator[str]:
    """Yield the table of one tag key, engines side by side; the values with the most cases if there are too many lines."""
    counts, scores = counts.reorder_levels(["value", "engine"]), scores.reorder_levels(["value", "engine", "metric"])
    per_value = counts.groupby("value", observed=True)["cases"].sum()
    num_shown = max(1, NUM_TAG_LINES * len(per_value) // len(counts))
    if len(per_value) == 1:
        yield f"Every case that has it: {markdown_cell(per_value.index[0])}."
        return
    shown = per_value.sort_values(ascending=False, kind="stable").head(num_shown).index
    kept = counts[counts.index.get_level_values("value").isin(shown)].sort_index()
    yield from _score_tables(kept, scores[scores.index.get_level_values("value").isin(shown)], ["value", "engine"], metrics)
    if len(per_value) > len(shown):
        yield f"{plural(len(per_value) - len(shown), 'more value')} with fewer cases left out here; report.csv has them."


def _score_tables(counts: pd.DataFrame, scores: pd.DataFrame, by: list[str], metrics: list[str]) -> Iterator[str]:
    """Yield tables with a line per index entry of `counts`: scores, and beside them the columns that say what they are worth."""
    cells = {key: score_text(*values) for key, *values in scores[["mean", "low", "high", "n"]].itertuples(name=None)}
    validity = [name for name in _VALIDITY if name in _ALWAYS_SHOWN or counts[name].any()]
    rows = [(key if isinstance(key, tuple) else (key,), row) for key, row in zip(counts.index, counts.to_dict("records"), strict=True)]
    for start in range(0, max(len(metrics), 1), NUM_SCORE_COLUMNS):
        shown = metrics[start : start + NUM_SCORE_COLUMNS]
        lines = [
            [
                *(markdown_cell(part, 80) for part in key),
                *(cells.get((*key, name), "-") for name in shown),
                *(_validity_cell(name, row) for name in validity),
            ]
            for key, row in rows
        ]
        headers = [*by, *(markdown_cell(name, 60) for name in shown), *(_VALIDITY[name] for name in validity)]
        yield markdown_table(headers, lines, len(by))


def _validity_cell(name: str, counts: Mapping[Any, int]) -> str:
    unknown = name == "malformed" and not counts["form_judged"]
    return "-" if unknown else f"{counts[name]:,}"
