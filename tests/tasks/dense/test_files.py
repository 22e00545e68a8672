"""Dumps on disk and the offline report. Run: pytest tests/tasks/dense/test_files.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from evalharness.api.errors import RecordError
from evalharness.tasks import dense
from evalharness.tasks.dense.files import dump_rows, read_dump
from evalharness.tasks.dense.objects import TYPES
from evalharness.tasks.dense.tables import offline_report
from evalharness.tasks.shared import write_lines
from tests.tasks.dense_examples import LABEL, box, dumped, one_box

# As documented: pixels of a photo of 640 × 480, and the same on the grid.
TRUTH = {"type": "bbox_2d", "points": [26, 29, 115, 58], "desc": LABEL}
NORM_TRUTH = {**TRUTH, "points": [41, 60, 180, 121]}
ROW = {
    "image_path": "images/demo.jpg",
    "gt": [TRUTH],
    "gt_norm1000": [NORM_TRUTH],
    "pred": [{"desc": LABEL, "type": "bbox_2d", "points": [40, 60, 180, 120]}],
    "width": 640,
    "height": 480,
    "raw_text": "",
    "clean_text": "",
}
SUMMARY = {"summary": True, "num_samples": 1, "total_gt": 1, "total_pred": 1, "total_matched": 1, "total_missing": 0}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_dump_of_the_original_is_read(tmp_path: Path) -> None:
    (row,) = read_dump(write(tmp_path / "d.jsonl", ROW, SUMMARY))
    assert (row.image_path, row.size, row.domain, row.texts) == ("images/demo.jpg", (640, 480), None, ())
    assert row.truth == (box(41, 60, 180, 121),)
    assert row.pixels == ((26, 29, 115, 58),)
    assert row.predictions == (box(40, 60, 180, 120),)


def test_the_aggregate_row_is_skipped(tmp_path: Path) -> None:
    rows = dense.score_dump(write(tmp_path / "d.jsonl", ROW, SUMMARY))
    assert len(rows) == 1
    assert dense.aggregate(rows)["loc_micro_f1"] == 1.0


@pytest.mark.parametrize(
    "change", [{"gt": []}, {"gt_norm1000": []}, {"gt": [{**TRUTH, "points": ["26", 29.4, 115, "58"]}]}], ids=["grid", "pixels", "words"]
)
def test_true_objects_are_converted_where_only_one_space_is_given(tmp_path: Path, change: dict[str, Any]) -> None:
    (row,) = read_dump(write(tmp_path / "d.jsonl", {**ROW, **change}))
    assert (row.truth, row.pixels) == ((box(41, 60, 180, 121),), ((26, 29, 115, 58),))


@pytest.mark.parametrize("declared", ["argument", "row"])
def test_predictions_may_be_in_pixels(tmp_path: Path, declared: str) -> None:
    row = {**ROW, "pred": [TRUTH], **({"pred_space": "pixels"} if declared == "row" else {})}
    (read,) = read_dump(write(tmp_path / "d.jsonl", row), "pixels" if declared == "argument" else "norm1000")
    assert read.predictions == (box(41, 60, 180, 121),)


def test_objects_that_the_original_lost_are_read_from_the_text(tmp_path: Path) -> None:
    text = dumped(object_1=one_box(40, 60, 180, 120), object_2=one_box(40, 60, 180, 120), object_3=one_box(1, None, 2, 3))
    (row,) = dense.score_dump(write(tmp_path / "d.jsonl", {**ROW, "pred": [], "clean_text": text}))
    assert (row["scores"]["loc_f1"], row["scores"]["num_duplicates"], row["scores"]["num_dropped"]) == (1.0, 1, 1)
    assert row["outcome"] == "miss"


def test_the_raw_text_is_read_where_the_clean_one_says_nothing(tmp_path: Path) -> None:
    row = {**ROW, "pred": [], "clean_text": "…", "raw_text": f"{dumped(object_1=one_box(40, 60, 180, 120))}<|im_end|>"}
    unreadable = {**ROW, "pred": [], "clean_text": "没有"}
    first, second, third = dense.score_dump(write(tmp_path / "d.jsonl", row, unreadable, ROW))
    assert first["scores"]["loc_f1"] == 1.0
    assert (second["scores"]["tolerant_valid"], second["scores"]["loc_f1"]) == (0.0, 0.0)
    assert second["problem"] == "the header line is missing; no JSON object"
    # Without a text there are no scores about its form.
    assert not {"valid", "tolerant_valid", "header_match", "complete", "cap_hit"} & set(third["scores"])
    assert third["scores"]["category_f1"] == 1.0


def test_without_a_text_unusable_predictions_are_counted_and_repetitions_are_not_known(tmp_path: Path) -> None:
    nulls, six = ({"desc": "", "type": "bbox_2d", "points": points} for points in ([1, None, 3, 4], [1, 2, 3, 4, 5, 6]))
    path = write(tmp_path / "d.jsonl", {**ROW, "pred": [TRUTH, nulls, six, {"type": "circle"}]})
    (row,) = dense.score_dump(path)
    assert (row["scores"]["num_dropped"], row["scores"]["num_predicted"]) == (3, 1)
    assert "duplicate_rate" not in dense.aggregate([row])


def test_texts_and_predictions_in_pixels_are_scored_in_the_declared_space(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", {**ROW, "clean_text": dumped(object_1=one_box(26, 29, 115, 58))}, {**ROW, "pred": [TRUTH]})
    for space, score in (("pixels", 1.0), ("norm1000", 0.0)):
        assert [row["scores"]["loc_f1"] for row in dense.score_dump(path, coordinates=space)] == [score, score]


def test_a_domain_comes_from_the_row_the_mission_the_categories_or_the_rest_of_the_file(tmp_path: Path) -> None:
    empty = {**ROW, "gt": [], "gt_norm1000": [], "pred": []}
    rru = [{**TRUTH, "desc": "类别=紧固件,安装状态=合格"}]
    assert [row.domain for row in read_dump(write(tmp_path / "a.jsonl", {**empty, "domain": "RRU"}))] == ["rru"]
    assert [row.domain for row in read_dump(write(tmp_path / "b.jsonl", {**empty, "image_path": "RRU线缆/a.jpg"}))] == ["rru"]
    assert [row.domain for row in read_dump(write(tmp_path / "c.jsonl", {**empty, "gt": rru}, empty))] == ["rru", "rru"]
    assert [row.domain for row in read_dump(write(tmp_path / "d.jsonl", empty))] == [None]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"image_path": None}, "image_path must be a path, got None"),
        ({"width": 0}, "width must be a size in pixels, got 0"),
        ({"height": "480"}, "height must be a size in pixels, got '480'"),
        ({"gt": "x"}, "gt must be a list of objects, got str"),
        ({"gt": [{**TRUTH, "type": "circle"}]}, r"gt\[0\]: type must be one of bbox_2d, poly, line, got 'circle'"),
        ({"gt": [{**TRUTH, "points": [1, None, 2, 3]}]}, r"gt\[0\]: bbox_2d must be numbers in pairs"),
        ({"gt_norm1000": [NORM_TRUTH, NORM_TRUTH]}, "gt has 1 objects, gt_norm1000 has 2"),
        ({"domain": "xyz"}, "domain must be one of bbu, rru, got 'xyz'"),
        ({"text_space": [0, 1]}, r"text_space must be \[width, height\]"),
        ({"pred_space": "inches"}, "pred: coordinates must be norm1000, unit, pixels"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_row_that_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecordError, match=rf"d.jsonl:1.*{problem}"):
        read_dump(write(tmp_path / "d.jsonl", {**ROW, "domain": "bbu", **change}))


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"[1]\n", "d.jsonl:1 must be a JSON object, got list"), (b"{\n", "d.jsonl:1 is not JSON"), (b"\xff\n", "cannot be read")],
    ids=["list", "cut", "bytes"],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "d.jsonl").write_bytes(content)
    with pytest.raises(RecordError, match=problem):
        read_dump(tmp_path / "d.jsonl")


def test_a_written_dump_has_the_originals_keys_and_the_flags_that_it_lacks(tmp_path: Path) -> None:
    text = dumped(object_1=one_box(40, 60, 180, 120), object_2=one_box(40, 60, 180, 120), object_3=one_box(1))[:-4]
    rows = dense.score_dump(write(tmp_path / "d.jsonl", {**ROW, "clean_text": text, "finish_reason": "length"}))
    write_lines(tmp_path / "out.jsonl", dump_rows(rows))
    row, aggregate = lines(tmp_path / "out.jsonl")
    for key in ("image_path", "gt", "gt_norm1000", "width", "height", "clean_text"):
        assert row[key] == {**ROW, "clean_text": text}[key]
    assert row["pred"] == [{"desc": LABEL, "type": "bbox_2d", "points": [40, 60, 180, 120]}]
    assert row["pred_pixels"] == [{"desc": LABEL, "type": "bbox_2d", "points": [26, 29, 115, 58]}]
    assert (row["parse_failed"], row["truncated"], row["cap_hit"], row["finish_reason"]) == (False, True, True, "length")
    assert (row["num_duplicates"], row["text_space"]) == (1, [1000, 1000])
    assert row["dropped"] == ["object_3: it is cut off or not JSON"]
    assert aggregate == SUMMARY


def test_the_offline_report_has_the_documented_shape(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", ROW, {**ROW, "image_path": "e.jpg", "gt": [], "gt_norm1000": [], "pred": [], "domain": "bbu"})
    report, again = (offline_report(dense.score_dump(path), "d.jsonl") for _ in range(2))
    assert json.dumps(again) == json.dumps(report)
    keys = "path images params count_diagnostics modes category_breakdown_primary attribute_diagnostics_primary"
    assert list(report) == keys.split()
    assert report["images"] == 1  # the picture without any objects is in no number
    assert list(report["params"]) == ["primary_threshold", "coco_thresholds", "line_tol", "modes", "matching"]
    counts = {"gt": 1, "pred": 1, "matched": 1}
    assert report["modes"]["category"]["by_threshold"]["0.50"] == {**counts, "precision": 1.0, "recall": 1.0, "f1": 1.0}
    assert list(report["modes"]["localization"]["by_threshold_by_type"]) == ["bbox_2d"]
    assert report["category_breakdown_primary"][0]["category"] == "标签"
    assert report["attribute_diagnostics_primary"]["text_accuracy"] == 1.0
    assert report["count_diagnostics"]["equal_rate"] == 1.0


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
    | st.sampled_from(TYPES),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "points", "desc"]), inner, max_size=3)
        | st.fixed_dictionaries({"type": st.sampled_from(TYPES), "points": st.lists(st.integers() | st.just("7"), max_size=6)})
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("key", [*ROW, "domain", "text_space", "pred_space", "finish_reason", "case_id", "parse_failed", "summary"])
@given(value=JSON_VALUES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_a_row_holds_is_scored_or_refused_by_name(tmp_path: Path, key: str, value: Any) -> None:
    path = write(tmp_path / "d.jsonl", {**ROW, "domain": "bbu", key: value})
    try:
        rows = dense.score_dump(path)
    except RecordError as error:
        refused = str(error)
    else:
        refused = "d.jsonl:1"
        json.dumps([rows, dense.aggregate(rows), dense.tables(rows), dense.offline_report(rows, "d")], allow_nan=False)
    assert "d.jsonl:1" in refused
