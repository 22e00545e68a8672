"""The noise floor: how much two runs of one checkpoint differ on the same cases, from repeats of some of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from evalharness.analysis.statistics.intervals import DEFAULT_SEED, cluster_sums, group_codes, mean_intervals
from evalharness.analysis.statistics.paired import LEVEL, POWER

Array = Any


class Noise(NamedTuple):
    """What repeats say of one score.

    `flip_rate`: the chance that two runs give a case different values, with its 95 % interval (NaN: none). `variance`: of a case's value
    from run to run, cases of one group taken together. `between`: variance of whole runs beyond that of their cases; 0 unless repeats
    differ as a whole by more than chance.
    """

    flip_rate: float
    low: float
    high: float
    variance: float
    between: float
    num_cases: int
    num_runs: int


def flip_shares(values: Sequence[Sequence[float]] | Array) -> Array:
    """Return, per case, the share of pairs of its runs that differ; NaN for fewer than two. `values`: `(cases, runs)`, NaN: no value."""
    values = np.asarray(values, dtype=np.float64)
    differ = (values[:, :, None] != values[:, None, :]) & ~np.isnan(values[:, :, None]) & ~np.isnan(values[:, None, :])
    num_runs = (~np.isnan(values)).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return np.where(num_runs > 1, differ.sum(axis=(1, 2)) / (num_runs * (num_runs - 1)), np.nan)


def noise_of(values: Sequence[Sequence[float]] | Array, groups: Sequence[str | None], *, seed: int = DEFAULT_SEED) -> Noise | None:
    """Return the noise of a score of repeated cases, None if no case has two values. `values`: `(cases, runs)`, NaN: no value.

    The variance is the one within cases of an analysis of variance (sums of squares about each case's mean, over the runs less one), with
    residuals summed within groups first, so that cases of a group that change together count as they do in a mean.
    """
    values = np.asarray(values, dtype=np.float64)
    known = (~np.isnan(values)).sum(axis=1)
    values, groups = values[known > 1], [group for group, num in zip(groups, known, strict=True) if num > 1]
    if not len(values):
        return None
    known = known[known > 1]
    interval = mean_intervals(flip_shares(values)[:, None], groups, is_rate=[False], is_bounded=[True], seed=seed)[0]
    residuals = (values - np.nanmean(values, axis=1, keepdims=True)) * np.sqrt(known / (known - 1))[:, None]
    sums = cluster_sums(residuals, group_codes(groups, len(values)))
    runs_of_groups = (sums.counts > 0).sum(axis=1)
    variance = float(((sums.sums**2).sum(axis=1) / runs_of_groups).sum() / len(values))
    between = _between(residuals[known == values.shape[1]], variance)
    return Noise(float(np.mean(flip_shares(values))), interval.low, interval.high, variance, between, len(values), values.shape[1])


def _between(residuals: Array, variance: float) -> float:
    """Return the variance of whole runs beyond chance, by the F test of runs at 5 %: without it, chance would count as such a variance."""
    num_cases, num_runs = residuals.shape
    if num_cases < 2 or not variance > 0:
        return 0.0
    means = residuals.mean(axis=0)
    of_runs = num_cases * float((means**2).mean())
    if special.fdtrc(num_runs - 1, (num_cases - 1) * (num_runs - 1), of_runs / variance) > LEVEL:
        return 0.0
    return max(0.0, (of_runs - variance) / num_cases)


def floor_of(noises: Sequence[Noise], num_cases: int, *, level: float = LEVEL) -> float:
    """Return the floor: how far, with a chance of 1 − `level`, noise alone moves the mean of `num_cases` cases.

    With one `Noise` that is one run against a fixed number; for the difference of two runs give that of both, or one of them twice.
    """
    return float(special.ndtri(1 - level / 2)) * math.sqrt(sum(noise.variance / num_cases + noise.between for noise in noises))


def detectable_over(floor: float, standard_error: float, level: float) -> float:
    """Return the smallest true difference that is shown with a chance of 80 % where it must also be larger than the floor."""
    return max(float(special.ndtri(1 - level / 2)) * standard_error, floor) + float(special.ndtri(POWER)) * standard_error
