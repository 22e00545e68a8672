"""Gates on how fast an engine was and what it took, over the whole run: `tokens_per_s >= 400`, `energy_j <= 50000`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evalharness.analysis.gate_grammar import SPEEDS, Gate
from evalharness.analysis.gates import shortfall
from evalharness.api.wording import plural
from evalharness.runs.measured import EngineSpeed
from evalharness.runs.schema import GateVerdict, Row, generations_of


def is_on_speed(gate: Gate, rows: Sequence[Row], aggregates: Mapping[str, float]) -> bool:
    """Return whether a gate is on an engine's speed, rather than on a score or an aggregate of that name."""
    return gate.metric in SPEEDS and gate.metric not in aggregates and not any(gate.metric in row["scores"] for row in rows)


def _why_unknown(metric: str, speed: EngineSpeed) -> str:
    about = "energy" if metric in ("energy_j", "j_per_token") else "seconds"
    return speed["unknown"].get(about, "it was not measured")


def judge_speed(gate: Gate, rows: Sequence[Row], speed: EngineSpeed | None, incomplete: str | None) -> GateVerdict:
    """Return the verdict of a gate on a speed; none where answers came from the cache, which took no time."""
    number: object = None if speed is None else speed.get(gate.metric)
    value = float(number) if isinstance(number, (int, float)) else None
    num_cached = sum(bool(answer.get("cached")) for row in rows for answer in generations_of(row))
    unjudged = incomplete or (f"{plural(num_cached, 'answer')} came from the cache; ask without it" if num_cached else "")
    if unjudged:
        reason = f"not judged: {unjudged}"
    elif value is None:
        why = "nothing was generated" if speed is None else _why_unknown(gate.metric, speed)
        reason = f"{gate.metric} is not known: {why}"
    else:
        reason = "" if gate.holds(value) else shortfall(gate, value)
    return {
        "expression": gate.expression,
        "metric": gate.metric,
        "value": value,
        "threshold": gate.threshold,
        "n": len(rows),
        "passed": not reason,
        "reason": reason,
        "measure": "speed",
        **({"judged": False} if unjudged else {}),
    }
