"""How well predicted objects agree with reference objects: scores of one dump, and counts over many images.

Modes: `localization` asks for the right place only, `phase` for the right kind of thing as well, `category` for the right
category. F1 of an image is at IoU 0.5; an image with neither reference nor predicted objects has none. Attributes are
compared on the pairs of the category mode †. A score is better when higher, or a count (`num_…`), which is neither.

† marks metrics that are defined otherwise than the original's; docs/task_behaviours.md says how.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from evalharness.analysis.statistics.overlap import Overlap
from evalharness.tasks.dense.objects import MODES, THRESHOLDS, DenseObject, Mode, attributes_of, category_of
from evalharness.tasks.dense.parse import Dump
from evalharness.tasks.prompt_rows import Judgement
from evalharness.tasks.stage_a.schema import CATEGORY_KEY, DISTANCE, NOTES_KEY, TEXT_KEY

ATTRIBUTE_WEIGHTS: Mapping[str, float] = {"可见性": 0.1, DISTANCE: 4.0}
"""Weight of an attribute in `attribute_recall`, 1 for the others. Texts and notes have accuracies of their own instead."""
MAX_DROPPED = 20
"""Reasons kept in the details; how many there were is a score."""
SHORT_NAMES: Mapping[Mode, str] = {"localization": "loc", "phase": "phase", "category": "category"}
"""Mode → the first part of its metrics' names."""


class AttributeHit(NamedTuple):
    """One attribute of a matched reference object, and whether the prediction gives it the same value."""

    key: str
    right: bool
    weight: float


def judge_dump(dump: Dump, truth: Sequence[DenseObject]) -> Judgement:
    """Return the scores of a parsed answer against the reference objects (`truth`) of its image."""
    judged = judge_objects(dump.objects, truth)
    # Where a photo shows nothing, an answer that cannot be read is not the right one.
    unread = {} if dump.readable or truth else dict.fromkeys((f"{name}_f1" for name in SHORT_NAMES.values()), 0.0)
    scores = {
        "valid": float(dump.valid),
        "tolerant_valid": float(dump.readable),
        "header_match": float(dump.header_match),
        "complete": float(not dump.truncated),
        **judged.scores,
        **unread,
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
    """Return the scores of predicted objects against reference objects."""
    from evalharness.tasks.dense.geometry import match  # loads numpy and shapely

    pairs = match(truth, predictions)
    num_reference, num_predicted = len(truth), len(predictions)
    scores: dict[str, float | None] = {
        **{f"{SHORT_NAMES[mode]}_f1": Overlap(len(pairs[mode]), num_predicted, num_reference).f1(None) for mode in MODES},
        "equal": float(num_predicted == num_reference) if num_predicted + num_reference else None,
        "num_reference": num_reference,
        "num_predicted": num_predicted,
        "num_surplus": max(0, num_predicted - num_reference),
        "num_lacking": max(0, num_reference - num_predicted),
        "num_inverted": sum(item.inverted for item in predictions),
        "num_out_of_range": sum(item.out_of_range for item in predictions),
        **_attribute_scores([(truth[pair.truth], predictions[pair.prediction]) for pair in pairs["category"]]),
    }
    matched = [truth[pair.truth] for pair in pairs["category"]]
    counts = [Counter(item.category for item in objects) for objects in (matched, predictions, truth)]
    details = {
        "truth": [item.to_json() for item in truth],
        "predictions": [item.to_json() for item in predictions],
        "pairs": {mode: [[*pair] for pair in pairs[mode]] for mode in MODES},
        # [hit, predicted, reference], by which runs are compared category by category
        "categories": {name: [count[name] for count in counts] for name in sorted({*counts[1], *counts[2]})},
    }
    return Judgement({name: value for name, value in scores.items() if value is not None}, details)


def attribute_hits(reference_desc: str, predicted_desc: str) -> Iterator[AttributeHit]:
    """Yield each attribute that the reference description has, except the category.

    Texts match in any width and case, distances as numbers: 07 is 7.
    """
    predicted = attributes_of(predicted_desc)
    for key, value in attributes_of(reference_desc).items():
        if key == CATEGORY_KEY:
            continue
        right = key in predicted and _spelled(key, predicted[key]) == _spelled(key, value)
        yield AttributeHit(key, right, 0.0 if key in (TEXT_KEY, NOTES_KEY) else ATTRIBUTE_WEIGHTS.get(key, 1.0))


def _spelled(key: str, value: str) -> str:
    if key == TEXT_KEY:
        return unicodedata.normalize("NFKC", value).upper()  # NFKC makes full-width letters and digits half-width
    return (value.lstrip("0") or "0") if key == DISTANCE and value.isascii() and value.isdecimal() else value


def describes(reference_desc: str, predicted_desc: str) -> bool:
    """Return whether two descriptions say the same, in any order of their attributes."""
    spelled = [{key: _spelled(key, value) for key, value in attributes_of(desc).items()} for desc in (reference_desc, predicted_desc)]
    return spelled[0] == spelled[1]


def _attribute_scores(pairs: Sequence[tuple[DenseObject, DenseObject]]) -> dict[str, float | None]:
    hits = [hit for reference, prediction in pairs for hit in attribute_hits(reference.desc, prediction.desc)]
    weight = sum(hit.weight for hit in hits)
    scores = {
        "attribute_recall": sum(hit.weight * hit.right for hit in hits) / weight if weight else None,
        "desc_accuracy": sum(describes(reference.desc, prediction.desc) for reference, prediction in pairs) / len(pairs) if pairs else None,
    }
    for name, key in (("text", TEXT_KEY), ("notes", NOTES_KEY), ("distance", DISTANCE)):
        right = [hit.right for hit in hits if hit.key == key]
        scores[f"{name}_accuracy"] = sum(right) / len(right) if right else None
    return scores


# Counts over many images: reference, predicted and matched objects, per mode, IoU threshold, type and category

ALL = ""
"""The kind under which all objects are counted together."""

Details = Mapping[str, Any]
Kind = Callable[[Mapping[str, Any]], str]


@dataclass
class Totals:
    """Objects by kind; hits also by the number of thresholds that the pair's IoU reaches.

    Matched reference and predicted objects of a kind are counted apart: a polygon may match a box.
    """

    references: Counter[str] = field(default_factory=Counter)
    predictions: Counter[str] = field(default_factory=Counter)
    reference_hits: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    prediction_hits: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    @property
    def names(self) -> list[str]:
        """Every kind, the most frequent in the references first, then by name."""
        return sorted({*self.references, *self.predictions}, key=lambda name: (-self.references[name], name))

    def at(self, threshold: float, name: str) -> Overlap:
        """Return the counts of one kind at an IoU threshold of `THRESHOLDS`."""
        enough = THRESHOLDS.index(threshold) + 1
        hit, reference_hit = (
            sum(number for reached, number in hits.get(name, Counter()).items() if reached >= enough)
            for hits in (self.prediction_hits, self.reference_hits)
        )
        return Overlap(hit, self.predictions[name], self.references[name], reference_hit)

    def mean_f1(self, name: str) -> float | None:
        """Return the mean over all thresholds of the F1 of one kind."""
        values = [value for threshold in THRESHOLDS if (value := self.at(threshold, name).f1(None)) is not None]
        return sum(values) / len(values) if values else None


def details_of(rows: Sequence[Mapping[str, Any]]) -> list[Details]:
    """Return the details of the rows that have reference or predicted objects."""
    return [details for row in rows if (details := row.get("details")) and (details.get("truth") or details.get("predictions"))]


def counted_scores(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, float]]:
    """Return the scores of the rows with any objects, whose number can be right or wrong."""
    return [row["scores"] for row in rows if "equal" in row["scores"]]


def num_objects(scores: Mapping[str, float]) -> tuple[float, float]:
    """Return the numbers of reference and predicted objects in a row's scores; older versions recorded `num_true` and `num_said`."""
    old = "num_true" in scores
    return scores["num_true" if old else "num_reference"], scores["num_said" if old else "num_predicted"]


def mean_count_error(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean absolute error of the number of objects, None without any objects."""
    scores = counted_scores(rows)
    return sum(score["num_surplus"] + score["num_lacking"] for score in scores) / len(scores) if scores else None


def by_category(item: Mapping[str, Any]) -> str:
    """Return the category of an object."""
    return category_of(item["desc"])


def totals(images: Iterable[Details], mode: Mode, kind: Kind = lambda item: ALL) -> Totals:
    """Return the counts over images by the `kind` of an object."""
    counted = Totals()
    for details in images:
        references, predictions = [kind(item) for item in details["truth"]], [kind(item) for item in details["predictions"]]
        counted.references.update(references)
        counted.predictions.update(predictions)
        for reference, prediction, iou in details["pairs"][mode]:
            reached = bisect_right(THRESHOLDS, iou)
            counted.reference_hits[references[reference]][reached] += 1
            counted.prediction_hits[predictions[prediction]][reached] += 1
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
        """Weighted share of right values over all attributes."""
        weight = sum(self.weights[key] * number for key, number in self.compared.items())
        return sum(self.weights[key] * number for key, number in self.right.items()) / weight if weight else None


def attribute_totals(images: Iterable[Details], mode: Mode = "category") -> AttributeTotals:
    """Return the attributes compared on the pairs of a mode."""
    counted = AttributeTotals()
    for details in images:
        for reference, prediction, _ in details["pairs"][mode]:
            for hit in attribute_hits(details["truth"][reference]["desc"], details["predictions"][prediction]["desc"]):
                counted.weights[hit.key] = hit.weight
                counted.compared[hit.key] += 1
                counted.right[hit.key] += hit.right
    return counted
