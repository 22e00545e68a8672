"""Gates on slices: `metric[tag=value] >= number` over the cases with this value of a tag, `metric[tag=*]` over those of each value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from evalharness.analysis.gate_grammar import EACH, Gate, RegressionGate
from evalharness.analysis.gates import Ends, Floor, evaluate_gate, scale_of
from evalharness.api.checks import excerpt, first_names
from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.runs.schema import GateVerdict, Row, SliceVerdict, mapping, text_of

MAX_SLICES = 1000
"""Failed slices that a verdict lists; the others are counted."""
_NUM_NAMED = 5


def refuse_unknown_slices(
    gates: Iterable[Gate | RegressionGate],
    tags: Iterable[Mapping[str, str]],
    *,
    are_all: bool = True,
    declared: Collection[str] | None = None,
) -> None:
    """Raise `ConfigError` for a gate on a tag, or a tag's value, that no case has; `tags` are those of all cases of the eval.

    Unless they `are_all`, other cases may have it: then a tag is refused that is near to one that is known, or not among those `declared`.
    """
    sliced = [gate for gate in gates if isinstance(gate, Gate) and gate.tag]
    if not sliced:
        return
    values: dict[str, dict[str, None]] = {text_of(tag): {} for tag in declared or ()}
    for case_tags in tags:
        for tag, value in case_tags.items():
            values.setdefault(text_of(tag), {})[text_of(value)] = None
    for gate in sliced:
        if gate.tag not in values and (are_all or declared is not None or did_you_mean(gate.tag, values, cutoff=0.75)):
            known = f"tags here are: {first_names(list(values), 10)}" if values else "no case has any"
            raise ConfigError(f"gate {gate.expression!r}: no case has the tag {gate.tag!r}{did_you_mean(gate.tag, values) or ';'} {known}")
        if are_all and gate.value != EACH and gate.value not in values[gate.tag]:
            known = first_names(list(values[gate.tag]), 10)
            meant = did_you_mean(gate.value, values[gate.tag])
            if "," in gate.value and "=" in gate.value:
                meant = "; slices are those of one tag, give cases a tag that joins two;"
            raise ConfigError(f"gate {gate.expression!r}: no case has {gate.tag}={gate.value}{meant or ';'} its values here are: {known}")


def judge_gate(
    gate: Gate,
    rows: Sequence[Row],
    aggregates: Mapping[str, float],
    *,
    incomplete: str | None,
    test_rows: Sequence[Row],
    floor: Floor | None = None,
    ends: Ends = MappingProxyType({}),
) -> GateVerdict:
    """Return the verdict of a gate, on a slice or not; `test_rows`: those of all engines, which tell the scale of its metric.

    `floor`, `ends`: see `evaluate_gate`; a metric that the eval's aggregate gives has none.
    """
    scale = scale_of(gate.metric, test_rows or rows) if gate.end else None
    if not gate.tag:
        floor = None if gate.metric in aggregates else floor
        return evaluate_gate(gate, rows, aggregates, incomplete=incomplete, scale=scale, floor=floor, ends=ends)
    slices: dict[str, list[Row]] = {}
    for row in rows:
        if (value := slice_of(gate, row.get("tags"))) is not None:
            slices.setdefault(value, []).append(row)
    if not slices:
        whole = evaluate_gate(gate, rows, {}, incomplete=incomplete, scale=scale)
        return {**whole, "value": None, "n": 0, "passed": False, "reason": f"no case of this run has {slices_text(gate)}"}
    shared: Any = {"incomplete": incomplete, "scale": scale, "floor": floor, "num_slices": len(slices)}
    parts = {value: evaluate_gate(gate, part, {}, **shared) for value, part in slices.items()}
    if gate.metric in aggregates and not any(verdict["value"] is not None for verdict in parts.values()):
        reason = f"{gate.metric} is an aggregate over all cases, which slices have none of"
        parts = {value: {**verdict, "reason": reason} for value, verdict in parts.items()}
    return together(gate, parts)


def slice_of(gate: Gate, tags: Mapping[str, str] | None) -> str | None:
    """Return the slice of a gate to which a case with these tags belongs; None for none."""
    tags = mapping(tags)
    value = text_of(tags[gate.tag]) if gate.tag in tags else None
    return value if gate.value in (EACH, value) else None


def slices_text(gate: Gate) -> str:
    """Return "site" or "site=north": which tag, or which of its values, a gate is on."""
    return gate.tag if gate.value == EACH else f"{gate.tag}={gate.value}"


def together(gate: Gate, parts: Mapping[str, GateVerdict]) -> GateVerdict:
    """Return one verdict of those of slices: value and threshold are those of the worst."""
    sign = -1 if gate.comparison in ("<", "<=") else 1

    def badness(value: str) -> tuple[bool, bool, float]:
        number = parts[value]["value"]
        distance = 0.0 if number is None else abs(number - gate.threshold) if gate.comparison == "==" else -sign * number
        return parts[value]["passed"] is True, number is not None, -distance

    order = sorted(parts, key=badness)
    failed = [value for value in order if not parts[value]["passed"]]
    worst = parts[order[0]]
    reason = worst["reason"]
    if gate.value == EACH and failed:
        named = [f"{excerpt(value, 60)} {parts[value]['reason']} (n={parts[value]['n']})" for value in failed[:_NUM_NAMED]]
        more = f"; and {len(failed) - _NUM_NAMED} more" if len(failed) > _NUM_NAMED else ""
        reason = f"{len(failed)} of {len(parts)} values of {gate.tag}: {'; '.join(named)}{more}"
    slices: list[SliceVerdict] = [
        {"value": value, "measured": parts[value]["value"], "n": parts[value]["n"]} for value in failed[:MAX_SLICES]
    ]
    return {**worst, "reason": reason, "tag": gate.tag, "failed_slices": slices}
