"""One set of scores measured several times, checkpoint after checkpoint: means with intervals, and whether two can be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from evalharness.analysis.statistics.intervals import DEFAULT_SEED, cluster_sums, group_codes, mean_intervals
from evalharness.analysis.statistics.paired import sign_flip_p

__all__ = ["Mean", "means_by_place", "paired_p"]


class Mean(NamedTuple):
    """The mean of a column at one place of the series; NaN limits where nothing can be said."""

    place: int
    mean: float
    low: float
    high: float
    interval: str
    n: int


def means_by_place(
    parts: Sequence[Sequence[Sequence[float]]],
    groups: Sequence[Sequence[str | None]],
    num_columns: int,
    *,
    seed: int = DEFAULT_SEED,
) -> list[list[Mean]]:
    """Return the means of each column, place by place; NaN is a case without the score, a place without any is left out.

    `parts` has `(cases, num_columns)` per place, `groups` the group of each case. Whether a score is a rate, or within 0…1, is
    judged over all places together, so that a column has one kind of interval.
    """
    arrays: list[Any] = [np.asarray(part, dtype=np.float64).reshape(-1, num_columns) for part in parts]
    together = np.concatenate(arrays)
    missing = np.isnan(together)
    rates = [bool(one) for one in (np.isin(together, (0, 1)) | missing).all(axis=0)]
    bounded = [bool(one) for one in ((together >= 0) & (together <= 1) | missing).all(axis=0)]
    found: list[list[Mean]] = [[] for _ in range(num_columns)]
    for place, (array, own_groups) in enumerate(zip(arrays, groups, strict=True)):
        if not len(array):
            continue
        intervals = mean_intervals(array, own_groups, is_rate=rates, is_bounded=bounded, seed=seed)
        for column, interval in enumerate(intervals):
            own = array[:, column][~np.isnan(array[:, column])]
            if len(own):
                found[column].append(Mean(place, float(own.mean()), *interval, len(own)))
    return found


def paired_p(differences: Sequence[float], groups: Sequence[str | None]) -> float:
    """Return the p value of the exact sign-flip test of cases' differences, cases of a group taken together; 1 for none."""
    if not differences:
        return 1.0
    values = np.asarray(differences, dtype=np.float64).reshape(-1, 1)
    return sign_flip_p(cluster_sums(values, group_codes(groups, len(values))).sums[:, 0])
