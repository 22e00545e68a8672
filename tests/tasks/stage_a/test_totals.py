"""pytest tests/tasks/stage_a/test_stage_a_totals.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.statistics.overlap import MIN_SUPPORT
from evalharness.tasks import stage_a
from tests.tasks.stage_a_examples import CLAMP, FIBRE, WIRE, bbu, line, rru

LABEL: dict[str, Any] = {"类别": "标签", "可读性": {"不可读": 1}}
MISSIONS = {"bbu": "BBU接地线检查", "rru": "RRU安装检查"}


def scored(text: str, reference: str | None, domain: Any = "bbu", num_tokens: int = 100) -> dict[str, Any]:
    """Return the row of one judged photo."""
    known = None if reference is None else stage_a.parse_summary(reference, domain)
    case = stage_a.StageACase(
        id="x/image_1",
        image=Path("x.jpg"),
        mission=MISSIONS[domain],
        domain=domain,
        label="pass",
        group_id="g",
        image_index=1,
        reference=known,
    )
    summary = stage_a.parse_summary(text, domain)
    tags = {"mission": case.mission, "domain": domain}
    if known is not None:
        tags["photo"] = "irrelevant" if known.is_irrelevant else "site"
    row = {"case_id": case.id, "tags": tags, "scores": stage_a.scores(summary, case, num_tokens), "details": stage_a.details(summary, case)}
    whole: dict[str, Any] = json.loads(json.dumps(row, allow_nan=False))
    return whole


def test_micro_averages_add_up_counts_over_all_photos() -> None:
    rows = [scored(stage_a.render_summary(bbu(WIRE), "bbu"), line(bbu(WIRE, LABEL))), scored("noise", line(bbu(WIRE)))]
    found = stage_a.aggregate(rows)
    assert found["category_micro_precision"] == 1.0
    assert found["category_micro_recall"] == pytest.approx(1 / 3)
    assert found["category_micro_f1"] == pytest.approx(2 / 4)
    assert found["fact_micro_f1"] == pytest.approx(2 * 2 / (2 + 5))


def test_counts_of_older_rows_are_read_under_their_old_names() -> None:
    new = scored(line(bbu(WIRE)), line(bbu(WIRE, LABEL)))
    old = {**new, "scores": {name.replace("_predicted", "_said").replace("_reference", "_true"): n for name, n in new["scores"].items()}}
    assert stage_a.aggregate([old]) == stage_a.aggregate([new])


def test_precision_and_recall_of_irrelevant_photos() -> None:
    site, other = line(bbu(WIRE)), "无关图片"
    rows = [scored(other, other), scored(other, site), scored(site, other), scored("noise", other), scored(site, site)]
    found = stage_a.aggregate(rows)
    assert found["irrelevant_precision"] == 0.5
    assert found["irrelevant_recall"] == pytest.approx(1 / 3)


def test_ratios_of_nothing_are_left_out_and_rows_without_scores_do_not_count() -> None:
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


def test_in_a_small_run_the_most_frequent_categories_count() -> None:
    rows = [scored(line(bbu(WIRE)), line(bbu(WIRE))), scored(line(bbu(WIRE)), line(bbu(WIRE, FIBRE)))]
    assert stage_a.aggregate(rows)["category_min_f1"] == 1.0


def test_the_table_by_category_has_counts_beside_ratios() -> None:
    rows = [scored(line(bbu(WIRE, FIBRE)), line(bbu(WIRE))), scored("无关图片", line(bbu(WIRE)))]
    lines = {entry["category"]: entry for entry in stage_a.tables(rows)["by category"]}
    assert list(lines) == ["光纤", "电线", "无关图片"]  # those of the schema in its order, then others
    assert lines["电线"] == {
        "domain": "bbu",
        "category": "电线",
        "reference": 2,
        "predicted": 1,
        "right": 1,
        "precision": 1.0,
        "recall": 0.5,
        "F1": pytest.approx(2 / 3),
    }
    assert (lines["光纤"]["recall"], lines["光纤"]["precision"]) == (None, 0.0)


def test_missions_and_domains_have_a_line_each() -> None:
    good = stage_a.render_summary(rru(CLAMP), "rru")
    rows = [scored("noise", line(bbu(WIRE)), num_tokens=1024), scored(good, line(rru(CLAMP)), "rru"), scored(good, None, "rru")]
    found = stage_a.tables(rows)
    assert [(entry["mission"], entry["photos"], entry["strictly valid"], entry["runaway"]) for entry in found["by mission"]] == [
        ("BBU接地线检查", 1, 0.0, 1.0),
        ("RRU安装检查", 2, 1.0, 0.0),
    ]
    first, second = found["by domain"]
    assert (first["domain"], first["micro precision"], first["micro recall"], first["micro F1"]) == ("bbu", None, 0.0, 0.0)
    assert (second["domain"], second["micro precision"], second["micro recall"], second["micro F1"]) == ("rru", 1.0, 1.0, 1.0)


def test_the_tables_by_tag_name_micro_ratios_and_means() -> None:
    rows = [scored(stage_a.render_summary(bbu(WIRE), "bbu"), line(bbu(WIRE))), scored(line(bbu(WIRE)), line(bbu(WIRE, FIBRE, LABEL)))]
    (entry,) = stage_a.tables(rows)["by domain"]
    assert entry["micro F1"] == pytest.approx(2 * 2 / (2 + 4))
    assert entry["mean category F1"] == pytest.approx((1 + 0.5) / 2)


def test_a_category_of_two_domains_is_two_categories() -> None:
    bbu_label, rru_label = line(bbu(LABEL)), line(rru(LABEL))
    rows = [scored(bbu_label, bbu_label), scored("noise", rru_label, "rru")]
    lines = {(entry["domain"], entry["category"]): entry for entry in stage_a.tables(rows)["by category"]}
    assert (lines["bbu", "标签"]["F1"], lines["rru", "标签"]["F1"]) == (1.0, 0.0)
    assert stage_a.aggregate(rows)["category_min_f1"] == 0.0


def test_reasons_are_counted_without_their_places_most_frequent_first() -> None:
    late = stage_a.render_summary(bbu(WIRE, {"类别": "电线"}, {"类别": "电线"}), "bbu")
    first = stage_a.render_summary(bbu({"类别": "电线"}), "bbu")
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
