"""Many tests at once: p values corrected so that the chance of even one false alarm among them stays at the level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["LEVEL", "Corrected", "holm"]

LEVEL = 0.05
"""Chance of a false alarm that is accepted, over all tests of a family together."""


class Corrected(NamedTuple):
    """Corrected p values, to be compared with the level itself, and the number of tests that they were corrected for."""

    p_values: list[float]
    num_counted: int


def holm(p_values: Sequence[float], smallest: Sequence[float] | None = None, level: float = LEVEL) -> Corrected:
    """Return Holm's (1979) corrected p values, in the order given.

    Chosen over Benjamini and Hochberg: an alarm that stops a release should be a true one, and Holm needs no assumption
    about how the tests depend on each other, as metrics of the same texts do. `smallest` is the smallest p value that each
    test can give at all (an exact test of two changed cases: 0.5). Tests that could not be significant whatever came
    out are not counted (Tarone 1990), and their corrected p is 1; so many slices without a change cost no power.
    """
    bounds = [0.0] * len(p_values) if smallest is None else list(smallest)
    num_counted = 1
    while sum(bound <= level / num_counted for bound in bounds) > num_counted:
        num_counted += 1
    counted = [position for position, bound in enumerate(bounds) if bound <= level / num_counted]
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, position in enumerate(sorted(counted, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[position] * (num_counted - rank)))
        corrected[position] = largest
    return Corrected(corrected, num_counted)
