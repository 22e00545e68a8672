"""IoU and matching. Run: pytest tests/tasks/dense/test_geometry.py"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image, ImageDraw
from scipy.optimize import linear_sum_assignment

from evalharness.backends.torchvision_cpu import register_missing_operators
from evalharness.tasks.dense.geometry import Pair, iou, match, match_greedily, overlaps
from evalharness.tasks.dense.objects import LINE_TOLERANCE, MODES, THRESHOLDS, DenseObject
from tests.tasks.dense_examples import LABEL, SCREW, box, boxes, crowded, line, lines, objects, poly, polygons

SCALE = 2  # raster pixels per step of the grid, for the second opinion


def raster(one: DenseObject) -> np.ndarray:
    """Return the pixels of an object, drawn by Pillow, which fills polygons even-odd, too."""
    margin = 20
    image = Image.new("1", ((1000 + 2 * margin) * SCALE, (1000 + 2 * margin) * SCALE))
    points = [((x + margin) * SCALE, (y + margin) * SCALE) for x, y in zip(one.points[::2], one.points[1::2], strict=True)]
    pen = ImageDraw.Draw(image)
    if one.type == "bbox_2d":
        if not one.inverted:
            pen.rectangle(points, fill=1)
    elif one.type == "poly":
        pen.polygon(points, fill=1)
    else:
        radius = LINE_TOLERANCE * SCALE
        pen.line(points, fill=1, width=2 * radius)
        for x, y in points:
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=1)
    return np.asarray(image)


def test_shapes_of_known_overlap() -> None:
    assert iou(box(0, 0, 100, 100), box(50, 0, 150, 100)) == pytest.approx(1 / 3, abs=1e-9)
    assert iou(box(10, 20, 300, 400), poly(300, 400, 10, 400, 10, 20, 300, 20)) == 1.0
    assert iou(line(100, 100, 300, 500, 20, 40), line(20, 40, 300, 500, 100, 100)) == 1.0  # drawn backwards
    assert iou(poly(0, 0, 100, 100, 100, 0, 0, 100), box(0, 0, 100, 100)) == 0.5  # it crosses itself and is filled even-odd
    assert iou(line(50, 50, 50, 50), line(50, 50, 50, 50)) == 1.0  # a disc
    assert 0 < iou(line(50, 50, 50, 50), line(54, 50, 54, 50)) < 1


def test_a_line_never_matches_a_region() -> None:
    assert iou(line(0, 50, 100, 50), box(0, 42, 100, 58)) == 0.0
    assert iou(line(0, 50, 100, 50), poly(0, 42, 100, 42, 100, 58, 0, 58)) == 0.0


def test_a_tube_has_the_area_of_all_points_near_its_line() -> None:
    # Side by side at a distance of one radius: two circles' and two strips' common part, by hand.
    length, r = 500, LINE_TOLERANCE
    common = length * r + 2 * r * r * math.acos(0.5) - r * r * math.sin(2 * math.acos(0.5))
    whole = length * 2 * r + math.pi * r * r
    assert iou(line(100, 100, 600, 100), line(100, 100 + r, 600, 100 + r)) == pytest.approx(common / (2 * whole - common), abs=2e-3)


@pytest.mark.parametrize(
    "one",
    [box(5, 5, 5, 5), box(5, 5, 90, 5), poly(5, 5, 10, 10, 20, 20), poly(7, 7, 7, 7, 7, 7), box(90, 5, 5, 90), box(90, 90, 5, 5)],
    ids=["point", "flat", "flat polygon", "one point", "inverted in x", "inverted in both"],
)
def test_an_object_without_area_matches_nothing(one: DenseObject) -> None:
    assert iou(one, one) == 0.0
    assert iou(one, box(0, 0, 100, 100)) == 0.0


@pytest.mark.parametrize("kind", ["poly", "line"])
@pytest.mark.timeout(60)  # worked out, its thousands of crossings would take longer
def test_a_scribble_of_a_thousand_points_matches_nothing_and_costs_no_time(kind: Any) -> None:
    random = Random(1)
    scribble = DenseObject(kind, tuple(random.randint(0, 1000) for _ in range(2000)), "")
    assert iou(scribble, scribble) == 0.0


@pytest.mark.parametrize("kind", ["poly", "line"])
def test_an_outline_of_a_thousand_points_that_does_not_cross_itself_is_measured(kind: Any) -> None:
    turns = [2 * math.pi * place / 1000 for place in range(1000)]
    circle = DenseObject(
        kind, tuple(round(value) for turn in turns for value in (500 + 450 * math.cos(turn), 500 + 450 * math.sin(turn))), ""
    )
    assert iou(circle, circle) == pytest.approx(1.0)


@pytest.mark.engine
@given(st.lists(boxes(), min_size=1, max_size=6), st.lists(boxes(), min_size=1, max_size=6))
def test_boxes_agree_with_torchvision(truth: list[DenseObject], predictions: list[DenseObject]) -> None:
    register_missing_operators()
    import torch
    from torchvision.ops import box_iou

    expected = box_iou(*(torch.tensor([one.points for one in side], dtype=torch.float64) for side in (truth, predictions))).nan_to_num()
    found = np.zeros((len(truth), len(predictions)))
    for pair in overlaps(truth, predictions):
        found[pair.truth, pair.prediction] = pair.iou
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-11)


@given(st.one_of(st.tuples(polygons(), polygons()), st.tuples(polygons(), boxes()), st.tuples(lines(), lines())))
def test_polygons_and_tubes_agree_with_a_raster(pair: tuple[DenseObject, DenseObject]) -> None:
    masks = [raster(one) for one in pair]
    union = int((masks[0] | masks[1]).sum())
    # The raster counts the pixels of an outline in full, so it is only as exact as outlines are short against areas.
    outline = sum(_length(one) for one in pair) * SCALE * 3
    found = iou(*pair)
    assert found == pytest.approx((masks[0] & masks[1]).sum() / union, abs=outline / union)


def _length(one: DenseObject) -> float:
    points = list(zip(one.points[::2], one.points[1::2], strict=True))
    return sum(math.dist(a, b) for a, b in zip(points, [*points[1:], points[0]], strict=True)) + 1


@given(objects(), objects())
def test_an_iou_is_symmetric_and_between_0_and_1(one: DenseObject, other: DenseObject) -> None:
    found = iou(one, other)
    assert 0 <= found <= 1
    assert iou(other, one) == pytest.approx(found, abs=1e-9)


@given(st.lists(objects(), max_size=5), st.lists(objects(), max_size=5), st.floats(0.05, 1))
def test_the_minimum_leaves_out_nothing_that_reaches_it(truth: list[DenseObject], predictions: list[DenseObject], minimum: float) -> None:
    wanted = [pair for pair in overlaps(truth, predictions) if pair.iou >= minimum]
    assert overlaps(truth, predictions, minimum) == wanted


@given(polygons(), st.integers(0, 5))
def test_where_a_polygon_starts_changes_nothing(one: DenseObject, shift: int) -> None:
    turned = poly(*one.points[2 * shift :], *one.points[: 2 * shift])
    if iou(one, one):
        assert iou(one, turned) == pytest.approx(1.0, abs=1e-9)


crowds = st.lists(crowded(), max_size=6)


def places(pairs: list[Pair]) -> list[tuple[int, int]]:
    return [(pair.truth, pair.prediction) for pair in pairs]


def naive(truth: list[DenseObject], predictions: list[DenseObject], threshold: float) -> list[float]:
    """Return the IoUs of the best pairs, taken out of the whole matrix one by one."""
    matrix = {(i, j): iou(a, b) for i, a in enumerate(truth) for j, b in enumerate(predictions)}
    found = []
    while matrix:
        best = max(matrix, key=lambda place: (matrix[place], -_rank(truth, place[0]), -_rank(predictions, place[1])))
        if matrix[best] < threshold:
            break
        found.append(matrix[best])
        matrix = {place: value for place, value in matrix.items() if place[0] != best[0] and place[1] != best[1]}
    return found


def _rank(objects: list[DenseObject], place: int) -> int:
    return sorted(range(len(objects)), key=lambda i: (objects[i].points, objects[i].desc, i)).index(place)


def test_equal_pairs_are_taken_in_order() -> None:
    pairs = [Pair(1, 1, 0.8), Pair(1, 0, 0.8), Pair(0, 1, 0.8), Pair(0, 0, 0.8)]
    assert places(match_greedily(pairs)) == [(0, 0), (1, 1)]
    same = [box(0, 0, 10, 10), box(0, 0, 10, 10)]
    assert places(match(same, same)["localization"]) == [(0, 0), (1, 1)]


def test_each_mode_asks_for_more() -> None:
    truth = [box(0, 0, 10, 10, desc="类别=地排处接地螺丝"), box(50, 50, 60, 60, desc=LABEL), box(90, 90, 99, 99, desc=SCREW)]
    said = [box(0, 0, 10, 10, desc="类别=机柜处接地螺丝"), box(50, 50, 60, 60, desc=SCREW), box(90, 90, 99, 99, desc=SCREW)]
    assert {mode: sorted(places(pairs)) for mode, pairs in match(truth, said).items()} == {
        "localization": [(0, 0), (1, 1), (2, 2)],
        "phase": [(0, 0), (2, 2)],  # another screw is the right kind of thing
        "category": [(2, 2)],
    }


@given(crowds, crowds)
def test_localization_agrees_with_a_naive_search(truth: list[DenseObject], predictions: list[DenseObject]) -> None:
    assert [pair.iou for pair in match(truth, predictions)["localization"]] == naive(truth, predictions, 0.5)


@given(crowds, crowds)
def test_every_object_is_used_once_and_an_optimal_assignment_finds_hardly_more(
    truth: list[DenseObject], predictions: list[DenseObject]
) -> None:
    found = match(truth, predictions)["localization"]
    assert len({pair.truth for pair in found}) == len({pair.prediction for pair in found}) == len(found)
    allowed = np.zeros((len(truth), len(predictions)))
    for pair in overlaps(truth, predictions, 0.5):
        allowed[pair.truth, pair.prediction] = 1
    best = allowed[linear_sum_assignment(allowed, maximize=True)].sum() if allowed.size else 0
    assert best / 2 <= len(found) <= best


@given(crowds, crowds, st.sampled_from(THRESHOLDS))
def test_the_pairs_of_a_stricter_threshold_are_those_that_reach_it(
    truth: list[DenseObject], predictions: list[DenseObject], threshold: float
) -> None:
    reached = [pair.iou for pair in match(truth, predictions)["localization"] if pair.iou >= threshold]
    assert reached == naive(truth, predictions, threshold)


@given(crowds, crowds)
def test_a_mode_never_finds_more_than_a_milder_one_could(truth: list[DenseObject], predictions: list[DenseObject]) -> None:
    found = match(truth, predictions)
    for mode in MODES:
        assert all(pair.iou >= 0.5 for pair in found[mode])
    assert all(truth[pair.truth].category == predictions[pair.prediction].category for pair in found["category"])
