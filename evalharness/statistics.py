"""Intervals for eval scores, on the standard library alone. Pure: knows no run and no report."""

from __future__ import annotations

import math
from statistics import NormalDist

__all__ = ["wilson_interval"]


def wilson_interval(rate: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a rate over `n` independent cases, within 0…1.

    Unlike rate ± standard error it says something at 0 of n and n of n. Raises `ValueError` for n < 1 or a rate outside 0…1.
    """
    if n < 1 or not 0.0 <= rate <= 1.0:
        raise ValueError(f"a Wilson interval needs n >= 1 and a rate within 0…1, got rate={rate!r}, n={n!r}")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    centre = rate + z * z / (2 * n)
    spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # The rate lies inside by definition; rounding must not push it out.
    return max(0.0, min(rate, (centre - spread) / scale)), min(1.0, max(rate, (centre + spread) / scale))
