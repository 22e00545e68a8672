"""Scores of one dump, aggregates and tables of many. Run: pytest tests/tasks/dense/test_metrics.py"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.runs.schema import Row
from evalharness.tasks.dense.metrics import attribute_hits, judge_dump, judge_objects
from evalharness.tasks.dense.objects import DenseObject, attributes_of
from evalharness.tasks.dense.parse import parse_dump
from evalharness.tasks.dense.tables import aggregate, offline_report, tables
from evalharness.tasks.prompt_rows import Judgement
from tests.tasks.dense_examples import LABEL, SCREW, WIRE, box, crowded, dumped, line, objects, one_box

pictures = st.tuples(
    st.lists(st.one_of(objects(), crowded()), max_size=6), st.lists(st.one_of(objects(), crowded()), max_size=6, unique=True)
)


def row(judged: Judgement, name: str = "a", **tags: str) -> Row:
    return {"case_id": name, "tags": tags, "scores": dict(judged.scores), "details": dict(judged.details), "outcome": "pass"}


def everything_but_order(judged: Judgement) -> dict[str, Any]:
    """Return every number that is made of one judgement."""
    return {
        **judged.scores,
        **aggregate([row(judged)]),
        "tables": tables([row(judged, mission="m")]),
        "ious": {mode: sorted(pair[2] for pair in pairs) for mode, pairs in judged.details["pairs"].items()},
    }


def approximately(value: Any) -> Any:
    """Return nested plain data with its numbers rounded: GEOS may visit corners in another order."""
    if isinstance(value, dict):
        return {key: approximately(child) for key, child in value.items()}
    if isinstance(value, list):
        return [approximately(child) for child in value]
    return round(value, 9) if isinstance(value, float) else value


def test_a_near_repetition_and_a_wrong_class_cost_precision() -> None:
    truth = [box(0, 0, 100, 100, desc=LABEL), box(500, 500, 600, 600, desc=SCREW)]
    said = [box(0, 0, 100, 100, desc=LABEL), box(0, 0, 100, 101, desc=LABEL), box(500, 500, 600, 600, desc=WIRE)]
    found = aggregate([row(judge_objects(said, truth))])
    assert found["loc_micro_precision"] == pytest.approx(2 / 3)
    assert found["loc_micro_recall"] == 1.0
    assert found["category_micro_precision"] == pytest.approx(1 / 3)
    assert found["category_micro_recall"] == 0.5


def test_an_image_without_any_objects_is_in_no_number() -> None:
    empty, hit = judge_objects([], []), judge_objects([box(0, 0, 9, 9)], [box(0, 0, 9, 9)])
    assert not {"loc_f1", "category_f1", "equal"} & set(empty.scores)
    assert aggregate([row(empty), row(hit, "b")]) == aggregate([row(hit, "b")])
    assert aggregate([row(empty)]) == {}


def test_a_prediction_where_nothing_is_counts_as_too_many() -> None:
    judged = judge_objects([box(0, 0, 9, 9)], [])
    assert (judged.scores["num_surplus"], judged.scores["num_lacking"], judged.scores["equal"], judged.scores["loc_f1"]) == (1, 0, 0.0, 0.0)
    diagnostics = offline_report([row(judged)], "")["count_diagnostics"]
    assert (diagnostics["over_rate"], diagnostics["under_rate"], diagnostics["equal_rate"], diagnostics["mae"]) == (1.0, 0.0, 0.0, 1.0)
    assert aggregate([row(judged)])["loc_micro_precision"] == 0.0


def test_repetitions_are_in_the_scores_and_in_the_report() -> None:
    dump = parse_dump(dumped(**{f"object_{number}": one_box(1, 2, 30, 40) for number in (1, 2, 3)}), "bbu")
    judged = judge_dump(dump, [box(1, 2, 30, 40)])
    assert (judged.scores["num_duplicates"], judged.scores["num_predicted"], judged.scores["loc_f1"]) == (2, 1, 1.0)
    assert aggregate([row(judged)])["duplicate_rate"] == pytest.approx(2 / 3)
    lines = {entry["what"]: entry["value"] for entry in tables([row(judged)])["Counts and form"]}
    assert lines["repeated objects, left out"] == 2


def test_counts_of_dropped_inverted_and_moved_objects_are_scores() -> None:
    text = dumped(object_1=one_box(9, 9, 1, 1), object_2=one_box(1, 1, 9, 2000), object_3=one_box(1, 1))
    scores = judge_dump(parse_dump(text, "bbu"), []).scores
    assert (scores["num_inverted"], scores["num_out_of_range"], scores["num_dropped"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", (0, 0)), (dumped(object_1=one_box(1, 2, 3, 4)), (1, 1)), (dumped(object_1=one_box("1", 2, 3, 4)), (0, 1))],
    ids=["empty", "strict", "tolerant"],
)
def test_strict_and_tolerant_reading_are_scores_of_their_own(text: str, expected: tuple[float, float]) -> None:
    scores = judge_dump(parse_dump(text, "bbu"), []).scores
    assert (scores["valid"], scores["tolerant_valid"]) == expected


def test_attributes_are_weighted_and_compared_on_objects_of_the_right_category() -> None:
    truth = [
        box(0, 0, 50, 50, desc=SCREW),
        box(100, 0, 150, 50, desc="类别=站点距离,站点距离=7"),
        box(200, 0, 250, 50, desc="类别=标签,文本=ＡＢ-1,组=1"),
        box(300, 0, 350, 50, desc=SCREW),
    ]
    said = [
        box(0, 0, 50, 50, desc=SCREW.replace("完整", "部分")),
        box(100, 0, 150, 50, desc="类别=站点距离,站点距离=8"),
        box(200, 0, 250, 50, desc="类别=标签,文本=ab-1,组=1"),
        box(300, 0, 350, 50, desc=LABEL),  # another category: its attributes are not compared
    ]
    scores = judge_objects(said, truth).scores
    # Right: 符合性 (1) and 组 (1); wrong: 可见性 (0.1) and 站点距离 (4).
    assert scores["attribute_recall"] == pytest.approx(2 / 6.1)
    assert (scores["text_accuracy"], scores["distance_accuracy"]) == (1.0, 0.0)
    assert "notes_accuracy" not in scores


def test_a_comma_inside_a_value_does_not_cut_it() -> None:
    assert dict(attributes_of("类别=标签,文本=A,B=1,备注=脏,旧")) == {"类别": "标签", "文本": "A", "B": "1", "备注": "脏,旧"}
    assert [hit.right for hit in attribute_hits("类别=标签,备注=脏,旧", "类别=标签,备注=脏,旧")] == [True]


def test_a_lost_category_shows_in_the_lowest_f1_only() -> None:
    truth = [box(place * 20, 0, place * 20 + 10, 10, desc=f"类别={'甲' if place < 40 else '乙'}") for place in range(50)]
    found = aggregate([row(judge_objects(truth[:40], truth))])
    assert found["loc_micro_f1"] > 0.85
    assert (found["category_min_f1"], found["category_macro_f1"]) == (0.0, 0.5)


def test_a_category_of_two_domains_is_two_categories() -> None:
    label, found = box(0, 0, 10, 10), judge_objects([box(0, 0, 10, 10)], [box(0, 0, 10, 10)])
    rows = [{**row(found), "tags": {"domain": "bbu"}}, {**row(judge_objects([], [label])), "tags": {"domain": "rru"}}]
    lines = [(line["domain"], line["category"], line["F1"]) for line in tables(rows)["Objects by category"]]
    assert lines == [("bbu", "标签", 1.0), ("rru", "标签", 0.0)]
    assert aggregate(rows)["category_min_f1"] == 0.0


def test_runs_can_be_compared_category_by_category() -> None:
    judged = judge_objects([box(0, 0, 9, 9), box(20, 20, 30, 30, desc=SCREW)], [box(0, 0, 9, 9), box(50, 50, 60, 60)])
    assert judged.details["categories"] == {"BBU安装螺丝": [0, 1, 0], "标签": [1, 1, 2]}


def test_counts_of_older_rows_are_read_under_their_old_names() -> None:
    new = row(judge_objects([box(0, 0, 9, 9)], [box(0, 0, 9, 9), box(50, 50, 60, 60)]))
    names = {"num_predicted": "num_said", "num_reference": "num_true"}
    old: Row = {**new, "scores": {names.get(name, name): value for name, value in new["scores"].items()}}
    assert offline_report([old], "")["count_diagnostics"] == offline_report([new], "")["count_diagnostics"]
    assert (aggregate([old]), tables([old])) == (aggregate([new]), tables([new]))


def test_micro_counts_objects_the_mean_score_pictures_and_mean_f1_all_thresholds() -> None:
    full = [box(place * 20, 0, place * 20 + 10, 10) for place in range(9)]
    judged = [judge_objects(full, full), judge_objects([], [box(0, 0, 9, 9)])]
    assert aggregate([row(one) for one in judged])["loc_micro_recall"] == 0.9
    assert sum(one.scores["loc_f1"] for one in judged) / 2 == 0.5
    found = aggregate([row(judge_objects([box(0, 0, 100, 72)], [box(0, 0, 100, 100)]))])
    assert (found["loc_micro_f1"], found["loc_mean_f1"]) == (1.0, 0.5)  # 0.72 reaches five of ten thresholds


def test_tables_say_it_per_mission_domain_type_and_category() -> None:
    judged = judge_objects([box(0, 0, 9, 9), line(0, 0, 90, 90)], [box(0, 0, 9, 9), box(50, 50, 99, 99, desc=SCREW)])
    found = tables([row(judged, mission="挡风板安装检查", domain="bbu")])
    mission = found["Objects by mission"][0]
    assert (mission["mission"], mission["reference"], mission["localization F1"]) == ("挡风板安装检查", 2, 0.5)
    assert [entry["domain"] for entry in found["Objects by domain"]] == ["bbu"]
    kinds = {entry["type"]: (entry["reference"], entry["predicted"], entry["F1"]) for entry in found["Objects by type, localization"]}
    assert kinds == {"bbox_2d": (2, 1, pytest.approx(2 / 3)), "line": (0, 1, 0.0)}
    categories = {entry["category"]: entry["F1"] for entry in found["Objects by category"]}
    assert categories == {"标签": 1.0, "BBU安装螺丝": 0.0, "电线": 0.0}
    assert [entry["IoU"] for entry in found["F1 by IoU threshold"]][::9] == ["0.50", "0.95"]


def test_a_box_matched_by_a_polygon_counts_for_both_types() -> None:
    as_polygon = DenseObject("poly", (0, 0, 10, 0, 10, 10, 0, 10), LABEL)
    found = {entry["type"]: entry for entry in tables([row(judge_objects([as_polygon], [box(0, 0, 10, 10)]))])["Objects by type, category"]}
    assert (found["bbox_2d"]["recall"], found["poly"]["precision"]) == (1.0, 1.0)


@given(pictures, st.randoms(use_true_random=False))
def test_the_order_of_objects_changes_no_number_and_ratios_stay_between_0_and_1(
    picture: tuple[list[Any], list[Any]], random: Random
) -> None:
    truth, said = picture
    shuffled = [random.sample(side, len(side)) for side in picture]
    before, after = judge_objects(said, truth), judge_objects(shuffled[1], shuffled[0])
    assert approximately(everything_but_order(after)) == approximately(everything_but_order(before))
    assert all(0 <= value <= 1 for value in aggregate([row(before)]).values())


@given(pictures)
def test_a_wrong_object_never_raises_precision(picture: tuple[list[Any], list[Any]]) -> None:
    truth, said = picture
    wrong = box(0, 0, 1000, 1000, desc="类别=不存在")  # in no truth, so wrong in two of the modes
    before, after = (aggregate([row(judge_objects(found, truth))]) for found in (said, [*said, wrong]))
    for mode in ("phase", "category"):
        assert after[f"{mode}_micro_precision"] <= before.get(f"{mode}_micro_precision", 0.0) + 1e-12
        if truth:
            assert after[f"{mode}_micro_recall"] == before[f"{mode}_micro_recall"]
    far = [one for one in truth if one.points[0] > 10 or one.points[1] > 10]
    missing = aggregate([row(judge_objects([*said, box(0, 0, 0, 0)], far))])
    assert missing["loc_micro_precision"] <= aggregate([row(judge_objects(said, far))]).get("loc_micro_precision", 0.0) + 1e-12


@given(st.lists(pictures, min_size=1, max_size=3))
def test_a_perfect_answer_scores_one_wherever_objects_enclose_something(drawn: list[tuple[list[Any], list[Any]]]) -> None:
    truths = [[one for one in said if one.type == "bbox_2d" and _has_area(one)] for _, said in drawn]
    found = aggregate([row(judge_objects(truth, truth)) for truth in truths])
    assert all(found[f"{mode}_micro_f1"] == 1.0 for mode in ("loc", "phase", "category") if any(truths))


def _has_area(one: DenseObject) -> bool:
    left, top, right, bottom = one.points
    return left < right and top < bottom


@pytest.mark.parametrize(
    ("truth", "said", "right"),
    [
        ("dog", "dog", True),
        ("dog", "cat", False),
        ("dog", "", False),
        ("", "dog", False),
        ("", "", True),
        ("dog", "类别=dog", True),
        ("dog, brown", "dog, white", False),
        ("dog,colour=brown", "dog,colour=white", True),
        ("colour=brown", "colour=white", False),
        ("colour=brown", "colour=brown", True),
        ("类别=,文本=a", "类别=,文本=b", False),
    ],
)
def test_objects_without_the_key_of_a_category_are_not_all_of_one(truth: str, said: str, right: bool) -> None:
    judged = judge_objects([box(0, 0, 50, 50, desc=said)], [box(0, 0, 50, 50, desc=truth)])
    assert [judged.scores[f"{mode}_f1"] for mode in ("loc", "phase", "category")] == [1.0, float(right), float(right)]
    assert aggregate([row(judged)])["category_micro_f1"] == float(right)


def test_the_bare_category_is_no_attribute_and_one_with_its_key_counts_more() -> None:
    assert dict(attributes_of("dog, brown ,size=big,small")) == {"size": "big,small", "类别": "dog, brown"}
    assert attributes_of("dog,类别=标签")["类别"] == "标签"
    assert [hit.key for hit in attribute_hits("dog,size=big", "dog,size=big")] == ["size"]


@pytest.mark.parametrize(("said", "right"), [("7", True), ("007", True), ("70", False), ("", False)])
def test_a_distance_is_a_number(said: str, right: bool) -> None:
    [hit] = attribute_hits("类别=站点距离,站点距离=07", f"类别=站点距离,站点距离={said}")
    assert hit.right is right


def test_an_attribute_that_the_reference_does_not_have_lowers_the_accuracy_of_descriptions() -> None:
    truth = [box(0, 0, 50, 50, desc="类别=电线,捆扎=整齐")]
    scores = [
        judge_objects([box(0, 0, 50, 50, desc=f"类别=电线{more}")], truth).scores for more in (",捆扎=整齐", ",捆扎=整齐,备注=断", "")
    ]
    assert [score["desc_accuracy"] for score in scores] == [1.0, 0.0, 0.0]
    assert [score["attribute_recall"] for score in scores] == [1.0, 1.0, 0.0]


def test_the_original_compares_attributes_of_all_objects_in_the_right_place() -> None:
    truth = [box(0, 0, 50, 50, desc="类别=电线,捆扎=整齐"), box(90, 90, 150, 150, desc="类别=电线,捆扎=整齐")]
    said = [box(0, 0, 50, 50, desc="类别=电线,捆扎=整齐"), box(90, 90, 150, 150, desc="类别=光纤")]
    found = aggregate([row(judge_objects(said, truth))])
    assert (found["attribute_micro_recall"], found["attribute_micro_recall_original"]) == (1.0, 0.5)


def test_an_answer_that_cannot_be_read_is_not_right_about_an_empty_photo() -> None:
    scores = [
        judge_dump(parse_dump(text, "bbu"), []).scores.get("loc_f1")
        for text in ("", "oops", dumped(), dumped(object_1=one_box(1, 2, 30, 40)))
    ]
    assert scores == [0.0, 0.0, None, 0.0]
