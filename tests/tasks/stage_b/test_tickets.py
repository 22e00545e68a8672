"""Tickets from Stage-A files. Run: pytest tests/tasks/stage_b/test_tickets.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalharness.api.errors import RecordError
from evalharness.tasks.stage_b.files import TicketFile, read_tickets

MISSION = "RRU安装检查"
ID = "QC-DEMO-20300101-0000001"


def row(**changes: Any) -> dict[str, Any]:
    per_image = {"image_1": '{"统计": []}', "image_2": "无关图片"}
    return {"group_id": ID, "mission": MISSION, "label": "fail", "images": ["a.jpg", "b.jpg"], "per_image": per_image, **changes}


def read(tmp_path: Path, *rows: Any) -> TicketFile:
    lines = [one if isinstance(one, (str, bytes)) else json.dumps(one, ensure_ascii=False) for one in rows]
    path = tmp_path / f"{MISSION}_stage_a.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return read_tickets(path, MISSION)


def test_a_row_becomes_a_ticket(tmp_path: Path) -> None:
    (ticket,) = read(tmp_path, row()).tickets
    assert (ticket.key, ticket.mission, ticket.label) == (f"{ID}::fail", MISSION, "fail")
    assert ticket.summaries == ('{"统计": []}', "无关图片")


def test_one_order_under_two_labels_is_two_tickets(tmp_path: Path) -> None:
    found = read(tmp_path, row(), row(label="pass"))
    assert [ticket.key for ticket in found.tickets] == [f"{ID}::fail", f"{ID}::pass"]
    assert found.bad_rows == ()


@pytest.mark.parametrize("label", ["PASS", " Pass ", "pass"])
def test_labels_count_in_any_case(tmp_path: Path, label: str) -> None:
    assert read(tmp_path, row(label=label)).tickets[0].label == "pass"


def test_summaries_come_in_the_order_of_the_digits_at_the_end_of_their_keys(tmp_path: Path) -> None:
    per_image = {"image_10": "ten", "图片_2": "two", "image_1": "one"}
    assert read(tmp_path, row(per_image=per_image)).tickets[0].summaries == ("one", "two", "ten")


def test_further_keys_missing_images_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    other = row(note="x", group_id="other")
    del other["images"]
    assert len(read(tmp_path, row(), "", other, "  ").tickets) == 2


BAD = {
    "no JSON": ("{", "not JSON"),
    "deep": ("[" * 100_000, "not JSON"),
    "broken bytes": (b'{"group_id": "\xff"}', "not JSON"),
    "list": ([], "a row must be an object, got list"),
    "no group": (row(group_id=None), "group_id must be a text, got 'None'"),
    "blank group": (row(group_id=" "), "group_id must be a text"),
    "other mission": (row(mission="BBU接地线检查"), "mission is 'BBU接地线检查'; this file is of RRU安装检查"),
    "unknown mission": (row(mission="X"), "mission is 'X', which is unknown; this file is of RRU安装检查"),
    "label": (row(label="banana"), "label must be one of pass, fail, got 'banana'"),
    "no summaries": (row(per_image={}), "per_image must be an object with at least one summary"),
    "summary is no text": (row(per_image={"image_1": {}}), "per_image.image_1 must be a text that is not blank"),
    "blank summary": (row(per_image={"image_1": " "}), "per_image.image_1 must be a text that is not blank"),
    "key without number": (row(per_image={"image": "x"}), "per_image key 'image' has no number at its end"),
    "number twice": (row(per_image={"image_1": "x", "图片_1": "y"}), "per_image has number 1 twice"),
    "ticket twice": (row(), f"ticket {ID}::fail was there already"),
}


@pytest.mark.parametrize("bad, problem", BAD.values(), ids=BAD.keys())
def test_a_bad_row_is_left_out_with_its_line_and_reason(tmp_path: Path, bad: Any, problem: str) -> None:
    found = read(tmp_path, row(), bad, row(label="pass"))
    assert len(found.tickets) == 2
    assert [one.line for one in found.bad_rows] == [2]
    assert problem in found.bad_rows[0].problem


@pytest.mark.parametrize("rows", [(), ("x", row(label="?"))], ids=["empty", "only-bad"])
def test_a_file_without_any_ticket_is_an_error(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(RecordError, match=f"holds no ticket: {len(rows)} rows"):
        read(tmp_path, *rows)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        read_tickets(tmp_path / "absent.jsonl", MISSION)


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=8)
)
def test_no_row_raises(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    folder = tmp_path_factory.mktemp("any")
    for bad in (value, row(per_image=value), row(label=value), row(per_image={"image_1": value})):
        found = read(folder, json.dumps(row(group_id="good")), json.dumps(bad))
        assert len(found.tickets) + len(found.bad_rows) == 2
