"""The simulation of `--until-certain` on real pairs, in small: errors within their levels, and drops found."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.until_certain import all_pairs, asked, resampled, swapped, with_drop

ROUNDS = 60
_LEVEL = 0.05 + 4 * math.sqrt(0.05 * 0.95 / ROUNDS)
"""Four standard errors above 5 %: a rate at its level exceeds it once in 30,000 tries."""


def test_real_pairs_give_few_false_claims_and_find_what_is_lost() -> None:
    pairs, generator = dict(all_pairs()), np.random.default_rng(0)
    assert len(pairs) == 136
    pair = pairs["stage_a exact: final → regressed"]
    sets = [resampled(pair, 1000, generator) for _ in range(ROUNDS)]
    nulls = [swapped(each, generator) for each in sets]
    assert np.mean([asked(each, 0.03, seed, 2.0).regressed for seed, each in enumerate(nulls)]) <= _LEVEL
    lost = [with_drop(each, 0.03, generator) for each in nulls]
    assert np.mean([asked(each, 0.03, seed, 2.0).harmless for seed, each in enumerate(lost)]) <= _LEVEL
    found = [asked(with_drop(each, 0.1, generator), 0.03, seed, 2.0) for seed, each in enumerate(nulls)]
    assert np.mean([verdict.claim == "regressed" for verdict in found]) > 0.9
    assert np.median([verdict.share for verdict in found]) < 0.5
