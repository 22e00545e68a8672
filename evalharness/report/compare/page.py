"""compare.html: what got better, what broke, whether it is real, and every flipped case side by side; one file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from evalharness.analysis.comparison.compare import (
    CATEGORY,
    CHANGED,
    IMPROVED,
    NOT_ENOUGH,
    REGRESSED,
    SAME,
    WORTH_SHOWING,
    Comparison,
    MetricChange,
)
from evalharness.analysis.statistics.paired import LEVEL
from evalharness.report.compare.cases import NUM_CASES, ShownCase, shown_cases
from evalharness.report.compare.text import (
    case_title,
    conclusion,
    coverage_text,
    interval_text,
    p_text,
    remarks,
    shown_metrics,
    shown_slices,
    signed,
)
from evalharness.report.html.page import json_block, packed_block, text_block, write_page
from evalharness.report.html.pictures import PictureFile, small_copies
from evalharness.report.text import number_text, plural

__all__ = ["hidden_slices", "write_compare_page"]

NUM_HIDDEN, NUM_SLICES = 12, 400
_CASES_PER_BLOCK = 40
_SCALES = (0.05, 0.1, 0.25, 0.5, 1.0)
_KINDS = {REGRESSED: "fail", IMPROVED: "pass", CHANGED: "invalid", SAME: "skip", NOT_ENOUGH: "miss"}
_MARKS = {REGRESSED: "▼", IMPROVED: "▲", CHANGED: "◆", SAME: "=", NOT_ENOUGH: "?"}


def write_compare_page(comparisons: Sequence[Comparison], file: TextIO, folder: Path | None = None) -> None:
    """Write the page; in `folder` it links to the runs' reports. Raises `RecordError` where the rows of a run cannot be read."""
    cases = shown_cases(comparisons, folder)
    base = comparisons[0].base.label
    write_page(
        file,
        "compare.html.j2",
        title=f"Comparison with {base}",
        scripts=["compare.js"],
        styles=["timeline.css", "compare.css"],
        blocks=_blocks(comparisons, cases),
        base=base,
        comparisons=[_comparison(number, one) for number, one in enumerate(comparisons)],
        kinds=_KINDS,
        marks=_MARKS,
        level=f"{LEVEL:.0%}",
        worth=WORTH_SHOWING,
        seed=comparisons[0].seed,
        num_shown=len(cases),
        num_changed=sum(len(one.cases) for one in comparisons),
        most_cases=NUM_CASES,
    )


def _comparison(number: int, comparison: Comparison) -> dict[str, Any]:
    slices = shown_slices(comparison)
    hidden = hidden_slices(comparison)
    scale, slice_scale = _scale(comparison.metrics), _scale(slices)
    tests = [
        {
            "name": f"{part.eval} · {part.test}",
            "coverage": sentence.partition(": ")[2],
            **_metrics(comparison, (part.eval, part.test), scale),
            "aggregates": _aggregates(comparison, part.eval, part.test),
        }
        for sentence, part in zip(coverage_text(comparison), comparison.coverage, strict=True)
    ]
    return {
        "number": number,
        "candidate": comparison.candidate.label,
        "base": comparison.base.label,
        "verdict": comparison.verdict,
        "conclusion": conclusion(comparison),
        "remarks": list(remarks(comparison)),
        "hidden": [_hidden(comparison, group, slice_scale) for group in hidden[:NUM_HIDDEN]],
        "num_hidden": len(hidden),
        "tests": tests,
        "slices": [_line(change, slice_scale) for change in slices[:NUM_SLICES]],
        "num_slices": len(slices),
        "num_looked_at": len(comparison.slices),
        "num_tests": comparison.num_tests,
        "num_slice_tests": comparison.num_slice_tests,
        "scale": scale,
        "slice_scale": slice_scale,
        "cases": case_title(comparison) if comparison.cases else "",
    }


def _metrics(comparison: Comparison, test: tuple[str, str], scale: float) -> dict[str, Any]:
    """Return the lines of a test's table; those without a difference are apart, so that what changed is seen first."""
    own = [change for change in shown_metrics(comparison) if (change.eval, change.test) == test]
    changed = [change for change in own if change.verdict in (REGRESSED, IMPROVED, CHANGED)]
    same = [change for change in own if change not in changed]
    words = [f"{word} in {plural(count, 'metric')}" for word in (SAME, NOT_ENOUGH) if (count := sum(one.verdict == word for one in same))]
    return {
        "metrics": [_line(change, scale) for change in changed],
        "same": [_line(one, scale) for one in same],
        "same_words": ", ".join(words),
    }


def hidden_slices(comparison: Comparison) -> list[list[MetricChange]]:
    """Return the regressions that an average hides, by slice, the largest first.

    A slice counts where a metric fell there more than twice as far as over all cases (0.02 at least): the categories first,
    as what a checkpoint has forgotten is a kind of thing more often than a kind of case.
    """
    overall = {(change.eval, change.test, change.metric): change.change.difference for change in comparison.metrics}
    groups: dict[tuple[str, ...], list[MetricChange]] = {}
    for change in shown_slices(comparison):
        whole = overall.get((change.eval, change.test, change.metric), overall.get((change.eval, change.test, "category_f1"), 0.0))
        if change.verdict == REGRESSED and abs(change.change.difference) > max(2 * abs(whole), 0.02):
            groups.setdefault((change.eval, change.test, change.slice_key, change.slice_value), []).append(change)
    return sorted(groups.values(), key=lambda group: (group[0].slice_key != CATEGORY, -abs(group[0].change.difference)))


def _hidden(comparison: Comparison, group: Sequence[MetricChange], scale: float) -> dict[str, Any]:
    first = group[0]
    whole = next(
        (
            change.change
            for name in (first.metric, "category_f1")
            for change in comparison.metrics
            if (change.eval, change.test, change.metric) == (first.eval, first.test, name)
        ),
        None,
    )
    return {
        **_line(first, scale),
        "others": [f"{change.metric} {number_text(change.change.base)} → {number_text(change.change.candidate)}" for change in group[1:]],
        "average": "" if whole is None else f"{number_text(whole.base)} → {number_text(whole.candidate)}",
    }


def _scale(changes: Sequence[MetricChange]) -> float:
    """Return the difference at the ends of the drawn scale: that of the widest interval of a score within 0…1, rounded up."""
    ends = [abs(end) for one in changes if one.is_bounded for end in (one.change.low, one.change.high, one.change.difference) if end == end]
    widest = max(ends, default=1.0)
    return next((scale for scale in _SCALES if widest <= scale), 1.0)


def _line(change: MetricChange, scale: float) -> dict[str, Any]:
    own = change.change
    known = [value for value in (own.low, own.high) if math.isfinite(value)]
    return {
        "eval": change.eval,
        "test": change.test,
        "key": change.slice_key,
        "value": change.slice_value,
        "metric": change.metric,
        "way": {"lower": "lower is better", "none": "no better direction"}.get(change.direction, ""),
        "verdict": change.verdict,
        "n": own.num_pairs,
        "groups": own.num_groups,
        "up": own.num_up,
        "down": own.num_down,
        "before": number_text(own.base),
        "after": number_text(own.candidate),
        "difference": signed(own.difference),
        "sort": own.difference if math.isfinite(own.difference) else 0.0,
        "interval": interval_text(change),
        "p": p_text(change.p_corrected),
        "p_sort": change.p_corrected,
        "detectable": number_text(change.detectable) if math.isfinite(change.detectable) else "–",
        "bar": None if not change.is_bounded else {
            "at": _share(own.difference, scale), "low": _share(known[0], scale) if len(known) == 2 else None,
            "high": _share(known[1], scale) if len(known) == 2 else None,
            "blind": min(_share(change.detectable, scale), 1.0) - 0.5 if math.isfinite(change.detectable) else None,
        },
    }  # fmt: skip


def _share(difference: float, scale: float) -> float:
    """Return where a difference stands on the drawn scale, 0 to 1; none is at the middle."""
    return min(max(0.5 + difference / scale / 2, 0.0), 1.0)


def _aggregates(comparison: Comparison, eval_name: str, test: str) -> list[tuple[str, str, str, str]]:
    found = []
    for key, after in comparison.candidate.aggregates.items():
        before = comparison.base.aggregates.get(key)
        if key[:2] == (eval_name, test) and before is not None:
            found.append((key[2], number_text(before), number_text(after), signed(after - before)))
    return found


def _blocks(comparisons: Sequence[Comparison], cases: Sequence[ShownCase]) -> Iterator[str]:
    numbers: dict[PictureFile, int] = {}
    entries = []
    for case in cases:
        entries.append({**case.entry, "pictures": [numbers.setdefault(file, len(numbers)) for file in case.pictures]})
    sides = [[one.base.label, one.candidate.label] for one in comparisons]
    yield json_block("comparisons", {"sides": sides, "perBlock": _CASES_PER_BLOCK, "cases": entries})
    for start in range(0, len(cases), _CASES_PER_BLOCK):
        part = [case.detail for case in cases[start : start + _CASES_PER_BLOCK]]
        yield packed_block(f"details-{start // _CASES_PER_BLOCK}", json.dumps(part, ensure_ascii=True).encode("ascii"))
    for number, copy in enumerate(small_copies(numbers)):
        if copy is not None:
            yield text_block(f"picture-{number}", copy)
