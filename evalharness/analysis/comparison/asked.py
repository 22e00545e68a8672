"""What two sides were asked differently. Some of it makes a comparison meaningless, some is only good to know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evalharness.analysis.comparison.sheets import CaseLine, Sheet, Side, was_judged

__all__ = ["Coverage", "Difference", "coverage_of", "differences", "paired_cases"]

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
    return [
        case_id
        for case_id, line in candidate.cases.items()
        if was_judged(line) and case_id in base.cases and was_judged(base.cases[case_id])
    ]


def coverage_of(base: Sheet, candidate: Sheet) -> Coverage:
    """Return how many cases could be paired."""
    case_ids = dict.fromkeys([*candidate.cases, *base.cases])
    reasons = Counter(reason for case_id in case_ids if (reason := _unpaired(base.cases.get(case_id), candidate.cases.get(case_id))))
    return Coverage(candidate.eval, candidate.test, len(case_ids) - reasons.total(), len(case_ids), dict(reasons))


def _unpaired(base: CaseLine | None, candidate: CaseLine | None) -> str | None:
    if base is None or candidate is None:
        return "only in the candidate" if base is None else "only in the base"
    parts = [f"{line.outcome} in the {name}" for name, line in (("base", base), ("candidate", candidate)) if not was_judged(line)]
    return " and ".join(parts) or None


def differences(base: Side, candidate: Side) -> list[Difference]:
    """Return every field that differs, grave ones first."""
    found = [*_of_facts(base.asked, candidate.asked, is_grave=True)]
    for key, sheet in candidate.sheets.items():
        if key in base.sheets:
            found += _of_sheets(base.sheets[key], sheet)
    found += _of_facts(_shown(base, candidate), _shown(candidate, base), is_grave=False)
    found += _of_weights(base, candidate)
    for side, other in ((base, candidate), (candidate, base)):
        for eval_name, test in side.sheets:
            if (eval_name, test) not in other.sheets:
                found.append(Difference("tests", f"{eval_name}::{test} is only in {side.label}", False))
    return sorted(found, key=lambda difference: not difference.is_grave)


def _shown(side: Side, other: Side) -> dict[str, Any]:
    """Return the circumstances that tell something: a seed only where something was drawn."""
    draws = any(_draws(sheet.options) for one in (side, other) for sheet in one.sheets.values())
    return {name: value for name, value in side.circumstances.items() if draws or name != "seed"}


def _draws(options: object) -> bool:
    return (
        any(_draws(one) for one in options)
        if isinstance(options, list)
        else isinstance(options, Mapping) and bool(options.get("temperature"))
    )


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
        yield Difference("cases", f"no case is in both sides{where}", True)
    elif len(both) < len(candidate.cases) or len(both) < len(base.cases):
        only = [f"{len(sheet.cases) - len(both)} only in the {name}" for name, sheet in (("base", base), ("candidate", candidate))]
        yield Difference("cases", f"the cases differ{where}: {len(both)} in both, {', '.join(only)}", False)
    asked = [(case_id, base.cases[case_id].prompt, candidate.cases[case_id].prompt) for case_id in both]
    unlike = [case_id for case_id, before, after in asked if None not in (before, after) and before != after]
    if unlike:
        text = f"the prompts differ{where}: {len(unlike)} of {len(both)} cases (text or image), first {_short(unlike[0])}"
        yield Difference("prompts", text, True)


def _of_weights(base: Side, candidate: Side) -> Iterator[Difference]:
    """Yield what speaks for one checkpoint under two names."""
    if base.checkpoint == candidate.checkpoint:
        return
    if base.fingerprint and base.fingerprint == candidate.fingerprint:
        yield Difference("checkpoint", f"{base.checkpoint} and {candidate.checkpoint} are the same weights (equal fingerprints)", False)
    for key, sheet in candidate.sheets.items():
        before = base.sheets[key].cases if key in base.sheets else {}
        pairs = [(before[case_id].answer, line.answer) for case_id, line in sheet.cases.items() if case_id in before and line.answer]
        if len(pairs) >= SAME_TEXT_CASES and all(one == other for one, other in pairs):
            same = f"gave the same text to all {len(pairs)} cases of {sheet.eval}::{sheet.test}"
            text = f"{base.checkpoint} and {candidate.checkpoint} {same}: are they the same weights?"
            yield Difference("texts", text, False)


def _short(value: object) -> str:
    shown = value if isinstance(value, str) else "none" if value is None else repr(value)
    if len(shown) == 64 and not set(shown) - set("0123456789abcdef"):
        return shown[:12]
    return shown if len(shown) <= _MAX_VALUE_CHARS else f"{shown[:_MAX_VALUE_CHARS]}…"
