"""Which curves of a timeline are shown where there is no room for all: those that gates hold, then those that moved most."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from evalharness.analysis.comparison.compare import CATEGORY
from evalharness.analysis.comparison.timeline import TOKENS, Curve, Timeline

__all__ = ["category_curves", "gate_metrics", "lost", "main_curves", "moved"]

_ALWAYS_LAST = (TOKENS, "pass_rate", "length_rate", "empty_rate")


def gate_metrics(timeline: Timeline) -> set[tuple[str, str, str]]:
    """Return eval, test and metric of what the runs' gates are about."""
    return {key for point in timeline.track.points for key in point.gates}


def moved(curve: Curve) -> float:
    """Return how far the curve's largest mean lies above its smallest."""
    means = [value.mean for value in curve.values]
    return max(means) - min(means)


def lost(curve: Curve) -> float:
    """Return the largest fall from one checkpoint to any later one, 0 or more; of what is better when lower, the largest rise."""
    sign = -1 if curve.direction == "lower" else 1
    best, fall = -float("inf"), 0.0
    for value in curve.values:
        best = max(best, sign * value.mean)
        fall = max(fall, best - sign * value.mean)
    return fall


def main_curves(
    timeline: Timeline, test: tuple[str, str], most: int | None = None, held: Collection[tuple[str, str, str]] = ()
) -> list[Curve]:
    """Return the curves of a test over all cases: metrics of gates (`held`), others by how far they moved, then rates of every test."""
    own = [curve for curve in timeline.curves if (curve.eval, curve.test) == test and not curve.slice_key]

    def rank(curve: Curve) -> tuple[bool, bool, float]:
        return (*test, curve.metric) not in held, curve.metric in _ALWAYS_LAST, -moved(curve)

    return sorted(own, key=rank)[:most]


def category_curves(curves: Iterable[Curve], test: tuple[str, str], most: int | None = None) -> list[Curve]:
    """Return the curves by category of a test, the largest loss first."""
    own = [curve for curve in curves if (curve.eval, curve.test) == test and curve.slice_key == CATEGORY]
    return sorted(own, key=lambda curve: (-lost(curve), -moved(curve)))[:most]
