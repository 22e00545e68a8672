"""Comparisons in words and numbers: the sentences that all outputs share (not escaped), compare.md, and a terminal's lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup
from rich.cells import cell_len

from evalharness.analysis.comparison import compare
from evalharness.analysis.comparison.pairing import Coverage
from evalharness.analysis.statistics.paired import LEVEL
from evalharness.report.columns import fit
from evalharness.report.findings import gate_state, gate_words
from evalharness.report.html.page import render_markdown
from evalharness.report.noise import floor_text, noise_remarks
from evalharness.report.score_tables import markdown_table
from evalharness.report.terminal import table_lines, wrapped
from evalharness.report.text import markdown_cell, number_text, plural, terminal_text
from evalharness.runs.schema import GateVerdict, entries_of, text_of

CHANGES = (compare.REGRESSED, compare.IMPROVED, compare.CHANGED)
ORDER = (*CHANGES, compare.WITHIN_NOISE, compare.SAME, compare.NOT_ENOUGH)
"""Verdicts, most important first."""
MOST_CHANGED_SCORES = 6
CONTEXT_CHARS = 30


def signed(value: float) -> str:
    """Return a difference with its sign; "-" where there is none."""
    if value != value:
        return "-"
    return "0.000" if value == 0 else f"{'+' if value > 0 else ''}{number_text(value)}"


def numbers_of(change: compare.MetricChange) -> dict[str, str]:
    """Return the numbers of a change for people, by name; "-" for those that it has not."""
    paired, p = change.change, change.p_corrected
    return {
        "base": number_text(paired.base),
        "candidate": number_text(paired.candidate),
        "difference": signed(paired.difference),
        "interval": "-" if paired.low != paired.low else f"{signed(paired.low)} … {signed(paired.high)}",
        "p": "<0.001" if p < 0.001 else f"{p:.3f}",
        "detectable": number_text(change.detectable) if change.detectable == change.detectable else "-",
    }


def coverage_text(comparison: compare.Comparison) -> Iterator[str]:
    """Yield one sentence per test: how many cases could be paired, and why the others could not."""
    groups = {(change.eval, change.test): change.change.num_groups for change in reversed(comparison.metrics)}
    for part in comparison.coverage:
        num_groups = groups.get((part.eval, part.test), part.num_paired)
        grouped = f", in {plural(num_groups, 'group')}" if num_groups < part.num_paired else ""
        why = ", ".join(f"{count:,} {reason}" for reason, count in part.reasons.items())
        paired = f"{part.num_paired:,} of {plural(part.num_cases, 'case')} paired{grouped}"
        yield f"{part.eval}::{part.test}: {paired}{'; not paired: ' + why if why else ''}"


def remarks(comparison: compare.Comparison) -> Iterator[str]:
    """Yield the caveats of a comparison."""
    for difference in comparison.differences:
        yield difference.text
    for side, name in ((comparison.base, "base"), (comparison.candidate, "candidate")):
        yield from (f"{name}: {note}" for note in side.caveats)
    yield from noise_remarks(comparison)
    for part in comparison.coverage:
        if 2 * part.num_paired < part.num_cases:
            yield f"fewer than half of the cases of {part.eval}::{part.test} could be paired: what is left may not speak for the rest"


def shown_metrics(comparison: compare.Comparison, part: Coverage) -> list[compare.MetricChange]:
    """Return the metrics of one test over all its cases by verdict, then size of the change."""
    return sorted((change for change in comparison.metrics if (change.eval, change.test) == (part.eval, part.test)), key=rank)


def aggregate_changes(comparison: compare.Comparison, part: Coverage | None) -> list[tuple[str, str, str, str]]:
    """Return name, both values and their difference of every aggregate of one test that both sides have; None: of the suites."""
    changes = []
    for metric, after in comparison.candidate.aggregates.items():
        eval_name, test, name = metric
        before = comparison.base.aggregates.get(metric)
        wanted = test == "" if part is None else (eval_name, test) == (part.eval, part.test)
        if wanted and before is not None:
            low, high = difference_interval(comparison, metric, after - before)
            interval = "" if low is None else f" [{signed(low)} … {signed(high)}]"
            shown = f"{eval_name}.{name}" if part is None else name
            changes.append((shown, number_text(before), number_text(after), f"{signed(after - before)}{interval}"))
    return changes


def difference_interval(comparison: compare.Comparison, metric: tuple[str, str, str], value: float) -> tuple[Any, Any]:
    """Return the 95 % interval of an aggregate's difference, None twice unless both sides have drawn cases equally often."""
    (before, groups), (after, others) = (side.draws.get(metric, ([], 0)) for side in (comparison.base, comparison.candidate))
    if not before or len(before) != len(after):
        return None, None
    from evalharness.analysis.statistics.aggregates import differences, interval_of  # loads numpy

    return interval_of(value, differences(before, after), min(groups, others)) or (None, None)


def shown_slices(comparison: compare.Comparison) -> list[compare.MetricChange]:
    """Return the changes in slices that are shown to be real, largest first; regressions before improvements."""
    return sorted((change for change in comparison.slices if change.verdict in CHANGES), key=rank)


def rank(change: compare.MetricChange) -> tuple[int, float]:
    """Return what sorts changes: by verdict, regressions first, then the largest first."""
    size = abs(change.change.difference)
    return ORDER.index(change.verdict), 0.0 if size != size else -size


def conclusion(comparison: compare.Comparison) -> str:
    """Return the sentence that answers whether the candidate is worse: how many metrics and slices changed, the largest by name."""
    parts = []
    for verdict in CHANGES:
        metrics = [change for change in sorted(comparison.metrics, key=rank) if change.verdict == verdict]
        slices: dict[str, None] = {
            f"{line.slice_key} {line.slice_value}{_of(comparison, line)}": None
            for line in shown_slices(comparison)
            if line.verdict == verdict
        }
        changes = [f"{line.metric}{_of(comparison, line)} {_values(line)}" for line in metrics]
        found = [f"{plural(len(metrics), 'metric')} ({_listed(changes)})"] if metrics else []
        found += [f"{plural(len(slices), 'slice')} ({_listed(list(slices))})"] if slices else []
        parts += [f"{_word(verdict)}: {', '.join(found)}"] if found else []
    numbers = Counter(change.verdict for change in comparison.metrics)
    counts = [f"{verdict} in {plural(numbers[verdict], 'metric')}" for verdict in ORDER[3:] if numbers[verdict]]
    return "; ".join([*parts, *counts]) or "no metric in common"


def slices_by_verdict(comparison: compare.Comparison) -> dict[str, list[tuple[str, str]]]:
    """Return tag and value of the slices in which some metric is shown to have changed, by verdict, the largest change first."""
    return {
        verdict: list(dict.fromkeys((line.slice_key, line.slice_value) for line in shown_slices(comparison) if line.verdict == verdict))
        for verdict in CHANGES
    }


def _values(change: compare.MetricChange) -> str:
    return f"{number_text(change.change.base)} → {number_text(change.change.candidate)}"


def _of(comparison: compare.Comparison, change: compare.MetricChange) -> str:
    """Return " of stage_a" where several evals are compared, with the test where the eval has several; else ""."""
    tests = [part.test for part in comparison.coverage if part.eval == change.eval]
    place = change.eval if len(tests) == 1 else f"{change.eval}::{change.test}"
    return f" of {place}" if len(comparison.coverage) > 1 else ""


def gate_summary(comparison: compare.Comparison) -> str:
    """Return what became of the gates on both sides, "" where neither has any."""
    sides = [gate_words(Counter(map(gate_state, side.gates))) for side in (comparison.base, comparison.candidate)]
    words = [side[0] if side else "has none" for side in sides]  # what is skipped is no news
    return f"base: {words[0]}; candidate: {words[1]}" if any(sides) else ""


def changed_gates(comparison: compare.Comparison) -> list[tuple[str, str]]:
    """Return the gates that fail on one side only: "newly failing" or "newly passing", and the gate with both values."""
    before = {_place(gate): gate for gate in comparison.base.gates}
    both = [(before[_place(gate)], gate) for gate in comparison.candidate.gates if _place(gate) in before]
    lines = []
    for base, gate in both:
        states = gate_state(base), gate_state(gate)
        if set(states) == {"passed", "failed"}:
            values = " → ".join(map(_gate_value, (base, gate)))
            where = f"{text_of(gate.get('eval'))}::{text_of(gate.get('test'))}"
            lines.append((f"newly {states[1].replace('ed', 'ing')}", f"{text_of(gate.get('expression'))}: {values} ({where})"))
    return sorted(lines)


def _gate_value(gate: GateVerdict) -> str:
    """Return "0.067 (rooftop)": the value, and the slice whose it is where that is known."""
    slices = [text_of(part.get("value")) or "(none)" for part in entries_of(gate.get("failed_slices"))]
    return number_text(gate.get("value")) + (f" ({slices[0]}{f' and {len(slices) - 1} more' if len(slices) > 1 else ''})" if slices else "")


def _place(gate: GateVerdict) -> tuple[str, str, str]:
    return text_of(gate.get("eval")), text_of(gate.get("test")), text_of(gate.get("expression"))


def _word(verdict: str) -> str:
    return verdict.upper() if verdict == compare.REGRESSED else verdict


def _listed(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def changed_scores(change: compare.CaseChange, most: int = MOST_CHANGED_SCORES) -> str:
    """Return "exact 1.000 → 0.000, …" of a case; counts only where nothing else changed."""
    outcomes = [f"{change.base.outcome} → {change.candidate.outcome}"] if change.base.outcome != change.candidate.outcome else []
    known = [score for score in change.scores if not score[0].startswith("num_") and score[0] != "pass_rate"]
    shown = [f"{name} {number_text(before)} → {number_text(after)}" for name, before, after in known[:most]]
    more = [f"{len(known) - most} more"] if len(known) > most else []
    return ", ".join([*outcomes, *shown, *more])


def differing_texts(change: compare.CaseChange, most: int) -> tuple[str | None, str | None]:
    """Return both texts, from shortly before the first character that differs; None where a side keeps no text."""
    before, after = change.base.text, change.candidate.text
    if before is None or after is None:
        return before, after
    common = next(
        (place for place, (char, other) in enumerate(zip(before, after, strict=False)) if char != other), min(len(before), len(after))
    )
    start = max(0, common - CONTEXT_CHARS)
    if max(len(before), len(after)) <= most or before == after:
        start = 0
    mark = "…" if start else ""
    return mark + before[start:], mark + after[start:]


def case_title(comparison: compare.Comparison) -> str:
    """Return how many cases changed, and which way."""
    counts = {word: sum(change.direction == word for change in comparison.cases) for word in ("worse", "better", "mixed")}
    flipped = [change for change in comparison.cases if change.has_flipped]
    lost = sum(change.base.outcome == "pass" for change in flipped)
    words = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
    newly = f"{lost:,} newly failing, {len(flipped) - lost:,} newly passing"
    return f"{plural(len(comparison.cases), 'case')} changed{': ' + words if words else ''} ({newly})"


NUM_SLICES, NUM_CASES, TEXT_CHARS = 60, 40, 400
WAYS = {"lower": "lower is better", "none": "no better direction"}
_HEADERS = ["metric", "verdict", "n", "groups", "base", "candidate", "difference", "95 % interval", "p", "detectable"]


def comparison_markdown(comparisons: Sequence[compare.Comparison]) -> Iterator[str]:
    """Yield the text of compare.md part by part; every text that the template names is escaped."""
    words = (conclusion, remarks, coverage_text, shown_metrics, aggregate_changes, shown_slices, case_title, gate_summary, changed_gates)
    tables = (verdict_table, metric_table, aggregate_table, case_table)
    limits = {"num_slices": NUM_SLICES, "num_cases": NUM_CASES, "level": f"{LEVEL:.0%}", "worth": f"{compare.WORTH_SHOWING:g}"}
    functions: dict[str, Any] = {function.__name__: function for function in (*words, *tables)}
    return render_markdown("compare.md.j2", comparisons=comparisons, **functions, **limits)


def verdict_table(comparisons: Sequence[compare.Comparison]) -> Markup:
    """Return the table of candidates."""
    lines = [[markdown_cell(one.candidate.label), _mark(one.verdict), markdown_cell(conclusion(one), 600)] for one in comparisons]
    return Markup(markdown_table(["candidate", "verdict", "why"], lines, 3))


def metric_table(changes: Sequence[compare.MetricChange], with_slices: bool = False, with_tests: bool = False) -> Markup:
    """Return the table of metrics, or of metrics in slices."""
    lines, has_noise = [], any(map(floor_text, changes))
    for change in changes:
        name = markdown_cell(change.metric, 60) + (f" ({WAYS[change.direction]})" if change.direction in WAYS else "")
        where = [markdown_cell(f"{change.eval} · {change.test}", 160)] if with_tests else []
        where += [markdown_cell(change.slice_key, 60), markdown_cell(change.slice_value, 80)] if with_slices else []
        counts = f"{change.change.num_pairs:,}", f"{change.change.num_groups:,}"
        noise = [floor_text(change) or "-"] if has_noise else []
        lines.append([*where, name, _mark(change.verdict), *counts, *numbers_of(change).values(), *noise])
    places = [*(["test"] if with_tests else []), *(["slice", "value"] if with_slices else [])]
    return Markup(markdown_table([*places, *_HEADERS, *(["noise floor"] if has_noise else [])], lines, 2 + len(places)))


def aggregate_table(aggregates: Sequence[tuple[str, ...]]) -> Markup:
    """Return the table of aggregates."""
    lines = [[markdown_cell(name, 60), *values] for name, *values in aggregates]
    return Markup(markdown_table(["aggregate", "base", "candidate", "difference"], lines, 1))


def case_table(changes: Sequence[compare.CaseChange]) -> Markup:
    """Return the table of changed cases."""
    lines = []
    for change in changes:
        cells = [markdown_cell(change.case_id, 120), change.direction, markdown_cell(changed_scores(change), 400)]
        texts = differing_texts(change, TEXT_CHARS)
        lines.append([*cells, *("-" if text is None else markdown_cell(text, TEXT_CHARS) for text in texts)])
    return Markup(markdown_table(["case", "direction", "changed", "text before", "text now"], lines, 5))


def _mark(verdict: str) -> str:
    return f"**{_word(verdict)}**" if verdict == compare.REGRESSED else verdict


_MIN_COLUMNS = 40
TERMINAL_METRICS, TERMINAL_SLICES, TERMINAL_CASES, TERMINAL_CAVEATS = 40, 15, 5, 10
_TERMINAL_NUMBERS = ("base", "candidate", "difference", "p", "interval", "detectable")  # the more important ones first
_TERMINAL_HEADERS = ["metric", "verdict", "base", "candidate", "difference", "p", "95 % interval", "detectable"]
_FEWEST_COLUMNS = 5
_DETECTABLE = "detectable: the smallest difference that so many cases would most likely have shown; a smaller one may have gone unseen"


def comparison_lines(comparisons: Sequence[compare.Comparison], columns: int) -> Iterator[str]:
    """Yield lines that take at most `columns` columns and hold no control character."""
    columns = max(columns, _MIN_COLUMNS)
    for number, comparison in enumerate(comparisons):
        if number:
            yield ""
        for line in _terminal_lines(comparison, columns):
            yield fit(line, columns)


def _terminal_lines(comparison: compare.Comparison, columns: int) -> Iterator[str]:
    yield f"base       {terminal_text(comparison.base.label)}"
    yield f"candidate  {terminal_text(comparison.candidate.label)}"
    notes = list(remarks(comparison))
    for remark in notes[:TERMINAL_CAVEATS]:
        yield from wrapped(f"! {terminal_text(remark, 400)}", columns)
    if len(notes) > TERMINAL_CAVEATS:
        yield f"! {plural(len(notes) - TERMINAL_CAVEATS, 'more caveat')} in compare.md"
    has_detectable = False
    for sentence, part in zip(coverage_text(comparison), comparison.coverage, strict=True):
        yield ""
        yield from wrapped(terminal_text(sentence, 400), columns)
        lines = list(_terminal_table(shown_metrics(comparison, part), part.num_paired, columns))
        yield from lines
        has_detectable = has_detectable or lines[0].endswith(_TERMINAL_HEADERS[-1])
    if has_detectable:
        yield from wrapped(_DETECTABLE, columns)
    yield from _terminal_slices(comparison, columns)
    yield from _terminal_cases(comparison, columns)
    for what, gate in changed_gates(comparison):
        yield from wrapped(terminal_text(f"gate {what}: {gate}", 400), columns)
    yield ""
    yield from wrapped(terminal_text(conclusion(comparison), 600), columns)


def _terminal_table(changes: Sequence[compare.MetricChange], num_paired: int, columns: int) -> Iterator[str]:
    lines = [_TERMINAL_HEADERS, *(_terminal_line(change, num_paired) for change in changes[:TERMINAL_METRICS])]
    # On a narrow terminal the last columns are left out whole.
    num_shown = len(_TERMINAL_HEADERS)
    while num_shown > _FEWEST_COLUMNS and max(map(cell_len, table_lines([line[:num_shown] for line in lines], 2))) > columns:
        num_shown -= 1
    yield from table_lines([line[:num_shown] for line in lines], 2)
    if num_shown < len(_TERMINAL_HEADERS):
        yield from wrapped(f"left out for want of width: {', '.join(_TERMINAL_HEADERS[num_shown:])}; compare.md has them", columns)
    if len(changes) > TERMINAL_METRICS:
        yield f"{plural(len(changes) - TERMINAL_METRICS, 'more metric')} in compare.csv"


def _terminal_line(change: compare.MetricChange, num_paired: int) -> list[str]:
    n = change.change.num_pairs
    name = terminal_text(change.metric, 40) + (f" (n={n})" if n != num_paired else "")
    numbers = numbers_of(change)
    return [name, _word(change.verdict), *(numbers[column] for column in _TERMINAL_NUMBERS)]


def _terminal_slices(comparison: compare.Comparison, columns: int) -> Iterator[str]:
    slices: dict[tuple[str, ...], list[str]] = {}
    for change in shown_slices(comparison):
        where = f"{change.slice_key} {change.slice_value}"
        test = f"{change.eval}::{change.test}" if len(comparison.coverage) > 1 else ""
        paired = change.change
        text = f"{terminal_text(change.metric, 40)} {number_text(paired.base)} → {number_text(paired.candidate)} (n={paired.num_pairs})"
        slices.setdefault((change.verdict, where, test), []).append(text)
    if slices:
        yield ""
        yield "changed in slices:"
    for verdict, where, test in list(slices)[:TERMINAL_SLICES]:
        title = f"{terminal_text(where, 80)}{' of ' + terminal_text(test, 80) if test else ''}"
        yield from wrapped(f"  {_word(verdict)} {title}: {', '.join(slices[verdict, where, test])}", columns)
    if len(slices) > TERMINAL_SLICES:
        yield f"  {plural(len(slices) - TERMINAL_SLICES, 'more slice')} in compare.md"


def _terminal_cases(comparison: compare.Comparison, columns: int) -> Iterator[str]:
    if not comparison.cases:
        return
    yield ""
    yield from wrapped(case_title(comparison), columns)
    for change in comparison.cases[:TERMINAL_CASES]:
        yield from _terminal_case(change, columns)
    if len(comparison.cases) > TERMINAL_CASES:
        yield f"  {len(comparison.cases) - TERMINAL_CASES} more in compare.md and compare_cases.csv"


def _terminal_case(change: compare.CaseChange, columns: int) -> Iterator[str]:
    yield from wrapped(f"  {change.direction} {terminal_text(change.case_id, 120)}: {terminal_text(changed_scores(change), 300)}", columns)
    for name, text in zip(("base", "candidate"), differing_texts(change, columns - 20), strict=True):
        if text is not None:
            yield f"      {name:9}  {terminal_text(text, 200)}"
