"""Sums of scores by group, and means of resampled groups. NaN is a case without the score: it counts for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["ClusterSums", "bca_intervals", "cluster_sums", "cluster_variance", "group_codes"]

NUM_RESAMPLES = 2000
_MOST_BUNDLES = 1000

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
    found: Array = np.empty(num_cases, dtype=np.int64)
    for position, group in enumerate(groups):
        found[position] = num_cases + position if group is None else codes.setdefault(group, len(codes))
    return np.unique(found, return_inverse=True)[1]


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
    """Return at most a thousand bundles of groups, put together at random: independent as groups are, and quicker to draw."""
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
    num_groups = len(sums)
    drawn = generator.integers(0, num_groups, size=(num_resamples, num_groups)) + np.arange(num_resamples)[:, None] * num_groups
    weights = np.bincount(drawn.ravel(), minlength=num_resamples * num_groups).reshape(num_resamples, num_groups).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (weights @ sums) / (weights @ counts)


def bca_intervals(clusters: ClusterSums, *, confidence: float, seed: int, num_resamples: int = NUM_RESAMPLES) -> Array:
    """Return low and high `(2, columns)` of BCa bootstrap intervals of the means; NaN for fewer than two groups or no spread.

    Bias-corrected and accelerated (Efron 1987), widened for few groups by the t quantile (Hesterberg 2015), since resampling
    alone gives the spread of a normal distribution and too little of it.
    """
    num_groups = len(clusters.sums)
    columns = clusters.sums.shape[1]
    limits = np.full((2, columns), np.nan)
    usable = np.flatnonzero(cluster_variance(clusters) > 0) if num_groups > 1 else np.array([], dtype=int)
    if not len(usable):
        return limits
    chosen = ClusterSums(clusters.sums[:, usable], clusters.counts[:, usable])
    drawn = _resampled_means(chosen, num_resamples, seed)
    for position, column in enumerate(usable):
        own = drawn[:, position][~np.isnan(drawn[:, position])]
        sums, counts = chosen.sums[:, position], chosen.counts[:, position]
        limits[:, column] = np.quantile(own, _bca_levels(own, sums, counts, confidence))
    return limits


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
