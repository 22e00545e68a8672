"""How well the objects of one dump agree with the truth, and the plain record of it from which tables and reports are made.

Modes: `localization` asks for the right place only, `phase` for the right kind of thing as well, `category` for the right
category. F1 of a picture is at IoU 0.5; a picture with neither true nor predicted objects has none. Attributes are
compared on the pairs of the category mode. A score is better when higher, or a count (`num_…`), which is neither.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from evalharness.tasks.dense.geometry import MODES, THRESHOLDS, Mode, Pair, match
from evalharness.tasks.dense.objects import DenseObject, attributes_of, category_of
from evalharness.tasks.dense.parse import Dump
from evalharness.tasks.stage_a.schema import CATEGORY_KEY, DISTANCE, NOTES_KEY, TEXT_KEY

__all__ = [
    "ALL",
    "ATTRIBUTE_WEIGHTS",
    "SHORT_NAMES",
    "AttributeHit",
    "AttributeTotals",
    "Counts",
    "Judgement",
    "Totals",
    "attribute_hits",
    "attribute_totals",
    "by_category",
    "by_type",
    "counted_scores",
    "details_of",
    "everything",
    "f1",
    "judge_dump",
    "judge_objects",
    "mean_count_error",
    "totals",
]

ATTRIBUTE_WEIGHTS: Mapping[str, float] = {"可见性": 0.1, DISTANCE: 4.0}
"""Weight of an attribute in `attribute_recall`; 1 for the others. Texts and notes are no attributes here, they have their own accuracy."""
MAX_DROPPED = 20
"""Reasons kept in the details; how many there were is a score."""
SHORT_NAMES: Mapping[Mode, str] = {"localization": "loc", "phase": "phase", "category": "category"}
"""Mode → the first part of its metrics' names."""


class AttributeHit(NamedTuple):
    """One attribute of a matched true object, and whether the prediction gives it the same value."""

    key: str
    right: bool
    weight: float


@dataclass(frozen=True)
class Judgement:
    """`scores` are numbers by name, those that do not apply left out; `details` is plain JSON: objects, pairs, what was dropped."""

    scores: Mapping[str, float]
    details: Mapping[str, Any]


def judge_dump(dump: Dump, truth: Sequence[DenseObject]) -> Judgement:
    """Return the scores of what one text says against the true objects of its picture."""
    judged = judge_objects(dump.objects, truth)
    scores = {
        "valid": float(dump.valid),
        "tolerant_valid": float(dump.readable),
        "header_match": float(dump.header_match),
        "complete": float(not dump.truncated),
        **judged.scores,
        "num_duplicates": dump.num_duplicates,
        "num_dropped": len(dump.dropped),
    }
    form = {
        "readable": dump.readable,
        "truncated": dump.truncated,
        "num_duplicates": dump.num_duplicates,
        "dropped": list(dump.dropped[:MAX_DROPPED]),
    }
    return Judgement(scores, {**judged.details, "form": form, "space": [dump.space.width, dump.space.height]})


def judge_objects(predictions: Sequence[DenseObject], truth: Sequence[DenseObject]) -> Judgement:
    """Return the scores of predicted against true objects, wherever they come from."""
    pairs = match(truth, predictions)
    num_true, num_said = len(truth), len(predictions)
    scores: dict[str, float | None] = {
        **{f"{SHORT_NAMES[mode]}_f1": f1(len(pairs[mode]), num_said, num_true) for mode in MODES},
        "equal": float(num_said == num_true) if num_said + num_true else None,
        "num_true": num_true,
        "num_said": num_said,
        "num_surplus": max(0, num_said - num_true),
        "num_lacking": max(0, num_true - num_said),
        "num_inverted": sum(one.inverted for one in predictions),
        "num_out_of_range": sum(one.out_of_range for one in predictions),
        **_attribute_scores([(truth[pair.truth], predictions[pair.prediction]) for pair in pairs["category"]]),
    }
    details = {
        "truth": [one.to_json() for one in truth],
        "predictions": [one.to_json() for one in predictions],
        "pairs": {mode: [[*pair] for pair in pairs[mode]] for mode in MODES},
        "categories": _by_category(predictions, truth, pairs["category"]),
    }
    return Judgement({name: value for name, value in scores.items() if value is not None}, details)


def f1(num_hit: int, num_said: int, num_true: int) -> float | None:
    """Return the harmonic mean of precision and recall, None where there is nothing to find and nothing was said."""
    return 2 * num_hit / (num_said + num_true) if num_said + num_true else None


def _by_category(predictions: Sequence[DenseObject], truth: Sequence[DenseObject], pairs: Sequence[Pair]) -> dict[str, list[int]]:
    """Return {category: [hit, said, true]}, by which runs are compared category by category."""
    counts = [Counter(one.category for one in objects) for objects in ([truth[pair.truth] for pair in pairs], predictions, truth)]
    return {name: [count[name] for count in counts] for name in sorted({*counts[1], *counts[2]})}


def attribute_hits(true_desc: str, said_desc: str) -> Iterator[AttributeHit]:
    """Yield each attribute that the true description has, the category apart; texts without regard to width and case."""
    said = attributes_of(said_desc)
    for key, value in attributes_of(true_desc).items():
        if key == CATEGORY_KEY:
            continue
        if key == TEXT_KEY:
            right = _plain(said.get(key, "")) == _plain(value)
        else:
            right = said.get(key) == value
        yield AttributeHit(key, right, 0.0 if key in (TEXT_KEY, NOTES_KEY) else ATTRIBUTE_WEIGHTS.get(key, 1.0))


def _plain(text: str) -> str:
    # NFKC makes full-width letters and digits half-width.
    return unicodedata.normalize("NFKC", text).upper()


def _attribute_scores(pairs: Sequence[tuple[DenseObject, DenseObject]]) -> dict[str, float | None]:
    hits = [hit for true, said in pairs for hit in attribute_hits(true.desc, said.desc)]
    weight = sum(hit.weight for hit in hits)
    return {
        "attribute_recall": sum(hit.weight * hit.right for hit in hits) / weight if weight else None,
        "text_accuracy": _accuracy(hits, TEXT_KEY),
        "notes_accuracy": _accuracy(hits, NOTES_KEY),
        "distance_accuracy": _accuracy(hits, DISTANCE),
    }


def _accuracy(hits: Sequence[AttributeHit], key: str) -> float | None:
    mine = [hit.right for hit in hits if hit.key == key]
    return sum(mine) / len(mine) if mine else None


# Counts over many pictures: how many objects are true, predicted and matched, per mode, IoU threshold, type and category

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
