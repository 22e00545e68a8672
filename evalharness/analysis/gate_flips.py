"""How sure the verdict of a gate is under noise: the chance that another run of the same checkpoint would get the other one.

A run's mean varies about the checkpoint's own, so from one run to the next it moves by √2 times as much; the floor says how much that is.
The interval of the chance is that of the score's flip rate, to which its variance is proportional.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from evalharness.analysis.gate_grammar import Gate
from evalharness.runs.schema import GateVerdict

if TYPE_CHECKING:
    from evalharness.analysis.comparison.compare import Comparison, MetricChange
    from evalharness.analysis.statistics.noise import Noise


def flips_of_threshold(gate: Gate, verdict: GateVerdict, noise: Noise | None) -> GateVerdict:
    """Return the chance for a gate on the mean of all cases; empty where noise was not measured, or the gate is on something else."""
    value, floor = verdict.get("value"), verdict.get("floor")
    if noise is None or value is None or floor is None or gate.tag or gate.end or gate.comparison == "==":
        return {}
    from evalharness.analysis.statistics.noise import two_sided_quantile

    # A value within the floor of what it must reach is taken to equal it.
    edge = gate.threshold + {">=": -floor, "<=": floor}.get(gate.comparison, 0.0)
    return _chance(abs(value - edge), math.sqrt(2) * floor / two_sided_quantile(0.05), noise)


def flips_of_comparison(comparison: Comparison, num_gates: int, *, passed: bool) -> GateVerdict:
    """Return the chance for a gate `no_regression`: that of the metric that is nearest to turning it."""
    deciding = [change for change in comparison.metrics if (change.verdict == "regressed") != passed]
    found = [chance for change in deciding for chance in _of(comparison, change, num_gates)]
    found.sort(key=lambda chance: chance["flip_rate"])
    if not found:
        return {}
    return found[-1] if passed else found[0]  # one regression fails it, and all must go for it to pass


def _of(comparison: Comparison, change: MetricChange, num_gates: int) -> list[GateVerdict]:
    from evalharness.analysis.statistics.noise import two_sided_quantile
    from evalharness.analysis.statistics.paired import LEVEL

    key = change.eval, change.test, change.metric
    noise = comparison.candidate.noise.get(key) or comparison.base.noise.get(key)
    if noise is None or change.direction == "none" or not change.floor >= 0:
        return []
    fallen = change.change.difference * (1 if change.direction == "lower" else -1)
    level = LEVEL / comparison.num_tests
    needed = max(two_sided_quantile(level) * change.change.standard_error, change.floor)
    return [_chance(abs(needed - fallen), change.floor / two_sided_quantile(level / num_gates), noise)]


def _chance(distance: float, spread: float, noise: Noise) -> GateVerdict:
    from evalharness.analysis.statistics.noise import chance_of_crossing

    def chance(share: float) -> float:
        return chance_of_crossing(distance, spread * math.sqrt(share / noise.flip_rate) if noise.flip_rate else 0.0)

    has_interval = noise.flip_rate > 0 and noise.low == noise.low and noise.high == noise.high
    interval = [chance(noise.low), chance(noise.high)] if has_interval else None
    return {"flip_rate": chance(noise.flip_rate), "flip_interval": interval}
