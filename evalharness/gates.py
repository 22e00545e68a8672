"""Gates: "metric >= number" over the rows of one test and one engine. Knows nothing about pytest.

A metric is the mean of a score, a value that the eval's `aggregate` gave, or one of the rates that every test has.
A gate that has nothing to judge does not pass.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalharness.errors import ConfigError

__all__ = ["BUILT_IN_METRICS", "Gate", "evaluate_gate", "mean_scores", "parse_gate"]

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
_EXPRESSION = re.compile(r"\s*([A-Za-z_][\w.@/-]*)\s*(>=|<=|==|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


def _share(rows: Sequence[Mapping[str, Any]], holds: Callable[[Mapping[str, Any]], bool]) -> float:
    return sum(map(holds, rows)) / len(rows)


def _generation(row: Mapping[str, Any], key: str) -> Any:
    return (row.get("generation") or {}).get(key)


BUILT_IN_METRICS: dict[str, Callable[[Sequence[Mapping[str, Any]]], float]] = {
    "pass_rate": lambda rows: _share(rows, lambda row: row["outcome"] == "pass"),
    "invalid_rate": lambda rows: _share(rows, lambda row: row["outcome"] == "invalid"),
    "error_rate": lambda rows: _share(rows, lambda row: row["outcome"] == "error"),
    "length_rate": lambda rows: _share(rows, lambda row: _generation(row, "finish_reason") == "length"),
    "empty_rate": lambda rows: _share(rows, lambda row: row.get("generation") is not None and not row["generation"]["text"].strip()),
}
"""Shares of all rows of the test, 0 to 1; `length_rate` counts generations that hit the token cap."""


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


def _was_judged(row: Mapping[str, Any]) -> bool:
    # A test that broke after its first score has not judged the case: what it scored is in the row, but in no mean.
    return row["outcome"] in ("pass", "miss", "fail")


def _too_few_judged(rows: Sequence[Mapping[str, Any]]) -> bool:
    # The few that were left say nothing about the rest. Milder limits are the eval's to set, with a gate on invalid_rate.
    asked = [row for row in rows if row["outcome"] != "skip"]
    return 2 * sum(map(_was_judged, asked)) < len(asked)


def parse_gate(expression: object) -> Gate:
    """Return the gate that an expression says; `ConfigError` with the grammar otherwise."""
    match = _EXPRESSION.fullmatch(expression) if isinstance(expression, str) else None
    if match is None:
        raise ConfigError(f"gate {expression!r} is not understood; write 'metric >= number' with one of: {', '.join(_OPERATORS)}")
    return Gate(str(expression).strip(), match[1], match[2], float(match[3]))


def mean_scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of every score over the rows that have it and were judged; rows without it do not count as 0."""
    sums: dict[str, list[float]] = {}
    for row in filter(_was_judged, rows):
        for name, value in row["scores"].items():
            sums.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in sums.items()}


def evaluate_gate(
    gate: Gate, rows: Sequence[Mapping[str, Any]], aggregates: Mapping[str, float], *, incomplete: str | None
) -> dict[str, Any]:
    """Return value, verdict and reason of one gate over one test's rows; `incomplete` says why rows are missing, if so."""
    available = {**{name: metric(rows) for name, metric in BUILT_IN_METRICS.items() if rows}, **mean_scores(rows), **aggregates}
    value = available.get(gate.metric)
    scored = sum(gate.metric in row["scores"] for row in rows if _was_judged(row)) if gate.metric not in BUILT_IN_METRICS else len(rows)
    if value is None:
        names = ", ".join(sorted(name for name in available if name not in BUILT_IN_METRICS)) or "nothing"
        reason = f"no case recorded {gate.metric!r}; recorded: {names}"
    elif incomplete is not None:
        reason = f"not judged: {incomplete}"
    elif gate.metric not in BUILT_IN_METRICS and _too_few_judged(rows):
        reason = f"not judged: only {sum(map(_was_judged, rows))} of {len(rows)} cases could be; the others are invalid or errors"
    else:
        reason = "" if gate.holds(value) else f"{value:.4f} is not {gate.comparison} {gate.threshold:g}"
    return {
        "expression": gate.expression,
        "metric": gate.metric,
        "value": value,
        "threshold": gate.threshold,
        "n": scored or len(rows),
        "passed": not reason,
        "reason": reason,
    }
