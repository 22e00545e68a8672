"""compare.md: comparisons for people, as a GitHub-flavoured Markdown document in which every name and text is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalharness.analysis.comparison.compare import REGRESSED, WORTH_SHOWING, CaseChange, Comparison, MetricChange
from evalharness.analysis.statistics.correction import LEVEL
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
from evalharness.report.score_tables import markdown_table
from evalharness.report.text import markdown_cell
from evalharness.report.wording import number_text, plural

__all__ = ["comparison_blocks"]

NUM_SLICES, NUM_CASES, TEXT_CHARS = 60, 40, 400
_WAYS = {"lower": " (lower is better)", "none": " (neither way is better)"}
_HEADERS = ["metric", "verdict", "n", "groups", "base", "candidate", "difference", "95 % interval", "p", "could have shown"]


def comparison_blocks(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield the blocks of compare.md, to be set apart by empty lines."""
    yield "# Comparison" if len(comparisons) == 1 else f"# {len(comparisons)} comparisons"
    if len(comparisons) > 1:
        lines = [[markdown_cell(one.candidate.label), _mark(one.verdict), markdown_cell(conclusion(one), 600)] for one in comparisons]
        yield markdown_table(["candidate", "verdict", "why"], lines, 3)
    for comparison in comparisons:
        yield from _comparison(comparison)
    yield _note(comparisons[0].seed)


def _mark(verdict: str) -> str:
    return f"**{verdict.upper()}**" if verdict == REGRESSED else verdict


def _comparison(comparison: Comparison) -> Iterator[str]:
    yield f"## {markdown_cell(comparison.candidate.label)} against {markdown_cell(comparison.base.label)}"
    yield f"**{markdown_cell(conclusion(comparison), 1000)}.**"
    notes = list(remarks(comparison))
    if notes:
        yield "Before believing a number:"
        yield "\n".join(f"- {markdown_cell(remark, 500)}." for remark in notes)
    for sentence, part in zip(coverage_text(comparison), comparison.coverage, strict=True):
        yield f"### {markdown_cell(f'{part.eval} · {part.test}', 160)}"
        yield markdown_cell(sentence, 500) + "."
        changes = [change for change in shown_metrics(comparison) if (change.eval, change.test) == (part.eval, part.test)]
        if changes:
            yield markdown_table(_HEADERS, [_line(change) for change in changes], 2)
        yield from _aggregates(comparison, part.eval, part.test)
    yield from _slices(comparison)
    yield from _cases(comparison)


def _line(change: MetricChange) -> list[str]:
    own = change.change
    name = markdown_cell(change.metric, 60) + _WAYS.get(change.direction, "")
    numbers = [f"{own.num_pairs:,}", f"{own.num_groups:,}", number_text(own.base), number_text(own.candidate), signed(own.difference)]
    detectable = number_text(change.detectable) if change.detectable == change.detectable else "-"
    return [name, _mark(change.verdict), *numbers, interval_text(change), p_text(change.p_corrected), detectable]


def _aggregates(comparison: Comparison, eval_name: str, test: str) -> Iterator[str]:
    lines = []
    for key, after in comparison.candidate.aggregates.items():
        before = comparison.base.aggregates.get(key)
        if key[:2] == (eval_name, test) and before is not None:
            lines.append([markdown_cell(key[2], 60), number_text(before), number_text(after), signed(after - before)])
    if lines:
        yield "Aggregates, over all judged cases of each side; they are no means of cases, so nothing is tested:"
        yield markdown_table(["aggregate", "base", "candidate", "difference"], lines, 1)


def _slices(comparison: Comparison) -> Iterator[str]:
    if not comparison.slices:
        return
    yield "### Changes in slices"
    found = shown_slices(comparison)
    counted = f"p values corrected for the {plural(comparison.num_slice_tests, 'test')} that could show anything"
    yield f"{plural(len(comparison.slices), 'metric')} of slices looked at ({counted})."
    if not found:
        yield "No change is shown in any of them."
        return
    several = len(comparison.coverage) > 1
    lines = []
    for change in found[:NUM_SLICES]:
        where = [markdown_cell(f"{change.eval} · {change.test}", 160)] if several else []
        lines.append([*where, markdown_cell(change.slice_key, 60), markdown_cell(change.slice_value, 80), *_line(change)])
    yield markdown_table([*(["test"] if several else []), "slice", "value", *_HEADERS], lines, 5 if several else 4)
    if len(found) > NUM_SLICES:
        yield f"{len(found) - NUM_SLICES} more in compare.csv."


def _cases(comparison: Comparison) -> Iterator[str]:
    if not comparison.cases:
        return
    yield "### Changed cases"
    yield markdown_cell(case_title(comparison), 400) + "."
    yield markdown_table(
        ["case", "direction", "changed", "text before", "text now"], [_case(change) for change in comparison.cases[:NUM_CASES]], 5
    )
    if len(comparison.cases) > NUM_CASES:
        yield f"{len(comparison.cases) - NUM_CASES} more in compare\\_cases.csv."


def _case(change: CaseChange) -> list[str]:
    cells = [markdown_cell(change.case_id, 120), change.direction, markdown_cell(changed_scores(change), 400)]
    return [*cells, *("-" if text is None else markdown_cell(text, TEXT_CHARS) for text in differing_texts(change, TEXT_CHARS))]


def _note(seed: int) -> str:
    return (
        "A difference is candidate minus base, over the cases that both sides judged (pass, miss, fail); invalid cases and errors are no"
        f" scores. p is that of an exact paired test, cases of a group taken together, corrected by Holm: at most {LEVEL:.0%} of such"
        " tables hold a false alarm. *Could have shown* is the smallest true difference that these cases would have shown with a chance"
        f" of 80 %. *Not enough data*: a difference of {WORTH_SHOWING:g} could have gone unseen. Bootstrap seed {seed}. docs/comparing.md"
        " says how each number is made."
    )
