"""Tickets and guidance from files. Run: pytest tests/tasks/stage_b/test_files.py"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.api.errors import ConfigError, RecordError
from evalharness.tasks.stage_b.files import Guidance, Ticket, check_guidance, in_order, read_guidance, read_tickets, write_guidance

MISSION = "RRU安装检查"
ID = "QC-DEMO-20300101-0000001"


def row(**changes: Any) -> dict[str, Any]:
    per_image = {"image_1": '{"统计": []}', "image_2": "无关图片"}
    return {"group_id": ID, "mission": MISSION, "label": "fail", "images": ["a.jpg", "b.jpg"], "per_image": per_image, **changes}


def read(tmp_path: Path, *rows: Any) -> tuple[list[Ticket], dict[int, str]]:
    lines = [one if isinstance(one, (str, bytes)) else json.dumps(one, ensure_ascii=False) for one in rows]
    path = tmp_path / f"{MISSION}_stage_a.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return read_tickets(path, MISSION)


def test_a_row_becomes_a_ticket_and_one_order_under_two_labels_two(tmp_path: Path) -> None:
    (ticket, other), bad = read(tmp_path, row(), row(label=" PASS "))
    assert (ticket.key, ticket.mission, ticket.label) == (f"{ID}::fail", MISSION, "fail")
    assert ticket.summaries == ('{"统计": []}', "无关图片")
    assert (other.key, other.label, bad) == (f"{ID}::pass", "pass", {})


def test_summaries_come_in_the_order_of_the_digits_at_the_end_of_their_keys(tmp_path: Path) -> None:
    per_image = {"image_10": "ten", "图片_2": "two", "image_1": "one"}
    assert read(tmp_path, row(per_image=per_image))[0][0].summaries == ("one", "two", "ten")


def test_further_keys_missing_images_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    other = row(note="x", group_id="other")
    del other["images"]
    assert len(read(tmp_path, row(), "", other, "  ")[0]) == 2


BAD_ROWS = {
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


@pytest.mark.parametrize("bad, problem", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_a_bad_row_is_left_out_with_its_line_and_reason(tmp_path: Path, bad: Any, problem: str) -> None:
    tickets, problems = read(tmp_path, row(), bad, row(label="pass"))
    assert (len(tickets), list(problems)) == (2, [2])
    assert problem in problems[2]


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
        assert sum(map(len, read(folder, json.dumps(row(group_id="good")), json.dumps(bad)))) == 2


TIME = "2030-01-01T00:00:00+00:00"
ROOT = Path(__file__).parents[3] / "fixtures" / "site_photos"


def entry(**changes: Any) -> dict[str, Any]:
    rules = {"S1": "缺少关键证据则判定不通过", "G0": "每个站点需同时见到RRU与紧固件", "G1": "若紧固件不合格则判定不通过"}
    return {"step": 3, "updated_at": TIME, "experiences": rules, "metadata": {}, **changes}


def guidance(text: str = "焦点", step: int = 1) -> dict[str, Guidance]:
    return {MISSION: Guidance(step, TIME, {"G0": text})}


def test_the_shipped_guidance_is_read_and_rules_come_in_numeric_order() -> None:
    found = read_guidance(ROOT / "guidance.json")
    assert (len(found), set(found[MISSION].experiences)) == (6, {"G0", "S1", "G1"})
    assert in_order(["G10", "S10", "G2", "G0", "S2", "G1"]) == ["G0", "S2", "S10", "G1", "G2", "G10"]


def test_written_guidance_is_read_back_with_its_rules_in_order_and_as_they_are_spelled(tmp_path: Path) -> None:
    about = {"updated_at": TIME, "reflection_id": "r1", "sources": ["a::fail"], "rationale": None, "hit_count": 2, "miss_count": 0}
    wanted = check_guidance({MISSION: entry(metadata={"G1": {**about, "confidence": 1}})})
    path = write_guidance(tmp_path / "new" / "guidance.json", wanted)
    assert read_guidance(path) == wanted
    text = path.read_text("utf-8")
    assert list(json.loads(text)[MISSION]["experiences"]) == ["G0", "S1", "G1"]
    assert "每个站点" in text


BAD_GUIDANCE: dict[str, tuple[Any, str]] = {
    "empty": ({}, "is empty or not an object"),
    "list": ([], "is empty or not an object"),
    "unknown mission": ({"X": entry()}, "is about 'X'; known missions: BBU"),
    "entry": ({MISSION: []}, f"{MISSION} must be an object, got list"),
    "unknown key": ({MISSION: entry(stp=1)}, "stp is unknown; known: step"),
    "step": ({MISSION: entry(step=True)}, "step must be an int of at least 0, got True"),
    "negative step": ({MISSION: entry(step=-1)}, "step must be an int of at least 0, got -1"),
    "time": ({MISSION: entry(updated_at="yesterday")}, "updated_at must be an ISO time"),
    "no time": ({MISSION: entry(updated_at=None)}, "updated_at must be an ISO time"),
    "no rules": ({MISSION: entry(experiences={})}, "experiences is empty; a mission needs at least G0"),
    "no focus": ({MISSION: entry(experiences={"G1": "x"})}, "experiences lacks G0"),
    "rule id": ({MISSION: entry(experiences={"G0": "x", "G01": "y"})}, "has rule id 'G01'"),
    "other rule id": ({MISSION: entry(experiences={"G0": "x", "R1": "y"})}, "has rule id 'R1'"),
    "blank rule": ({MISSION: entry(experiences={"G0": " "})}, "G0 must be a text that is not blank"),
    "metadata": ({MISSION: entry(metadata=[])}, "metadata must be an object, got list"),
    "metadata of no rule": ({MISSION: entry(metadata={"G7": {}})}, "is about 'G7', but there is no such rule"),
    "metadata entry": ({MISSION: entry(metadata={"G1": 1})}, "G1 must be an object, got int"),
    "metadata key": ({MISSION: entry(metadata={"G1": {"hits": 1}})}, "hits is unknown; known: updated_at"),
    "metadata type": ({MISSION: entry(metadata={"G1": {"sources": "a"}})}, "sources must be list, got 'a'"),
    "metadata time": ({MISSION: entry(metadata={"G1": {"updated_at": "x"}})}, "updated_at must be an ISO time"),
    "count": ({MISSION: entry(metadata={"G1": {"hit_count": -1}})}, "hit_count must be at least 0, got -1"),
    "bool count": ({MISSION: entry(metadata={"G1": {"hit_count": True}})}, "hit_count must be int, got 'True'"),
    "confidence": ({MISSION: entry(metadata={"G1": {"confidence": 1.5}})}, "confidence must be 0 to 1, got 1.5"),
}


@pytest.mark.parametrize("data, problem", BAD_GUIDANCE.values(), ids=BAD_GUIDANCE.keys())
def test_guidance_that_breaks_its_form_is_refused(data: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_guidance(data)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, None], ids=["cut", "bytes", "deep", "missing"])
def test_a_guidance_file_must_be_json(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "guidance.json").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read .* it must be {mission:" if content is None else "is not JSON"):
        read_guidance(tmp_path / "guidance.json")


def test_each_write_keeps_what_was_there_and_old_snapshots_go(tmp_path: Path) -> None:
    path = tmp_path / "guidance.json"
    for step in range(6):
        write_guidance(path, guidance(step=step), num_snapshots=3)
    kept = {name: read_guidance(tmp_path / "snapshots" / name)[MISSION].step for name in sorted(os.listdir(tmp_path / "snapshots"))}
    assert kept == {"guidance-000003.json": 2, "guidance-000004.json": 3, "guidance-000005.json": 4}
    assert read_guidance(path)[MISSION].step == 5


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_guidance(tmp_path / "guidance.json", guidance("old"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RecordError, match="cannot be written"):
        write_guidance(path, guidance("new"))
    assert read_guidance(path)[MISSION].experiences == {"G0": "old"}
    assert [entry.name for entry in tmp_path.rglob("*.tmp")] == []


def test_wrong_guidance_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lacks G0"):
        write_guidance(tmp_path / "guidance.json", {MISSION: Guidance(0, TIME, {"G1": "x"})})
    with pytest.raises(ConfigError, match="num_snapshots must be at least 1, got 0"):
        write_guidance(tmp_path / "guidance.json", guidance(), num_snapshots=0)
    assert list(tmp_path.iterdir()) == []


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=8)
)
def test_any_data_is_taken_or_refused_as_such(value: Any) -> None:
    for data in (value, {MISSION: value}, {MISSION: entry(experiences=value)}, {MISSION: entry(metadata={"G1": value})}):
        try:
            check_guidance(data)
        except ConfigError:
            continue
