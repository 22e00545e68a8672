"""Intervals for one engine's scores: Wilson for rates, bootstrap for means, cases of one group taken together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

NUM_RESAMPLES = 2000
_MOST_BUNDLES = 1000
_FEW_GROUPS = 64
_FEWEST_IN_TAILS = 10  # resamples: quantiles beyond are those of a handful of draws

Array = Any  # numpy's arrays; their types are not followed


class ClusterSums(NamedTuple):
    """Sums `(groups, columns)` and counts of cases `(groups, columns)`, float64."""

    sums: Array
    counts: Array

    @property
    def means(self) -> Array:
        """Mean of each column over its cases, NaN where there is none."""
        with np.errstate(invalid="ignore"):
            return self.sums.sum(axis=0) / self.counts.sum(axis=0)


def group_codes(groups: Sequence[str | None] | None, num_cases: int) -> Array:
    """Return an integer per case, equal for cases of one group; a case without a group is a group of its own."""
    if groups is None:
        return np.arange(num_cases)
    codes: dict[str, int] = {}
    codes_of_cases: Array = np.empty(num_cases, dtype=np.int64)
    for position, group in enumerate(groups):
        codes_of_cases[position] = num_cases + position if group is None else codes.setdefault(group, len(codes))
    return np.unique(codes_of_cases, return_inverse=True)[1]


def cluster_sums(values: Array, codes: Array) -> ClusterSums:
    """Return the sums by group of `values` `(cases, columns)`."""
    known = ~np.isnan(values)
    if not len(codes):
        return ClusterSums(np.zeros((0, values.shape[1])), np.zeros((0, values.shape[1])))
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(codes[order]) > 0])
    sums = np.add.reduceat(np.where(known, values, 0.0)[order], starts, axis=0)
    counts = np.add.reduceat(known[order].astype(np.float64), starts, axis=0)
    return ClusterSums(sums, counts)


def cluster_variance(clusters: ClusterSums) -> Array:
    """Return the variance of each column's mean when groups, not cases, are independent; NaN for fewer than two groups."""
    num_groups = (clusters.counts > 0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        residuals = clusters.sums - clusters.means * clusters.counts
        variance = (residuals**2).sum(axis=0) * (num_groups / (num_groups - 1)) / clusters.counts.sum(axis=0) ** 2
    return np.where(num_groups > 1, variance, np.nan)


def _bundled(clusters: ClusterSums, generator: Any) -> ClusterSums:
    """Return at most a thousand random bundles of groups: independent as groups are, and quicker to draw."""
    num_groups = len(clusters.sums)
    if num_groups <= _MOST_BUNDLES:
        return clusters
    order = generator.permutation(num_groups)
    starts = np.linspace(0, num_groups, _MOST_BUNDLES, endpoint=False).astype(np.int64)
    return ClusterSums(np.add.reduceat(clusters.sums[order], starts), np.add.reduceat(clusters.counts[order], starts))


def _resampled_means(clusters: ClusterSums, num_resamples: int, seed: int) -> Array:
    """Return means `(num_resamples, columns)` of groups drawn with replacement, as many as there are."""
    generator = np.random.default_rng(seed)
    sums, counts = _bundled(clusters, generator)
    few = len(sums) <= _FEW_GROUPS
    weights = _weights_of_few(len(sums), num_resamples, seed) if few else _weights(generator, len(sums), num_resamples)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (weights @ sums) / (weights @ counts)


def _weights(generator: Any, num_groups: int, num_resamples: int) -> Array:
    """Return how often each resample has each group, float64 `(num_resamples, num_groups)`."""
    drawn = generator.integers(0, num_groups, size=(num_resamples, num_groups)) + np.arange(num_resamples)[:, None] * num_groups
    return np.bincount(drawn.ravel(), minlength=num_resamples * num_groups).reshape(num_resamples, num_groups).astype(np.float64)


@lru_cache(maxsize=16)
def _weights_of_few(num_groups: int, num_resamples: int, seed: int) -> Array:
    """Return the same for a slice: many slices have as many groups, and then the same draws."""
    return _weights(np.random.default_rng(seed), num_groups, num_resamples)


def bca_intervals(clusters: ClusterSums, *, confidence: float, seed: int, num_resamples: int = NUM_RESAMPLES) -> Array:
    """Return low and high `(2, columns)` of BCa bootstrap intervals of the means; NaN for fewer than two groups or no spread.

    Bias-corrected and accelerated (Efron 1987), widened for few groups by the t quantile (Hesterberg 2015), since resampling
    alone gives the spread of a normal distribution and too little of it. Of a confidence that leaves too few resamples outside:
    Student's intervals.
    """
    num_groups = len(clusters.sums)
    columns = clusters.sums.shape[1]
    limits = np.full((2, columns), np.nan)
    usable = np.flatnonzero(cluster_variance(clusters) > 0) if num_groups > 1 else np.array([], dtype=int)
    if not len(usable):
        return limits
    if num_resamples * (1 - confidence) < _FEWEST_IN_TAILS:
        limits[:, usable] = _t_intervals(clusters, confidence)[:, usable]
        return limits
    chosen = ClusterSums(clusters.sums[:, usable], clusters.counts[:, usable])
    drawn = _resampled_means(chosen, num_resamples, seed)
    for position, column in enumerate(usable):
        means = drawn[:, position][~np.isnan(drawn[:, position])]
        sums, counts = chosen.sums[:, position], chosen.counts[:, position]
        limits[:, column] = np.quantile(means, _bca_levels(means, sums, counts, confidence))
    return limits


def _t_intervals(clusters: ClusterSums, confidence: float) -> Array:
    """Return low and high `(2, columns)` of Student's intervals, for a confidence beyond what resamples can tell."""
    from scipy import special

    num_groups = (clusters.counts > 0).sum(axis=0)
    with np.errstate(invalid="ignore"):
        spread = special.stdtrit(np.maximum(num_groups - 1, 1), 0.5 + confidence / 2) * np.sqrt(cluster_variance(clusters))
    return np.stack([clusters.means - spread, clusters.means + spread])


def _bca_levels(drawn: Array, sums: Array, counts: Array, confidence: float) -> Array:
    """Return the two quantiles of the resampled means that are the limits."""
    from scipy import special  # a quarter of a second, and most runs need none of it

    mean = sums.sum() / counts.sum()
    below = (np.count_nonzero(drawn < mean) + np.count_nonzero(drawn == mean) / 2) / len(drawn)
    bias = special.ndtri(np.clip(below, 1 / len(drawn), 1 - 1 / len(drawn)))
    present = counts > 0
    num_groups = int(present.sum())
    with np.errstate(invalid="ignore", divide="ignore"):
        left_out = (sums.sum() - sums[present]) / (counts.sum() - counts[present])
    pulls = left_out.mean() - left_out
    spread = (pulls**2).sum()
    acceleration = (pulls**3).sum() / (6 * spread**1.5) if spread > 0 else 0.0
    widened = np.sqrt(num_groups / (num_groups - 1)) * special.stdtrit(num_groups - 1, 0.5 + confidence / 2)
    z = bias + np.array([-widened, widened])
    return special.ndtr(bias + z / (1 - acceleration * z))


DEFAULT_SEED = 0
"""Seed of every bootstrap unless another is given: the same run gives the same bytes."""


class Interval(NamedTuple):
    """An interval of a mean and how it was made; NaN at both ends if there is none (kind "none")."""

    low: float
    high: float
    kind: str


def wilson_interval(rate: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a rate over `n` independent cases, within 0…1; `n` may be an effective size.

    Unlike rate ± standard error it is useful at 0 of n and n of n. Raises `ValueError` for n < 1 or a rate outside 0…1.
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
    """Return the effective number of independent cases of a column: their number divided by the design effect (Korn and Graubard 1998).

    `clusters` has one column; `independent_variance` is that of its mean if all cases were independent. If nothing varies, the correlation
    within groups is unknown: then a group counts as one case. Few groups count for less, by the t quantile. At least 1.
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

    A rate (0 or 1 in every case) gets Wilson's, with the effective number of cases if there are groups. Any other mean gets a bootstrap
    over groups. If all cases are equal, a bootstrap says nothing: a bounded score (0…1) that is 0 or 1 everywhere gets Wilson's, as it
    varies at most as much as a rate; all others get none.
    """
    clusters = cluster_sums(values, group_codes(groups, len(values)))
    if all(is_rate):  # which need no resamples: most of the time for slices
        limits = np.full((2, len(is_rate)), np.nan)
    else:
        limits = bca_intervals(clusters, confidence=confidence, seed=seed)
    intervals = []
    for column, (rate, bounded) in enumerate(zip(is_rate, is_bounded, strict=True)):
        mean, num_cases = float(clusters.means[column]), float(clusters.counts[:, column].sum())
        # Rounding may leave a mean of zeros and ones a hair outside.
        if num_cases and (rate or (bounded and mean in (0.0, 1.0))):
            mean = min(max(mean, 0.0), 1.0)
            sums = ClusterSums(clusters.sums[:, [column]], clusters.counts[:, [column]])
            size = effective_size(sums, mean * (1 - mean) / num_cases, confidence)
            intervals.append(Interval(*wilson_interval(mean, size, confidence), "wilson"))
        elif np.isnan(limits[0, column]):
            intervals.append(Interval(math.nan, math.nan, "none"))
        else:
            intervals.append(Interval(float(limits[0, column]), float(limits[1, column]), "bootstrap"))
    return intervals
