"""Rows in the five-key form. Run: pytest tests/tasks/stage_a/test_records.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import ContractTypeError, RecordError
from evalharness.tasks.stage_a.data import Group
from evalharness.tasks.stage_a.files import check_row, group_rows, read_rows, write_rows


def row(**changes: Any) -> dict[str, Any]:
    return {
        "group_id": "QC-DEMO-20300101-0000001",
        "mission": "RRU安装检查",
        "label": "fail",
        "images": ["a_1.jpg", "a_2.jpg"],
        "per_image": {"image_1": '{"统计": []}', "image_2": "无关图片"},
        **changes,
    }


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in row().items() if name != key}


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "RRU安装检查_stage_a.jsonl"
    assert write_rows(path, [row(), row(label="pass")]) == 2
    assert read_rows(path) == [row(), row(label="pass")]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_line_holds_exactly_the_five_keys_in_order_and_plain_chinese(tmp_path: Path) -> None:
    write_rows(tmp_path / "x.jsonl", [dict(reversed(row().items()))])
    text = (tmp_path / "x.jsonl").read_text("utf-8")
    assert list(json.loads(text)) == ["group_id", "mission", "label", "images", "per_image"]
    assert '"mission": "RRU安装检查"' in text
    assert text.count("\n") == 1


def test_hostile_summaries_stay_on_one_line_and_come_back(tmp_path: Path) -> None:
    hostile = row(per_image={"image_1": "a\n\u2028\x00\x1b[31m|=cmd()", "image_2": "\ud800"})
    write_rows(tmp_path / "x.jsonl", [hostile, row()])
    assert read_rows(tmp_path / "x.jsonl") == [hostile, row()]


@pytest.mark.parametrize("key", list(row()))
def test_a_missing_key_is_a_value_error(key: str) -> None:
    with pytest.raises(ValueError, match=rf"row\.{key} is missing"):
        check_row(without(key))


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"group_id": 3}, r"group_id must be a str, got 3"),
        ({"images": "a.jpg"}, r"images must be a list"),
        ({"images": [1, "b"]}, r"images\[0\] must be a str"),
        ({"per_image": ["x"]}, r"per_image must be a dict"),
        ({"per_image": {"image_1": None, "image_2": "x"}}, r"per_image\.image_1 must be a str, got None"),
    ],
    ids=["group_id", "images", "image", "per_image", "summary"],
)
def test_a_wrong_type_is_a_type_error(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(ContractTypeError, match=where):
        check_row(row(**changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"label": "banana"}, r"label must be one of pass, fail, got 'banana'"),
        ({"images": [], "per_image": {}}, r"images is empty"),
        ({"per_image": {"image_1": "x"}}, r"keys image_1\.\.image_2; missing: \['image_2'\]"),
        ({"per_image": {"image_1": "x", "image_2": "y", "image_3": "z"}}, r"not expected: \['image_3'\]"),
        ({"per_image": {"image_1": "x", "image_2": " \n"}}, r"per_image\.image_2 is blank"),
        ({"mission": " "}, r"mission is empty"),
        ({"extra": 1}, r"extra is unknown"),
    ],
    ids=["label", "no-images", "missing-image", "extra-image", "blank", "mission", "extra-key"],
)
def test_a_wrong_value_is_a_value_error(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        check_row(row(**changes))


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "is not JSON"), ("[1]", "must be an object, got list"), ('{"group_id": NaN}', "is not JSON"), ("[" * 100_000, "is not JSON")],
    ids=["cut", "list", "nan", "deep"],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"{json.dumps(row())}\n\n{text}\n", "utf-8")
    with pytest.raises((RecordError, ContractTypeError), match=rf"x\.jsonl:3 {reason}"):
        read_rows(path)


def test_an_unreadable_file_is_a_record_error(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe\x00")
    for name in ("x.jsonl", "gone.jsonl"):
        with pytest.raises(RecordError, match=rf"{name} cannot be read"):
            read_rows(tmp_path / name)


def test_writing_no_group_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="was not written: no group is complete"):
        write_rows(tmp_path / "x.jsonl", [])
    assert list(tmp_path.iterdir()) == []


def test_a_bad_row_leaves_the_file_of_before(tmp_path: Path) -> None:
    write_rows(tmp_path / "x.jsonl", [row()])
    with pytest.raises(RecordError, match=r"rows\[1\]\.label"):
        write_rows(tmp_path / "x.jsonl", [row(), row(label="x")])
    assert read_rows(tmp_path / "x.jsonl") == [row()]


def test_the_error_names_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be written"):
        write_rows(tmp_path / "gone" / "x.jsonl", [row()])


def group(name: str, num_images: int = 2) -> Group:
    return Group("RRU安装检查", "rru", "fail", name, tuple(Path(f"{name}_{number}.jpg") for number in range(1, num_images + 1)))


def result(place: int, index: int, **changes: Any) -> dict[str, Any]:
    return {"group_seq": place, "image_index": index, "ok": True, "summary": f"s{place}{index}", **changes}


GROUPS = [group("A"), group("B")]
WHOLE_B = [result(1, 2), result(1, 1)]


def test_results_in_any_order_become_rows_in_group_order() -> None:
    rows = group_rows(GROUPS, [*WHOLE_B, result(0, 2), result(0, 1)]).rows
    assert [(row["group_id"], row["per_image"]) for row in rows] == [
        ("A", {"image_1": "s01", "image_2": "s02"}),
        ("B", {"image_1": "s11", "image_2": "s12"}),
    ]
    assert [check_row(row) for row in rows] == list(rows)


@pytest.mark.parametrize(
    ("results", "problem"),
    [
        ([result(0, 1)], "image_2 missing"),
        ([result(0, 1), result(0, 2), result(0, 2)], "image_2 came twice"),
        ([result(0, 1), result(0, 2), result(0, 3)], "image_index must be 1..2, got 3"),
        ([result(0, 1), result(0, 2), result(0, 0)], "image_index must be 1..2, got 0"),
        ([result(0, 1), result(0, 2, ok=False, error="cannot identify image file")], "image_2 failed: cannot identify image file"),
        ([result(0, 1), result(0, 2, summary=" ")], "image_2 failed: blank summary"),
    ],
    ids=["missing", "47-duplicate", "above", "below", "46-corrupt", "blank"],
)
def test_a_bad_image_leaves_out_its_own_group_only(results: list[dict[str, Any]], problem: str) -> None:
    collected = group_rows(GROUPS, [*results, *WHOLE_B])
    assert [row["group_id"] for row in collected.rows] == ["B"]
    assert collected.problems == {0: problem}


def test_a_result_of_no_group_is_an_error() -> None:
    with pytest.raises(RecordError, match=r"group_seq must be 0\.\.1, got 7"):
        group_rows(GROUPS, [result(7, 1)])
