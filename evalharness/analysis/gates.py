"""Gates over the rows of one test and one engine: "metric >= number", or "no_regression" against a baseline.

A metric is the mean of a score, a value that the eval's `aggregate` returned, or a rate that every test has. A gate without anything to
judge does not pass. Knows nothing about pytest; `judge.py` judges against baselines.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.runs.schema import JUDGED, GateVerdict, Row, generations_of

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
_SIGNS = {">=": "≥", "<=": "≤", "==": "="}
_EXPRESSION = re.compile(r"\s*([A-Za-z_][\w.@^/-]*)\s*(>=|<=|==|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")

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
            return Gate(expression.strip(), match[1], match[2], float(match[3]))
        match = _NO_REGRESSION.fullmatch(expression)
        metrics = () if match is None or match[1] is None else tuple(part.strip() for part in match[1].split(","))
        if match is not None and all(map(_METRIC.fullmatch, metrics)):
            return RegressionGate(expression.strip(), metrics)
    raise ConfigError(
        f"gate {expression!r} is not understood; write 'metric >= number' with one of: {', '.join(_OPERATORS)}; "
        "or 'no_regression' or 'no_regression(metric, metric)'"
    )


def mean_scores(rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean of every score over the rows that have it and were judged; rows without it do not count as 0."""
    sums: dict[str, list[float]] = {}
    for row in filter(was_judged, rows):
        for name, value in row["scores"].items():
            sums.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in sums.items()}


def _shortfall(gate: Gate, value: float) -> str:
    """Return "0.850, needs ≥ 0.90", with enough decimals to show that the value misses the threshold."""
    shown = next((text for decimals in (3, 6) if not gate.holds(float(text := f"{value:.{decimals}f}"))), repr(value))
    needed = f"{gate.threshold:.2f}" if abs(gate.threshold) < 1 and round(gate.threshold, 2) == gate.threshold else f"{gate.threshold:g}"
    return f"{shown}, needs {_SIGNS.get(gate.comparison, gate.comparison)} {needed}"


def _why_no_value(gate: Gate, rows: Sequence[Row], named: Collection[str]) -> str:
    """Return why a gate's metric has no value: nothing was judged, or nothing has its name."""
    if gate.metric in BUILT_IN_METRICS:
        return f"no case was {BUILT_IN_METRICS[gate.metric].of}"
    if not named and not any(map(was_judged, rows)):
        found = Counter(_WHAT_HAPPENED[row["outcome"]] for row in rows)
        all_cases = "the only case" if len(rows) == 1 else f"all {len(rows):,} cases"
        shown = [f"{all_cases if len(found) == 1 else f'{count:,}'} {what}" for what, count in found.items()]
        return f"no case was judged: {', '.join(shown) or 'there is none'}"
    meant = did_you_mean(gate.metric, [*named, *BUILT_IN_METRICS])
    return f"no case recorded {gate.metric!r}{meant or ';'} recorded: {', '.join(sorted(named)) or 'nothing'}"


_WHAT_HAPPENED: dict[str, str] = {"error": "ended in an error", "invalid": "could not be run", "skip": "did not run"}


def evaluate_gate(gate: Gate, rows: Sequence[Row], aggregates: Mapping[str, float], *, incomplete: str | None) -> GateVerdict:
    """Return value, verdict and reason of one gate over one test's rows; `incomplete` says why rows are missing, if any are."""
    rate = BUILT_IN_METRICS.get(gate.metric)
    named = {**mean_scores(rows), **aggregates}
    value = named.get(gate.metric) if rate is None else rate.value(rows)
    scored = [row for row in rows if was_judged(row) and gate.metric in row["scores"]] if rate is None else rate.counted(rows)
    if incomplete is not None and value is not None:
        reason = f"not judged: {incomplete}"
    elif value is None:
        reason = _why_no_value(gate, rows, named)
    elif _too_few_judged(rows) and (gate.holds(value) or rate is None or not rate.is_about_coverage):
        reason = f"not judged: only {sum(map(was_judged, rows))} of {len(rows)} cases have a verdict; the others are invalid or errors"
    else:
        reason = "" if gate.holds(value) else _shortfall(gate, value)
    return {
        "expression": gate.expression,
        "metric": gate.metric,
        "value": value,
        "threshold": gate.threshold,
        "n": len(scored) or len(rows),
        "passed": not reason,
        "reason": reason,
    }
