"""Gates on differences to a baseline: `drop(valid) <= 0.02`, `high(drop(valid)) <= 0.02`, `drop(valid[site=*]) <= 0.05`.

Differences are of paired cases, those that both runs judged, with the interval and, where noise was measured, the floor of `compare`.
An aggregate has one value on each side, so neither. Loads numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from evalharness.analysis.comparison.pairing import Pair, check_comparable, coverage_of, pairs_of
from evalharness.analysis.comparison.sheets import Side, score_of
from evalharness.analysis.gate_grammar import Gate
from evalharness.analysis.gates import confidence_of, shortfall
from evalharness.analysis.slice_gates import slice_of, slices_text, together
from evalharness.analysis.statistics.aggregates import differences, interval_of
from evalharness.analysis.statistics.noise import Noise, floor_of
from evalharness.analysis.statistics.paired import PairedChange, paired_changes
from evalharness.api.errors import EvalHarnessError, did_you_mean
from evalharness.api.wording import number_text, part_of
from evalharness.runs.schema import GateVerdict

_DECIMALS = 12
"""Of differences: 0.6 - 0.54 must not exceed 0.06."""


def judge_change(gate: Gate, base: Side, candidate: Side, aggregates: Mapping[str, float], *, anyway: bool) -> GateVerdict:
    """Return the verdict of a gate on a drop or a rise; `candidate` has the one test of the gate, `aggregates` are that test's.

    It does not pass where the two sides were not asked and judged the same, unless `anyway`, or fewer than half of the cases are paired.
    """
    ((key, sheet),) = candidate.sheets.items()
    number = len(sheet.cases)
    if key not in base.sheets:
        return _without_value(gate, number, base, f"{base.label} has no {key[0]}::{key[1]}")
    if gate.metric in aggregates and not gate.tag:
        return _of_aggregate(gate, base, candidate, aggregates[gate.metric], key)
    try:
        check_comparable(base, candidate, anyway=anyway, go_on="accept it anyway with --accept-changes")
    except EvalHarnessError as error:
        return _without_value(gate, number, base, str(error))
    coverage = coverage_of(base.sheets[key], sheet)
    if 2 * coverage.num_paired < number:
        return _without_value(gate, number, base, f"only {part_of(coverage.num_paired, number, 'case')} could be paired with the baseline")
    noises = [side.noise[place] for side in (base, candidate) if (place := (*key, gate.metric)) in side.noise]
    noises = noises * 2 if len(noises) == 1 else noises
    pairs = list(pairs_of(base, candidate, key).values())
    if not gate.tag:
        return {**_verdict(gate, pairs, noises, 1), "baseline": base.label}
    slices: dict[str, list[Pair]] = {}
    for pair in pairs:
        if (value := slice_of(gate, pair[1].tags)) is not None:
            slices.setdefault(value, []).append(pair)
    if not slices:
        return _without_value(gate, 0, base, f"no case of both runs has {slices_text(gate)}")
    parts = {value: _verdict(gate, part, noises, len(slices)) for value, part in slices.items()}
    return {**together(gate, parts), "baseline": base.label}


def _without_value(gate: Gate, number: int, base: Side, reason: str) -> GateVerdict:
    verdict = _filled(gate, None, number, reason)
    return {**verdict, "baseline": base.label}


def _filled(gate: Gate, value: float | None, number: int, reason: str) -> GateVerdict:
    return {
        "expression": gate.expression,
        "metric": gate.name,
        "value": value,
        "threshold": gate.threshold,
        "n": number,
        "passed": not reason,
        "reason": reason,
        "measure": gate.change,
        **({"end": gate.end} if gate.end else {}),
    }


def _of_aggregate(gate: Gate, base: Side, candidate: Side, now: float, key: tuple[str, str]) -> GateVerdict:
    before, number = base.aggregates.get((*key, gate.metric)), len(candidate.sheets[key].cases)
    if before is None:
        return _without_value(gate, number, base, f"{base.label} has no value of the aggregate {gate.metric!r}; name a run as the baseline")
    sign = -1 if gate.change == "drop" else 1
    value: float | None = round(sign * (now - before), _DECIMALS) + 0.0
    if gate.end:
        place = (*key, gate.metric)
        (drawn_before, groups), (drawn_now, others) = (side.draws.get(place, ([], 0)) for side in (base, candidate))
        is_drawn = bool(drawn_before) and len(drawn_before) == len(drawn_now)
        found = interval_of(now - before, differences(drawn_before, drawn_now), min(groups, others)) if is_drawn else None
        value = None if found is None else sorted(sign * end for end in found)[gate.end == "high"]
    moved = f"{number_text(before)} → {number_text(now)}"
    if value is None:
        return _without_value(
            gate,
            number,
            base,
            f"{moved}, but the difference has no interval: both need draws=400 in the eval's marker, and a baseline's file has none",
        )
    what = f"{gate.end} end of the interval " if gate.end else ""
    reason = "" if gate.holds(value) else f"{what}{shortfall(gate, value)}: {moved}"
    return {**_filled(gate, value, number, reason), "baseline": base.label}


def _verdict(gate: Gate, pairs: Sequence[Pair], noises: Sequence[Noise], num_slices: int) -> GateVerdict:
    score = score_of(gate.metric)
    before, after = ([score(pair[side]) for pair in pairs] for side in (0, 1))
    is_bounded = all(0 <= value <= 1 for value in (*before, *after) if value == value)
    groups = [pair[1].group for pair in pairs]
    sides: tuple[list[list[float]], list[list[float]]] = ([[value] for value in before], [[value] for value in after])
    change = paired_changes(*sides, groups, is_bounded=[is_bounded], confidence=confidence_of(gate, num_slices))[0]
    if not change.num_pairs:
        known = dict.fromkeys(name for pair in pairs for name in pair[1].scores if name in pair[0].scores)
        return _filled(
            gate, None, len(pairs), f"no case has {gate.metric!r} on both sides{did_you_mean(gate.metric, known) or ';'} "
            f"both have: {', '.join(known) or 'nothing'}"
        )  # fmt: skip
    value = _counted(gate, change)
    if value is None:
        return _filled(gate, None, change.num_pairs, f"{change.num_pairs} pairs of cases say nothing of an interval")
    floor = floor_of(noises, change.num_pairs, change.num_groups) if noises and not gate.end else None
    is_noise = floor is not None and 0 < abs(value - gate.threshold) <= floor and gate.holds(gate.threshold)
    moved = f"{number_text(change.base)} → {number_text(change.candidate)}"
    reason = ""
    if not gate.holds(value) and not is_noise:
        what = f"{gate.end} end of the interval {shortfall(gate, value)}" if gate.end else shortfall(gate, value)
        reason = f"{what}: {moved}"
    verdict = _filled(gate, value, change.num_pairs, reason)
    if floor is not None:
        verdict["floor"] = floor
    if is_noise and floor is not None:
        side = "below" if value < gate.threshold else "above"
        near = f"{number_text(value)} is {number_text(abs(value - gate.threshold))} {side} the threshold, within noise"
        verdict["within_noise"] = [f"{near}: two runs of one checkpoint differ by up to {number_text(floor)}"]
    return verdict


def _counted(gate: Gate, change: PairedChange) -> float | None:
    """Return the difference, or an end of its interval, in the gate's direction; None where it has no interval."""
    flip: Callable[[float], float] = (lambda value: -value) if gate.change == "drop" else (lambda value: value)
    if not gate.end:
        return round(flip(change.difference), _DECIMALS) + 0.0
    low, high = sorted((flip(change.low), flip(change.high)))
    end = low if gate.end == "low" else high
    return None if math.isnan(end) else end
