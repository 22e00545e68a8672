"""Many tests at once: p values corrected so that the chance of even one false alarm among them stays at the level."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["holm"]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's (1979) corrected p values, in the order given: compare each with the level itself.

    Chosen over Benjamini and Hochberg: an alarm that stops a release should be a true one, and Holm needs no assumption
    about how the tests depend on each other, as metrics of the same texts do.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, position in enumerate(order):
        largest = max(largest, min(1.0, p_values[position] * (len(p_values) - rank)))
        corrected[position] = largest
    return corrected
