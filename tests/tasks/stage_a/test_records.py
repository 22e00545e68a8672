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


def test_rows_come_back_as_they_were_written_one_line_each(tmp_path: Path) -> None:
    path = tmp_path / "RRU安装检查_stage_a.jsonl"
    hostile = row(per_image={"image_1": "a\n\u2028\x00\x1b[31m|=cmd()", "image_2": "\ud800"})
    assert write_rows(path, [hostile, dict(reversed(row(label="pass").items()))]) == 2
    assert read_rows(path) == [hostile, row(label="pass")]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    *_, last, end = path.read_bytes().split(b"\n")
    assert (list(json.loads(last)), end) == (["group_id", "mission", "label", "images", "per_image"], b"")
    assert '"mission": "RRU安装检查"' in last.decode()


@pytest.mark.parametrize("key", list(row()))
def test_a_missing_key_is_a_value_error(key: str) -> None:
    with pytest.raises(ValueError, match=rf"row\.{key} is missing"):
        check_row({name: value for name, value in row().items() if name != key})


BAD_ROWS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "group_id": ({"group_id": 3}, ContractTypeError, r"group_id must be a str, got 3"),
    "images": ({"images": "a.jpg"}, ContractTypeError, r"images must be a list"),
    "image": ({"images": [1, "b"]}, ContractTypeError, r"images\[0\] must be a str"),
    "per_image": ({"per_image": ["x"]}, ContractTypeError, r"per_image must be a dict"),
    "summary": ({"per_image": {"image_1": None, "image_2": "x"}}, ContractTypeError, r"per_image\.image_1 must be a str, got None"),
    "45-label": ({"label": "banana"}, RecordError, r"label must be one of pass, fail, got 'banana'"),
    "no images": ({"images": [], "per_image": {}}, RecordError, r"images is empty"),
    "45-missing image": ({"per_image": {"image_1": "x"}}, RecordError, r"keys image_1\.\.image_2; missing: \['image_2'\]"),
    "extra image": ({"per_image": dict.fromkeys(("image_1", "image_2", "image_3"), "x")}, RecordError, r"not expected: \['image_3'\]"),
    "45-blank": ({"per_image": {"image_1": "x", "image_2": " \n"}}, RecordError, r"per_image\.image_2 is blank"),
    "mission": ({"mission": " "}, RecordError, r"mission is empty"),
    "extra key": ({"extra": 1}, RecordError, r"extra is unknown"),
}


@pytest.mark.parametrize(("changes", "error", "reason"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_wrong_row_is_refused_by_the_kind_of_its_fault(changes: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
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


def test_what_cannot_be_written_is_an_error_and_leaves_the_file_of_before(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="was not written: no group is complete"):
        write_rows(tmp_path / "x.jsonl", [])
    assert list(tmp_path.iterdir()) == []
    write_rows(tmp_path / "x.jsonl", [row()])
    with pytest.raises(RecordError, match=r"rows\[1\]\.label"):
        write_rows(tmp_path / "x.jsonl", [row(), row(label="x")])
    assert read_rows(tmp_path / "x.jsonl") == [row()]
    with pytest.raises(RecordError, match="cannot be written"):
        write_rows(tmp_path / "gone" / "x.jsonl", [row()])


def result(place: int, index: int, **changes: Any) -> dict[str, Any]:
    return {"group_seq": place, "image_index": index, "ok": True, "summary": f"s{place}{index}", **changes}


GROUPS = [Group("RRU安装检查", "rru", "fail", name, (Path(f"{name}_1.jpg"), Path(f"{name}_2.jpg"))) for name in "AB"]
WHOLE_B = [result(1, 2), result(1, 1)]


def test_results_in_any_order_become_rows_in_group_order() -> None:
    rows = group_rows(GROUPS, [*WHOLE_B, result(0, 2), result(0, 1)]).rows
    assert [(row["group_id"], *row["per_image"].items()) for row in rows] == [
        ("A", ("image_1", "s01"), ("image_2", "s02")),
        ("B", ("image_1", "s11"), ("image_2", "s12")),
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
    ],
    ids=["missing", "47-duplicate", "above", "below", "46-corrupt"],
)
def test_a_bad_image_leaves_out_its_own_group_only(results: list[dict[str, Any]], problem: str) -> None:
    collected = group_rows(GROUPS, [*results, *WHOLE_B])
    assert ([row["group_id"] for row in collected.rows], collected.problems) == (["B"], {0: problem})


def test_a_result_of_no_group_is_an_error() -> None:
    with pytest.raises(RecordError, match=r"group_seq must be 0\.\.1, got 7"):
        group_rows(GROUPS, [result(7, 1)])
