"""A remembered hash saves time; whatever stands in its file, or happens to the files, a hash is never wrong."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import CheckpointError
from evalharness.checkpoints import file_hashes
from evalharness.checkpoints.file_hashes import FileState, hash_files, told_of_reading


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Files whose pieces were read. Files of 100 bytes are large here, pieces 40; all are trusted and settled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in (("REMEMBERED_BYTES", 100), ("_PIECE_BYTES", 40), ("_BLOCK_BYTES", 16), ("SETTLED_NS", -(10**12))):
        monkeypatch.setattr(file_hashes, name, value)
    monkeypatch.setattr(file_hashes, "_file_system_of", lambda path, mounts: "ext4")
    hash_piece, paths = file_hashes._hash_piece, list[Path]()

    def watched(path: Path, *rest: Any) -> bytes:
        paths.append(path)
        return hash_piece(path, *rest)

    monkeypatch.setattr(file_hashes, "_hash_piece", watched)
    return paths


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(110)))
    return path


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "evalharness" / "file-hashes-1.json"


def hash_of(path: Path) -> str:
    return hash_files([path])[path]


def expected(content: bytes) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(content[at : at + 40]).digest() for at in range(0, len(content), 40))).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 39, 40, 41, 80, 100, 333])
def test_a_hash_is_of_the_whole_content(read: list[Path], file: Path, size: int) -> None:
    content = os.urandom(size)
    file.write_bytes(content)
    assert hash_of(file) == expected(content)
    assert hash_of(file) == expected(content)


def test_what_has_not_changed_is_not_read_again(read: list[Path], file: Path, memory: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(b"x" * 99)
    link = tmp_path / "link"
    link.symlink_to(file)
    before = hash_files([file, small])
    assert [read.count(path) for path in (file, small)] == [3, 3]
    assert hash_files([file, small]) == before
    assert [read.count(path) for path in (file, small)] == [3, 6], "small files are quicker read than looked up"
    assert hash_of(link) == before[file]
    assert link not in read
    assert list(json.loads(memory.read_text())) == [str(file)]
    assert [path.name for path in memory.parent.iterdir()] == [memory.name]


def rewrite(path: Path) -> None:
    path.write_bytes(bytes(reversed(range(110))))


def rewrite_and_set_back(path: Path) -> None:
    before = path.stat()
    rewrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path: Path) -> None:
    before = path.stat()
    other = path.with_name("other")
    rewrite(other)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [rewrite, rewrite_and_set_back, replace], ids=lambda change: change.__name__)
def test_what_was_written_is_read_again(read: list[Path], file: Path, change: Callable[[Path], None]) -> None:
    before = hash_of(file)
    change(file)
    assert hash_of(file) == expected(bytes(reversed(range(110)))) != before


@pytest.mark.parametrize("place", range(5))
def test_a_hash_of_any_other_state_of_the_file_is_not_taken(read: list[Path], file: Path, memory: Path, place: int) -> None:
    right = hash_of(file)
    entry = json.loads(memory.read_text())[str(file)]
    entry[place] += 1
    entry[-1] = "0" * 64
    memory.write_text(json.dumps({str(file): entry}))
    assert hash_of(file) == right
    assert json.loads(memory.read_text())[str(file)][-1] == right


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"FILE": null}',
        b'{"FILE": [1]}',
        b'{"FILE": ["a", {}]}',
        b'{"FILE": {"x": 1}}',
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_damaged_memory_costs_time_only(read: list[Path], file: Path, memory: Path, content: bytes) -> None:
    memory.parent.mkdir(parents=True)
    memory.write_bytes(content.replace(b"FILE", str(file).encode()))
    assert hash_of(file) == hash_of(file) == expected(file.read_bytes())
    assert read.count(file) == 3, "and the next run has it again"


@pytest.mark.parametrize("digest", ["", "0" * 63, "G" * 64, 5, None, ["0" * 64]], ids=str)
def test_what_is_no_hash_is_not_taken_for_one(read: list[Path], file: Path, memory: Path, digest: Any) -> None:
    right = hash_of(file)
    entry = json.loads(memory.read_text())[str(file)]
    memory.write_text(json.dumps({str(file): [*entry[:-1], digest]}))
    assert hash_of(file) == right


def test_a_memory_that_others_may_write_is_not_believed(read: list[Path], file: Path, memory: Path) -> None:
    right = hash_of(file)
    entry = json.loads(memory.read_text())[str(file)]
    memory.write_text(json.dumps({str(file): [*entry[:-1], "0" * 64]}))
    memory.chmod(0o666)
    assert hash_of(file) == right


def test_a_memory_that_cannot_be_read_or_written_costs_time_only(
    read: list[Path], file: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory.mkdir(parents=True)
    assert hash_of(file) == hash_of(file) == expected(file.read_bytes())
    memory.rmdir()
    os.mkfifo(memory)  # nobody ever writes to it
    assert hash_of(file) == expected(file.read_bytes())
    (tmp_path / "no-folder").write_text("x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-folder"))
    assert hash_of(file) == hash_of(file) == expected(file.read_bytes())


def test_a_file_that_was_just_written_is_not_remembered(
    read: list[Path], file: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_hashes, "SETTLED_NS", 60 * 10**9)
    hash_of(file)
    assert not memory.exists()
    os.utime(file, (1, 1))  # as copied with its times; when it was written here, the system says itself
    hash_of(file)
    assert not memory.exists()


def test_only_file_systems_are_trusted_that_say_when_they_were_written_to(
    read: list[Path], file: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("nfs4", "fuse.sshfs", "overlay", "tmpfs", "vfat", "9p", "lustre", None):
        monkeypatch.setattr(file_hashes, "_file_system_of", lambda path, mounts, kind=kind: kind)
        hash_of(file)
        assert not memory.exists()
    monkeypatch.setattr(file_hashes, "_file_system_of", lambda path, mounts: "xfs")
    hash_of(file)
    assert memory.exists()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/a", "ext4"),
        ("/data/m/x", "nfs4"),
        ("/data/mm/x", "xfs"),
        ("/data/m/in side/x", "fuse"),
        ("/data/file", "overlay"),
        ("/top/x", "tmpfs"),
    ],
)
def test_a_file_lies_on_what_was_mounted_innermost_and_last(monkeypatch: pytest.MonkeyPatch, path: str, kind: str) -> None:
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/a rw",
        "2 1 8:2 / /data rw shared:1 - xfs /dev/b rw",
        "3 2 0:5 / /data/m rw - nfs4 s:/m rw",
        "4 3 0:6 / /data/m/in\\040side rw master:2 - fuse x rw",
        "5 2 0:7 /f /data/file rw - overlay o rw",
        "6 1 8:3 / /top rw - ext4 /dev/c rw",
        "7 1 0:8 / /top rw - tmpfs t rw",
    ]
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "\n".join(lines))
    assert file_hashes._file_system_of(path, file_hashes._mounts()) == kind


@pytest.mark.parametrize("change", [rewrite, replace, Path.unlink, lambda path: os.truncate(path, 50)])
def test_a_file_that_changes_while_it_is_read_is_noticed(
    read: list[Path], file: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    hash_piece = file_hashes._hash_piece

    def disturbed(path: Path, state: Any, begin: int) -> bytes:
        digest = hash_piece(path, state, begin)
        if begin == 80:
            change(path)
        return digest

    monkeypatch.setattr(file_hashes, "_hash_piece", disturbed)
    with pytest.raises(CheckpointError, match="was written to while it was read; start again once|cannot be read: No such file"):
        hash_of(file)
    assert not memory.exists()


def test_the_memory_keeps_the_newest(read: list[Path], tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_hashes, "_MAX_FILES", 3)
    files = [tmp_path / str(number) for number in range(5)]
    for path in files:
        path.write_bytes(os.urandom(120))
        hash_of(path)
    assert list(json.loads(memory.read_text())) == [str(path) for path in files[2:]]


def test_a_file_that_cannot_be_read_is_our_error(read: list[Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing cannot be read: No such file"):
        hash_of(tmp_path / "nothing")


def test_reading_that_takes_long_says_how_far_it_is(read: list[Path], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hash_piece = file_hashes._hash_piece

    def slow(path: Path, state: FileState, begin: int) -> bytes:
        time.sleep(0.3 if begin else 0)
        return hash_piece(path, state, begin)

    monkeypatch.setattr(file_hashes, "_hash_piece", slow)
    monkeypatch.setattr(file_hashes, "_LONG_S", 0.1)
    told: list[str] = []
    listening = told_of_reading.set(told.append)
    hash_of(file)
    told_of_reading.reset(listening)
    assert told == [f"reading {file.parent.name} for the fingerprint: 0.0 of 0.0 GB"]
