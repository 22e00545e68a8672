"""Metrics by training step: each checkpoint's means with intervals, over all cases and by slice; the best one; when cases flipped."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evalharness.analysis.comparison.compare import CATEGORY, CATEGORY_METRIC, LOWER_IS_BETTER, MOST_VALUES
from evalharness.analysis.comparison.sheets import CaseLine, domains_apart, was_judged
from evalharness.analysis.comparison.tracks import Point, Track
from evalharness.analysis.statistics.correction import LEVEL, holm
from evalharness.analysis.statistics.intervals import DEFAULT_SEED
from evalharness.analysis.statistics.series import Mean, means_by_place, paired_p

__all__ = ["TOKENS", "Best", "Curve", "Flip", "Timeline", "timeline_of"]

TOKENS = "tokens per case"
"""A metric of every test: tokens of a case's answers. Neither more nor fewer are better."""

Test = tuple[str, str]


class Best(NamedTuple):
    """The best checkpoint of a metric, the earliest of equal ones, and those that the cases do not tell from it."""

    point: int
    alike: tuple[int, ...]
    num_compared: int


@dataclass(frozen=True)
class Curve:
    """One metric of one test along a track; both slice names are empty where it is over all cases."""

    eval: str
    test: str
    slice_key: str
    slice_value: str
    metric: str
    direction: str
    values: tuple[Mean, ...]
    best: Best | None
    """None where no direction is better, or fewer than two checkpoints were asked the same."""


class Flip(NamedTuple):
    """A case that passes at one checkpoint and not at the next that judged it, or whose score (`metric`) changed there."""

    case_id: str
    metric: str
    before: int
    after: int
    was: float
    now: float


@dataclass(frozen=True)
class Timeline:
    """Everything that is shown of one track."""

    track: Track
    curves: tuple[Curve, ...]
    flips: Mapping[Test, tuple[Flip, ...]]
    seed: int

    def tests(self) -> list[Test]:
        """Return eval and test of everything measured, in the order of the curves."""
        return list(dict.fromkeys((curve.eval, curve.test) for curve in self.curves))


def timeline_of(track: Track, seed: int = DEFAULT_SEED) -> Timeline:
    """Return the timeline of a track. A checkpoint that was asked otherwise has values, but is neither best nor flips."""
    tests = dict.fromkeys(key for point in track.points for key in point.side.sheets)
    curves: list[Curve] = []
    flips = {}
    for test in tests:
        columns = _Columns(track, test)
        curves += columns.curves(seed)
        flips[test] = tuple(columns.flips())
    return Timeline(track, tuple(curves), flips, seed)


Lines = Mapping[str, CaseLine]


class _Columns:
    """The judged cases of one test, by point."""

    def __init__(self, track: Track, test: Test) -> None:
        self.test = test
        self.points = track.points
        judged = [_judged(point, test) for point in track.points]
        apart = domains_apart(line for lines in judged for line in lines.values())
        self.lines: list[Lines] = [{case_id: apart(line) for case_id, line in lines.items()} for lines in judged]
        directions: dict[str, str] = {}
        for point in track.points:
            directions |= {metric: way for (*where, metric), way in point.side.directions.items() if tuple(where) == test}
        self.directions = {**directions, **dict.fromkeys(LOWER_IS_BETTER, "lower"), TOKENS: "none"}
        names = dict.fromkeys(name for lines in self.lines for line in lines.values() for name in line.scores)
        self.metrics = [name for name in names if not name.startswith("num_")]

    def curves(self, seed: int) -> Iterator[Curve]:
        scores: dict[str, Callable[[CaseLine], float]] = {name: _score(name) for name in self.metrics}
        yield from self._of_slice("", "", {**scores, TOKENS: _tokens}, lambda line: True, seed)
        tags: dict[str, dict[str, None]] = defaultdict(dict)
        categories: dict[str, None] = {}
        for line in (line for lines in self.lines for line in lines.values()):
            for name, value in line.tags.items():
                tags[name][value] = None
            categories |= dict.fromkeys(line.marks)
        if len(categories) <= MOST_VALUES:
            for category in categories:
                yield from self._of_category(category, seed)
        for key, values in tags.items():
            if 1 < len(values) <= MOST_VALUES:
                for value in values:
                    yield from self._of_slice(key, value, scores, _has_tag(key, value), seed)

    def _of_category(self, category: str, seed: int) -> Iterator[Curve]:
        """Yield the curve over the cases in which some checkpoint said the category or it was true; neither said nor true is right."""
        case_ids = {case_id for lines in self.lines for case_id, line in lines.items() if category in line.marks}
        has_marks = [any(line.marks for line in lines.values()) for lines in self.lines]
        parts = [
            {case_id: line for case_id, line in lines.items() if case_id in case_ids} if has else {}
            for lines, has in zip(self.lines, has_marks, strict=True)
        ]
        yield from self._of_parts(CATEGORY, category, {CATEGORY_METRIC: lambda line: line.marks.get(category, 1.0)}, parts, seed)

    def _of_slice(
        self,
        key: str,
        value: str,
        scores: Mapping[str, Callable[[CaseLine], float]],
        belongs: Callable[[CaseLine], bool],
        seed: int,
    ) -> Iterator[Curve]:
        parts = [{case_id: line for case_id, line in lines.items() if belongs(line)} for lines in self.lines]
        yield from self._of_parts(key, value, scores, parts, seed)

    def _of_parts(
        self, key: str, value: str, scores: Mapping[str, Callable[[CaseLine], float]], parts: Sequence[Lines], seed: int
    ) -> Iterator[Curve]:
        rows = [[[score(line) for score in scores.values()] for line in part.values()] for part in parts]
        groups = [[line.group for line in part.values()] for part in parts]
        for column, (metric, values) in enumerate(zip(scores, means_by_place(rows, groups, len(scores), seed=seed), strict=True)):
            if values:
                by_case = [
                    {case_id: row[column] for case_id, row in zip(part, own, strict=True)} for part, own in zip(parts, rows, strict=True)
                ]
                direction = self.directions.get(metric, "higher")
                best = self._best(values, direction, by_case, parts)
                yield Curve(*self.test, key, value, metric, direction, tuple(values), best)

    def _best(self, values: Sequence[Mean], direction: str, scores: Sequence[Mapping[str, float]], parts: Sequence[Lines]) -> Best | None:
        fair = [value for value in values if not self.points[value.place].asked_otherwise]
        if direction == "none" or len(fair) < 2:
            return None
        sign = 1 if direction == "higher" else -1
        best = max(fair, key=lambda value: (sign * value.mean, -value.place))
        others = [value.place for value in fair if value.place != best.place]
        p_values = holm([_paired_p(scores[best.place], scores[other], parts[best.place]) for other in others]).p_values
        alike = tuple(other for other, p in zip(others, p_values, strict=True) if not p <= LEVEL)
        return Best(best.place, alike, len(others))

    def flips(self) -> Iterator[Flip]:
        """Yield every change from one checkpoint to the next that judged the case, by case."""
        fair = [place for place, point in enumerate(self.points) if not point.asked_otherwise]
        for case_id in dict.fromkeys(case_id for place in fair for case_id in self.lines[place]):
            seen: dict[str, tuple[int, float]] = {}
            for place in fair:
                line = self.lines[place].get(case_id)
                if line is None:
                    continue
                for metric in self.metrics:
                    now = line.scores.get(metric)
                    if now is None:
                        continue
                    before = seen.get(metric)
                    if before is not None and before[1] != now:
                        yield Flip(case_id, metric, before[0], place, before[1], now)
                    seen[metric] = place, now


def _judged(point: Point, test: Test) -> Lines:
    sheet = point.side.sheets.get(test)
    return {} if sheet is None else {case_id: line for case_id, line in sheet.cases.items() if was_judged(line)}


def _score(name: str) -> Callable[[CaseLine], float]:
    return lambda line: line.scores.get(name, math.nan)


def _tokens(line: CaseLine) -> float:
    return math.nan if line.num_tokens is None else float(line.num_tokens)


def _has_tag(key: str, value: str) -> Callable[[CaseLine], bool]:
    return lambda line: line.tags.get(key) == value


def _paired_p(best: Mapping[str, float], other: Mapping[str, float], lines: Lines) -> float:
    """Return the p value of the paired test of two checkpoints on the cases that both have."""
    differences = {case_id: best[case_id] - other.get(case_id, math.nan) for case_id in best}
    both = [case_id for case_id, difference in differences.items() if difference == difference]
    return paired_p([differences[case_id] for case_id in both], [lines[case_id].group for case_id in both])
