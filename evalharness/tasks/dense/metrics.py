"""How well the objects of one dump agree with the truth, and the plain record of it from which tables and reports are made.

Modes: `localization` asks for the right place only, `phase` for the right kind of thing as well, `category` for the right
category. F1 of a picture is at IoU 0.5; a picture with neither true nor predicted objects has none. Attributes are
compared on the pairs of the category mode. A score is better when higher, or a count (`num_…`), which is neither.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from evalharness.tasks.dense.dense_matching import MODES, Mode, match
from evalharness.tasks.dense.geometry import Pair
from evalharness.tasks.dense.objects import DenseObject, attributes_of
from evalharness.tasks.dense.parse import Dump
from evalharness.tasks.stage_a.schema import CATEGORY_KEY, DISTANCE, NOTES_KEY, TEXT_KEY

__all__ = [
    "ATTRIBUTE_WEIGHTS",
    "SHORT_NAMES",
    "AttributeHit",
    "Judgement",
    "attribute_hits",
    "f1",
    "judge_dump",
    "judge_objects",
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
