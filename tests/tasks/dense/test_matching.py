"""pytest tests/tasks/dense/test_dense_matching.py — the numbers are those of the behaviours in the task's description."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from evalharness.tasks.dense.geometry import MODES, THRESHOLDS, Pair, iou, match, match_greedily, overlaps
from evalharness.tasks.dense.objects import DenseObject
from tests.tasks.dense_examples import LABEL, SCREW, box, crowded

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


def test_the_best_pair_is_taken_first() -> None:
    assert places(match_greedily([Pair(0, 0, 0.6), Pair(0, 1, 0.9), Pair(1, 0, 0.7), Pair(1, 1, 0.95)])) == [(1, 1), (0, 0)]


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
