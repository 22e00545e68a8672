"""Whether two sides can be compared: which of their cases can be paired, what differs, and which differences refuse a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

from evalharness.analysis.comparison.sheets import CaseLine, Sheet, Side
from evalharness.api.checks import excerpt, short_hash
from evalharness.api.errors import ComparisonError
from evalharness.api.wording import part_of
from evalharness.runs.judging import code_change
from evalharness.runs.schema import IMPORTED_FROM

JUDGING = ("references", "eval's code")
"""Fields of `Difference` that are about how answers were judged."""
IMPORTED_TEST = "test_samples"
"""The test of an eval that `evalharness import` made, in node ids and gates."""
SAME_TEXT_CASES = 3
"""From this many cases on, equal texts of two checkpoints are worth a warning."""
_MAX_VALUE_CHARS = 80


Pair = tuple[CaseLine, CaseLine]
"""One case of the base and of the candidate."""


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


def is_imported(side: Side) -> bool:
    """Return whether another tool judged the cases: it has scores in common with a test of ours, but passes cases by a rule of its own."""
    return side.circumstances.get("backend") in IMPORTED_FROM


def pass_alike(base: Side, candidate: Side) -> bool:
    """Return whether one rule says on both sides which cases pass."""
    return is_imported(base) == is_imported(candidate)


def pairs_of(base: Side, candidate: Side, key: tuple[str, str]) -> dict[str, Pair]:
    """Return a test's cases that both sides judged, by id in the candidate's order; without `pass_rate` unless they pass alike."""
    before, after = base.sheets[key], candidate.sheets[key]
    pairs = {case_id: (before.cases[case_id], after.cases[case_id]) for case_id in paired_cases(before, after)}
    if pass_alike(base, candidate):
        return pairs
    return {case_id: (_without_pass_rate(one), _without_pass_rate(other)) for case_id, (one, other) in pairs.items()}


def _without_pass_rate(line: CaseLine) -> CaseLine:
    return line._replace(scores={name: value for name, value in line.scores.items() if name != "pass_rate"})


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
    if not pass_alike(base, candidate):
        all_differences.append(Difference("judging", "pass_rate is not compared: another tool passes cases by a rule of its own", False))
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
    elif None in (base.options, candidate.options) and base.options != candidate.options:
        silent = "base" if base.options is None else "candidate"
        yield Difference("options", f"the {silent} does not say with which options it was asked{where}", False)
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


def check_comparable(base: Side, candidate: Side, *, anyway: bool, go_on: str) -> list[Difference]:
    """Return the differences of two sides; raises `ComparisonError` if they have no test in common or, unless `anyway`, a grave one."""
    common = [key for key in candidate.sheets if key in base.sheets]
    if not common:
        names = [", ".join(sorted("::".join(key) for key in side.sheets)) for side in (base, candidate)]
        hint = "; import the other tool's samples with --like RUN, which names them as the cases of RUN that ask the same"
        hint *= any(is_imported(side) and {test for _, test in side.sheets} == {IMPORTED_TEST} for side in (base, candidate))
        raise ComparisonError(f"the two runs have no test in common: the base has {names[0]}, the candidate {names[1]}{hint}")
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
