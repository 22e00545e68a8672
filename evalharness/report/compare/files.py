"""compare.html, compare.md, compare.csv and compare_cases.csv in a folder; the same comparisons give the same bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from evalharness.analysis.comparison.compare import Comparison, MetricChange
from evalharness.api.errors import RecordError
from evalharness.report.compare.page import write_compare_page
from evalharness.report.compare.text import changed_scores, comparison_blocks
from evalharness.report.csv import write_csv
from evalharness.report.writing import replacing

__all__ = ["CASE_COLUMNS", "COLUMNS", "write_compare_cases_csv", "write_compare_csv", "write_comparison"]


# compare.csv (every number of the comparisons, long and tidy) and compare_cases.csv (one line per changed case)

COLUMNS = [
    "base", "candidate", "eval", "test", "kind", "slice_key", "slice_value", "metric", "verdict", "base_value", "candidate_value",
    "difference", "low", "high", "p", "p_corrected", "could_have_shown", "direction", "n", "groups", "num_up", "num_down",
]  # fmt: skip
"""`kind`: metric (all cases), slice, aggregate (not tested), unpaired (`n` cases, `metric` says why)."""

CASE_COLUMNS = [
    "base", "candidate", "eval", "test", "case_id", "group", "direction", "base_outcome", "candidate_outcome", "changed",
    "base_text", "candidate_text", "base_problem", "candidate_problem", "base_nodeid", "candidate_nodeid",
]  # fmt: skip


def write_compare_csv(comparisons: Sequence[Comparison], file: TextIO) -> None:
    """Write one line per comparison, test, slice and metric."""
    write_csv(file, COLUMNS, (line for comparison in comparisons for line in _lines(comparison)))


def write_compare_cases_csv(comparisons: Sequence[Comparison], file: TextIO) -> None:
    """Write one line per comparison and changed case; texts as far as `CaseLine` keeps them."""
    write_csv(file, CASE_COLUMNS, (line for comparison in comparisons for line in _case_lines(comparison)))


def _lines(comparison: Comparison) -> Iterator[list[Any]]:
    sides = [comparison.base.label, comparison.candidate.label]
    for kind, changes in (("metric", comparison.metrics), ("slice", comparison.slices)):
        for change in changes:
            yield [*sides, change.eval, change.test, kind, change.slice_key, change.slice_value, change.metric, *_numbers(change)]
    for (eval_name, test, metric), after in comparison.candidate.aggregates.items():
        before = comparison.base.aggregates.get((eval_name, test, metric), math.nan)
        yield [*sides, eval_name, test, "aggregate", "", "", metric, "", before, after, after - before, *[""] * 10]
    for part in comparison.coverage:
        for reason, count in part.reasons.items():
            yield [*sides, part.eval, part.test, "unpaired", "", "", reason, *[""] * 10, count, "", "", ""]


def _numbers(change: MetricChange) -> list[Any]:
    own = change.change
    return [
        change.verdict, own.base, own.candidate, own.difference, own.low, own.high, own.p, change.p_corrected, change.detectable,
        change.direction, own.num_pairs, own.num_groups, own.num_up, own.num_down,
    ]  # fmt: skip


def _case_lines(comparison: Comparison) -> Iterator[list[Any]]:
    for change in comparison.cases:
        before, after = change.base, change.candidate
        yield [
            comparison.base.label, comparison.candidate.label, change.eval, change.test, change.case_id, after.group or before.group,
            change.direction, before.outcome, after.outcome, changed_scores(change), before.text, after.text, before.problem, after.problem,
            before.nodeid, after.nodeid,
        ]  # fmt: skip


def write_comparison(comparisons: Sequence[Comparison], folder: Path) -> list[Path]:
    """Write the four files and return their paths; raises `RecordError` where they cannot be written, or a run cannot be read."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"{folder} cannot be made: {error.strerror}; choose another folder with --out") from error
    paths = [folder / name for name in ("compare.html", "compare.md", "compare.csv", "compare_cases.csv")]
    with replacing(paths[0]) as file:
        write_compare_page(comparisons, file, folder)
    with replacing(paths[1]) as file:
        file.write("\n\n".join(comparison_blocks(comparisons)) + "\n")
    with replacing(paths[2]) as file:
        write_compare_csv(comparisons, file)
    with replacing(paths[3]) as file:
        write_compare_cases_csv(comparisons, file)
    return paths
