"""Comparisons on a terminal: one table per test, what changed in slices, the first changed cases, the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalharness.comparison.changes import REGRESSED, CaseChange, Comparison, MetricChange
from evalharness.report.columns import fit, table_lines, wrapped
from evalharness.report.compare_wording import (
    case_title,
    changed_scores,
    conclusion,
    coverage_text,
    differing_texts,
    interval_text,
    p_text,
    remarks,
    shown_metrics,
    shown_slices,
    signed,
)
from evalharness.report.safe_text import terminal_text
from evalharness.report.wording import number_text

__all__ = ["comparison_lines"]

MIN_COLUMNS = 40
NUM_METRICS, NUM_SLICES, NUM_CASES, NUM_REMARKS = 40, 15, 5, 10
_HEADERS = ["metric", "base", "candidate", "difference", "95 % interval", "p", "could show", "verdict"]


def comparison_lines(comparisons: Sequence[Comparison], columns: int) -> Iterator[str]:
    """Yield lines that take at most `columns` columns and hold no control character."""
    columns = max(columns, MIN_COLUMNS)
    for number, comparison in enumerate(comparisons):
        if number:
            yield ""
        for line in _lines(comparison, columns):
            yield fit(line, columns)


def _lines(comparison: Comparison, columns: int) -> Iterator[str]:
    yield f"base       {terminal_text(comparison.base.label)}"
    yield f"candidate  {terminal_text(comparison.candidate.label)}"
    notes = list(remarks(comparison))
    for remark in notes[:NUM_REMARKS]:
        yield from wrapped(f"! {terminal_text(remark, 400)}", columns)
    if len(notes) > NUM_REMARKS:
        yield f"! {len(notes) - NUM_REMARKS} more remarks in compare.md"
    for sentence in coverage_text(comparison):
        yield ""
        yield from wrapped(terminal_text(sentence, 400), columns)
        test = sentence.partition(": ")[0]
        yield from _table([change for change in shown_metrics(comparison) if f"{change.eval}::{change.test}" == test])
    yield from _slices(comparison, columns)
    yield from _cases(comparison, columns)
    yield ""
    yield from wrapped(terminal_text(conclusion(comparison), 600), columns)


def _table(changes: Sequence[MetricChange]) -> Iterator[str]:
    lines = [_HEADERS, *(_line(change) for change in changes[:NUM_METRICS])]
    # The verdict stands last, so on a narrow terminal it would be cut: it comes second there.
    yield from table_lines([[line[0], line[-1], *line[1:-1]] for line in lines], 2)
    if len(changes) > NUM_METRICS:
        yield f"{len(changes) - NUM_METRICS} more metrics in compare.csv"


def _line(change: MetricChange) -> list[str]:
    own = change.change
    name = terminal_text(change.metric, 40) + (f" (n={own.num_pairs})" if own.num_pairs else "")
    numbers = [number_text(own.base), number_text(own.candidate), signed(own.difference), interval_text(change), p_text(change.p_corrected)]
    detectable = number_text(change.detectable) if change.detectable == change.detectable else "-"
    return [name, *numbers, detectable, change.verdict.upper() if change.verdict == REGRESSED else change.verdict]


def _slices(comparison: Comparison, columns: int) -> Iterator[str]:
    found: dict[tuple[str, ...], list[str]] = {}
    for change in shown_slices(comparison):
        where = f"{change.slice_key} {change.slice_value}"
        test = f"{change.eval}::{change.test}" if len(comparison.coverage) > 1 else ""
        own = change.change
        text = f"{terminal_text(change.metric, 40)} {number_text(own.base)} → {number_text(own.candidate)} (n={own.num_pairs})"
        found.setdefault((change.verdict, where, test), []).append(text)
    if found:
        yield ""
        yield "changed in slices:"
    for verdict, where, test in list(found)[:NUM_SLICES]:
        mark = verdict.upper() if verdict == REGRESSED else verdict
        title = f"{terminal_text(where, 80)}{' of ' + terminal_text(test, 80) if test else ''}"
        yield from wrapped(f"  {mark} {title}: {', '.join(found[verdict, where, test])}", columns)
    if len(found) > NUM_SLICES:
        yield f"  {len(found) - NUM_SLICES} more slices in compare.md"


def _cases(comparison: Comparison, columns: int) -> Iterator[str]:
    if not comparison.cases:
        return
    yield ""
    yield from wrapped(case_title(comparison), columns)
    for change in comparison.cases[:NUM_CASES]:
        yield from _case(change, columns)
    if len(comparison.cases) > NUM_CASES:
        yield f"  {len(comparison.cases) - NUM_CASES} more in compare.md and compare_cases.csv"


def _case(change: CaseChange, columns: int) -> Iterator[str]:
    yield from wrapped(f"  {change.direction} {terminal_text(change.case_id, 120)}: {terminal_text(changed_scores(change), 300)}", columns)
    for name, text in zip(("base", "candidate"), differing_texts(change, columns - 20), strict=True):
        if text is not None:
            yield f"      {name:9}  {terminal_text(text, 200)}"
