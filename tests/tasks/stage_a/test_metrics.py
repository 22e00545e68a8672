"""Scores of a photo, aggregates and tables of a run. Run: pytest tests/tasks/stage_a/test_metrics.py"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.analysis.statistics.overlap import MIN_SUPPORT, Overlap
from evalharness.tasks import stage_a
from evalharness.tasks.stage_a.metrics import (
    attribute_key_recall,
    attribute_path_recall,
    canonical_equal,
    category_f1,
    category_overlap,
    completeness,
    fact_f1,
    fact_overlap,
    notes_score,
    text_recall,
    tversky,
)
from evalharness.tasks.stage_a.parse import Summary, parse_summary, render_summary
from evalharness.tasks.stage_a.schema import DOMAINS, SCHEMA
from tests.tasks.stage_a_examples import CLAMP, FIBRE, RADIO, WIRE, bbu, line, rru, summaries

CUT = parse_summary('<DOMAIN=BBU>, <TASK=SUMMARY>\n{"统计": [', "bbu")
IRRELEVANT = parse_summary("无关图片", "bbu")


def said(data: dict[str, Any], domain: str = "bbu") -> Summary:
    return parse_summary(render_summary(data, domain), domain)


def texts(*names: str) -> Summary:
    return said(bbu({"类别": "标签", "文本": dict.fromkeys(names, 1)}))


def test_category_f1_counts_each_category_once() -> None:
    overlap = category_overlap(said(bbu(WIRE, WIRE, FIBRE)), said(bbu(WIRE, {"类别": "标签", "可读性": {"不可读": 1}})))
    assert (overlap.num_hit, overlap.num_predicted, overlap.num_reference) == (1, 2, 2)
    assert (overlap.precision(None), overlap.recall(None), overlap.f1(None)) == (0.5, 0.5, 0.5)


def test_fact_f1_weighs_by_count_and_takes_a_category_without_attributes_as_a_fact() -> None:
    five = {"类别": "电线", "捆扎": {"整齐": 5}}
    assert fact_overlap(said(bbu(five)), said(bbu(WIRE))) == Overlap(2, 5, 2)
    assert fact_f1(said(bbu(five)), said(bbu(WIRE))) == pytest.approx(4 / 7)
    assert fact_f1(said(rru(RADIO), "rru"), said(rru(RADIO, RADIO), "rru")) == pytest.approx(2 * 2 / 5)


@pytest.mark.parametrize("metric", [category_f1, fact_f1])
def test_a_dismissed_photo_scores_one_when_right_and_zero_when_wrong(metric: Any) -> None:
    assert (metric(IRRELEVANT, IRRELEVANT), metric(IRRELEVANT, said(bbu(WIRE))), metric(said(bbu(WIRE)), IRRELEVANT)) == (1, 0, 0)


def test_an_unreadable_summary_scores_zero_even_against_an_empty_reference() -> None:
    for reference in (said(bbu()), said(bbu(WIRE))):
        assert (category_f1(CUT, reference), fact_f1(CUT, reference), tversky(CUT, reference, "bbu")) == (0, 0, 0)
        assert not canonical_equal(CUT, reference)
    assert completeness(CUT, "bbu") == 0


@pytest.mark.parametrize(("domain", "alpha"), [("bbu", 0.3), ("rru", 0.6)])
def test_tversky_weighs_too_much_by_domain_and_missed_by_one(domain: Any, alpha: float) -> None:
    one, three = ({"类别": "标签", "文本": {"A": count}} for count in (1, 3))
    base = bbu if domain == "bbu" else rru
    hits = 1 if domain == "bbu" else 2  # the distance is a fact too
    assert tversky(said(base(three), domain), said(base(one), domain), domain) == pytest.approx(hits / (hits + 2 * alpha))
    assert tversky(said(base(one), domain), said(base(three), domain), domain) == pytest.approx(hits / (hits + 2))


def test_equality_looks_at_everything_but_the_order() -> None:
    first = said(bbu(WIRE, {"类别": "标签", "文本": {"A": 1, "B": 2}}, 备注=["x", "y"]))
    second = said(bbu({"文本": {"B": 2, "A": 1}, "类别": "标签"}, WIRE, 备注=["y", "x"]))
    assert canonical_equal(first, second)
    assert not canonical_equal(first, said(bbu(WIRE, {"类别": "标签", "文本": {"A": 1, "B": 1}}, 备注=["x", "y"])))
    assert not canonical_equal(first, said(bbu(WIRE, {"类别": "标签", "文本": {"A": 1, "B": 2}})))
    assert canonical_equal(IRRELEVANT, IRRELEVANT)
    assert not canonical_equal(IRRELEVANT, said(bbu()))


def test_key_recall_is_a_mean_over_categories_without_texts() -> None:
    half = {"类别": "光纤", "弯曲半径": {"合格": 1}}
    label = {"类别": "标签", "文本": {"A": 1}}
    assert attribute_key_recall(said(bbu(half, label)), said(bbu(FIBRE, WIRE, label))) == pytest.approx((0.5 + 0) / 2)
    assert attribute_key_recall(said(bbu(half)), said(bbu(label))) is None


def test_path_recall_counts_a_parent_and_its_stable_values() -> None:
    reference = said(bbu(WIRE, {"类别": "标签", "文本": {"42": 1, "a=b": 1, "x" * 33: 1}}))
    # 电线/捆扎, 电线/捆扎/整齐 and 标签/文本; the three texts are not stable
    assert attribute_path_recall(said(bbu(WIRE)), reference) == pytest.approx(2 / 3)
    assert attribute_path_recall(said(bbu({"类别": "电线", "捆扎": {"散乱": 1}})), reference) == pytest.approx(1 / 3)
    assert attribute_path_recall(said(bbu()), IRRELEVANT) is None


def test_text_recall_ignores_width_and_case_and_takes_a_tenth_for_each_text_beyond_two_spare_ones() -> None:
    assert text_recall(texts("ａｂ-０1"), texts("AB-01")) == 1.0
    assert text_recall(texts("A", "x", "y"), texts("A")) == 1.0
    assert text_recall(texts("A", "x", "y", "z", "w"), texts("A")) == pytest.approx(0.8)
    assert text_recall(texts(*"ABCDEFGHIJKLMNOPQRS"), texts("A")) == 0.0
    assert text_recall(texts("A"), said(bbu(WIRE))) is None


def test_notes_cost_when_spurious() -> None:
    with_notes, without = said(bbu(备注=["x"])), said(bbu())
    assert [notes_score(a, b) for a in (with_notes, without) for b in (with_notes, without)] == [1.0, -1.0, 0.0, None]


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        pytest.param(FIBRE, 1.0, id="43-fibre-whole"),
        pytest.param({"类别": "电线"}, 0.0, id="43-wire-without-binding"),
        pytest.param({"类别": "光纤", "弯曲半径": {"合格": 1}}, 0.5, id="half"),
        pytest.param({**WIRE, "颜色": {"红": 1}}, 0.65, id="drift-key"),
        pytest.param({"类别": "猫"}, 0.0, id="unknown-category"),
    ],
)
def test_completeness_of_one_item(item: dict[str, Any], wanted: float) -> None:
    assert completeness(said(bbu(item)), "bbu") == pytest.approx(wanted)


def test_drift_costs_by_its_share_and_kind() -> None:
    assert completeness(said(bbu(WIRE, {"类别": "猫"})), "bbu") == pytest.approx(0.5 - 0.25 / 2)
    assert completeness(said(bbu(WIRE, dataset="x")), "bbu") == pytest.approx(0.7)
    assert completeness(said(bbu({"类别": "站点距离", "站点距离": {"13m": 1}}, CLAMP), "rru"), "rru") == pytest.approx(0.4)
    assert completeness(said(rru(备注=["x"]), "rru"), "rru") == pytest.approx(0.7)
    assert completeness(IRRELEVANT, "bbu") is None


METRICS: dict[str, Any] = {
    "category_f1": category_f1,
    "fact_f1": fact_f1,
    "exact": canonical_equal,
    "key_recall": attribute_key_recall,
    "path_recall": attribute_path_recall,
    "text_recall": text_recall,
}


@pytest.mark.parametrize("domain", DOMAINS)
@given(st.data())
def test_the_order_of_items_changes_no_metric(domain: Any, data: st.DataObject) -> None:
    first, reference = (data.draw(summaries(domain)) for _ in range(2))
    turned = {**first, "统计": random.Random(0).sample(first["统计"], len(first["统计"]))}
    for name, metric in METRICS.items():
        assert metric(said(first, domain), said(reference, domain)) == metric(said(turned, domain), said(reference, domain)), name
    one, other, true = said(first, domain), said(turned, domain), said(reference, domain)
    assert tversky(one, true, domain) == tversky(other, true, domain)
    assert (completeness(one, domain), notes_score(one, true)) == (completeness(other, domain), notes_score(other, true))


@pytest.mark.parametrize("domain", DOMAINS)
@given(st.data())
def test_a_summary_agrees_fully_with_itself_and_every_score_is_in_range(domain: Any, data: st.DataObject) -> None:
    one, two = (said(data.draw(summaries(domain)), domain) for _ in range(2))
    for name, metric in METRICS.items():
        assert metric(one, one) in (1, None), name
        assert metric(one, two) is None or 0 <= metric(one, two) <= 1, name
    assert tversky(one, one, domain) == 1
    assert 0 <= tversky(one, two, domain) <= 1


@given(st.data())
def test_one_wrong_item_more_never_raises_precision(data: st.DataObject) -> None:
    first, reference = data.draw(summaries("bbu")), said(data.draw(summaries("bbu")))
    named = {item["类别"] for item in reference.data["统计"]}
    wrong = data.draw(st.sampled_from(["猫", *(name for name in SCHEMA["bbu"] if name not in named)]))
    more = {**first, "统计": [*first["统计"], {"类别": wrong, "毛": {"黑": 1}}]}
    assert category_overlap(said(more), reference).precision(1.0) <= category_overlap(said(first), reference).precision(1.0)
    assert fact_overlap(said(more), reference).precision(1.0) <= fact_overlap(said(first), reference).precision(1.0)


BROKEN = [
    {"统计": [{"类别": {"a": 1}, "x": [1], "y": {"z": "1"}}, 3]},
    {"统计": {"a": 1}},
    {"统计": [{"站点距离": 7, "类别": "站点距离"}], "备注": 1},
]


@pytest.mark.parametrize("data", BROKEN, ids=["types", "object", "notes"])
@pytest.mark.parametrize("domain", DOMAINS)
def test_a_summary_of_wrong_types_still_gets_numbers(data: dict[str, Any], domain: Any) -> None:
    broken, reference = said(data, domain), said(bbu(WIRE), domain)
    for metric in (*METRICS.values(), notes_score):
        for pair in ((broken, reference), (reference, broken), (broken, broken)):
            assert metric(*pair) is None or -1 <= metric(*pair) <= 1
    assert 0 <= (completeness(broken, domain) or 0) <= 1


LABEL: dict[str, Any] = {"类别": "标签", "可读性": {"不可读": 1}}
MISSIONS = {"bbu": "BBU接地线检查", "rru": "RRU安装检查"}


def scored(text: str, reference: str | None, domain: Any = "bbu", num_tokens: int = 100) -> Any:
    """Return the row of one judged photo."""
    known = None if reference is None else parse_summary(reference, domain)
    place: dict[str, Any] = {"image": Path("x.jpg"), "mission": MISSIONS[domain], "domain": domain, "label": "pass", "group_id": "g"}
    case = stage_a.StageACase(id="x/image_1", image_index=1, reference=known, **place)
    summary = parse_summary(text, domain)
    tags = {"mission": case.mission, "domain": domain}
    if known is not None:
        tags["photo"] = "irrelevant" if known.is_irrelevant else "site"
    row = {"case_id": case.id, "tags": tags, "scores": stage_a.scores(summary, case, num_tokens), "details": stage_a.details(summary, case)}
    whole: dict[str, Any] = json.loads(json.dumps(row, allow_nan=False))
    return whole


def test_a_perfect_answer_scores_one_an_unreadable_one_zero_and_without_a_reference_only_form_is_scored() -> None:
    scores = scored(render_summary(bbu(WIRE), "bbu"), line(bbu(WIRE)))["scores"]
    ones = ["valid", "tolerant_valid", "header_match", "completeness", "exact", "category_f1", "fact_f1", "tversky", "attribute_key_recall"]
    assert {scores[name] for name in ones} == {1.0}
    assert "text_recall" not in scores
    scores = scored("RRU�\x1e|=cmd()", line(bbu(WIRE)))["scores"]
    assert {name for name, value in scores.items() if value} == {"num_categories_reference", "num_facts_reference"}
    assert set(scored("无关图片", None)["scores"]) == {"valid", "tolerant_valid", "header_match", "irrelevant", "runaway"}
    assert [scored("无关图片", None, num_tokens=number)["scores"]["runaway"] for number in (1023, 1024)] == [0.0, 1.0]


def test_micro_averages_add_up_counts_over_all_photos() -> None:
    rows = [scored(render_summary(bbu(WIRE), "bbu"), line(bbu(WIRE, LABEL))), scored("noise", line(bbu(WIRE)))]
    found = stage_a.aggregate(rows)
    assert found["category_micro_precision"] == 1.0
    assert found["category_micro_recall"] == pytest.approx(1 / 3)
    assert found["category_micro_f1"] == pytest.approx(2 / 4)
    assert found["fact_micro_f1"] == pytest.approx(2 * 2 / (2 + 5))


def test_counts_of_older_rows_are_read_under_their_old_names() -> None:
    new = scored(line(bbu(WIRE)), line(bbu(WIRE, LABEL)))
    old = {**new, "scores": {name.replace("_predicted", "_said").replace("_reference", "_true"): n for name, n in new["scores"].items()}}
    assert stage_a.aggregate([old]) == stage_a.aggregate([new])


def test_irrelevant_photos_have_ratios_and_those_of_nothing_are_left_out() -> None:
    site, other = line(bbu(WIRE)), "无关图片"
    found = stage_a.aggregate([scored(*pair) for pair in ((other, other), (other, site), (site, other), ("noise", other), (site, site))])
    assert (found["irrelevant_precision"], found["irrelevant_recall"]) == pytest.approx((0.5, 1 / 3))
    assert stage_a.aggregate([]) == {}
    assert stage_a.aggregate([{"scores": {}, "tags": {"photo": "site"}}]) == {}
    assert "irrelevant_precision" not in stage_a.aggregate([scored(line(bbu(WIRE)), line(bbu(WIRE)))])
    assert "category_min_f1" not in stage_a.aggregate([scored(line(bbu(WIRE)), None)])


def test_the_worst_category_is_that_of_enough_references() -> None:
    whole, without = line(bbu(WIRE, FIBRE)), line(bbu(WIRE))
    rows = [scored(without, whole)] * MIN_SUPPORT + [scored(whole, line(bbu(WIRE, FIBRE, LABEL)))]
    found = stage_a.aggregate(rows)
    assert found["category_min_f1"] == pytest.approx(2 / (1 + MIN_SUPPORT + 1))  # 光纤; 标签 has one reference only
    assert found["category_macro_f1"] == pytest.approx((1 + 2 / (MIN_SUPPORT + 2) + 0) / 3)


def test_the_table_by_category_has_counts_beside_ratios() -> None:
    rows = [scored(line(bbu(WIRE, FIBRE)), line(bbu(WIRE))), scored("无关图片", line(bbu(WIRE)))]
    lines = {entry["category"]: entry for entry in stage_a.tables(rows)["by category"]}
    assert list(lines) == ["光纤", "电线", "无关图片"]  # those of the schema in its order, then others
    counts = {"reference": 2, "predicted": 1, "right": 1}
    ratios = {"precision": 1.0, "recall": 0.5, "F1": pytest.approx(2 / 3)}
    assert lines["电线"] == {"domain": "bbu", "category": "电线", **counts, **ratios}
    assert (lines["光纤"]["recall"], lines["光纤"]["precision"]) == (None, 0.0)


def test_missions_and_domains_have_a_line_each() -> None:
    good = render_summary(rru(CLAMP), "rru")
    rows = [scored("noise", line(bbu(WIRE)), num_tokens=1024), scored(good, line(rru(CLAMP)), "rru"), scored(good, None, "rru")]
    found = stage_a.tables(rows)
    assert [(entry["mission"], entry["photos"], entry["strictly valid"], entry["runaway"]) for entry in found["by mission"]] == [
        ("BBU接地线检查", 1, 0.0, 1.0),
        ("RRU安装检查", 2, 1.0, 0.0),
    ]
    first, second = found["by domain"]
    assert (first["domain"], first["micro precision"], first["micro recall"], first["micro F1"]) == ("bbu", None, 0.0, 0.0)
    assert (second["domain"], second["micro precision"], second["micro recall"], second["micro F1"]) == ("rru", 1.0, 1.0, 1.0)
    rows = [scored(render_summary(bbu(WIRE), "bbu"), line(bbu(WIRE))), scored(line(bbu(WIRE)), line(bbu(WIRE, FIBRE, LABEL)))]
    (entry,) = stage_a.tables(rows)["by domain"]
    assert (entry["micro F1"], entry["mean category F1"]) == pytest.approx((2 * 2 / (2 + 4), (1 + 0.5) / 2))


def test_a_category_of_two_domains_is_two_categories() -> None:
    bbu_label, rru_label = line(bbu(LABEL)), line(rru(LABEL))
    rows = [scored(bbu_label, bbu_label), scored("noise", rru_label, "rru")]
    lines = {(entry["domain"], entry["category"]): entry for entry in stage_a.tables(rows)["by category"]}
    assert (lines["bbu", "标签"]["F1"], lines["rru", "标签"]["F1"]) == (1.0, 0.0)
    assert stage_a.aggregate(rows)["category_min_f1"] == 0.0


def test_reasons_are_counted_without_their_places_most_frequent_first() -> None:
    late = render_summary(bbu(WIRE, {"类别": "电线"}, {"类别": "电线"}), "bbu")
    first = render_summary(bbu({"类别": "电线"}), "bbu")
    lines = stage_a.tables([scored(late, None), scored(first, None), scored("x", None)])["why answers are not strictly valid"]
    assert lines[0] == {"reason": "电线 lacks 捆扎", "answers": 2, "share": pytest.approx(2 / 3), "first case": "x/image_1"}
    assert [(entry["reason"], entry["answers"]) for entry in lines[1:]] == [
        ("the header line is missing", 1),
        ("no JSON object with 统计 in it", 1),
    ]


def test_details_stay_short_whatever_the_answer_is() -> None:
    hostile = line({"统计": [{"类别": "猫" * 10_000 + str(number)} for number in range(200)]})
    kept = scored(hostile, line(bbu(WIRE)))["details"]
    assert len(kept["reasons"]) == 50
    assert max(map(len, kept["categories"])) == 60


NOTES: dict[str, Any] = bbu(WIRE, 备注=["无法看清标签", "Photo is dark"])


@pytest.mark.parametrize(
    ("notes", "wanted"),
    [(["photo  is ＤＡＲＫ", "无法看清标签"], 1.0), (["无法看清标签"], 2 / 3), (["无法看清标签", "别的"], 0.5), (["全错"], 0.0), ([], 0.0)],
    ids=["spelt otherwise", "one missing", "one wrong", "all wrong", "none"],
)
def test_wrong_notes_lower_notes_f1_and_the_original_looks_only_whether_there_are_any(notes: list[str], wanted: float) -> None:
    scores = scored(line(bbu(WIRE, 备注=notes)), line(NOTES))["scores"]
    assert scores["notes_f1"] == pytest.approx(wanted)
    assert scores["notes_score"] == float(bool(notes))


def test_notes_that_no_one_asked_for_score_zero_and_silence_no_better() -> None:
    scores = [scored(text, line(bbu(WIRE)))["scores"] for text in (line(bbu(WIRE, 备注=["x"])), "", line(bbu(WIRE)))]
    assert [score.get("notes_f1") for score in scores] == [0.0, 0.0, None]


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [({"2": 1, "1": 2}, 1.0), ({"1": 2}, 0.8), ({"1": 2, "2": 9}, 6 / 14), ({"3": 3}, 0.0), (None, 0.0), ("x", 0.0)],
    ids=["another order", "one missing", "a wrong count", "wrong", "missing", "no counts"],
)
def test_wrong_or_missing_groups_lower_groups_f1(groups: Any, wanted: float) -> None:
    told = rru(RADIO) if groups is None else rru(RADIO, 分组统计=groups)
    scores = scored(line(told), line(rru(RADIO, 分组统计={"1": 2, "2": 1})), "rru")["scores"]
    assert scores["groups_f1"] == pytest.approx(wanted)
    assert (scores["fact_f1"], "notes_f1" in scores) == (1.0, False)


def test_texts_count_in_tversky_and_not_in_the_originals() -> None:
    scores = scored(line(bbu(WIRE, {"类别": "标签", "文本": {"A": 1}})), line(bbu(WIRE, {"类别": "标签", "文本": {"B": 1}})))["scores"]
    assert (scores["tversky"], scores["tversky_original"]) == (pytest.approx(2 / 3.3), 1.0)


def test_a_distance_is_a_number_in_facts() -> None:
    seven, padded = ({"类别": "站点距离", "站点距离": {digits: 1}} for digits in ("7", "007"))
    assert fact_f1(parse_summary(line({"统计": [seven]}), "rru"), parse_summary(line({"统计": [padded]}), "rru")) == 1.0


def test_items_without_a_category_are_not_all_alike() -> None:
    one, other = ({"统计": [{"捆扎": {value: 1}}]} for value in ("整齐", "散乱"))
    assert category_f1(said(one), said(other)) == 0.0
    assert category_f1(said(one), said(one)) == 1.0


def test_a_site_that_is_dismissed_is_not_complete() -> None:
    assert scored("无关图片", line(bbu(WIRE)))["scores"]["completeness"] == 0.0
    assert "completeness" not in scored("无关图片", "无关图片")["scores"]
