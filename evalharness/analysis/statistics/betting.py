"""Tests that hold whenever one stops: bets on cases, drawn at random, whose differences to a baseline become known one by one.

A wealth starts at 1 and is staked on each next case against a hypothesis. If that is true, no stakes make the wealth grow on average, so
that it ever reaches 1/level with a chance of at most `level`, however often one looks (Ville 1939; Waudby-Smith and Ramdas 2024). Two
hypotheses are bet against:

- *the set has lost at least a margin*: about the cases of this eval, most of which are not asked yet. Only the order is random: cases are
  drawn without replacement, whatever they have in common, and what each can still lose is known from the baseline.
- *no more is lost than gained*: about cases that could have been in the eval. Its groups are a sample of theirs, and cases of a group may
  depend on each other in any way, so that only the first one drawn of each group is bet on: one piece of evidence each.

Where strata are drawn at different rates, each case counts by the inverse of its rate, so that both stay unbiased. Knows nothing of gates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

Array = Any
Rows: TypeAlias = "Sequence[Sequence[float]]"

STAKES = (0.1, 0.3, 0.6, 0.95)
"""Shares of the largest stake that cannot ruin; the wealth is spread evenly over them, as the best is known only afterwards."""
_ROUNDING = 1e-9
_STEPS = 24  # of bisection: limits to 1e-7


def draw_order(strata: Sequence[int], rates: Sequence[float], seed: int) -> list[int]:
    """Return the cases in the order of drawing: each draw picks a stratum by its rate × its cases, then one of its remaining cases.

    `strata` has the stratum of each case. A stratum with nothing left takes no further part.
    """
    generator = np.random.default_rng(seed)
    members: list[list[int]] = [[] for _ in rates]
    for case, stratum in enumerate(strata):
        members[stratum].append(case)
    left = [[own[place] for place in generator.permutation(len(own))] for own in members]
    weights = [rate * len(own) for rate, own in zip(rates, left, strict=True)]
    order: list[int] = []
    for chance in generator.random(len(strata)).tolist():
        chance *= sum(weight for weight, own in zip(weights, left, strict=True) if own)
        for weight, own in zip(weights, left, strict=True):
            if own and chance < weight:
                break
            chance -= weight if own else 0.0
        order.append(next(own for own in (own, *left) if own).pop())
    return order


@dataclass(frozen=True, eq=False)
class Drawn:
    """All cases of an eval in the order of drawing: their strata `(cases,)`, and the rates of the strata `(strata,)`."""

    strata: Array
    rates: Array

    @classmethod
    def of(cls, strata: Sequence[int], rates: Sequence[float]) -> Drawn:
        """Return the cases of these strata."""
        return cls(np.array(strata, dtype=np.int64), np.array(rates, dtype=np.float64))

    def __len__(self) -> int:
        return len(self.strata)

    @cached_property
    def _left(self) -> Array:
        """Cases left in each stratum before each draw `(cases, strata)`."""
        is_of = self.strata[:, None] == np.arange(len(self.rates))
        return is_of.sum(axis=0) - np.cumsum(is_of, axis=0) + is_of

    @cached_property
    def _chances(self) -> Array:
        """Chance of each stratum at each draw `(cases, strata)`, 0 for one with nothing left."""
        weights = np.where(self._left > 0, self.rates * self._left[0], 0.0)
        return weights / weights.sum(axis=1, keepdims=True)

    @cached_property
    def factors(self) -> Array:
        """What a case of each stratum counts at each draw, so that its expectation is the sum of all that is left `(cases, strata)`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self._left > 0, self._left / self._chances, 0.0)

    @cached_property
    def num_independent(self) -> int:
        """How many draws came before a stratum ran out: until then every draw was from the same mixture of strata."""
        return int((self._left > 0).all(axis=1).sum())

    @cached_property
    def weights(self) -> Array:
        """What each case of those draws counts, so that its expectation is the mean over cases `(num_independent,)`."""
        first = self.factors[0] / max(1, len(self))
        return first[self.strata[: self.num_independent]]


@dataclass(frozen=True, eq=False)
class Scores:
    """One score of a test by case, in the order of drawing, good ones being high; all `(cases,)`.

    `sizes`: 1 for a case with the score in the baseline, else 0; `base`: its score there. `is_first`: whether it is the first such case of
    its group. `low` and `high` `(cases known,)`: the least and the greatest that the candidate's difference to it can be, equal but for
    cases that broke.
    """

    sizes: Array
    base: Array
    low: Array
    high: Array
    is_first: Array

    def __len__(self) -> int:
        return len(self.low)

    def flipped(self) -> Scores:
        """Return the same with bad for good."""
        return Scores(self.sizes, self.sizes - self.base, -self.high, -self.low, self.is_first)


class BaseScores:
    """What a baseline has of each case, in the order of drawing: tables with a row for each case and a column for each score."""

    def __init__(self, groups: Sequence[int], sizes: Rows, base: Rows) -> None:
        self._num = len(sizes[0]) if sizes else 0
        self._sizes, self._base = self._table(sizes), self._table(base)
        codes = np.array(groups, dtype=np.int64)
        self._is_first: Array = np.zeros(self._sizes.shape, dtype=bool)
        for column in range(self._num):
            has_score = np.flatnonzero(self._sizes[:, column])
            self._is_first[has_score[np.unique(codes[has_score], return_index=True)[1]], column] = True

    def _table(self, rows: Rows) -> Array:
        return np.array(rows, dtype=np.float64).reshape(len(rows), self._num)

    def with_differences(self, low: Rows, high: Rows) -> list[Scores]:
        """Return each score with the least and greatest differences of the cases known so far."""
        known = self._table(low), self._table(high)
        return [
            Scores(self._sizes[:, column], self._base[:, column], known[0][:, column], known[1][:, column], self._is_first[:, column])
            for column in range(self._num)
        ]


def wealth_against_loss(drawn: Drawn, scores: Scores, margin: float) -> Array:
    """Return the wealth of bets against "the mean over all cases of the set is lower by at least `margin`", after each case known.

    Where it ever reaches 1/level this is wrong, with a chance of error of `level`; inf from where the known cases alone exclude it.
    """
    num, total = len(scores), float(scores.sizes.sum())
    if not num or not total:
        return np.ones(1)
    known = np.concatenate(([0.0], np.cumsum(scores.low)))
    can_lose = np.concatenate((np.cumsum(scores.base[::-1])[::-1], [0.0]))[: num + 1]
    limit = -margin * total - known  # what is left must sum up to no more, if the hypothesis is true
    reach = np.maximum(limit[:num] + _worst(drawn, scores.base)[:num], _ROUNDING)
    wealth = _wealth((scores.low * drawn.factors[np.arange(num), drawn.strata[:num]] - limit[:num]) / reach)
    is_excluded = np.maximum.accumulate(limit < -can_lose - _ROUNDING)
    return np.where(is_excluded[1:], math.inf, wealth)


def wealth_against_no_loss(drawn: Drawn, scores: Scores, difference: float = 0.0) -> Array:
    """Return the wealth of bets against "cases like these change by `difference` or more on average", after each case known.

    Bets are on the first case drawn of each group, before a stratum ran out. That a baseline was right in all its cases by luck is taken
    into account, unlike above.
    """
    num = min(len(scores), drawn.num_independent)
    if not num:
        return np.ones(1)
    weights = drawn.weights[:num] * scores.is_first[:num]
    steps = (scores.high[:num] - difference * scores.sizes[:num]) * weights
    reach = float((1 - difference) * scores.sizes.max() * drawn.weights.max())
    return _wealth(-steps / max(reach, _ROUNDING))


def _wealth(won: Array) -> Array:
    """Return the wealth after each bet, spread over all stakes; `won` are gains at the stake 1, none below -1."""
    with np.errstate(divide="ignore"):
        logs = np.cumsum(np.log1p(np.outer(STAKES, np.maximum(won, -1.0))), axis=1)
    return np.exp(np.minimum(logs, 700.0)).mean(axis=0)


def _worst(drawn: Drawn, base: Array) -> Array:
    """Return the most that the next case can count as lost, before each draw `(cases,)`."""
    worst = np.zeros(len(drawn))
    for stratum in range(len(drawn.rates)):
        own = np.where(drawn.strata == stratum, base, 0.0)
        largest_left = np.maximum.accumulate(own[::-1])[::-1]
        worst = np.maximum(worst, largest_left * drawn.factors[:, stratum])
    return worst


def least_difference(drawn: Drawn, scores: Scores, level: float) -> float:
    """Return the lower limit of the mean difference over all cases of the set, at any time with a chance of error of at most `level`."""
    return 0.0 - _first(lambda margin: bool(wealth_against_loss(drawn, scores, margin).max() >= 1 / level))


def greatest_difference(drawn: Drawn, scores: Scores, level: float) -> float:
    """Return the upper limit of the mean difference of cases like these, at any time with a chance of error of at most `level`."""
    return _first(lambda difference: bool(wealth_against_no_loss(drawn, scores, difference).max() >= 1 / level))


def _first(holds: Any) -> float:
    """Return the least number within -1…1 from which on a condition holds."""
    low, high = -1.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def estimate(drawn: Drawn, scores: Scores) -> float:
    """Return the mean difference over all cases, each stratum by its share of them; one that has none known counts as the others do.

    NaN if no case is known.
    """
    num, found, total = len(scores), 0.0, 0.0
    for stratum in range(len(drawn.rates)):
        is_of = drawn.strata == stratum
        size, known = float(scores.sizes[is_of].sum()), float(scores.sizes[:num][is_of[:num]].sum())
        if known:
            found += size * float((scores.low + scores.high)[is_of[:num]].sum() / 2) / known
            total += size
    return found / total if total else math.nan
