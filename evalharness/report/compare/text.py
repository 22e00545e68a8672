"""What a comparison says in words and numbers, the same on a terminal and in Markdown. Texts are not escaped here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalharness.analysis.comparison.compare import CHANGED, IMPROVED, NOT_ENOUGH, REGRESSED, SAME, CaseChange, Comparison, MetricChange
from evalharness.report.wording import number_text, plural

__all__ = [
    "ORDER", "case_title", "changed_scores", "conclusion", "coverage_text", "differing_texts", "interval_text", "p_text", "remarks",
    "shown_metrics", "shown_slices", "signed",
]  # fmt: skip

ORDER = (REGRESSED, IMPROVED, CHANGED, SAME, NOT_ENOUGH)
"""Verdicts, most important first."""
MOST_CHANGED_SCORES = 6
CONTEXT_CHARS = 30


def signed(value: float) -> str:
    """Return a difference with its sign; "-" where there is none."""
    if value != value:
        return "-"
    return "0.000" if value == 0 else f"{'+' if value > 0 else ''}{number_text(value)}"


def interval_text(change: MetricChange) -> str:
    """Return the 95 % interval of the difference."""
    low, high = change.change.low, change.change.high
    return "-" if low != low else f"{signed(low)} … {signed(high)}"


def p_text(p: float) -> str:
    """Return a p value; small ones by what they are below."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def coverage_text(comparison: Comparison) -> Iterator[str]:
    """Yield one sentence per test: how many cases could be paired, and why the others could not."""
    groups = {(change.eval, change.test): change.change.num_groups for change in reversed(comparison.metrics)}
    for part in comparison.coverage:
        num_groups = groups.get((part.eval, part.test), part.num_paired)
        grouped = f", in {plural(num_groups, 'group')}" if num_groups < part.num_paired else ""
        why = ", ".join(f"{count:,} {reason}" for reason, count in part.reasons.items())
        paired = f"{part.num_paired:,} of {plural(part.num_cases, 'case')} paired{grouped}"
        yield f"{part.eval}::{part.test}: {paired}{'; not paired: ' + why if why else ''}"


def remarks(comparison: Comparison) -> Iterator[str]:
    """Yield what a reader must know before believing a number."""
    for difference in comparison.differences:
        yield difference.text
    for side, name in ((comparison.base, "base"), (comparison.candidate, "candidate")):
        yield from (f"{name}: {note}" for note in side.notes)
    for part in comparison.coverage:
        if 2 * part.num_paired < part.num_cases:
            yield f"fewer than half of the cases of {part.eval}::{part.test} could be paired: what is left may not speak for the rest"


def shown_metrics(comparison: Comparison) -> list[MetricChange]:
    """Return the metrics over all cases by test, then verdict, then size of the change."""
    tests = {(part.eval, part.test): position for position, part in enumerate(comparison.coverage)}
    return sorted(comparison.metrics, key=lambda change: (tests[change.eval, change.test], *_rank(change)))


def shown_slices(comparison: Comparison) -> list[MetricChange]:
    """Return the changes in slices that are shown to be real, largest first; regressions before improvements."""
    return sorted((change for change in comparison.slices if change.verdict in (REGRESSED, IMPROVED, CHANGED)), key=_rank)


def _rank(change: MetricChange) -> tuple[int, float]:
    size = abs(change.change.difference)
    return ORDER.index(change.verdict), 0.0 if size != size else -size


def conclusion(comparison: Comparison) -> str:
    """Return the sentence that answers whether the candidate is worse, the verdict first."""
    parts = []
    for verdict, word in ((REGRESSED, REGRESSED.upper()), (IMPROVED, IMPROVED), (CHANGED, CHANGED)):
        names = list(dict.fromkeys(change.metric for change in comparison.metrics if change.verdict == verdict))
        if names:
            parts.append(f"{word}: {_listed(names)}")
        slices = dict.fromkeys((change.slice_key, change.slice_value) for change in shown_slices(comparison) if change.verdict == verdict)
        if slices:
            parts.append(f"{word} in {plural(len(slices), 'slice')}: {_listed([f'{key} {value}' for key, value in slices])}")
    numbers = {verdict: sum(change.verdict == verdict for change in comparison.metrics) for verdict in (SAME, NOT_ENOUGH)}
    counts = [f"{verdict} in {plural(number, 'metric')}" for verdict, number in numbers.items() if number]
    return "; ".join([*parts, *counts]) or "no metric in common"


def _listed(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def changed_scores(change: CaseChange) -> str:
    """Return "exact 1.000 → 0.000, …" of a case; counts only where nothing else changed."""
    outcomes = [f"{change.base.outcome} → {change.candidate.outcome}"] if change.base.outcome != change.candidate.outcome else []
    known = [score for score in change.scores if not score[0].startswith("num_") and score[0] != "pass_rate"]
    shown = [f"{name} {number_text(before)} → {number_text(after)}" for name, before, after in known[:MOST_CHANGED_SCORES]]
    more = [f"{len(known) - MOST_CHANGED_SCORES} more"] if len(known) > MOST_CHANGED_SCORES else []
    return ", ".join([*outcomes, *shown, *more])


def differing_texts(change: CaseChange, most: int) -> tuple[str | None, str | None]:
    """Return both texts, from shortly before the first character that differs; None where a side keeps no text."""
    before, after = change.base.text, change.candidate.text
    if before is None or after is None:
        return before, after
    common = next(
        (place for place, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), min(len(before), len(after))
    )
    start = max(0, common - CONTEXT_CHARS)
    if max(len(before), len(after)) <= most or before == after:
        start = 0
    mark = "…" if start else ""
    return mark + before[start:], mark + after[start:]


def case_title(comparison: Comparison) -> str:
    """Return how many cases changed, and which way."""
    counts = {word: sum(change.direction == word for change in comparison.cases) for word in ("worse", "better", "mixed")}
    flipped = [change for change in comparison.cases if change.has_flipped]
    lost = sum(change.base.outcome == "pass" for change in flipped)
    words = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
    return (
        f"{plural(len(comparison.cases), 'case')} with other scores{': ' + words if words else ''}; "
        f"{lost:,} passed before and {'does' if lost == 1 else 'do'} not now, {len(flipped) - lost:,} the other way round"
    )
