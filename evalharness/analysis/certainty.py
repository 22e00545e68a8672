"""Decides, while cases are still asked, whether an engine has regressed against its baseline or is harmless within a margin.

Cases are asked in an order drawn at random. The proof is about the cases known so far, in that order and without a gap, so it does not
depend on which answers happened to be quick. It holds whenever one looks: see `statistics.betting`. Slices are not tested.
Knows nothing about pytest; loads numpy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

from evalharness.analysis.comparison.compare import LOWER_IS_BETTER
from evalharness.analysis.comparison.sheets import CaseLine, Sheet
from evalharness.analysis.statistics.betting import (
    BaseScores,
    Drawn,
    Scores,
    draw_order,
    estimate,
    greatest_difference,
    least_difference,
    wealth_against_loss,
    wealth_against_no_loss,
)

REGRESSED_LEVEL, END_LEVEL = 0.04, 0.01
"""Chances of a false alarm: at any time while cases are asked, and when all were asked without a proof; together 5 %."""
HARMLESS_LEVEL = 0.05
"""Chance of calling harmless what has lost the margin or more."""
EDGE_RATE = 2.0
"""How much more often than others a case of the edge, which changed before, is drawn. With more it runs out before much is proved."""
MOST_EDGES, FEWEST_CASES = 1 / 3, 1000
"""The edge comes first only where it is no more than this share of the cases, and there are so many: in a small set it runs out early."""

_DIGITS = 6


class Place(NamedTuple):
    """A case in the order of drawing; `stratum` is 1 on the edge, else 0."""

    case_id: str
    group: str | None
    stratum: int


def changed_cases(earlier: Sheet, base: Sheet) -> set[str]:
    """Return the cases whose outcome or scores differ between the baseline and the run before it: what changes often changes again."""
    both = [case_id for case_id, line in base.cases.items() if case_id in earlier.cases and line.was_judged]
    return {case_id for case_id in both if _counts(earlier.cases[case_id]) != _counts(base.cases[case_id])}


def _counts(line: CaseLine) -> dict[str, float]:
    return {name: score for name, score in line.scores.items() if not name.startswith("num_")}


def drawn_cases(cases: Sequence[tuple[str, str | None]], edges: Collection[str], seed: int, name: str) -> list[Place]:
    """Return cases, given as id and group, in the order in which they are asked: drawn with the eval's name as part of the seed.

    Cases of the edge are drawn `EDGE_RATE` times as often as others, where that pays (`MOST_EDGES`, `FEWEST_CASES`).
    """
    strata = [int(case_id in edges) for case_id, _ in cases]
    if sum(strata) > MOST_EDGES * len(strata) or len(strata) < FEWEST_CASES:
        strata = [0] * len(strata)
    digest = hashlib.sha256(f"{seed}\0{name}".encode("utf-8", "surrogatepass")).digest()
    order = draw_order(strata, _rates(strata), int.from_bytes(digest[:8], "big"))
    return [Place(*cases[place], strata[place]) for place in order]


def coverage_sheet(metric: str, case_ids: Iterable[str]) -> Sheet:
    """Return a baseline in which a rate of what went wrong is 0 in all these cases."""
    return Sheet("", "", cases={case_id: CaseLine("pass", {metric: 0.0}, {}, None, None) for case_id in case_ids})


def _rates(strata: Sequence[int]) -> tuple[float, ...]:
    return (1.0, EDGE_RATE) if any(strata) else (1.0,)


@dataclass(frozen=True)
class Limits:
    """One metric when the run stopped. `difference` is candidate minus baseline, estimated over all cases of the eval.

    `low` and `high` hold at any time, each with its own chance of error: the worse end, at `HARMLESS_LEVEL`, is for all cases of the eval,
    the better end, at `REGRESSED_LEVEL`, for cases like these.
    """

    metric: str
    base: float
    difference: float
    low: float
    high: float
    is_regressed: bool


class Proof(NamedTuple):
    """What is proved: "regressed", "harmless" or "" so far, by how many groups and cases."""

    claim: Literal["regressed", "harmless", ""]
    num_groups: int
    num_cases: int


@dataclass(frozen=True)
class _Metric:
    name: str
    is_lower_better: bool
    base: Mapping[str, float]
    """Goodness of each case, 0 to 1."""

    def goodness(self, value: float) -> float:
        value = min(1.0, max(0.0, value))
        return 1 - value if self.is_lower_better else value


class PairedTest:
    """The cases of one test on one engine against a baseline, as they become known: `note` each, then ask for the `proof`."""

    def __init__(self, places: Sequence[Place], base: Sheet, directions: Mapping[str, str], only: Collection[str], margin: float) -> None:
        self.margin = margin
        codes: dict[object, int] = {}
        self._case_ids = [place.case_id for place in places]
        self._groups = [codes.setdefault((case_id,) if group is None else group, len(codes)) for case_id, group, _ in places]
        strata = [place.stratum for place in places]
        self._drawn = Drawn.of(strata, _rates(strata))
        self.num_cases = len(places)
        judged = {case_id for case_id, _, _ in places if case_id in base.cases and base.cases[case_id].was_judged}
        self.num_paired = len(judged)
        self._metrics, self.not_compared = _metrics(base, judged, directions, only)
        self.missing = [name for name in only if name not in {metric.name for metric in self._metrics}]
        sizes = self._table(lambda metric, case_id: case_id in metric.base)
        self._base = BaseScores(self._groups, sizes, self._table(lambda metric, case_id: metric.base.get(case_id, 0.0)))
        self._known: dict[str, tuple[list[float], list[float]]] = {}
        self._rows: list[tuple[list[float], list[float]]] = []
        """The least and greatest differences of each case known without a gap before it, by metric."""

    def _table(self, value: Callable[[_Metric, str], float]) -> list[list[float]]:
        return [[value(metric, case_id) for metric in self._metrics] for case_id in self._case_ids]

    @property
    def can_prove(self) -> bool:
        """Whether anything can be proved: most cases are in the baseline, and so are the metrics, each within 0…1."""
        return bool(self._metrics) and not self.missing and 2 * self.num_paired >= self.num_cases

    @property
    def num_known(self) -> int:
        """How many cases are known, in the order of drawing."""
        return len(self._rows)

    def note(self, case_id: str, scores: Mapping[str, float] | None) -> None:
        """Note how a case ended; None if it was not judged, which counts against either claim."""
        low, high = [], []
        for metric in self._metrics:
            before = metric.base.get(case_id)
            if before is None or (scores is not None and metric.name not in scores):
                low.append(0.0)
                high.append(0.0)
            elif scores is None:
                low.append(-before)
                high.append(1 - before)
            else:
                low.append(metric.goodness(scores[metric.name]) - before)
                high.append(low[-1])
        self._known[case_id] = (low, high)
        while len(self._rows) < self.num_cases and (known := self._known.pop(self._case_ids[len(self._rows)], None)) is not None:
            self._rows.append(known)

    def _scores(self) -> list[Scores]:
        low, high = ([row[end] for row in self._rows] for end in (0, 1))
        return self._base.with_differences(low, high)

    def proof(self) -> Proof:
        """Return what the known cases prove; once something is proved, more cases do not take it back."""
        num = len(self._rows)
        proof = Proof("", len(set(self._groups[:num])), num)
        if not num or not self.can_prove:
            return proof
        scores = self._scores()
        # The mean of several wealths is one, however they depend on each other: a regression of any metric makes it grow.
        wealth = sum(wealth_against_no_loss(self._drawn, each) for each in scores) / len(scores)
        if wealth.max() >= 1 / REGRESSED_LEVEL:
            return proof._replace(claim="regressed")
        if all(wealth_against_loss(self._drawn, each, self.margin).max() >= 1 / HARMLESS_LEVEL for each in scores):
            return proof._replace(claim="harmless")
        return proof

    def limits(self) -> list[Limits]:
        """Return each metric as it is known now, the one that could have lost most first."""
        limits: list[tuple[float, Limits]] = []
        for metric, scores in zip(self._metrics, self._scores(), strict=True):
            least = least_difference(self._drawn, scores, HARMLESS_LEVEL)
            greatest = greatest_difference(self._drawn, scores, REGRESSED_LEVEL)
            difference = estimate(self._drawn, scores)
            found = (difference if math.isfinite(difference) else (least + greatest) / 2, least, greatest)
            ends = (-found[0], -found[2], -found[1]) if metric.is_lower_better else found
            difference, low, high = (round(end, _DIGITS) + 0.0 for end in ends)  # of -0.0 it makes 0.0
            base = metric.goodness(fmean(metric.base.values()))
            limits.append((found[1], Limits(metric.name, base, difference, low, high, found[2] < 0)))
        return [each for _, each in sorted(limits, key=lambda entry: entry[0])]

    def mean_limits(self, metric: str) -> tuple[float, float, float] | None:
        """Return a metric's mean over all cases, estimated, and its limits, each at `HARMLESS_LEVEL`; None if a case lacks it in the
        baseline.
        """
        for each, scores in zip(self._metrics, self._scores(), strict=True):
            if each.name == metric and len(each.base) == self.num_cases and len(scores):
                mean = fmean(each.base.values())
                low = max(0.0, mean + least_difference(self._drawn, scores, HARMLESS_LEVEL))
                high = min(1.0, mean - least_difference(self._drawn, scores.flipped(), HARMLESS_LEVEL))
                about = round(min(max(low, mean + estimate(self._drawn, scores)), high), _DIGITS)
                return (1 - about, 1 - high, 1 - low) if each.is_lower_better else (about, low, high)
        return None


def _metrics(base: Sheet, judged: Collection[str], directions: Mapping[str, str], only: Collection[str]) -> tuple[list[_Metric], list[str]]:
    """Return the metrics that can be tested, and those that are not: outside of 0…1, or, unless they are named, had by few of the cases.

    What a few cases have would be proved only once nearly all of these are asked.
    """
    ways = {**directions, **dict.fromkeys(LOWER_IS_BETTER, "lower")}
    names = dict.fromkeys(name for case_id in judged for name in base.cases[case_id].scores)
    metrics, not_compared = [], []
    for name in sorted(names):
        if name.startswith("num_") or ways.get(name) == "none" or (only and name not in only):
            continue
        values = {case_id: base.cases[case_id].scores[name] for case_id in judged if name in base.cases[case_id].scores}
        if not all(0 <= value <= 1 for value in values.values()) or (not only and 2 * len(values) < len(judged)):
            not_compared.append(name)
            continue
        is_lower_better = ways.get(name) == "lower"
        metrics.append(_Metric(name, is_lower_better, {key: 1 - value if is_lower_better else value for key, value in values.items()}))
    return metrics, not_compared
