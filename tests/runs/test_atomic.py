from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from evalharness.api.errors import BaselineError, RecordError
from evalharness.runs.files import write_atomically


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text("old")
    return tmp_path / "run.json"


def disk_is_full(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_link_in_place_of_the_temporary_file_is_not_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (path.parent / f".run.json.{os.getpid()}.tmp").symlink_to(tmp_path / "mine")
    with write_atomically(path) as file:
        file.write(b"new")
    assert ((tmp_path / "mine").read_text(), path.read_bytes(), path.is_symlink()) == ("mine", b"new", False)


def test_the_old_content_stays_until_the_new_is_whole(path: Path) -> None:
    mode = path.stat().st_mode
    with write_atomically(path) as file:
        file.write(b"new\n")
        assert path.read_text() == "old"
    assert (path.read_bytes(), path.stat().st_mode) == (b"new\n", mode), "permissions are those of any new file"
    assert list(path.parent.iterdir()) == [path]


def test_an_exception_or_a_full_disk_keeps_the_old_content_and_no_temporary_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError, match="division"), write_atomically(path) as file:
        file.write(b"new")
        raise ZeroDivisionError("division")
    monkeypatch.setattr(os, "replace", disk_is_full)
    with pytest.raises(RecordError, match=r"run\.json cannot be written: No space left on device; free some$"):  # noqa: SIM117
        with write_atomically(path, "free some") as file:
            file.write(b"new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_target_that_is_a_folder_raises_the_error_of_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.mkdir()
    with pytest.raises(BaselineError, match=r"cannot be written: Is a directory$"), write_atomically(path, error=BaselineError):
        pass
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_made_only_where_the_caller_wants_it(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "run.json"
    with pytest.raises(RecordError, match="cannot be written: No such file or directory"), write_atomically(path):
        pass
    with write_atomically(path, make_folder=True) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("durable", [True, False])
def test_only_durable_content_is_flushed_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    calls: list[str] = []
    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, lambda *_, name=name: calls.append(name))
    with write_atomically(tmp_path / "guidance.json", durable=durable) as file:
        file.write(b"new")
    assert calls == (["fsync", "replace"] if durable else ["replace"])


def test_what_a_killed_writer_left_long_ago_is_removed_and_nothing_else_is(tmp_path: Path) -> None:
    names = [".a.json.1.tmp", ".a.json.2.tmp", ".b.json.1.tmp", "a.json.tmp"]
    for name in names:
        (tmp_path / name).write_text("x")
        if name != ".a.json.2.tmp":
            os.utime(tmp_path / name, (0, 0))
    with write_atomically(tmp_path / "a.json") as file:
        file.write(b"{}")
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", *names[1:]}
