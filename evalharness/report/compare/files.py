"""compare.html, compare.md, compare.csv and compare_cases.csv in a folder; the same comparisons give the same bytes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from evalharness.analysis.comparison import compare
from evalharness.analysis.reasons import normalised
from evalharness.analysis.statistics.paired import LEVEL, PairedChange
from evalharness.report.compare import text
from evalharness.report.compare.cases import NUM_CASES, ShownCase, report_link, shown_cases
from evalharness.report.csv import write_csv
from evalharness.report.html.page import json_block, packed_block, text_block, write_page
from evalharness.report.html.pictures import PictureFile, small_copies
from evalharness.report.html.site import renew_links
from evalharness.report.noise import floor_text
from evalharness.report.text import number_text, plural
from evalharness.report.writing import make_folder, report_file

COLUMNS = [
    "base", "candidate", "eval", "test", "kind", "slice_key", "slice_value", "metric", "verdict", "base_value", "candidate_value",
    "difference", "low", "high", "p", "p_corrected", "could_have_shown", "direction", "n", "groups", "num_up", "num_down",
    "noise_floor",
]  # fmt: skip
"""`kind`: metric (all cases), slice, aggregate (not tested), unpaired (`n` cases, `metric` says why)."""

CASE_COLUMNS = [
    "base", "candidate", "eval", "test", "case_id", "group", "direction", "base_outcome", "candidate_outcome", "changed",
    "base_text", "candidate_text", "base_problem", "candidate_problem", "base_nodeid", "candidate_nodeid",
]  # fmt: skip


def write_compare_csv(comparisons: Sequence[compare.Comparison], file: TextIO) -> None:
    """Write one line per comparison, test, slice and metric."""
    write_csv(file, COLUMNS, (line for comparison in comparisons for line in _lines(comparison)))


def write_compare_cases_csv(comparisons: Sequence[compare.Comparison], file: TextIO) -> None:
    """Write one line per comparison and changed case; texts as far as `CaseLine` keeps them."""
    write_csv(file, CASE_COLUMNS, (line for comparison in comparisons for line in _case_lines(comparison)))


def _lines(comparison: compare.Comparison) -> Iterator[list[Any]]:
    sides = [comparison.base.label, comparison.candidate.label]
    for kind, changes in (("metric", comparison.metrics), ("slice", comparison.slices)):
        for change in changes:
            yield [*sides, change.eval, change.test, kind, change.slice_key, change.slice_value, change.metric, *_numbers(change)]
    for (eval_name, test, metric), after in comparison.candidate.aggregates.items():
        before = comparison.base.aggregates.get((eval_name, test, metric), math.nan)
        ends = ["" if end is None else end for end in text.difference_interval(comparison, (eval_name, test, metric), after - before)]
        yield [*sides, eval_name, test, "aggregate", "", "", metric, "", before, after, after - before, *ends, *[""] * 9]
    for part in comparison.coverage:
        for reason, count in part.reasons.items():
            yield [*sides, part.eval, part.test, "unpaired", "", "", reason, *[""] * 10, count, "", "", "", ""]


def _numbers(change: compare.MetricChange) -> list[Any]:
    paired = change.change
    return [
        change.verdict, paired.base, paired.candidate, paired.difference, paired.low, paired.high, paired.p, change.p_corrected,
        change.detectable, change.direction, paired.num_pairs, paired.num_groups, paired.num_up, paired.num_down,
        change.floor,
    ]  # fmt: skip


def _case_lines(comparison: compare.Comparison) -> Iterator[list[Any]]:
    for change in comparison.cases:
        before, after = change.base, change.candidate
        yield [
            comparison.base.label, comparison.candidate.label, change.eval, change.test, change.case_id, after.group or before.group,
            change.direction, before.outcome, after.outcome, text.changed_scores(change), before.text, after.text, before.problem,
            after.problem, before.nodeid, after.nodeid,
        ]  # fmt: skip


def write_comparison(comparisons: Sequence[compare.Comparison], folder: Path) -> list[Path]:
    """Write the four files and return their paths; raises `RecordError` where they cannot be written, or a run cannot be read."""
    make_folder(folder)
    paths = [folder / name for name in ("compare.html", "compare.md", "compare.csv", "compare_cases.csv")]
    with report_file(paths[0]) as file:
        write_compare_page(comparisons, file, paths[0])
    renew_links(folder)
    with report_file(paths[1]) as file:
        file.writelines(text.comparison_markdown(comparisons))
    with report_file(paths[2]) as file:
        write_compare_csv(comparisons, file)
    with report_file(paths[3]) as file:
        write_compare_cases_csv(comparisons, file)
    return paths


NUM_FIRST, NUM_HIDDEN, NUM_SLICES = 5, 12, 400
_CASES_PER_BLOCK = 40
_SCALES = (0.05, 0.1, 0.25, 0.5, 1.0)
_KINDS = {compare.REGRESSED: "fail", compare.IMPROVED: "pass", compare.CHANGED: "invalid", compare.SAME: "skip", compare.NOT_ENOUGH: "miss"}
_KINDS[compare.WITHIN_NOISE] = "skip"
_MARKS = {compare.REGRESSED: "▼", compare.IMPROVED: "▲", compare.CHANGED: "◆", compare.SAME: "=", compare.NOT_ENOUGH: "?"}
_MARKS[compare.WITHIN_NOISE] = "≈"


def write_compare_page(comparisons: Sequence[compare.Comparison], file: TextIO, path: Path) -> None:
    """Write the page, which will lie at `path`. Raises `RecordError` where the rows of a run cannot be read."""
    cases = shown_cases(comparisons, path.parent)
    places = {number: place for place, number in reversed(list(enumerate(case.entry["comparison"] for case in cases)))}
    shown = Counter(case.entry["comparison"] for case in cases)
    base = comparisons[0].base.label
    write_page(
        file,
        "compare.html.j2",
        path=path,
        title=f"Comparison with {base}",
        scripts=["compare.js"],
        styles=["timeline.css", "compare.css"],
        blocks=_blocks(comparisons, cases),
        base=base,
        comparisons=[
            {**_comparison(number, comparison), **_summary(comparison, path.parent, places.get(number, 0), shown[number])}
            for number, comparison in enumerate(comparisons)
        ],
        kinds=_KINDS,
        ways=text.WAYS,
        marks=_MARKS,
        level=f"{LEVEL:.0%}",
        worth=compare.WORTH_SHOWING,
        seed=comparisons[0].seed,
        num_shown=len(cases),
        num_changed=sum(len(comparison.cases) for comparison in comparisons),
        most_cases=NUM_CASES,
    )


def _various(cases: Sequence[compare.CaseChange]) -> list[int]:
    """Return the numbers of the first cases that went the first one's way: one of each eval, then one of each reason, then others."""
    numbers = [number for number, change in enumerate(cases) if change.direction == cases[0].direction]
    evals: dict[str, int] = {}
    reasons: dict[tuple[str, str], int] = {}
    for number in numbers:
        change = cases[number]
        evals.setdefault(change.eval, number)
        reasons.setdefault((change.eval, normalised(change.candidate.problem or "", [change.case_id])), number)
    return list(dict.fromkeys([*evals.values(), *reasons.values(), *numbers, *range(len(cases))]))[:NUM_FIRST]


def _summary(comparison: compare.Comparison, folder: Path, first_case: int, num_shown: int) -> dict[str, Any]:
    """Return what the first screen says in numbers; `first_case`: the place of the comparison's first of `num_shown` cases on the page."""
    slices = text.slices_by_verdict(comparison)
    metrics = Counter(change.verdict for change in comparison.metrics)
    ways = Counter(change.direction for change in comparison.cases)
    lost = sum(change.has_flipped and change.base.outcome == "pass" for change in comparison.cases)
    cases = [("worse", ways["worse"], "worse"), ("failing", lost, "newly failing"), ("better", ways["better"], "better")]
    cases += [
        ("passing", sum(change.has_flipped for change in comparison.cases) - lost, "newly passing"),
        ("mixed", ways["mixed"], "mixed"),
    ]
    changed = [change for change in comparison.metrics if change.verdict in text.CHANGES]
    sides = (("base", comparison.base), ("candidate", comparison.candidate))
    return {
        "sides": [(name, side.label, report_link(Path(side.source), folder) if side.source else None) for name, side in sides],
        "metric_counts": [(verdict, metrics[verdict]) for verdict in text.ORDER if metrics[verdict]],
        "slice_counts": [(verdict, len(found)) for verdict, found in slices.items() if found],
        "case_counts": [case for case in cases if case[1]],
        "largest": [_line(change, 1.0) for change in sorted(changed, key=text.rank)[:NUM_FIRST]],
        "worst": [
            {
                "place": first_case + number,
                "id": change.case_id,
                "way": change.direction,
                "text": text.changed_scores(change, 2),
                "problem": change.candidate.problem or "",
            }
            for number in _various(comparison.cases[:num_shown])
            for change in [comparison.cases[number]]
        ],
        "gates": text.gate_summary(comparison),
        "changed_gates": text.changed_gates(comparison),
    }


def _comparison(number: int, comparison: compare.Comparison) -> dict[str, Any]:
    slices = text.shown_slices(comparison)
    hidden = hidden_slices(comparison)
    scale, slice_scale = _scale(comparison.metrics), _scale(slices)
    tests = [
        {
            "name": f"{part.eval} · {part.test}",
            "coverage": sentence.partition(": ")[2],
            **_metrics(text.shown_metrics(comparison, part), scale),
            "aggregates": text.aggregate_changes(comparison, part),
        }
        for sentence, part in zip(text.coverage_text(comparison), comparison.coverage, strict=True)
    ]
    sentence = text.conclusion(comparison)
    return {
        "number": number,
        "of": comparison,
        "suites": text.aggregate_changes(comparison, None),
        "conclusion": sentence[:1].upper() + sentence[1:],
        "remarks": list(text.remarks(comparison)),
        "hidden": [_hidden(comparison, group, slice_scale) for group in hidden[:NUM_HIDDEN]],
        "num_hidden": len(hidden),
        "tests": tests,
        "slices": [_line(change, slice_scale) for change in slices[:NUM_SLICES]],
        "num_slices": len(slices),
        "scale": scale,
        "slice_scale": slice_scale,
        "cases": text.case_title(comparison) if comparison.cases else "",
    }


def _metrics(changes: Sequence[compare.MetricChange], scale: float) -> dict[str, Any]:
    """Return the lines of a test's table; those without a difference are apart, so that what changed is seen first."""
    counts = Counter(change.verdict for change in changes)
    return {
        "metrics": [_line(change, scale) for change in changes if change.verdict in text.CHANGES],
        "same": [_line(change, scale) for change in changes if change.verdict not in text.CHANGES],
        "same_words": ", ".join(f"{word} in {plural(counts[word], 'metric')}" for word in text.ORDER[3:] if counts[word]),
    }


def hidden_slices(comparison: compare.Comparison) -> list[list[compare.MetricChange]]:
    """Return the regressions that an average hides, by slice, the largest first.

    A slice counts where a metric fell there more than twice as far as over all cases (0.02 at least): the categories first,
    as what a checkpoint has forgotten is a kind of thing more often than a kind of case.
    """
    groups: dict[tuple[str, ...], list[compare.MetricChange]] = {}
    for change in text.shown_slices(comparison):
        whole = _over_all_cases(comparison, change)
        if change.verdict == compare.REGRESSED and abs(change.change.difference) > max(2 * abs(whole.difference if whole else 0.0), 0.02):
            groups.setdefault((change.eval, change.test, change.slice_key, change.slice_value), []).append(change)
    return sorted(groups.values(), key=lambda group: (group[0].slice_key != compare.CATEGORY, -abs(group[0].change.difference)))


def _over_all_cases(comparison: compare.Comparison, change: compare.MetricChange) -> PairedChange | None:
    """Return how the metric of a slice changed over all cases of its test; for the score of a category, how category_f1 did."""
    metrics = {whole.metric: whole.change for whole in comparison.metrics if (whole.eval, whole.test) == (change.eval, change.test)}
    return metrics.get(change.metric, metrics.get("category_f1"))


def _hidden(comparison: compare.Comparison, group: Sequence[compare.MetricChange], scale: float) -> dict[str, Any]:
    whole = _over_all_cases(comparison, group[0])
    return {
        **_line(group[0], scale),
        "others": [f"{change.metric} {number_text(change.change.base)} → {number_text(change.change.candidate)}" for change in group[1:]],
        "average": "" if whole is None else f"{number_text(whole.base)} → {number_text(whole.candidate)}",
    }


def _scale(changes: Sequence[compare.MetricChange]) -> float:
    """Return the difference at the ends of the drawn scale: that of the widest interval of a score within 0…1, rounded up."""
    ends = [
        abs(end)
        for change in changes
        if change.is_bounded
        for end in (change.change.low, change.change.high, change.change.difference)
        if end == end
    ]
    widest = max(ends, default=1.0)
    return next((scale for scale in _SCALES if widest <= scale), 1.0)


def _line(change: compare.MetricChange, scale: float) -> dict[str, Any]:
    paired = change.change
    known = [value for value in (paired.low, paired.high) if math.isfinite(value)]
    return {
        **text.numbers_of(change),
        "floor": floor_text(change),
        "of": change,
        "paired": paired,
        "sort": paired.difference if math.isfinite(paired.difference) else 0.0,
        "bar": None if not change.is_bounded else {
            "at": _share(paired.difference, scale), "low": _share(known[0], scale) if len(known) == 2 else None,
            "high": _share(known[1], scale) if len(known) == 2 else None,
            "blind": min(_share(change.detectable, scale), 1.0) - 0.5 if math.isfinite(change.detectable) else None,
        },
    }  # fmt: skip


def _share(difference: float, scale: float) -> float:
    """Return where a difference stands on the drawn scale, 0 to 1; none is at the middle."""
    return min(max(0.5 + difference / scale / 2, 0.0), 1.0)


def _blocks(comparisons: Sequence[compare.Comparison], cases: Sequence[ShownCase]) -> Iterator[str]:
    numbers: dict[PictureFile, int] = {}
    entries = []
    for case in cases:
        entries.append({**case.entry, "pictures": [numbers.setdefault(file, len(numbers)) for file in case.pictures]})
    sides = [[comparison.base.label, comparison.candidate.label] for comparison in comparisons]
    yield json_block("comparisons", {"sides": sides, "perBlock": _CASES_PER_BLOCK, "cases": entries})
    for start in range(0, len(cases), _CASES_PER_BLOCK):
        part = [case.detail for case in cases[start : start + _CASES_PER_BLOCK]]
        yield packed_block(f"details-{start // _CASES_PER_BLOCK}", json.dumps(part, ensure_ascii=True).encode("ascii"))
    for number, copy in enumerate(small_copies(numbers)):
        if copy is not None:
            yield text_block(f"picture-{number}", copy)
