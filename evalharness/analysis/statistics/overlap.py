"""Precision, recall and F1 from counts of predictions and references. Pure Python."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Empty = TypeVar("Empty", float, None)
Category = TypeVar("Category", bound=Hashable)

MIN_SUPPORT = 10
"""References that a category needs for its F1 to count as the lowest: the F1 of a rare category swings by chance."""


@dataclass(frozen=True)
class Overlap:
    """How many predictions are right (`num_hit`), of how many predictions, against how many references.

    `num_reference_hit` is given if matched predictions and matched references are counted apart: a polygon that matches a box is a hit
    among the references of boxes and among the predictions of polygons. `empty` is the value of a ratio 0/0: None, or a number.
    """

    num_hit: float
    num_predicted: float
    num_reference: float
    num_reference_hit: float | None = None

    @classmethod
    def sum(cls, overlaps: Iterable[Overlap]) -> Overlap:
        """Return the counts of several overlaps together, for micro averages."""
        counts = [(overlap.num_hit, overlap.num_predicted, overlap.num_reference) for overlap in overlaps]
        return cls(*map(sum, zip(*counts, strict=True))) if counts else cls(0, 0, 0)

    def precision(self, empty: Empty) -> float | Empty:
        """Return the share of the predictions that are right, 0–1."""
        return self.num_hit / self.num_predicted if self.num_predicted else empty

    def recall(self, empty: Empty) -> float | Empty:
        """Return the share of the references that were predicted, 0–1."""
        hit = self.num_hit if self.num_reference_hit is None else self.num_reference_hit
        return hit / self.num_reference if self.num_reference else empty

    def f1(self, empty: Empty) -> float | Empty:
        """Return the harmonic mean of precision and recall, 0–1; `empty` only where there is neither prediction nor reference."""
        if not self.num_predicted + self.num_reference:
            return empty
        if self.num_reference_hit is None:
            return 2 * self.num_hit / (self.num_predicted + self.num_reference)  # rounded once only
        precision, recall = self.precision(0.0), self.recall(0.0)
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0

    def ratios(self, empty: Empty) -> dict[str, float | Empty]:
        """Return precision, recall and f1 by name."""
        return {"precision": self.precision(empty), "recall": self.recall(empty), "f1": self.f1(empty)}

    def cells(self, hit: str) -> dict[str, float | None]:
        """Return counts and ratios as the columns of a table; `hit` is the title of the right ones among the references."""
        num_hit = self.num_hit if self.num_reference_hit is None else self.num_reference_hit
        counts = {"reference": self.num_reference, "predicted": self.num_predicted, hit: num_hit}
        return {**counts, "precision": self.precision(None), "recall": self.recall(None), "F1": self.f1(None)}


def macro_and_min(overlaps: Mapping[Category, Overlap]) -> dict[str, float]:
    """Return `category_macro_f1`, the mean over all categories with a reference, and `category_min_f1`; {} without any reference.

    `category_min_f1` is the lowest F1 of the categories with at least `MIN_SUPPORT` references; in a run too small for that, of the
    most frequent ones. An average over all answers hides it.
    """
    known = [(overlap.f1(0.0), overlap.num_reference) for overlap in overlaps.values() if overlap.num_reference]
    if not known:
        return {}
    enough = min(MIN_SUPPORT, max(num_reference for _, num_reference in known))
    return {
        "category_macro_f1": sum(f1 for f1, _ in known) / len(known),
        "category_min_f1": min(f1 for f1, num_reference in known if num_reference >= enough),
    }
