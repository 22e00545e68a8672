"""Paired tests of two or more engines on the same cases: differences with intervals and p values, and the detectable difference."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from evalharness.analysis.statistics.intervals import (
    DEFAULT_SEED,
    ClusterSums,
    bca_intervals,
    cluster_sums,
    cluster_variance,
    effective_size,
    group_codes,
    mean_intervals,
)

POWER = 0.8
_LEVELS = 100  # differences that are no whole numbers are rounded to this fraction of the largest, so that sums can be counted
_ROUNDING = 1e-9  # differences within a group that cancel out leave this much
_MOST_STEPS = 4_000_000  # of counting; beyond it the normal distribution is close, and errs towards larger p values

Array = Any


class PairedChange(NamedTuple):
    """One score on the cases where both sides have it. `difference` is candidate minus base."""

    num_pairs: int
    num_groups: int
    num_changed_groups: int
    num_up: int
    num_down: int
    base: float
    candidate: float
    difference: float
    low: float
    high: float
    p: float
    standard_error: float
    """Of the difference; NaN if there is none."""


def paired_changes(
    base: Sequence[Sequence[float]] | Array,
    candidate: Sequence[Sequence[float]] | Array,
    groups: Sequence[str | None] | None = None,
    *,
    is_bounded: Sequence[bool],
    confidence: float = 0.95,
    seed: int = DEFAULT_SEED,
) -> list[PairedChange]:
    """Return one change per column of two arrays `(cases, columns)`; a case counts where neither value is NaN.

    p is that of an exact sign-flip test of the groups' summed differences; for rates without groups that is the exact test
    of McNemar. The interval of rates is that of Agresti and Min (2005), with the effective number of cases where there are
    groups; other scores get a bootstrap over groups. A bounded score (0…1) that changed in no case is treated as a rate.
    """
    base, candidate = (np.asarray(values, dtype=np.float64).reshape(-1, len(is_bounded)) for values in (base, candidate))
    differences = candidate - base
    clusters = cluster_sums(differences, group_codes(groups, len(differences)))
    rates = [_is_rate(base[known, column], candidate[known, column]) for column, known in enumerate(~np.isnan(differences).T)]
    if all(rates):  # which need no resamples: most of the time for slices
        limits = np.full((2, len(rates)), np.nan)
    else:
        limits = bca_intervals(clusters, confidence=confidence, seed=seed)
    errors = np.sqrt(cluster_variance(clusters))
    changes = []
    for column, bounded in enumerate(is_bounded):
        pairs = ~np.isnan(differences[:, column])
        before, after = base[pairs, column], candidate[pairs, column]
        num_up, num_down = int((after > before).sum()), int((after < before).sum())
        sums = ClusterSums(clusters.sums[:, [column]], clusters.counts[:, [column]])
        low, high, error = *map(float, limits[:, column]), float(errors[column])
        if len(before) and (rates[column] or (bounded and not num_up + num_down)):
            low, high, error = _rate_interval(num_up, num_down, sums, confidence)
        means = (float(before.mean()), float(after.mean())) if len(before) else (math.nan, math.nan)
        present = sums.counts[:, 0] > 0
        num_changed_groups = int((np.abs(sums.sums) > _ROUNDING).sum())
        sizes = (len(before), int(present.sum()), num_changed_groups, num_up, num_down)
        changes.append(PairedChange(*sizes, *means, means[1] - means[0], low, high, sign_flip_p(sums.sums[present, 0]), error))
    return changes


def _is_rate(before: Array, after: Array) -> bool:
    return bool(np.isin(before, (0, 1)).all() and np.isin(after, (0, 1)).all())


def _rate_interval(num_up: int, num_down: int, clusters: ClusterSums, confidence: float) -> tuple[float, float, float]:
    """Return low, high and standard error of a difference of paired rates, with half a case added to each of the four cells."""
    num_pairs = float(clusters.counts.sum())
    difference, changed = (num_up - num_down) / num_pairs, (num_up + num_down) / num_pairs
    size = effective_size(clusters, (changed - difference**2) / num_pairs, confidence)
    up, down = num_up / num_pairs * size + 0.5, num_down / num_pairs * size + 0.5
    centre = (up - down) / (size + 2)
    error = math.sqrt(max(0.0, up + down - (up - down) ** 2 / (size + 2))) / (size + 2)
    spread = float(special.ndtri(0.5 + confidence / 2)) * error
    return max(-1.0, min(difference, centre - spread)), min(1.0, max(difference, centre + spread)), error


def sign_flip_p(sums: Array) -> float:
    """Return the two-sided p value of groups' summed differences: how often signs drawn at random give as large a total.

    Exact, by counting, for sums rounded to a hundredth of the largest (whole numbers are not rounded); for very many
    changed groups by the normal distribution. 1 where nothing changed.
    """
    sums = sums[np.abs(sums) > _ROUNDING]
    sizes = np.abs(sums)
    if not len(sizes):
        return 1.0
    whole = bool((sizes == np.round(sizes)).all())
    steps = sizes if whole else np.round(sizes / sizes.max() * _LEVELS)
    signed = np.sign(sums) * steps
    steps = steps.astype(np.int64)
    total = int(steps.sum())
    if total * len(steps) > _MOST_STEPS:
        return float(2 * special.ndtr(-abs(sums.sum()) / math.sqrt((sizes**2).sum())))
    chances = np.zeros(total + 1)  # of the sum of those with a plus
    chances[0] = 1.0
    reached = 0
    for step in steps[steps > 0]:
        reached += step
        chances[: reached + 1] *= 0.5
        chances[step : reached + 1] += chances[: reached + 1 - step].copy()
    observed = abs(int(signed.sum()))
    # The sum of all is twice that of the plus ones less the total, and as likely as its opposite.
    tail = float(chances[(total + observed + 1) // 2 :].sum())
    return min(1.0, 2 * tail) if observed else 1.0


def smallest_p(num_groups: int) -> float:
    """Return the smallest p value possible with so many groups: all changed the same way."""
    return min(1.0, 2.0 ** (1 - num_groups))


def detectable_difference(standard_error: float, level: float) -> float:
    """Return the smallest true difference that a test at `level` would have shown with a chance of 80 %.

    (z(1 − level/2) + z(0.8)) × standard error. With many tests `level` is the one that the first of them must meet.
    """
    return float(special.ndtri(1 - level / 2) + special.ndtri(POWER)) * standard_error


LEVEL = 0.05
"""Chance of a false alarm that is accepted, over all tests of a family together."""


def holm(p_values: Sequence[float], smallest: Sequence[float] | None = None, level: float = LEVEL) -> tuple[list[float], int]:
    """Return Holm's (1979) corrected p values, in the order given, to be compared with the level itself, and the number of tests counted.

    Chosen over Benjamini and Hochberg: an alarm that stops a release should be a true one, and Holm needs no assumption
    about how the tests depend on each other, as metrics of the same texts do. `smallest` is the smallest p value that each
    test can give at all (an exact test of two changed cases: 0.5). Tests that could not be significant whatever came
    out are not counted (Tarone 1990), and their corrected p is 1; so many slices without a change cost no power.
    """
    bounds = [0.0] * len(p_values) if smallest is None else list(smallest)
    in_order, num_counted = sorted(bounds), 1
    while bisect_right(in_order, level / num_counted) > num_counted:
        num_counted += 1
    counted = [position for position, bound in enumerate(bounds) if bound <= level / num_counted]
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, position in enumerate(sorted(counted, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[position] * (num_counted - rank)))
        corrected[position] = largest
    return corrected, num_counted


class Mean(NamedTuple):
    """The mean of a column at one place of the series; NaN limits if there is no interval."""

    place: int
    mean: float
    low: float
    high: float
    interval: str
    n: int


def means_by_place(
    parts: Sequence[Sequence[Sequence[float]]], groups: Sequence[Sequence[str | None]], num_columns: int, *, seed: int = DEFAULT_SEED
) -> list[list[Mean]]:
    """Return the means of each column, place by place; NaN is a case without the score, and a place without any is left out.

    `parts` has `(cases, num_columns)` per place, `groups` the group of each case. All places together decide whether a score is a rate, or
    within 0…1, so that a column has one kind of interval.
    """
    arrays: list[Any] = [np.asarray(part, dtype=np.float64).reshape(-1, num_columns) for part in parts]
    together = np.concatenate(arrays)
    missing = np.isnan(together)
    rates = [bool(holds) for holds in (np.isin(together, (0, 1)) | missing).all(axis=0)]
    bounded = [bool(holds) for holds in ((together >= 0) & (together <= 1) | missing).all(axis=0)]
    means: list[list[Mean]] = [[] for _ in range(num_columns)]
    for place, (array, own_groups) in enumerate(zip(arrays, groups, strict=True)):
        if not len(array):
            continue
        intervals = mean_intervals(array, own_groups, is_rate=rates, is_bounded=bounded, seed=seed)
        for column, interval in enumerate(intervals):
            values = array[:, column][~np.isnan(array[:, column])]
            if len(values):
                means[column].append(Mean(place, float(values.mean()), *interval, len(values)))
    return means


def paired_p(differences: Sequence[float], groups: Sequence[str | None]) -> float:
    """Return the p value of the exact sign-flip test of cases' differences, cases of a group taken together; 1 for none."""
    if not differences:
        return 1.0
    values = np.asarray(differences, dtype=np.float64).reshape(-1, 1)
    return sign_flip_p(cluster_sums(values, group_codes(groups, len(values))).sums[:, 0])
