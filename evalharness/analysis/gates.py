"""Gates over the rows of one test and one engine: a metric compared with a number.

A metric is the mean of a score, a value that the eval's `aggregate` returned, a rate that every test has, or a quantity of its answers.
A gate without anything to judge does not pass. Knows nothing about pytest; `slice_gates.py` judges slices, `drop_gates.py` and `judge.py`
against baselines, `judge.py` speeds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from evalharness.analysis.gate_grammar import EVERYWHERE, QUANTITIES, Gate
from evalharness.analysis.quantities import groups_of, statistic_of, values_of
from evalharness.api.errors import did_you_mean
from evalharness.api.wording import figure_text, number_text, part_of, plural
from evalharness.runs.schema import JUDGED, GateVerdict, Row, generations_of

_SIGNS = {">=": "≥", "<=": "≤", "==": "="}

DIRECTIONS = ("higher", "lower", "none")
"""Which way a score is better; "none": neither way, so that a change of it is no verdict."""
_LOWER = ("brier_score", "ece", "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "num_nats", "impossible", "ter")


def usual_direction(metric: str) -> str:
    """Return which way a score of this name is better where no eval and no gate says so: those of `evalharness.scores` mean the same.

    Never "none": a score that somebody calls `confidence` may be worth a verdict.
    """
    return "lower" if metric in _LOWER or metric.split("_")[:2] == ["not", "found"] else "higher"


def was_judged(row: Row) -> bool:
    """Return whether the row says something about the checkpoint."""
    # A test that broke after its first score has not judged the case: what it scored is in the row, but in no mean.
    return row["outcome"] in JUDGED


def _was_run(row: Row) -> bool:
    return row["outcome"] != "skip"


@dataclass(frozen=True)
class _Rate:
    """A share of a test's rows, 0 to 1: how many of the counted rows fulfil a condition."""

    holds: Callable[[Row], bool]
    counts: Callable[[Row], object]
    of: str
    is_about_coverage: bool = False
    """Whether too few judged cases are what it counts: then its value says more than that they are too few."""

    def counted(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows that count."""
        return [row for row in rows if self.counts(row)]

    def value(self, rows: Sequence[Row]) -> float | None:
        """Return the share, None if no row counts."""
        counted = self.counted(rows)
        return sum(map(self.holds, counted)) / len(counted) if counted else None


BUILT_IN_METRICS: dict[str, _Rate] = {
    "pass_rate": _Rate(lambda row: row["outcome"] == "pass", was_judged, "judged"),
    "invalid_rate": _Rate(lambda row: row["outcome"] == "invalid", _was_run, "run", is_about_coverage=True),
    "error_rate": _Rate(lambda row: row["outcome"] == "error", _was_run, "run", is_about_coverage=True),
    "length_rate": _Rate(
        lambda row: any(sample.get("finish_reason") == "length" for sample in generations_of(row)),
        lambda row: any(sample.get("finish_reason") for sample in generations_of(row)),  # lm-eval's samples do not tell theirs
        "generated",
    ),
    "empty_rate": _Rate(
        lambda row: any(not (sample.get("text") or "").strip() for sample in generations_of(row)), generations_of, "generated"
    ),
}
"""Rates that every test has. With several samples a case, one that hit the token cap, or is empty, is enough."""


def _too_few_judged(rows: Sequence[Row]) -> bool:
    # The few that remain say nothing about the others, and errors nothing about how many cases are invalid.
    ran = list(filter(_was_run, rows))
    return 2 * sum(map(was_judged, ran)) < len(ran)


def mean_scores(rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean of every score over the rows that have it and were judged; rows without it do not count as 0."""
    sums: dict[str, list[float]] = {}
    for row in filter(was_judged, rows):
        for name, value in row["scores"].items():
            sums.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in sums.items()}


def shortfall(gate: Gate, value: float) -> str:
    """Return "0.850, needs ≥ 0.90", with enough decimals to show that the value misses the threshold; "192, needs ≤ 150" of counts."""
    name = f"num_{gate.metric}" if gate.metric in QUANTITIES else gate.metric
    texts = (figure_text(value, name), number_text(value), f"{value:.3f}", f"{value:.6f}")
    shown = next((text for text in texts if not gate.holds(float(text.replace(",", "")))), repr(value))
    needed = f"{gate.threshold:.2f}" if abs(gate.threshold) < 1 and round(gate.threshold, 2) == gate.threshold else f"{gate.threshold:g}"
    return f"{shown}, needs {_SIGNS.get(gate.comparison, gate.comparison)} {needed}"


def _why_no_value(gate: Gate, rows: Sequence[Row], named: Collection[str]) -> str:
    """Return why a gate's metric has no value: nothing was judged, or nothing has its name."""
    if gate.metric in BUILT_IN_METRICS:
        return f"no case was {BUILT_IN_METRICS[gate.metric].of}"
    if gate.metric in QUANTITIES and gate.metric not in named:
        return f"no answer has {gate.metric}"
    if not named and not any(map(was_judged, rows)):
        found = Counter(_WHAT_HAPPENED[row["outcome"]] for row in rows)
        all_cases = "the only case" if len(rows) == 1 else f"all {plural(len(rows), 'case')}"
        shown = [f"{all_cases if len(found) == 1 else f'{count:,}'} {what}" for what, count in found.items()]
        return f"no case was judged: {', '.join(shown) or 'there is none'}"
    if gate.statistic and gate.metric in named:
        return f"{gate.metric} is an aggregate over all cases, which has no {gate.statistic}"
    meant = did_you_mean(gate.metric, [*named, *EVERYWHERE])
    return f"no case recorded {gate.metric!r}{meant or ';'} recorded: {', '.join(sorted(named)) or 'nothing'}"


_WHAT_HAPPENED: dict[str, str] = {"error": "ended in an error", "invalid": "could not be run", "skip": "did not run"}


class _Found(NamedTuple):
    """What a gate's metric is over rows: its value, None for nothing, and the values that count with their rows."""

    value: float | None
    rows: Sequence[Row]
    is_aggregate: bool = False


def _found(gate: Gate, rows: Sequence[Row], means: Mapping[str, float], aggregates: Mapping[str, float]) -> _Found:
    rate = BUILT_IN_METRICS.get(gate.metric)
    if rate is not None:
        return _Found(rate.value(rows), rate.counted(rows))
    if gate.metric in aggregates and not gate.statistic:
        return _Found(aggregates[gate.metric], [row for row in rows if was_judged(row) and gate.metric in row["scores"]], is_aggregate=True)
    if gate.metric in means and not gate.statistic:
        return _Found(means[gate.metric], [row for row in rows if was_judged(row) and gate.metric in row["scores"]])
    values = values_of(gate.metric, rows)
    return _Found(statistic_of(gate.statistic, [value for _, value in values]), [row for row, _ in values])


def evaluate_gate(
    gate: Gate,
    rows: Sequence[Row],
    aggregates: Mapping[str, float],
    *,
    incomplete: str | None,
    scale: Scale | None = None,
    floor: Floor | None = None,
    ends: Ends = MappingProxyType({}),
    num_slices: int = 1,
) -> GateVerdict:
    """Return value, verdict and reason of one gate over one test's rows; `incomplete` says why rows are missing, if any are.

    `scale`: the metric's, by the rows of all engines, as in reports; by these rows unless given. `floor`: of the metric's noise, where that
    was measured: a value no further from the threshold is taken for equal to it. `ends`: the intervals of aggregates that have one. The
    slices of a gate are not chosen here; `num_slices`: of how many this is one, for which intervals are made wider where one that misses by
    chance would fail the gate.
    """
    rate, within = BUILT_IN_METRICS.get(gate.metric), GateVerdict()
    means = mean_scores(rows)
    value, scored, is_aggregate = _found(gate, rows, means, aggregates)
    mean = value
    if gate.end and value is not None:
        if is_aggregate:
            value = ends[gate.metric][gate.end == "high"] if gate.metric in ends else None
        else:
            value = _interval_end(gate, rows, scale or scale_of(gate.metric, rows), num_slices)
    if incomplete is not None and mean is not None:
        reason = f"not judged: {incomplete}"
    elif value is None and mean is not None:
        why = _NO_DRAWS if is_aggregate else f"{len(scored)} cases without any difference say nothing of it"
        reason = f"{gate.metric} is {number_text(mean)}, but has no interval: {why}"
    elif value is None:
        reason = _why_no_value(gate, rows, {**means, **aggregates})
    elif _too_few_judged(rows) and (gate.holds(value) or rate is None or not rate.is_about_coverage):
        reason = f"only {part_of(sum(map(was_judged, rows)), len(rows), 'case')} had a verdict; the others were invalid or errors"
    else:
        has_floor = floor is not None and not gate.statistic and (rate is not None or gate.metric in means)
        within = _within_noise(gate, value, floor(scored or rows) if has_floor and floor is not None else None)
        reason = "" if gate.holds(value) or ("within_noise" in within and gate.holds(gate.threshold)) else shortfall(gate, value)
        if reason and gate.end and mean is not None:
            of = f" (of {num_slices:,} slices)" if num_slices > 1 and gate.fails_if_shown else ""
            reason = f"{gate.end} end of the interval{of} {reason}; the mean is {number_text(mean)}"
    return {
        "expression": gate.expression,
        "metric": gate.name,
        "value": value,
        "threshold": gate.threshold,
        "n": len(scored) or len(rows),
        "passed": not reason,
        "reason": reason,
        **({"end": gate.end} if gate.end else {}),
        **({"measure": gate.statistic} if gate.statistic else {}),
        **within,
    }


Ends: TypeAlias = "Mapping[str, tuple[float, float]]"
"""Low and high by metric."""
_NO_DRAWS = "it is an aggregate, which has one where the eval's marker gives draws=400 and cases vary"
Floor: TypeAlias = "Callable[[Sequence[Row]], float]"
"""Returns how far noise alone moves a metric over these rows, with a chance of 95 %."""


def _within_noise(gate: Gate, value: float, floor: float | None) -> GateVerdict:
    """Return what a verdict says of the noise; empty where none was measured, or for an end of the interval, which is no single run's."""
    if floor is None or gate.end:
        return {}
    if not 0 < abs(value - gate.threshold) <= floor:
        return {"floor": floor}
    side = "below" if value < gate.threshold else "above"
    away = f"{number_text(value)} is {number_text(abs(value - gate.threshold))} {side} the threshold"
    return {"floor": floor, "within_noise": [f"{away}, within noise: runs of one checkpoint vary by up to {number_text(floor)}"]}


class Scale(NamedTuple):
    """Whether a metric is a share of cases, and whether it lies within 0…1: its interval is then another one."""

    is_rate: bool
    is_bounded: bool


def scale_of(metric: str, rows: Iterable[Row]) -> Scale:
    """Return the scale of a metric, of a score by all that the rows have of it; a count (`num_…`) has none."""
    if metric in BUILT_IN_METRICS:
        return Scale(True, True)
    known = {row["scores"][metric] for row in rows if was_judged(row) and metric in row["scores"]}
    is_score = not metric.startswith("num_") and (metric not in QUANTITIES or bool(known))
    return Scale(is_score and known <= {0, 1}, is_score and all(0 <= value <= 1 for value in known))


CONFIDENCE = 0.95


def confidence_of(gate: Gate, num_slices: int) -> float:
    """Return the confidence of a gate's interval: 95 %, or as much of all slices together where one that misses by chance would fail it.

    Bonferroni's correction: whether any slice misses is decided as by Holm's, which comparisons use.
    """
    return 1 - (1 - CONFIDENCE) / num_slices if gate.fails_if_shown else CONFIDENCE


def _interval_end(gate: Gate, rows: Sequence[Row], scale: Scale, num_slices: int) -> float | None:
    """Return an end of the interval that reports show of a score, or that of a rate or quantity; None where there is none."""
    import numpy as np

    from evalharness.analysis.statistics.intervals import mean_intervals

    rate = BUILT_IN_METRICS.get(gate.metric)
    scored = [row for row in rows if was_judged(row) and row["scores"]]
    if rate is not None:
        counted = rate.counted(rows)
        values, groups = [float(rate.holds(row)) for row in counted], [row.get("group") for row in counted]
    elif any(gate.metric in row["scores"] for row in scored):
        values, groups = [row["scores"].get(gate.metric, math.nan) for row in scored], [row.get("group") for row in scored]
    else:
        found = values_of(gate.metric, rows)
        values, groups = [value for _, value in found], groups_of(found)
    column, confidence = np.array(values, dtype=float)[:, None], confidence_of(gate, num_slices)
    interval = mean_intervals(column, groups, is_rate=[scale.is_rate], is_bounded=[scale.is_bounded], confidence=confidence)[0]
    end = interval.low if gate.end == "low" else interval.high
    return None if math.isnan(end) else end
