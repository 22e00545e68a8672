"""The noise floor, held to what it stands for: sums of squares, pairs counted one by one, and differences of simulated runs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from evalharness.analysis.statistics.noise import Noise, detectable_over, flip_shares, floor_of, noise_of
from evalharness.analysis.statistics.paired import detectable_difference

NAN = math.nan


def simulated(num_cases: int, num_runs: int, seed: int, *, group_size: int = 1, shift: float = 0.0) -> Any:
    """Return values `(cases, runs)`: one case of five is near a tie; cases of a group flip together, and runs differ by `shift`."""
    draw = np.random.default_rng(seed)
    num_groups = num_cases // group_size
    chances = np.where(draw.random(num_groups) < 0.2, draw.random(num_groups), draw.integers(0, 2, num_groups))
    flips = (draw.random((num_groups, num_runs)) < chances[:, None]).astype(float)
    return np.repeat(flips, group_size, axis=0) + shift * draw.standard_normal(num_runs)


def groups_of(num_cases: int, group_size: int) -> list[str | None]:
    return [f"g{number // group_size}" if group_size > 1 else None for number in range(num_cases)]


@pytest.mark.parametrize(
    "values",
    [[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.1, 0.2, 0.3], [1.0, NAN, 0.0], [0.5, 0.5, NAN]],
    ids=["alike", "one", "all", "one lost", "alike, one lost"],
)
def test_a_flip_is_a_pair_of_runs_that_differ(values: list[float]) -> None:
    pairs = list(itertools.combinations([value for value in values if not math.isnan(value)], 2))
    assert flip_shares([values])[0] == pytest.approx(sum(a != b for a, b in pairs) / len(pairs))


def test_a_case_with_one_value_says_nothing() -> None:
    assert math.isnan(flip_shares([[1.0, NAN]])[0])
    assert noise_of([[1.0, NAN], [0.0, NAN]], [None, None]) is None
    noise = noise_of([[1.0, NAN], [0.0, 1.0]], [None, None])
    assert noise is not None
    assert (noise.num_cases, noise.flip_rate) == (1, 1.0)


def test_without_groups_the_variance_is_the_mean_variance_of_cases() -> None:
    values = simulated(300, 5, seed=1)
    noise = noise_of(values, [None] * 300)
    assert noise is not None
    assert noise.variance == pytest.approx(np.var(values, axis=1, ddof=1).mean())
    assert noise.flip_rate == pytest.approx(flip_shares(values).mean())
    assert noise.low < noise.flip_rate < noise.high


@pytest.mark.parametrize("group_size", [1, 4], ids=["cases", "groups"])
def test_the_floor_is_as_far_as_runs_drawn_from_the_repeats_differ(group_size: int) -> None:
    """The oracle draws two runs, group by group, from the repeats, many times; their spread, made whole for R − 1, is the floor's."""
    num_runs, values = 6, simulated(400, 6, seed=2, group_size=group_size)
    noise = noise_of(values, groups_of(400, group_size))
    assert noise is not None
    draw = np.random.default_rng(3)
    by_group = values.reshape(-1, group_size, num_runs).sum(axis=1)
    drawn = np.take_along_axis(by_group[None], draw.integers(0, num_runs, (8000, len(by_group), 1)), axis=2).sum(axis=(1, 2)) / 400
    differences = (drawn[::2] - drawn[1::2]) * math.sqrt(num_runs / (num_runs - 1))
    expected = stats.t.ppf(0.975, noise.freedom) * differences.std()
    assert floor_of([noise, noise], 400, 400 // group_size) == pytest.approx(expected, rel=0.05)
    assert (noise.covariance > 0.8 * noise.variance) == (group_size > 1)


def test_cases_that_flip_together_widen_the_floor() -> None:
    noise = noise_of(simulated(400, 4, 5, group_size=4), groups_of(400, 4))
    assert noise is not None
    assert noise.covariance == pytest.approx(noise.variance)
    assert floor_of([noise], 400, 100) == pytest.approx(2 * floor_of([noise], 400, 400))
    apart = noise_of(simulated(400, 4, 5), groups_of(400, 4))
    assert apart is not None
    assert apart.covariance < 0.2 * apart.variance


def test_two_runs_of_one_checkpoint_exceed_the_floor_once_in_twenty() -> None:
    """Of 200 pairs 10 do so on average; 24 or more by chance once in 10,000 times. The floor is estimated from each pair's repeats."""
    exceeded = 0
    for seed in range(200):
        values = simulated(500, 6, seed)
        noise = noise_of(values[:200, 2:], [None] * 200)
        assert noise is not None
        exceeded += abs(values[:, 0].mean() - values[:, 1].mean()) > floor_of([noise, noise], 500, 500)
    assert 1 <= exceeded < 24


def test_runs_that_differ_as_a_whole_are_found_and_counted() -> None:
    values = simulated(200, 8, seed=7, shift=0.2)
    noise = noise_of(values, [None] * 200)
    assert noise is not None
    residuals = values - values.mean(axis=1, keepdims=True) - values.mean(axis=0) + values.mean()
    within = (residuals**2).sum() / (199 * 7)
    assert noise.between == pytest.approx(np.var(values.mean(axis=0), ddof=1) - within / 200, rel=0.02)
    certain = noise._replace(freedom=math.inf)
    assert floor_of([certain, certain], 10**9, 10**9) == pytest.approx(1.96 * math.sqrt(2 * noise.between), rel=1e-3)


def test_runs_that_do_not_are_rarely_taken_for_it() -> None:
    """The test of runs has 5 %: of 200, 10 on average, 22 or more once in 2,000 times."""
    found = [noise_of(simulated(100, 4, seed), [None] * 100) for seed in range(200)]
    assert sum(noise is not None and noise.between > 0 for noise in found) < 22


def test_more_cases_lower_the_floor_and_a_stricter_level_raises_it() -> None:
    noise = Noise(0.1, NAN, NAN, 0.04, 0.0, 0.0, math.inf, 100, 4)
    assert floor_of([noise], 400, 400) == pytest.approx(1.96 * 0.2 / 20, rel=1e-3)
    assert floor_of([noise, noise], 400, 400) == pytest.approx(math.sqrt(2) * floor_of([noise], 400, 400))
    assert floor_of([noise], 400, 400, level=0.01) > floor_of([noise], 400, 400)
    assert floor_of([noise._replace(variance=0.0)], 400, 400) == 0.0


def test_few_flips_widen_the_floor_by_the_t_quantile() -> None:
    """One case of 64 flips: its variance is known as that of a single draw is."""
    values = np.zeros((64, 4))
    values[0, 1] = 1.0
    noise = noise_of(values, [None] * 64)
    assert noise is not None
    assert noise.freedom == pytest.approx(2 * 64 / 63, rel=1e-6)
    known = floor_of([noise._replace(freedom=math.inf)], 64, 64)
    assert floor_of([noise], 64, 64) == pytest.approx(known * stats.t.ppf(0.975, noise.freedom) / stats.norm.ppf(0.975))
    still = noise_of(np.zeros((64, 4)), [None] * 64)
    assert still is not None
    assert (still.freedom, floor_of([still], 64, 64)) == (math.inf, 0.0)


def test_below_the_tests_own_spread_the_floor_hides_nothing() -> None:
    assert detectable_over(0.001, 0.01, 0.05) == pytest.approx(detectable_difference(0.01, 0.05))
    assert detectable_over(0.05, 0.01, 0.05) == pytest.approx(0.05 + 0.8416 * 0.01, rel=1e-3)
