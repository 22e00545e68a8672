"""Gates over the rows of one test and one engine: "metric >= number", or "no_regression" against a baseline.

A metric is the mean of a score, a value that the eval's `aggregate` returned, or a rate that every test has. `metric[tag=value]` is about
the cases of a slice, `metric[tag=*]` about each slice; `low(metric)` and `high(metric)` are the ends of its 95 % interval. A gate without
anything to judge does not pass. Knows nothing about pytest; `judge.py` judges against baselines.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple, TypeAlias

from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.api.wording import figure_text, number_text, part_of, plural
from evalharness.runs.schema import JUDGED, GateVerdict, Row, generations_of

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
_SIGNS = {">=": "≥", "<=": "≤", "==": "="}
_EXPRESSION = re.compile(
    r"\s*(?P<end>(?:low|high)\s*\()?\s*(?P<metric>[A-Za-z_][\w.@^/-]*)\s*(?:\[(?P<tag>[^\[\]=]+)=(?P<value>[^\[\]]*)\]\s*)?(?(end)\)\s*)"
    r"(?P<comparison>>=|<=|==|>|<)\s*(?P<threshold>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"
)
EACH = "*"
"""In `metric[tag=*]`: each value of the tag, of which the worst decides."""

DIRECTIONS = ("higher", "lower", "none")
"""Which way a score is better; "none": neither way, so that a change of it is no verdict."""

_NO_REGRESSION = re.compile(r"\s*no_regression\s*(?:\(([^()]*)\))?\s*")
_METRIC = re.compile(r"[A-Za-z_][\w.@^/-]*")


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
        lambda row: any(sample.get("finish_reason") == "length" for sample in generations_of(row)), generations_of, "generated"
    ),
    "empty_rate": _Rate(
        lambda row: any(not (sample.get("text") or "").strip() for sample in generations_of(row)), generations_of, "generated"
    ),
}
"""Rates that every test has. With several samples a case, one that hit the token cap, or is empty, is enough."""


@dataclass(frozen=True)
class Gate:
    """One parsed expression."""

    expression: str
    metric: str
    comparison: str
    threshold: float
    end: str = ""
    """"low" or "high": the gate is on this end of the metric's 95 % interval."""
    tag: str = ""
    """The gate is on the cases that have `value` for this tag, or on each value's cases for "*"."""
    value: str = ""

    def holds(self, value: float) -> bool:
        """Return whether the value passes."""
        return _OPERATORS[self.comparison](value, self.threshold)


@dataclass(frozen=True)
class RegressionGate:
    """One parsed `no_regression`; without metrics it covers all of them, and slices."""

    expression: str
    metrics: tuple[str, ...] = ()
    metric: ClassVar[str] = "no_regression"
    """The metric's name in a verdict."""


def _too_few_judged(rows: Sequence[Row]) -> bool:
    # The few that remain say nothing about the others, and errors nothing about how many cases are invalid.
    ran = list(filter(_was_run, rows))
    return 2 * sum(map(was_judged, ran)) < len(ran)


def parse_gate(expression: object) -> Gate | RegressionGate:
    """Return the gate of an expression; otherwise `ConfigError` with the grammar."""
    if isinstance(expression, str):
        match = _EXPRESSION.fullmatch(expression)
        if match is not None:
            end, tag, value = ((match[name] or "").strip() for name in ("end", "tag", "value"))
            end = end.rstrip("(").strip()
            return Gate(expression.strip(), match["metric"], match["comparison"], float(match["threshold"]), end, tag, value)
        match = _NO_REGRESSION.fullmatch(expression)
        metrics = () if match is None or match[1] is None else tuple(part.strip() for part in match[1].split(","))
        if match is not None and all(map(_METRIC.fullmatch, metrics)):
            return RegressionGate(expression.strip(), metrics)
    raise ConfigError(
        f"gate {expression!r} is not understood; write 'metric >= number' with one of: {', '.join(_OPERATORS)}; "
        "'metric[tag=value] >= number' for a slice, with '*' for each value of the tag; 'low(metric) >= number' for the lower end of the "
        "interval, 'high(metric)' for the upper; or 'no_regression' or 'no_regression(metric, metric)'"
    )


def mean_scores(rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean of every score over the rows that have it and were judged; rows without it do not count as 0."""
    sums: dict[str, list[float]] = {}
    for row in filter(was_judged, rows):
        for name, value in row["scores"].items():
            sums.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in sums.items()}


def _shortfall(gate: Gate, value: float) -> str:
    """Return "0.850, needs ≥ 0.90", with enough decimals to show that the value misses the threshold; "192, needs ≤ 150" of counts."""
    texts = (figure_text(value, gate.metric), number_text(value), f"{value:.3f}", f"{value:.6f}")
    shown = next((text for text in texts if not gate.holds(float(text.replace(",", "")))), repr(value))
    needed = f"{gate.threshold:.2f}" if abs(gate.threshold) < 1 and round(gate.threshold, 2) == gate.threshold else f"{gate.threshold:g}"
    return f"{shown}, needs {_SIGNS.get(gate.comparison, gate.comparison)} {needed}"


def _why_no_value(gate: Gate, rows: Sequence[Row], named: Collection[str]) -> str:
    """Return why a gate's metric has no value: nothing was judged, or nothing has its name."""
    if gate.metric in BUILT_IN_METRICS:
        return f"no case was {BUILT_IN_METRICS[gate.metric].of}"
    if not named and not any(map(was_judged, rows)):
        found = Counter(_WHAT_HAPPENED[row["outcome"]] for row in rows)
        all_cases = "the only case" if len(rows) == 1 else f"all {plural(len(rows), 'case')}"
        shown = [f"{all_cases if len(found) == 1 else f'{count:,}'} {what}" for what, count in found.items()]
        return f"no case was judged: {', '.join(shown) or 'there is none'}"
    meant = did_you_mean(gate.metric, [*named, *BUILT_IN_METRICS])
    return f"no case recorded {gate.metric!r}{meant or ';'} recorded: {', '.join(sorted(named)) or 'nothing'}"


_WHAT_HAPPENED: dict[str, str] = {"error": "ended in an error", "invalid": "could not be run", "skip": "did not run"}


def evaluate_gate(
    gate: Gate,
    rows: Sequence[Row],
    aggregates: Mapping[str, float],
    *,
    incomplete: str | None,
    scale: Scale | None = None,
    floor: Floor | None = None,
    ends: Ends = MappingProxyType({}),
) -> GateVerdict:
    """Return value, verdict and reason of one gate over one test's rows; `incomplete` says why rows are missing, if any are.

    `scale`: the metric's, by the rows of all engines, as in reports; by these rows unless given. `floor`: of the metric's noise, where that
    was measured: a value no further from the threshold is taken for equal to it. `ends`: the intervals of aggregates that have one. The
    slices of a gate are not chosen here.
    """
    rate, within = BUILT_IN_METRICS.get(gate.metric), GateVerdict()
    named = {**mean_scores(rows), **aggregates}
    value = named.get(gate.metric) if rate is None else rate.value(rows)
    scored = [row for row in rows if was_judged(row) and gate.metric in row["scores"]] if rate is None else rate.counted(rows)
    mean = value
    if gate.end and value is not None:
        if gate.metric in aggregates and rate is None:
            value = ends[gate.metric][gate.end == "high"] if gate.metric in ends else None
        else:
            value = _interval_end(gate, rows, scale or scale_of(gate.metric, rows))
    if incomplete is not None and mean is not None:
        reason = f"not judged: {incomplete}"
    elif value is None and mean is not None:
        why = _NO_DRAWS if gate.metric in aggregates else f"{len(scored)} cases without any difference say nothing of it"
        reason = f"{gate.metric} is {number_text(mean)}, but has no interval: {why}"
    elif value is None:
        reason = _why_no_value(gate, rows, named)
    elif _too_few_judged(rows) and (gate.holds(value) or rate is None or not rate.is_about_coverage):
        reason = f"only {part_of(sum(map(was_judged, rows)), len(rows), 'case')} had a verdict; the others were invalid or errors"
    else:
        within = _within_noise(gate, value, None if floor is None else floor(scored or rows))
        reason = "" if gate.holds(value) or ("within_noise" in within and gate.holds(gate.threshold)) else _shortfall(gate, value)
        if reason and gate.end and mean is not None:
            reason = f"{gate.end} end of the interval {reason}; the mean is {number_text(mean)}"
    return {
        "expression": gate.expression,
        "metric": gate.metric,
        "value": value,
        "threshold": gate.threshold,
        "n": len(scored) or len(rows),
        "passed": not reason,
        "reason": reason,
        **({"end": gate.end} if gate.end else {}),
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
    is_score = not metric.startswith("num_")
    return Scale(is_score and known <= {0, 1}, is_score and all(0 <= value <= 1 for value in known))


def _interval_end(gate: Gate, rows: Sequence[Row], scale: Scale) -> float | None:
    """Return an end of the interval that reports show of a score, or that of a rate; None where there is none."""
    import numpy as np

    from evalharness.analysis.statistics.intervals import mean_intervals

    rate = BUILT_IN_METRICS.get(gate.metric)
    if rate is not None:
        counted = rate.counted(rows)
        values = [float(rate.holds(row)) for row in counted]
    else:
        counted = [row for row in rows if was_judged(row) and row["scores"]]
        values = [row["scores"].get(gate.metric, math.nan) for row in counted]
    groups = [row.get("group") for row in counted]
    interval = mean_intervals(np.array(values, dtype=float)[:, None], groups, is_rate=[scale.is_rate], is_bounded=[scale.is_bounded])[0]
    end = interval.low if gate.end == "low" else interval.high
    return None if math.isnan(end) else end
