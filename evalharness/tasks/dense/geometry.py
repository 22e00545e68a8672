"""IoU of two objects on the 0..1000 grid, computed exactly on their outlines, and the matching of predictions to references.

    bbox_2d, poly   the area inside; a polygon that crosses itself is cut into valid parts first (shapely's make_valid)
    line            the tube of all points within `LINE_TOLERANCE` of the line, ends rounded
    A line never overlaps a box or polygon: a cable is not matched by a box around it.

An outline that crosses itself and has more than `MAX_TANGLED_POINTS` points, as a model writes that does not stop, matches
nothing: valid parts of it would take minutes to find.

The original counted pixels of a 1000 × 1000 raster, edges included, and drew lines as strokes of round(2 · 8) pixels without
round ends. So two half-overlapping boxes of 100 are 0.333 here and were 0.338 there, a line drawn backwards is 1.0 and was
0.998, and a tube is not cut off at the image's edge. On 300 random pairs of each kind, 50 to 300 large, the two differed by at
most 0.011 for boxes and polygons and 0.04 for lines (0.009 on average).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import shapely

from evalharness.tasks.dense.objects import LINE_TOLERANCE, PRIMARY_THRESHOLD, DenseObject, Mode, family_of

Array = np.ndarray[Any, Any]

ARC_SEGMENTS = 8
"""Corners of a quarter circle at the tube's ends: the polygon's area is within 0.7 % of the round one's."""
MAX_TANGLED_POINTS = 32
DECIMALS = 12
"""Decimals of an IoU; the last bits depend on the order in which corners are visited."""


class Pair(NamedTuple):
    """One overlapping pair: places among references and predictions, and their IoU, 0–1."""

    truth: int
    prediction: int
    iou: float


def iou(first: DenseObject, second: DenseObject) -> float:
    """Return intersection over union of two objects, 0–1; 0 where either encloses nothing."""
    pairs = overlaps([first], [second])
    return pairs[0].iou if pairs else 0.0


def overlaps(truth: Sequence[DenseObject], predictions: Sequence[DenseObject], minimum: float = 0.0) -> list[Pair]:
    """Return every pair whose IoU is above 0 and at least `minimum`, by place in `truth`, then in `predictions`."""
    if not truth or not predictions:
        return []
    shared = _shared_area(_envelopes(truth), _envelopes(predictions))
    same_kind = np.equal.outer([item.type == "line" for item in truth], [item.type == "line" for item in predictions])
    rows, columns = np.nonzero((shared > 0) & same_kind)
    if not len(rows):
        return []
    values = _ious(truth, predictions, rows, columns, shared[rows, columns], minimum)
    return [
        Pair(row, column, value)
        for row, column, value in zip(rows.tolist(), columns.tolist(), values.tolist(), strict=True)
        if value > 0 and value >= minimum
    ]


def _envelopes(objects: Sequence[DenseObject]) -> Array:
    """Return x1, y1, x2, y2 of each object, float64 (n, 4); inverted boxes stay inverted and so enclose nothing."""
    return np.array([_envelope(item) for item in objects], dtype=np.float64)


def _envelope(item: DenseObject) -> tuple[float, float, float, float]:
    points = item.points
    if item.type == "bbox_2d":
        # The flag was set before rounding, which can make an inverted box look flat.
        return (0, 0, 0, 0) if item.inverted else (points[0], points[1], points[2], points[3])
    xs, ys = points[::2], points[1::2]
    margin = LINE_TOLERANCE if item.type == "line" else 0
    return min(xs) - margin, min(ys) - margin, max(xs) + margin, max(ys) + margin


def _shared_area(ours: Array, theirs: Array) -> Array:
    """Return the area that each pair of envelopes shares, (n, m)."""
    low = np.maximum(ours[:, None, :2], theirs[None, :, :2])
    high = np.minimum(ours[:, None, 2:], theirs[None, :, 2:])
    return np.prod(np.clip(high - low, 0, None), axis=2)


def _ious(
    truth: Sequence[DenseObject], predictions: Sequence[DenseObject], rows: Array, columns: Array, shared: Array, minimum: float
) -> Array:
    """Return the IoU of each pair (rows[k], columns[k]), (k,); 0 where it is surely below `minimum`. `shared`: area of the envelopes."""
    sides = ((truth, rows), (predictions, columns))
    shapes = [_shapes(objects)[places] for objects, places in sides]
    areas = [shapely.area(side) for side in shapes]
    boxes = np.logical_and(*(np.array([item.type == "bbox_2d" for item in objects])[places] for objects, places in sides))
    # No intersection is larger than that of the envelopes, and IoU ≤ intersection / larger area. The margin is for rounding.
    possible = shared >= (minimum - 1e-9) * np.maximum(*areas)
    exact = possible & ~boxes
    inner = np.where(possible, shared, 0.0)
    inner[exact] = shapely.area(shapely.intersection(shapes[0][exact], shapes[1][exact]))
    union = areas[0] + areas[1] - inner
    return np.round(np.divide(inner, union, out=np.zeros_like(inner), where=union > 0), DECIMALS)


def _shapes(objects: Sequence[DenseObject]) -> Array:
    """Return the area of each object as a valid shapely geometry, (n,) of object."""
    shapes: Array = np.empty(len(objects), dtype=object)
    for kind, make in (("bbox_2d", lambda boxes: shapely.box(*_envelopes(boxes).T)), ("poly", _polygons), ("line", _tubes)):
        places = [place for place, item in enumerate(objects) if item.type == kind]
        if places:
            shapes[places] = make([objects[place] for place in places])
    invalid = ~shapely.is_valid(shapes)
    if invalid.any():
        shapes[invalid] = shapely.make_valid(_without_scribble(shapes[invalid], np.ones(int(invalid.sum()), dtype=bool)))
    return shapes


def _without_scribble(shapes: Array, crossing: Array) -> Array:
    """Return the shapes, with an empty one for each that crosses itself and has too many points."""
    shapes[crossing & (shapely.get_num_coordinates(shapes) > MAX_TANGLED_POINTS)] = shapely.Polygon()
    return shapes


def _polygons(objects: Sequence[DenseObject]) -> Any:
    corners, indices = _corners([item.points for item in objects])
    return shapely.polygons(shapely.linearrings(corners, indices=indices))


def _tubes(objects: Sequence[DenseObject]) -> Any:
    corners, indices = _corners([_in_one_direction(item.points) for item in objects])
    paths = shapely.linestrings(corners, indices=indices)
    return shapely.buffer(_without_scribble(paths, ~shapely.is_simple(paths)), LINE_TOLERANCE, quad_segs=ARC_SEGMENTS)


def _in_one_direction(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return the points of a line in a direction that does not depend on how it was drawn, so that its tube does not either."""
    backwards = tuple(value for pair in zip(points[-2::-2], points[::-2], strict=True) for value in pair)
    return min(points, backwards)


def _corners(lines: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Return all points, float64 (n, 2), and the index of each point's line, (n,)."""
    flat = np.fromiter((value for line in lines for value in line), dtype=np.float64).reshape(-1, 2)
    return flat, np.repeat(np.arange(len(lines)), [len(line) // 2 for line in lines])


# What must agree, besides the geometry, for a pair to match.
_LABELS: Mapping[Mode, Callable[[DenseObject], str]] = {
    "localization": lambda item: "",
    "phase": lambda item: family_of(item.category),
    "category": lambda item: item.category,
}


def match_greedily(pairs: Iterable[Pair]) -> list[Pair]:
    """Return the matched pairs, one to one, best pairs first; ties go by place."""
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
    """Return the matched pairs of each mode with an IoU of at least 0.5, by places in `truth` and `predictions`."""
    orders = _fixed_order(truth), _fixed_order(predictions)
    references, predicted = [truth[place] for place in orders[0]], [predictions[place] for place in orders[1]]
    candidates = overlaps(references, predicted, PRIMARY_THRESHOLD)
    matched: dict[Mode, list[Pair]] = {}
    for mode, label in _LABELS.items():
        labels = list(map(label, references)), list(map(label, predicted))
        pairs = match_greedily(pair for pair in candidates if labels[0][pair.truth] == labels[1][pair.prediction])
        matched[mode] = [Pair(orders[0][pair.truth], orders[1][pair.prediction], pair.iou) for pair in pairs]
    return matched


def _fixed_order(objects: Sequence[DenseObject]) -> list[int]:
    return sorted(range(len(objects)), key=lambda place: (objects[place].type, objects[place].points, objects[place].desc, place))
