"""How numbers look on a page; the words are those of `wording.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from evalharness.report.text import one_line
from evalharness.report.wording import number_text, plural

__all__ = ["FILTERS", "percent", "when_finite"]


def percent(share: float) -> str:
    """Return a place on a scale from 0 to 1 as an SVG length."""
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"


def when_finite(value: Any) -> float | None:
    """Return a number, None for anything that is none or not finite: templates ask `is not none`."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) else None


FILTERS: Mapping[str, Callable[..., str]] = {"number": number_text, "percent": percent, "plural": plural, "short": one_line}
"""`short` takes the number of characters that are left, a line break counting as a space."""
