from __future__ import annotations

from pathlib import Path

import pytest

from evalharness.api.errors import RecordError
from evalharness.report.writing import replacing


def test_the_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("old")
    with replacing(path) as file:
        file.write("new\n")
        assert path.read_text() == "old"
    assert path.read_bytes() == b"new\n"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError, match="division"), replacing(path) as file:
        file.write("new")
        raise ZeroDivisionError("division")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_target_that_is_a_folder_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.mkdir()
    with pytest.raises(RecordError, match=r"report\.md cannot be written: Is a directory; .*--report-dir"), replacing(path) as file:
        file.write("new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be written: No such file or directory"), replacing(tmp_path / "gone" / "report.md"):
        pass
