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
    from run to run; `covariance`: of two cases of one group. `between`: variance of whole runs beyond that of their cases; 0 unless repeats
    differ as a whole by more than chance. `freedom`: how well the variances are known, as degrees of freedom; infinite where nothing flips.
    """

    flip_rate: float
    low: float
    high: float
    variance: float
    covariance: float
    between: float
    freedom: float
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

    Variances are those within cases of an analysis of variance: squares about each case's mean, over the runs less one. What the squares of
    groups' sums have more than those of their cases is covariance. Degrees of freedom are Satterthwaite's (1946), from how much groups
    differ in theirs: where one case of a hundred flips, nearly nothing is known of how often the others would.
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
    sizes = sums.counts.max(axis=1)
    of_cases = float((np.nansum(residuals**2, axis=1) / known).sum())
    of_groups = (sums.sums**2).sum(axis=1) / (sums.counts > 0).sum(axis=1)
    num_pairs = float((sizes * (sizes - 1)).sum())
    variance = of_cases / len(values)
    covariance = min(max(0.0, (float(of_groups.sum()) - of_cases) / num_pairs), variance) if num_pairs else 0.0
    spread = float(((of_groups - of_groups.mean()) ** 2).sum())
    freedom = max(1.0, 2 * float(of_groups.sum()) ** 2 / spread) if spread > 0 else math.inf
    between = _between(residuals[known == values.shape[1]], variance + covariance * num_pairs / len(values))
    numbers = (float(np.mean(flip_shares(values))), interval.low, interval.high, variance, covariance, between, freedom)
    return Noise(*numbers, len(values), values.shape[1])


def _between(residuals: Array, variance: float) -> float:
    """Return the variance of whole runs beyond chance, by the F test of runs at 5 %: without it, chance would count as such a variance."""
    num_cases, num_runs = residuals.shape
    if num_cases < 2 or not variance > 0:
        return 0.0
    of_runs = num_cases * float((residuals.mean(axis=0) ** 2).mean())
    if special.fdtrc(num_runs - 1, (num_cases - 1) * (num_runs - 1), of_runs / variance) > LEVEL:
        return 0.0
    return max(0.0, (of_runs - variance) / num_cases)


def floor_of(noises: Sequence[Noise], num_cases: int, num_groups: int, *, level: float = LEVEL) -> float:
    """Return the floor: how far, with a chance of 1 − `level`, noise alone moves the mean of cases in groups of about equal size.

    With one `Noise` that is one run against a fixed number; for the difference of two runs give that of both, or one of them twice. The
    normal quantile is widened as that of t is at 95 %, where few flips were seen.
    """
    others = num_cases / num_groups - 1
    variance = sum((noise.variance + noise.covariance * others) / num_cases + noise.between for noise in noises)
    freedom = min(noise.freedom for noise in noises)
    widened = float(special.stdtrit(freedom, 0.975) / special.ndtri(0.975)) if math.isfinite(freedom) else 1.0
    return float(special.ndtri(1 - level / 2)) * widened * math.sqrt(variance)


def detectable_over(floor: float, standard_error: float, level: float) -> float:
    """Return the smallest true difference that is shown with a chance of 80 % where it must also be larger than the floor."""
    return max(float(special.ndtri(1 - level / 2)) * standard_error, floor) + float(special.ndtri(POWER)) * standard_error


def two_sided_quantile(level: float) -> float:
    """Return what a normal variable exceeds in size with a chance of `level`: 1.96 for 5 %."""
    return float(special.ndtri(1 - level / 2))


def chance_of_crossing(distance: float, spread: float) -> float:
    """Return the chance that a normal change of this spread crosses a limit so far away; 0 without any spread."""
    return float(special.ndtr(-distance / spread)) if spread else 0.0
