"""Which prediction stands for which true object: one to one, best pairs first.

Pairs are taken by IoU, highest first, then by place in truth, then by place in prediction; a pair counts if both its
objects are still free. This is the order of the original and of COCO's evaluator, and the pairs of a stricter IoU
threshold are simply those of a milder one that reach it. An optimal assignment would now and then find one pair more in
heaps of objects of one kind, at the price of giving up both. Places are those of a fixed order (geometry, then
description), so the order in which a model lists its objects changes no number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

from evalharness.tasks.dense.geometry import Pair, overlaps
from evalharness.tasks.dense.objects import DenseObject, family_of

__all__ = ["MODES", "PRIMARY_THRESHOLD", "THRESHOLDS", "Mode", "match", "match_greedily"]

Mode: TypeAlias = Literal["localization", "phase", "category"]
MODES: tuple[Mode, ...] = get_args(Mode)
PRIMARY_THRESHOLD = 0.5
THRESHOLDS: tuple[float, ...] = tuple(percent / 100 for percent in range(50, 100, 5))

# What must agree, besides the geometry, for a pair to count.
_LABELS: Mapping[Mode, Callable[[DenseObject], str]] = {
    "localization": lambda one: "",
    "phase": lambda one: family_of(one.category),
    "category": lambda one: one.category,
}


def match_greedily(pairs: Iterable[Pair]) -> list[Pair]:
    """Return the pairs that count, in the order in which they are taken."""
    taken: list[Pair] = []
    used_truth: set[int] = set()
    used_predictions: set[int] = set()
    for pair in sorted(pairs, key=lambda pair: (-pair.iou, pair.truth, pair.prediction)):
        if pair.truth not in used_truth and pair.prediction not in used_predictions:
            used_truth.add(pair.truth)
            used_predictions.add(pair.prediction)
            taken.append(pair)
    return taken


def match(truth: Sequence[DenseObject], predictions: Sequence[DenseObject]) -> dict[Mode, list[Pair]]:
    """Return the pairs of each mode with an IoU of at least 0.5, by places in the given sequences."""
    true_order, said_order = _fixed_order(truth), _fixed_order(predictions)
    trues, saids = [truth[place] for place in true_order], [predictions[place] for place in said_order]
    found = overlaps(trues, saids, PRIMARY_THRESHOLD)
    matched: dict[Mode, list[Pair]] = {}
    for mode, label in _LABELS.items():
        true_labels, said_labels = list(map(label, trues)), list(map(label, saids))
        pairs = match_greedily(pair for pair in found if true_labels[pair.truth] == said_labels[pair.prediction])
        matched[mode] = [Pair(true_order[pair.truth], said_order[pair.prediction], pair.iou) for pair in pairs]
    return matched


def _fixed_order(objects: Sequence[DenseObject]) -> list[int]:
    return sorted(range(len(objects)), key=lambda place: (objects[place].type, objects[place].points, objects[place].desc, place))
