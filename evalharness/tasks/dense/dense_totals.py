"""Counts over many pictures: how many objects are true, predicted and matched, per mode, IoU threshold, type and category.

All ratios here are micro: objects of all pictures are counted together, so a picture with many objects weighs more. What a
ratio would divide by 0 is None.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from evalharness.tasks.dense.dense_matching import THRESHOLDS, Mode
from evalharness.tasks.dense.metrics import AttributeHit, attribute_hits
from evalharness.tasks.dense.objects import category_of

__all__ = [
    "ALL",
    "AttributeTotals",
    "Counts",
    "Totals",
    "attribute_totals",
    "by_category",
    "by_type",
    "counted_scores",
    "details_of",
    "everything",
    "mean_count_error",
    "totals",
]

ALL = ""
"""The kind of which `everything` makes all objects."""

Details = Mapping[str, Any]
Key = Callable[[Mapping[str, Any]], str]


class Counts(NamedTuple):
    """Objects of one kind. A box may be matched by a polygon, so the matched true and predicted ones of a type may differ."""

    num_true: int
    num_said: int
    num_true_hit: int
    num_said_hit: int

    @property
    def precision(self) -> float | None:
        """Share of the predicted objects that are matched."""
        return self.num_said_hit / self.num_said if self.num_said else None

    @property
    def recall(self) -> float | None:
        """Share of the true objects that are matched."""
        return self.num_true_hit / self.num_true if self.num_true else None

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall; None only where there is nothing true and nothing predicted."""
        if not self.num_true + self.num_said:
            return None
        precision, recall = self.precision or 0.0, self.recall or 0.0
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@dataclass
class Totals:
    """Objects by kind; hits also by the number of thresholds that the pair's IoU reaches."""

    true: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    true_hits: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    said_hits: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    @property
    def names(self) -> list[str]:
        """Every kind, most frequent in the truth first, then by name."""
        return sorted({*self.true, *self.said}, key=lambda name: (-self.true[name], name))

    def at(self, threshold: float, name: str) -> Counts:
        """Return the counts of one kind at an IoU threshold of `THRESHOLDS`."""
        enough = THRESHOLDS.index(threshold) + 1
        hits = [
            sum(number for reached, number in found.items() if reached >= enough)
            for found in (self.true_hits.get(name, Counter()), self.said_hits.get(name, Counter()))
        ]
        return Counts(self.true[name], self.said[name], *hits)

    def mean_f1(self, name: str) -> float | None:
        """Return the mean over all thresholds of the F1 of one kind."""
        values = [value for threshold in THRESHOLDS if (value := self.at(threshold, name).f1) is not None]
        return sum(values) / len(values) if values else None


def details_of(rows: Sequence[Mapping[str, Any]]) -> list[Details]:
    """Return the details of the rows that have true or predicted objects; pictures with neither say nothing."""
    return [details for row in rows if (details := row.get("details")) and (details.get("truth") or details.get("predictions"))]


def counted_scores(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, float]]:
    """Return the scores of the rows whose number of objects can be right or wrong: those with any."""
    return [row["scores"] for row in rows if "equal" in row["scores"]]


def mean_count_error(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean absolute error of the number of objects, None without pictures that have any."""
    scores = counted_scores(rows)
    return sum(score["num_surplus"] + score["num_lacking"] for score in scores) / len(scores) if scores else None


def everything(one: Mapping[str, Any]) -> str:
    """Count all objects as one kind."""
    return ALL


def by_type(one: Mapping[str, Any]) -> str:
    """Count by kind of geometry."""
    return str(one["type"])


def by_category(one: Mapping[str, Any]) -> str:
    """Count by category."""
    return category_of(one["desc"])


def totals(found: Iterable[Details], mode: Mode, key: Key = everything) -> Totals:
    """Return the counts over pictures by kind, `key` of an object."""
    counted = Totals()
    for details in found:
        true, said = [key(one) for one in details["truth"]], [key(one) for one in details["predictions"]]
        counted.true.update(true)
        counted.said.update(said)
        for truth, prediction, iou in details["pairs"][mode]:
            reached = bisect_right(THRESHOLDS, iou)
            counted.true_hits[true[truth]][reached] += 1
            counted.said_hits[said[prediction]][reached] += 1
    return counted


@dataclass
class AttributeTotals:
    """Attributes of matched objects: how many were compared and right, by key, and their weights."""

    compared: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    weights: dict[str, float] = field(default_factory=dict)

    def accuracy(self, key: str) -> float | None:
        """Return the share of right values of one attribute."""
        return self.right[key] / self.compared[key] if self.compared[key] else None

    @property
    def recall(self) -> float | None:
        """Share of right values over all attributes, weighted."""
        weight = sum(self.weights[key] * number for key, number in self.compared.items())
        return sum(self.weights[key] * number for key, number in self.right.items()) / weight if weight else None

    def add(self, hit: AttributeHit) -> None:
        """Count one comparison."""
        self.weights[hit.key] = hit.weight
        self.compared[hit.key] += 1
        self.right[hit.key] += hit.right


def attribute_totals(found: Iterable[Details]) -> AttributeTotals:
    """Return the attributes compared on the pairs of the category mode."""
    counted = AttributeTotals()
    for details in found:
        for truth, prediction, _ in details["pairs"]["category"]:
            for hit in attribute_hits(details["truth"][truth]["desc"], details["predictions"][prediction]["desc"]):
                counted.add(hit)
    return counted
