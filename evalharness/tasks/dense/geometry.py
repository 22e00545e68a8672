"""How far two objects cover each other, 0 to 1, on the 0..1000 grid, computed exactly on their outlines.

    bbox_2d, poly   the area inside; a polygon that crosses itself is cut into valid parts first (shapely's make_valid)
    line            the tube of all points within `LINE_TOLERANCE` of the line, ends rounded
    line and region never overlap: a cable is not found by a box around it

What crosses itself and has more than `MAX_TANGLED_POINTS` points is scribble, as a model writes that does not end: it matches
nothing. Valid parts of it would be right, too, but take minutes to find.

The system from which this grew counted pixels of a 1000 × 1000 raster, edges included, and drew lines as strokes of
round(2 · 8) pixels without round ends. So two half-overlapping boxes of 100 are 0.333 here and were 0.338 there, a line
drawn backwards is 1.0 and was 0.998, and a tube is not cut off at the picture's edge. On 300 drawn pairs of each kind, 50
to 300 large, the two differed by at most 0.011 for boxes and polygons and 0.04 for lines (0.009 on average).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from evalharness.tasks.dense.objects import DenseObject, family_of

if TYPE_CHECKING:
    import numpy as np

__all__ = ["LINE_TOLERANCE", "MODES", "PRIMARY_THRESHOLD", "THRESHOLDS", "Mode", "Pair", "iou", "match", "match_greedily", "overlaps"]

LINE_TOLERANCE = 8
"""Radius of a line's tube, on the grid."""
ARC_SEGMENTS = 8
"""Corners of a quarter circle at the tube's ends: the polygon's area is within 0.7 % of the round one's."""
MAX_TANGLED_POINTS = 32
DECIMALS = 12
"""Of an IoU; the last bits depend on the order in which corners are visited."""


class Pair(NamedTuple):
    """One pair that covers each other: places in truth and prediction, and how far, 0–1."""

    truth: int
    prediction: int
    iou: float


def iou(one: DenseObject, other: DenseObject) -> float:
    """Return intersection over union of two objects, 0–1; 0 where either encloses nothing."""
    found = overlaps([one], [other])
    return found[0].iou if found else 0.0


def overlaps(truth: Sequence[DenseObject], predictions: Sequence[DenseObject], minimum: float = 0.0) -> list[Pair]:
    """Return every pair whose IoU is above 0 and at least `minimum`, by place in truth, then in prediction."""
    if not truth or not predictions:
        return []
    import numpy as np

    true_boxes, said_boxes = _envelopes(truth), _envelopes(predictions)
    shared = _shared_area(true_boxes, said_boxes)
    same_kind = np.equal.outer([one.type == "line" for one in truth], [one.type == "line" for one in predictions])
    rows, columns = np.nonzero((shared > 0) & same_kind)
    if not len(rows):
        return []
    values = _ious(truth, predictions, rows, columns, shared[rows, columns], minimum)
    return [
        Pair(row, column, value)
        for row, column, value in zip(rows.tolist(), columns.tolist(), values.tolist(), strict=True)
        if value > 0 and value >= minimum
    ]


def _envelopes(objects: Sequence[DenseObject]) -> np.ndarray[Any, Any]:
    """Return x1, y1, x2, y2 of each object, float64 (n, 4); inverted boxes stay inverted and so enclose nothing."""
    import numpy as np

    return np.array([_envelope(one) for one in objects], dtype=np.float64)


def _envelope(one: DenseObject) -> tuple[float, float, float, float]:
    points = one.points
    if one.type == "bbox_2d":
        # The flag stems from before rounding, which can make an inverted box look flat.
        return (0, 0, 0, 0) if one.inverted else (points[0], points[1], points[2], points[3])
    xs, ys = points[::2], points[1::2]
    margin = LINE_TOLERANCE if one.type == "line" else 0
    return min(xs) - margin, min(ys) - margin, max(xs) + margin, max(ys) + margin


def _shared_area(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the area that each pair of envelopes shares, (n, m)."""
    import numpy as np

    low = np.maximum(ours[:, None, :2], theirs[None, :, :2])
    high = np.minimum(ours[:, None, 2:], theirs[None, :, 2:])
    return np.prod(np.clip(high - low, 0, None), axis=2)


def _ious(
    truth: Sequence[DenseObject],
    predictions: Sequence[DenseObject],
    rows: np.ndarray[Any, Any],
    columns: np.ndarray[Any, Any],
    shared: np.ndarray[Any, Any],
    minimum: float,
) -> np.ndarray[Any, Any]:
    """Return the IoU of each pair (rows[k], columns[k]); 0 where it surely is below `minimum`. `shared` is that of the envelopes."""
    import numpy as np
    import shapely

    true_shapes, said_shapes = _shapes(truth), _shapes(predictions)
    true_areas, said_areas = shapely.area(true_shapes)[rows], shapely.area(said_shapes)[columns]
    inner = shared.copy()
    boxes = np.logical_and(_are_boxes(truth)[rows], _are_boxes(predictions)[columns])
    # No intersection is larger than that of the envelopes, and IoU ≤ intersection / larger area. The margin is for rounding.
    hopeful = shared >= (minimum - 1e-9) * np.maximum(true_areas, said_areas)
    exact = hopeful & ~boxes
    inner[exact] = shapely.area(shapely.intersection(true_shapes[rows[exact]], said_shapes[columns[exact]]))
    inner[~hopeful] = 0.0
    union = true_areas + said_areas - inner
    return np.round(np.divide(inner, union, out=np.zeros_like(inner), where=union > 0), DECIMALS)


def _are_boxes(objects: Sequence[DenseObject]) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.array([one.type == "bbox_2d" for one in objects])


def _shapes(objects: Sequence[DenseObject]) -> np.ndarray[Any, Any]:
    """Return the area of each object as a valid shapely geometry, (n,) of object."""
    import numpy as np
    import shapely

    shapes: np.ndarray[Any, Any] = np.empty(len(objects), dtype=object)
    for kind, make in (("bbox_2d", _boxes), ("poly", _polygons), ("line", _tubes)):
        places = [place for place, one in enumerate(objects) if one.type == kind]
        if places:
            shapes[places] = make([objects[place] for place in places])
    invalid = ~shapely.is_valid(shapes)
    if invalid.any():
        shapes[invalid] = shapely.make_valid(_without_scribble(shapes[invalid], np.ones(int(invalid.sum()), dtype=bool)))
    return shapes


def _without_scribble(shapes: np.ndarray[Any, Any], crossing: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the shapes, empty ones for those that cross themselves and have too many points."""
    import shapely

    shapes[crossing & (shapely.get_num_coordinates(shapes) > MAX_TANGLED_POINTS)] = shapely.Polygon()
    return shapes


def _boxes(objects: Sequence[DenseObject]) -> Any:
    import shapely

    return shapely.box(*_envelopes(objects).T)


def _polygons(objects: Sequence[DenseObject]) -> Any:
    import shapely

    corners, of = _corners([one.points for one in objects])
    return shapely.polygons(shapely.linearrings(corners, indices=of))


def _tubes(objects: Sequence[DenseObject]) -> Any:
    import shapely

    corners, of = _corners([_one_way(one.points) for one in objects])
    paths = shapely.linestrings(corners, indices=of)
    return shapely.buffer(_without_scribble(paths, ~shapely.is_simple(paths)), LINE_TOLERANCE, quad_segs=ARC_SEGMENTS)


def _one_way(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return the points of a line in the direction that both ways of drawing it share, so that both have the very same tube."""
    backwards = tuple(value for pair in zip(points[-2::-2], points[::-2], strict=True) for value in pair)
    return min(points, backwards)


def _corners(lines: Sequence[Sequence[int]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return all points, float64 (n, 2), and the place of the line that each belongs to, (n,)."""
    import numpy as np

    flat = np.fromiter((value for line in lines for value in line), dtype=np.float64).reshape(-1, 2)
    return flat, np.repeat(np.arange(len(lines)), [len(line) // 2 for line in lines])


# Which prediction stands for which true object: one to one, best pairs first

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
