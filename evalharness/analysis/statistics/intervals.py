"""Intervals for one engine's scores: Wilson for rates, bootstrap for means, cases of one group taken together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from evalharness.analysis.statistics.clusters import ClusterSums, bca_intervals, cluster_sums, cluster_variance, group_codes

__all__ = ["DEFAULT_SEED", "Interval", "effective_size", "mean_intervals", "wilson_interval"]

DEFAULT_SEED = 0
"""Seed of every bootstrap unless another is given: the same run gives the same bytes."""

Array = Any


class Interval(NamedTuple):
    """An interval of a mean and how it was made; NaN at both ends where nothing can be said (kind "none")."""

    low: float
    high: float
    kind: str


def wilson_interval(rate: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a rate over `n` independent cases, within 0…1; `n` may be an effective size.

    Unlike rate ± standard error it says something at 0 of n and n of n. Raises `ValueError` for n < 1 or a rate outside 0…1.
    """
    if not n >= 1 or not 0.0 <= rate <= 1.0:
        raise ValueError(f"a Wilson interval needs n >= 1 and a rate within 0…1, got rate={rate!r}, n={n!r}")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    centre = rate + z * z / (2 * n)
    spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # The rate lies inside by definition; rounding must not push it out.
    return max(0.0, min(rate, (centre - spread) / scale)), min(1.0, max(rate, (centre + spread) / scale))


def effective_size(clusters: ClusterSums, independent_variance: float, confidence: float = 0.95) -> float:
    """Return how many independent cases a column's cases are worth: their number, by the design effect (Korn and Graubard 1998).

    `clusters` has one column; `independent_variance` is that of its mean, were all cases independent. Where nothing
    varies, nothing is known about how cases of a group go together: then a group counts as one case. Few groups count
    for less, by the t quantile. At least 1.
    """
    counts = clusters.counts[clusters.counts > 0]
    num_cases, num_groups = float(counts.sum()), len(counts)
    if num_groups == num_cases:
        return num_cases
    fewest = num_cases**2 / float((counts**2).sum())
    variance = float(cluster_variance(clusters)[0])
    size = fewest if not variance > 0 else min(num_cases, max(fewest, num_cases * independent_variance / variance))
    if num_groups > 1:
        from scipy import special  # a quarter of a second, and runs without groups need none of it

        tail = 0.5 + confidence / 2
        size *= float(special.stdtrit(num_cases - 1, tail) / special.stdtrit(num_groups - 1, tail)) ** 2
    return max(1.0, size)


def mean_intervals(
    values: Array,
    groups: Sequence[str | None] | None = None,
    *,
    is_rate: Sequence[bool],
    is_bounded: Sequence[bool],
    confidence: float = 0.95,
    seed: int = DEFAULT_SEED,
) -> list[Interval]:
    """Return one interval per column of `values` `(cases, columns)`; NaN is a case without the score.

    A rate (0 or 1 in every case) gets Wilson's, with the effective number of cases where there are groups. Any other mean
    gets a bootstrap over groups. Where no case differs from another a bootstrap says nothing: a bounded score (0…1) that is
    0 or 1 everywhere gets Wilson's, as it varies at most as much as a rate; all else gets none.
    """
    clusters = cluster_sums(values, group_codes(groups, len(values)))
    limits = bca_intervals(clusters, confidence=confidence, seed=seed)
    found = []
    for column, (rate, bounded) in enumerate(zip(is_rate, is_bounded, strict=True)):
        mean, num_cases = float(clusters.means[column]), float(clusters.counts[:, column].sum())
        # Rounding may leave a mean of zeros and ones a hair outside.
        if num_cases and (rate or (bounded and mean in (0.0, 1.0))):
            mean = min(max(mean, 0.0), 1.0)
            own = ClusterSums(clusters.sums[:, [column]], clusters.counts[:, [column]])
            size = effective_size(own, mean * (1 - mean) / num_cases, confidence)
            found.append(Interval(*wilson_interval(mean, size, confidence), "wilson"))
        elif np.isnan(limits[0, column]):
            found.append(Interval(math.nan, math.nan, "none"))
        else:
            found.append(Interval(float(limits[0, column]), float(limits[1, column]), "bootstrap"))
    return found
