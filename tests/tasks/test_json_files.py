"""Files of JSON rows. Run: pytest tests/tasks/test_json_files.py"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalharness.api.errors import RecordError
from evalharness.tasks.shared import json_lines, loads, read_lines, write_whole


@given(st.lists(st.dictionaries(st.text(), st.text(st.characters()) | st.integers() | st.none(), max_size=3), max_size=3))
def test_rows_are_read_back_as_they_were_written(rows: list[dict[str, object]]) -> None:
    lines = json_lines(rows).decode("utf-8").split("\n")
    assert [loads(line) for line in lines if line] == rows


def test_chinese_is_readable_and_a_lone_surrogate_is_escaped() -> None:
    assert json_lines([{"a": "统计"}, {"a": "\ud800"}]) == b'{"a": "' + "统计".encode() + b'"}\n{"a": "\\ud800"}\n'


def test_a_line_is_named_by_its_number_and_blank_ones_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"a": "x\u2028y"}\n\n[1]'.encode())
    assert list(read_lines(path)) == [(f"{path}:1", {"a": "x\u2028y"}), (f"{path}:3", [1])]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"1\n{", "a.jsonl:2 is not JSON"),
        (b"NaN", "a.jsonl:1 is not JSON: NaN is not JSON"),
        (b"\xff", "cannot be read"),
        (None, "cannot be read"),
    ],
    ids=["cut", "nan", "bytes", "absent"],
)
def test_what_cannot_be_read_is_an_error(tmp_path: Path, content: bytes | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(RecordError, match=problem):
        list(read_lines(tmp_path / "a.jsonl"))


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(RecordError, match=r"a\.jsonl cannot be written"):
        write_whole(tmp_path / "a.jsonl", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
