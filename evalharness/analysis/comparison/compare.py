"""Compares two sides: every metric over all cases, over every slice of them, and case by case, with verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias

from evalharness.analysis.comparison.pairing import Coverage, Difference, Pair, pairing, pairs_of, pass_alike
from evalharness.analysis.comparison.sheets import CaseLine, Score, Side, domains_apart, mark_of, score_of
from evalharness.analysis.statistics.intervals import DEFAULT_SEED
from evalharness.analysis.statistics.noise import Noise, detectable_over, floor_of
from evalharness.analysis.statistics.paired import LEVEL, PairedChange, detectable_difference, holm, paired_changes, smallest_p

REGRESSED, IMPROVED, CHANGED = "regressed", "improved", "changed"
SAME, WITHIN_NOISE, NOT_ENOUGH = "no difference shown", "within noise", "not enough data"
"""Within noise: a difference that two runs of one checkpoint would show as well, whatever its p value."""
WORTH_SHOWING = 0.1
"""A score of 0…1 that could not have shown a difference of this size has not enough data to say that there is none."""
CATEGORY = "category"
"""Slice key of the marks by category."""
CATEGORY_METRIC = "f1 of category"
LOWER_IS_BETTER = ("length_rate", "empty_rate")
MOST_VALUES = 200
_MANY_VALUES = 20_000


def is_of_slices(num_values: int, num_cases: int) -> bool:
    """Return whether a tag makes slices: one with many values, on two cases each or fewer, is a name of cases."""
    return num_values <= MOST_VALUES or (2 * num_values < num_cases and num_values <= _MANY_VALUES)


@dataclass(frozen=True)
class MetricChange:
    """One metric over the cases of a slice; both slice names are empty for all cases."""

    eval: str
    test: str
    metric: str
    slice_key: str
    slice_value: str
    change: PairedChange
    direction: str
    """"higher" or "lower" is better, or "none": then a change is neither."""
    is_bounded: bool
    p_corrected: float = 1.0
    detectable: float = math.nan
    """Smallest true difference that would have been shown with a chance of 80 %; NaN where that is not known."""
    floor: float = math.nan
    """How far noise alone moves such a difference, at the level of `detectable`; NaN where no side has measured it."""
    verdict: str = NOT_ENOUGH


class CaseChange(NamedTuple):
    """A case whose outcome or scores differ; `scores` has metric, before and after, None if a side has none."""

    eval: str
    test: str
    case_id: str
    direction: str
    """"worse", "better" or "mixed"."""
    base: CaseLine
    candidate: CaseLine
    scores: tuple[tuple[str, float | None, float | None], ...]
    has_flipped: bool
    """Whether it passes on one side only; False where another tool judged one side, by a rule of its own."""


@dataclass(frozen=True)
class Comparison:
    """Everything that is shown of one candidate against its base."""

    base: Side
    candidate: Side
    differences: Sequence[Difference]
    coverage: Sequence[Coverage]
    metrics: Sequence[MetricChange]
    slices: Sequence[MetricChange]
    cases: Sequence[CaseChange]
    num_tests: int
    """Tests of metrics that the p values are corrected for."""
    num_slice_tests: int
    seed: int

    @property
    def has_regressed(self) -> bool:
        """Whether a regression is shown, over all cases or in a slice."""
        return any(change.verdict == REGRESSED for change in (*self.metrics, *self.slices))

    @property
    def verdict(self) -> str:
        """The overall verdict: a regression anywhere outweighs everything else."""
        verdicts = {change.verdict for change in (*self.metrics, *self.slices)}
        if not verdicts & {REGRESSED, IMPROVED, CHANGED} and all(change.verdict == NOT_ENOUGH for change in self.metrics):
            return NOT_ENOUGH
        return next((verdict for verdict in (REGRESSED, IMPROVED, CHANGED) if verdict in verdicts), SAME)

    @property
    def has_noise(self) -> bool:
        """Whether a side has measured the noise of its scores."""
        return bool(self.base.noise or self.candidate.noise)


def compare(
    base: Side,
    candidate: Side,
    *,
    anyway: bool = False,
    go_on: str = "compare with --anyway",
    lower_is_better: Collection[str] = (),
    only: Collection[str] = (),
    num_families: int = 1,
    seed: int = DEFAULT_SEED,
    level: float = LEVEL,
) -> Comparison:
    """Return the comparison of two sides. Raises `ComparisonError` if they cannot be paired or their requests differ.

    `anyway` turns differences in requests and judging into warnings, and `go_on` says how; without a common case the comparison is still
    refused. `only`: the metrics to test and correct for, all if empty ("category": the marks by category). `num_families`: of how many
    comparisons this is one, which all together may give a false alarm by noise with a chance of 5 % (where noise was measured).
    `level`: the chance of a false alarm otherwise.
    """
    common, all_differences, coverage = pairing(base, candidate, anyway=anyway, go_on=go_on)
    directions = {**base.directions, **candidate.directions}
    metrics: list[MetricChange] = []
    slices: list[MetricChange] = []
    cases: list[CaseChange] = []
    for key in common:
        pairs = pairs_of(base, candidate, key)
        lines = list(pairs.values())
        ways = {name: way for (*where, name), way in directions.items() if tuple(where) == key}
        ways |= dict.fromkeys((*LOWER_IS_BETTER, *lower_is_better), "lower")
        question = _Test(*key, ways, frozenset(only), seed)
        metrics += _changes(question, ("", ""), lines)
        slices += _slices(question, lines)
        cases += _cases(question, pairs, is_one_rule=pass_alike(base, candidate))
    noise = partial(_noises, base, candidate)
    judged, num_tests = _judged(metrics, noise, num_families, level)
    judged_slices, num_slice_tests = _judged(slices, noise, num_families, level)
    cases.sort(key=_worst_first)
    return Comparison(base, candidate, all_differences, coverage, judged, judged_slices, cases, num_tests, num_slice_tests, seed)


class _Test(NamedTuple):
    """One test: which of its metrics are better lower or neither, and which are to be tested."""

    eval: str
    test: str
    directions: Mapping[str, str]
    only: frozenset[str]
    seed: int


def _changes(
    question: _Test, where: tuple[str, str], lines: Sequence[Pair], scores: Mapping[str, Score] | None = None
) -> Iterator[MetricChange]:
    """Yield the change of each score, or else of those that both sides have, counts left out: more is neither better nor worse."""
    if scores is None:
        both = dict.fromkeys(name for base, candidate in lines for name in candidate.scores if name in base.scores)
        names = [name for name in both if not name.startswith("num_") and (not question.only or name in question.only)]
        scores = {name: score_of(name) for name in names}
    if not scores:
        return
    before, after = ([[score(pair[side]) for score in scores.values()] for pair in lines] for side in (0, 1))
    bounded = [all(0 <= row[column] <= 1 or row[column] != row[column] for row in (*before, *after)) for column in range(len(scores))]
    changes = paired_changes(before, after, [pair[1].group for pair in lines], is_bounded=bounded, seed=question.seed)
    for name, is_bounded, change in zip(scores, bounded, changes, strict=True):
        yield MetricChange(question.eval, question.test, name, *where, change, question.directions.get(name, "higher"), is_bounded)


def _slices(question: _Test, lines: Sequence[Pair]) -> Iterator[MetricChange]:
    by_tag: dict[str, dict[str, list[Pair]]] = {}
    categories: dict[str, list[Pair]] = {}
    # The tags of a case are the candidate's; a base may be from before there were any.
    lines = [(base._replace(tags=candidate.tags), candidate) for base, candidate in lines]
    apart = domains_apart(line for pair in lines for line in pair)
    lines = [(apart(base), apart(candidate)) for base, candidate in lines]
    for pair in lines:
        for name, value in pair[1].tags.items():
            by_tag.setdefault(name, {}).setdefault(value, []).append(pair)
        for category in {**pair[0].marks, **pair[1].marks}:
            categories.setdefault(category, []).append(pair)
    for name, parts in by_tag.items():
        if len(parts) > 1 and is_of_slices(len(parts), len(lines)):
            for value, part in parts.items():
                yield from _changes(question, (name, value), part)
    have_marks = all(any(pair[side].marks for pair in lines) for side in (0, 1))  # an older run or baseline may have none
    if have_marks and is_of_slices(len(categories), len(lines)) and (not question.only or CATEGORY in question.only):
        for category, part in categories.items():
            yield from _changes(question, (CATEGORY, category), part, {CATEGORY_METRIC: mark_of(category)})


Noises: TypeAlias = "Callable[[MetricChange], Sequence[Noise]]"


def _noises(base: Side, candidate: Side, change: MetricChange) -> list[Noise]:
    """Return the noise of a score on both sides; where one has not measured it, that of the other stands for it."""
    key = change.eval, change.test, change.metric
    known = [side.noise[key] for side in (base, candidate) if key in side.noise]
    return known * 2 if len(known) == 1 else known


def _judged(changes: Sequence[MetricChange], noises: Noises, num_families: int, level: float) -> tuple[list[MetricChange], int]:
    """Return the changes with corrected p values and verdicts, and the number of tests corrected for."""
    corrected, num_tests = holm(
        [change.change.p for change in changes], [smallest_p(change.change.num_changed_groups) for change in changes], level
    )
    judged = [
        _with_verdict(change, p, num_tests, noises(change), num_families, level) for change, p in zip(changes, corrected, strict=True)
    ]
    return judged, num_tests


def _with_verdict(
    change: MetricChange, p_corrected: float, num_tests: int, noises: Sequence[Noise], num_families: int, level: float
) -> MetricChange:
    paired, floor = change.change, math.nan
    detectable = detectable_difference(paired.standard_error, level / num_tests) if paired.num_groups > 1 else math.nan
    if noises and paired.num_pairs:
        floor = floor_of(noises, paired.num_pairs, paired.num_groups, level=LEVEL / num_tests / num_families)
        detectable = max(detectable, detectable_over(floor, paired.standard_error, level / num_tests))
    is_noise = 0 < abs(paired.difference) <= floor
    if p_corrected <= level and paired.difference and not is_noise:
        better = (paired.difference > 0) == (change.direction == "higher")
        verdict = CHANGED if change.direction == "none" else IMPROVED if better else REGRESSED
    elif is_noise and p_corrected <= level:
        verdict = WITHIN_NOISE
    elif smallest_p(paired.num_groups) > level / num_tests or (change.is_bounded and not detectable <= WORTH_SHOWING):
        verdict = NOT_ENOUGH
    else:
        verdict = WITHIN_NOISE if is_noise else SAME
    return replace(change, p_corrected=p_corrected, detectable=detectable, floor=floor, verdict=verdict)


def _cases(question: _Test, pairs: Mapping[str, Pair], *, is_one_rule: bool) -> Iterator[CaseChange]:
    """Yield every judged case whose scores differ, counts left out, or its outcome where one rule decides on both sides."""
    for case_id, (before, after) in pairs.items():
        names = dict.fromkeys([*after.scores, *before.scores])
        scores = [(name, before.scores.get(name), after.scores.get(name)) for name in names]
        changed = tuple(score for score in scores if score[1] != score[2])
        ways = question.directions
        signs = {_sign(low, high, ways.get(name, "higher")) for name, low, high in changed if not name.startswith("num_")} - {0}
        has_flipped = is_one_rule and (before.outcome == "pass") != (after.outcome == "pass")
        if has_flipped:
            direction = "better" if after.outcome == "pass" else "worse"
        elif signs:
            direction = "mixed" if len(signs) > 1 else "better" if signs == {1} else "worse"
        else:
            continue
        yield CaseChange(question.eval, question.test, case_id, direction, before, after, changed, has_flipped)


def _sign(before: float | None, after: float | None, direction: str) -> int:
    """Return 1 for better, -1 for worse, 0 for neither."""
    if before is None or after is None or direction == "none":
        return 0
    return 1 if (after > before) == (direction == "higher") else -1


def _worst_first(change: CaseChange) -> tuple[bool, int, float]:
    moved = sum(
        after - before for name, before, after in change.scores if before is not None and after is not None and not name.startswith("num_")
    )
    return not change.has_flipped, ("worse", "mixed", "better").index(change.direction), moved
