"""Compares two sides: every metric over all cases, over every slice of them, and case by case, with verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any, NamedTuple, TypeAlias

from evalharness.analysis.comparison.sheets import CaseLine, Score, Sheet, Side, domains_apart, mark_of, score_of
from evalharness.analysis.statistics.intervals import DEFAULT_SEED
from evalharness.analysis.statistics.noise import Noise, detectable_over, floor_of
from evalharness.analysis.statistics.paired import LEVEL, PairedChange, detectable_difference, holm, paired_changes, smallest_p
from evalharness.api.checks import excerpt, short_hash
from evalharness.api.errors import ComparisonError
from evalharness.api.wording import part_of
from evalharness.runs.judging import code_change

JUDGING = ("references", "eval's code")
"""Fields of `Difference` that are about how answers were judged."""
SAME_TEXT_CASES = 3
"""From this many cases on, equal texts of two checkpoints are worth a warning."""
_MAX_VALUE_CHARS = 80


@dataclass(frozen=True)
class Difference:
    """One field that differs. `is_grave`: the numbers then answer different questions, so the comparison is refused."""

    field: str
    text: str
    is_grave: bool


@dataclass(frozen=True)
class Coverage:
    """How many cases of a test could be paired, and why the others could not, by reason."""

    eval: str
    test: str
    num_paired: int
    num_cases: int
    reasons: Mapping[str, int]


def paired_cases(base: Sheet, candidate: Sheet) -> list[str]:
    """Return the cases that both sides judged, in the candidate's order."""
    both = (case_id for case_id, line in candidate.cases.items() if line.was_judged and case_id in base.cases)
    return [case_id for case_id in both if base.cases[case_id].was_judged]


def coverage_of(base: Sheet, candidate: Sheet) -> Coverage:
    """Return how many cases could be paired, and why others could not."""
    case_ids = dict.fromkeys([*candidate.cases, *base.cases])
    reasons = Counter(reason for case_id in case_ids if (reason := _unpaired(base.cases.get(case_id), candidate.cases.get(case_id))))
    return Coverage(candidate.eval, candidate.test, len(case_ids) - reasons.total(), len(case_ids), dict(reasons))


def _unpaired(base: CaseLine | None, candidate: CaseLine | None) -> str | None:
    if base is None or candidate is None:
        return "only in the candidate" if base is None else "only in the base"
    parts = [f"{line.outcome} in the {name}" for name, line in (("base", base), ("candidate", candidate)) if not line.was_judged]
    return " and ".join(parts) or None


def differences(base: Side, candidate: Side) -> list[Difference]:
    """Return every field that differs, grave ones first."""
    all_differences = [*_of_limits(base, candidate)]
    for key, sheet in candidate.sheets.items():
        if key in base.sheets:
            all_differences += _of_sheets(base.sheets[key], sheet)
    for side in (base, candidate):
        for name in side.stopped:
            text = f"{side.label} stopped when it was certain, after {side.parts.get(name, name)}: a weighted draw"
            all_differences.append(Difference("stopped when certain", text, True))
    all_differences += _of_facts(_shown(base, candidate), _shown(candidate, base), is_grave=False)
    all_differences += _of_weights(base, candidate)
    for side, other in ((base, candidate), (candidate, base)):
        for eval_name, test in side.sheets:
            if (eval_name, test) not in other.sheets:
                all_differences.append(Difference("tests", f"{eval_name}::{test} is only in {side.label}", False))
    return sorted(all_differences, key=lambda difference: not difference.is_grave)


def _shown(side: Side, other: Side) -> dict[str, Any]:
    """Return the circumstances that matter: a seed only if something was drawn."""
    draws = any(_draws(sheet.options) for either in (side, other) for sheet in either.sheets.values())
    return {name: value for name, value in side.circumstances.items() if draws or name != "seed"}


def _draws(options: object) -> bool:
    return (
        any(_draws(sample) for sample in options)
        if isinstance(options, list)
        else isinstance(options, Mapping) and bool(options.get("temperature"))
    )


def _of_limits(base: Side, candidate: Side) -> Iterator[Difference]:
    """Yield how the settings of all requests differ. A limit that nobody set, and that one side did not record, may well be the same:
    servers do not tell the checkpoint's own, nor do runs of older versions on vLLM.
    """
    for found in _of_facts(base.asked, candidate.asked, is_grave=True):
        known = base if candidate.asked.get(found.field) is None else candidate
        other = candidate if known is base else base
        if other.asked.get(found.field) is None and found.field in known.own_limits:
            yield Difference(found.field, f"{found.text}; the checkpoint's own was not recorded for one", False)
        else:
            yield found


def _of_facts(base: Mapping[str, Any], candidate: Mapping[str, Any], *, is_grave: bool, where: str = "") -> Iterator[Difference]:
    for name in dict.fromkeys([*base, *candidate]):
        before, after = base.get(name), candidate.get(name)
        if before != after and (is_grave or None not in (before, after)):
            yield Difference(name, f"{name} differs{where}: {_short(before)} in the base, {_short(after)} in the candidate", is_grave)


def _of_sheets(base: Sheet, candidate: Sheet) -> Iterator[Difference]:
    where = f" in {candidate.eval}::{candidate.test}"
    if isinstance(base.options, Mapping) and isinstance(candidate.options, Mapping):
        # An option that only one side knows was not there yet when the other ran: its default changed nothing.
        common = {name for name in base.options if name in candidate.options}
        yield from _of_facts(
            {f"option {name}": base.options[name] for name in common},
            {f"option {name}": candidate.options[name] for name in common},
            is_grave=True,
            where=where,
        )
    elif base.options != candidate.options:
        yield from _of_facts({"options": base.options}, {"options": candidate.options}, is_grave=True, where=where)
    both = [case_id for case_id in candidate.cases if case_id in base.cases]
    if not both:
        yield Difference("cases", f"base and candidate share no case{where}", True)
    elif len(both) < len(candidate.cases) or len(both) < len(base.cases):
        only = [f"{len(sheet.cases) - len(both)} only in the {name}" for name, sheet in (("base", base), ("candidate", candidate))]
        yield Difference("cases", f"the cases differ{where}: {len(both)} in both, {', '.join(only)}", False)
    prompts = [(case_id, base.cases[case_id].prompt, candidate.cases[case_id].prompt) for case_id in both]
    unlike = [case_id for case_id, before, after in prompts if None not in (before, after) and before != after]
    if unlike:
        text = f"the prompts differ{where} for {part_of(len(unlike), len(both), 'case')} (text or image), first for {_short(unlike[0])}"
        yield Difference("prompts", text, True)
    yield from _of_judging(base, candidate, where)


def _of_judging(base: Sheet, candidate: Sheet, where: str) -> Iterator[Difference]:
    """Yield what the two sheets were judged by, where that differs: otherwise it would pass as a change of the checkpoint."""
    pairs = [(case_id, base.cases[case_id], candidate.cases[case_id]) for case_id in paired_cases(base, candidate)]
    known = [pair for pair in pairs if None not in (pair[1].reference, pair[2].reference)]
    unlike = [pair for pair in known if pair[1].reference != pair[2].reference]
    if unlike:
        case_id, before, after = unlike[0]
        shown = [f"{line.shown_reference} in the {side}" for line, side in ((before, "base"), (after, "candidate")) if line.shown_reference]
        text = (
            f"the references differ{where} for {part_of(len(unlike), len(pairs), 'case')}, first for {_short(case_id)}: {', '.join(shown)}"
        )
        yield Difference("references", text.removesuffix(": "), True)
    code = code_change(base.code, candidate.code)
    if code:
        yield Difference("eval's code", f"the eval's code differs{where}: {code}", True)
    silent = [side for side, line in (("base", 1), ("candidate", 2)) if any(_says_nothing(pair, line) for pair in pairs)]
    if silent or (base.code is None) != (candidate.code is None):
        sides = silent or ["base" if base.code is None else "candidate"]
        text = f"the {' and the '.join(sides)} does not say what it was judged against{where}: references or code may have been others"
        yield Difference("judging", text, False)


def _says_nothing(pair: tuple[str, CaseLine, CaseLine], side: int) -> bool:
    """Return whether only the other side of a case says what it was judged against."""
    lines = pair[1], pair[2]
    return lines[side - 1].reference is None and lines[2 - side].reference is not None


def _of_weights(base: Side, candidate: Side) -> Iterator[Difference]:
    """Yield signs that two checkpoints are the same weights: names say little, as every training has its checkpoint-100."""
    names = _checkpoint_names(base, candidate)
    if names is None:
        return
    if base.fingerprint and base.fingerprint == candidate.fingerprint:
        yield Difference("checkpoint", f"{' and '.join(names)} are the same weights (equal fingerprints)", False)
    for key, sheet in candidate.sheets.items():
        before = base.sheets[key].cases if key in base.sheets else {}
        pairs = [(before[case_id].answer, line.answer) for case_id, line in sheet.cases.items() if case_id in before and line.answer]
        if len(pairs) >= SAME_TEXT_CASES and all(text_before == text_after for text_before, text_after in pairs):
            same = f"gave the same answers to all {len(pairs)} cases of {sheet.eval}::{sheet.test}"
            yield Difference("texts", f"{' and '.join(names)} {same}: are they the same weights?", False)


def _checkpoint_names(base: Side, candidate: Side) -> tuple[str, str] | None:
    """Return distinct names of two checkpoints; None where both sides are of one checkpoint."""
    if base.checkpoint != candidate.checkpoint:
        return base.checkpoint, candidate.checkpoint
    paths = [PurePath(side.checkpoint_path).parts if side.checkpoint_path else () for side in (base, candidate)]
    if all(paths) and paths[0] != paths[1]:
        num = next(num for num in range(1, 1 + max(map(len, paths))) if paths[0][-num:] != paths[1][-num:])
        return "/".join(paths[0][-num:]), "/".join(paths[1][-num:])
    if base.fingerprint and candidate.fingerprint and base.fingerprint != candidate.fingerprint:
        prints = [f"{side.checkpoint} ({short_hash(side.fingerprint or '')})" for side in (base, candidate)]
        return prints[0], prints[1]
    return None


def _short(value: object) -> str:
    return excerpt(short_hash(value if isinstance(value, str) else "none" if value is None else repr(value)), _MAX_VALUE_CHARS)


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

    @property
    def has_flipped(self) -> bool:
        """Whether it passes on one side only."""
        return (self.base.outcome == "pass") != (self.candidate.outcome == "pass")


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


class Pairing(NamedTuple):
    """How two sides can be paired: their common tests, what differs, and the coverage of each test."""

    common: list[tuple[str, str]]
    differences: list[Difference]
    coverage: list[Coverage]


def pairing(base: Side, candidate: Side, *, anyway: bool = False, go_on: str = "compare with --anyway") -> Pairing:
    """Return how two sides can be paired. Raises `ComparisonError` as `compare` does, before anything is computed."""
    all_differences = check_comparable(base, candidate, anyway=anyway, go_on=go_on)
    common = [key for key in candidate.sheets if key in base.sheets]
    coverage = [coverage_of(base.sheets[key], candidate.sheets[key]) for key in common]
    if not any(part.num_paired for part in coverage):
        raise ComparisonError("no case was judged on both sides, so nothing can be paired; read the reports of the two runs")
    return Pairing(common, all_differences, coverage)


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
        lines = [
            (base.sheets[key].cases[case_id], candidate.sheets[key].cases[case_id])
            for case_id in paired_cases(base.sheets[key], candidate.sheets[key])
        ]
        ways = {name: way for (*where, name), way in directions.items() if tuple(where) == key}
        ways |= dict.fromkeys((*LOWER_IS_BETTER, *lower_is_better), "lower")
        question = _Test(*key, ways, frozenset(only), seed)
        metrics += _changes(question, ("", ""), lines)
        slices += _slices(question, lines)
        cases += _cases(base.sheets[key], candidate.sheets[key], ways)
    noise = partial(_noises, base, candidate)
    judged, num_tests = _judged(metrics, noise, num_families, level)
    judged_slices, num_slice_tests = _judged(slices, noise, num_families, level)
    cases.sort(key=_worst_first)
    return Comparison(base, candidate, all_differences, coverage, judged, judged_slices, cases, num_tests, num_slice_tests, seed)


def check_comparable(base: Side, candidate: Side, *, anyway: bool, go_on: str) -> list[Difference]:
    """Return the differences of two sides; raises `ComparisonError` if they have no test in common or, unless `anyway`, a grave one."""
    common = [key for key in candidate.sheets if key in base.sheets]
    if not common:
        names = [", ".join(sorted("::".join(key) for key in side.sheets)) for side in (base, candidate)]
        raise ComparisonError(f"the two runs have no test in common: the base has {names[0]}, the candidate {names[1]}")
    if (base.source, base.engine) == (candidate.source, candidate.engine) and base.source:
        raise ComparisonError(f"base and candidate are the same: {base.label}; name another run, or another engine with RUN:ENGINE")
    all_differences = differences(base, candidate)
    grave = [difference for difference in all_differences if difference.is_grave]
    if grave and not anyway:
        more = f" (and {len(grave) - 3} more)" if len(grave) > 3 else ""
        is_judging = {difference.field in JUDGING for difference in grave}
        asked = "asked" if is_judging == {False} else "judged" if is_judging == {True} else "asked and judged"
        remedy = "with the same settings" if False in is_judging else "with one eval (evalharness rescore judges an older run again)"
        raise ComparisonError(
            f"base and candidate were not {asked} the same: {'; '.join(difference.text for difference in grave[:3])}{more}; "
            f"run both {remedy}, or {go_on}"
        )
    return all_differences


Pair = tuple[CaseLine, CaseLine]


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


def _cases(base: Sheet, candidate: Sheet, directions: Mapping[str, str]) -> Iterator[CaseChange]:
    """Yield every judged case whose outcome or scores differ, counts left out."""
    for case_id in paired_cases(base, candidate):
        before, after = base.cases[case_id], candidate.cases[case_id]
        names = dict.fromkeys([*after.scores, *before.scores])
        scores = [(name, before.scores.get(name), after.scores.get(name)) for name in names]
        changed = tuple(score for score in scores if score[1] != score[2])
        signs = {_sign(low, high, directions.get(name, "higher")) for name, low, high in changed if not name.startswith("num_")} - {0}
        flipped = (before.outcome == "pass") != (after.outcome == "pass")
        if flipped:
            direction = "better" if after.outcome == "pass" else "worse"
        elif signs:
            direction = "mixed" if len(signs) > 1 else "better" if signs == {1} else "worse"
        else:
            continue
        yield CaseChange(candidate.eval, candidate.test, case_id, direction, before, after, changed)


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
