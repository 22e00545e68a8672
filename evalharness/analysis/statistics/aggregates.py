"""Intervals of metrics that are no means of cases: the eval's own function is called on cases drawn anew, group by group.

How often a group is drawn depends on its name and the number of the draw alone (a Poisson bootstrap). So two runs draw the same cases, and
the differences of their draws are those of a paired bootstrap, although neither run sees the other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from evalharness.runs.schema import Row

_FEWEST_USABLE = 0.9
"""Share of the draws that must give a number."""
_LARGEST_BIAS = 1.0
"""Standard deviations: beyond it the metric of a draw is not that of the cases, but biased (a calibration error grows by chance alone)."""

Metrics = Mapping[str, float | None]
Draws = list[float | None]


def draws_of(rows: Sequence[Row], metrics_of: Callable[[list[Row]], Metrics], num_draws: int) -> dict[str, Draws]:
    """Return the metrics of so many draws of the rows, None where a draw gives no number. What the function raises passes."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_group_name(row), []).append(row)
    times = np.array([_times(name, num_draws) for name in groups]).reshape(len(groups), num_draws)
    draws: dict[str, Draws] = {}
    for number in range(num_draws):
        drawn: list[Row] = []
        for group, count in zip(groups.values(), times[:, number].tolist(), strict=True):
            drawn += [_named(row, copy) for copy in range(count) for row in group]
        for name, value in (metrics_of(drawn) if drawn else {}).items():
            known = draws.setdefault(name, [])
            known += [None] * (number - len(known))
            known.append(value)
    return {name: known + [None] * (num_draws - len(known)) for name, known in draws.items()}


def times_of(rows: Sequence[Row], num_draws: int) -> Any:
    """Return how often each row is in each of the same draws: whole numbers `(rows, draws)`."""
    by_group = {name: _times(name, num_draws) for name in dict.fromkeys(map(_group_name, rows))}
    return np.array([by_group[_group_name(row)] for row in rows]).reshape(len(rows), num_draws)


def _group_name(row: Row) -> str:
    group = row.get("group")
    return f"case {row['eval']} {row['case_id']}" if group is None else f"group {group}"


def _times(name: str, num_draws: int) -> Any:
    seed = int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    return np.random.default_rng(seed).poisson(1.0, num_draws)


def _named(row: Row, copy: int) -> Row:
    """Return a row to count once more: its function may know cases and groups by their names."""
    if not copy:
        return row
    group = row.get("group")
    return {**row, "case_id": f"{row['case_id']} ({copy + 1})", "group": None if group is None else f"{group} ({copy + 1})"}


def num_groups(rows: Sequence[Row]) -> int:
    """Return how many independent observations there are."""
    return len(set(map(_group_name, rows)))


def interval_of(value: float, draws: Sequence[float | None], groups: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return low and high of a metric, or of a difference, from its draws; None for fewer than two groups, no spread or too few numbers.

    Bias-corrected percentiles, widened for few groups by the t quantile. Where the draws are far off the value to one side, the value and
    their standard deviation instead.
    """
    known = np.array([draw for draw in draws if draw is not None and math.isfinite(draw)])
    if groups < 2 or not draws or len(known) < _FEWEST_USABLE * len(draws) or np.ptp(known) == 0:
        return None
    from scipy import special  # a quarter of a second, and most runs need none of it

    reach = math.sqrt(groups / (groups - 1)) * float(special.stdtrit(groups - 1, 0.5 + confidence / 2))
    below = (np.count_nonzero(known < value) + np.count_nonzero(known == value) / 2) / len(known)
    bias = NormalDist().inv_cdf(min(max(below, 0.5 / len(known)), 1 - 0.5 / len(known)))
    if abs(bias) > _LARGEST_BIAS:
        spread = float(known.std(ddof=1)) * reach
        return value - spread, value + spread
    low, high = (float(np.quantile(known, NormalDist().cdf(2 * bias + end))) for end in (-reach, reach))
    return min(low, value), max(high, value)


def differences(before: Sequence[float | None], after: Sequence[float | None]) -> Draws:
    """Return the differences of two runs' draws, None where either has no number."""
    return [None if one is None or other is None else other - one for one, other in zip(before, after, strict=True)]


def mean_draws(rows: Sequence[Row], names: Sequence[str], num_draws: int) -> tuple[Any, Any]:
    """Return sums and counts `(draws, names)` of the scores over the same draws as `draws_of`, without calling anything on them."""
    places: dict[str, int] = {}
    for row in rows:
        places.setdefault(_group_name(row), len(places))
    sums, counts = np.zeros((2, len(places), len(names)))
    for row in rows:
        for column, name in enumerate(names):
            if name in row["scores"]:
                sums[places[_group_name(row)], column] += row["scores"][name]
                counts[places[_group_name(row)], column] += 1
    times = np.array([_times(name, num_draws) for name in places], dtype=float).reshape(len(places), num_draws)
    return times.T @ sums, times.T @ counts
