"""Comparisons on a terminal: one table per test, what changed in slices, the first changed cases, the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalharness.analysis.comparison.compare import REGRESSED, CaseChange, Comparison, MetricChange
from evalharness.report.compare.text import (
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
from evalharness.report.terminal import fit, table_lines, wrapped
from evalharness.report.text import display_width, number_text, plural, terminal_text

__all__ = ["comparison_lines"]

MIN_COLUMNS = 40
NUM_METRICS, NUM_SLICES, NUM_CASES, NUM_REMARKS = 40, 15, 5, 10
_HEADERS = ["metric", "verdict", "base", "candidate", "difference", "p", "95 % interval", "detectable"]
_FEWEST_COLUMNS = 5


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
        yield f"! {plural(len(notes) - NUM_REMARKS, 'more caveat')} in compare.md"
    for sentence, part in zip(coverage_text(comparison), comparison.coverage, strict=True):
        yield ""
        yield from wrapped(terminal_text(sentence, 400), columns)
        changes = [change for change in shown_metrics(comparison) if (change.eval, change.test) == (part.eval, part.test)]
        yield from _table(changes, part.num_paired, columns)
    yield from _slices(comparison, columns)
    yield from _cases(comparison, columns)
    yield ""
    yield from wrapped(terminal_text(conclusion(comparison), 600), columns)


def _table(changes: Sequence[MetricChange], num_paired: int, columns: int) -> Iterator[str]:
    lines = [_HEADERS, *(_line(change, num_paired) for change in changes[:NUM_METRICS])]
    # On a narrow terminal the last columns are left out whole; compare.md has them.
    num_shown = len(_HEADERS)
    while num_shown > _FEWEST_COLUMNS and max(map(display_width, table_lines([line[:num_shown] for line in lines], 2))) > columns:
        num_shown -= 1
    yield from table_lines([line[:num_shown] for line in lines], 2)
    if len(changes) > NUM_METRICS:
        yield f"{len(changes) - NUM_METRICS} more metrics in compare.csv"


def _line(change: MetricChange, num_paired: int) -> list[str]:
    own = change.change
    name = terminal_text(change.metric, 40) + (f" (n={own.num_pairs})" if own.num_pairs != num_paired else "")
    verdict = change.verdict.upper() if change.verdict == REGRESSED else change.verdict
    numbers = [number_text(own.base), number_text(own.candidate), signed(own.difference), p_text(change.p_corrected), interval_text(change)]
    return [name, verdict, *numbers, number_text(change.detectable) if change.detectable == change.detectable else "-"]


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
