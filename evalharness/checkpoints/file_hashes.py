"""SHA-256 of whole files: made by several threads, and remembered between runs for files that have not changed since.

A hash is remembered only where the file system's word can be taken that nothing was written: a file of at least `REMEMBERED_BYTES` on a
local disk with inodes and nanosecond times (`TRUSTED`), whose last change lay `SETTLED_NS` back when reading began. Not trusted are, on
purpose: network file systems (nfs, cifs, lustre, ceph…), whose attributes are cached and whose clock is another machine's; FUSE, which says
what its program likes; overlay, whose inodes may change; FAT, which has no time of change; and tmpfs, where writing through a mapping
leaves no trace. Elsewhere such writing is dated once, when a page becomes dirty, and again only after that page went to the disk, usually
within 35 s: hence the minute. Whatever is not remembered is read again, which takes time and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from evalharness.api.errors import CheckpointError
from evalharness.api.remembered import remember, remembered

REMEMBERED_BYTES = 16 * 1024 * 1024
SETTLED_NS = 60 * 10**9
TRUSTED = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "xfs", "zfs"})
_PIECE_BYTES = 32 * 1024 * 1024  # part of what the hash is: other pieces, other hashes
_BLOCK_BYTES = 1024 * 1024
_NUM_THREADS = 16  # also on few cores: a disk is read faster with several requests under way
_LONG_S, _TELL_EVERY_S = 3.0, 15.0
told_of_reading: ContextVar[Callable[[str], None] | None] = ContextVar("told_of_reading", default=None)
"""Is told how far reading is, where it takes longer than a few seconds: of large checkpoints it takes minutes."""
_MEMORY, _MAX_FILES = "file-hashes-1", 1000  # remembered ones; the number changes with the way hashes are made


class FileState(NamedTuple):
    """What the file system says of a file: it differs if anything was written, or another file was put in its place."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def at(cls, path: Path) -> FileState:
        """Return the state of a file now."""
        return cls.of(path.stat())

    @classmethod
    def of(cls, found: os.stat_result) -> FileState:
        """Return the state that `stat` found."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def hash_files(paths: Iterable[Path]) -> dict[Path, str]:
    """Return {file: hash of its content (hex)}, each a SHA-256 over the SHA-256 of its pieces of 32 MiB.

    Raises `CheckpointError` for a file that cannot be read, or is written to meanwhile.
    """
    began_ns = time.time_ns()
    try:
        states = {path: FileState.at(path) for path in paths}
        trusted = _trusted(path for path, state in states.items() if state.size >= REMEMBERED_BYTES)
        entries = remembered(_MEMORY) if trusted else {}
        hashes = {path: found for path, real in trusted.items() if (found := _known(entries.get(real), states[path])) is not None}
        new = {path: state for path, state in states.items() if path not in hashes}
        hashes |= _hash_whole(new)
        for path, state in states.items():
            if FileState.at(path) != state:
                raise _changed(path)
    except OSError as error:
        raise CheckpointError(f"{error.filename} cannot be read: {error.strerror}") from error
    settled = [path for path, state in new.items() if path in trusted and began_ns - max(state.mtime_ns, state.ctime_ns) >= SETTLED_NS]
    if settled:
        remember(_MEMORY, {trusted[path]: (*states[path], hashes[path]) for path in settled}, _MAX_FILES)
    return hashes


def _hash_whole(states: Mapping[Path, FileState]) -> dict[Path, str]:
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="evalharness-hash") as pool:
        pieces = {
            path: [pool.submit(_hash_piece, path, state, begin) for begin in range(0, state.size, _PIECE_BYTES)]
            for path, state in states.items()
        }
        try:
            _tell_while(states, pieces)
            return {path: hashlib.sha256(b"".join(piece.result() for piece in made)).hexdigest() for path, made in pieces.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _tell_while(states: Mapping[Path, FileState], pieces: Mapping[Path, Sequence[Future[bytes]]]) -> None:
    """Wait until all is read, and say now and then how far that is, where somebody listens."""
    say, wait_s = told_of_reading.get(), _LONG_S
    every = [piece for made in pieces.values() for piece in made]
    total_gb, names = sum(state.size for state in states.values()) / 1e9, {path.parent.name for path in states}
    while say is not None and wait(every, wait_s).not_done:
        share = sum(piece.done() for piece in every) / len(every)
        say(f"reading {', '.join(sorted(names))} for the fingerprint: {share * total_gb:.1f} of {total_gb:.1f} GB")
        wait_s = _TELL_EVERY_S


def _hash_piece(path: Path, state: FileState, begin: int) -> bytes:
    digest = hashlib.sha256()
    block = memoryview(bytearray(_BLOCK_BYTES))
    left = min(_PIECE_BYTES, state.size - begin)
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        while left and (num_read := file.readinto(block[:left])):
            digest.update(block[:num_read])
            left -= num_read
        if left or FileState.of(os.fstat(file.fileno())) != state:
            raise _changed(path)
    return digest.digest()


def _changed(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} was written to while it was read; start again once it is whole")


def _trusted(paths: Iterable[Path]) -> dict[Path, str]:
    """Return {path: real path} of the files on file systems whose word is taken."""
    real = {path: os.path.realpath(path) for path in paths}
    mounts = _mounts() if real else []
    return {path: name for path, name in real.items() if _file_system_of(name, mounts) in TRUSTED}


def _mounts() -> list[tuple[str, str]]:
    """Return (folder, type) of all that is mounted, in order; [] where the system does not say (anything but Linux)."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    parts = [line.partition(" - ") for line in lines]
    escaped = re.compile(r"\\([0-7]{3})")
    return [(escaped.sub(lambda code: chr(int(code[1], 8)), left.split(" ")[4]), right.split(" ")[0]) for left, _, right in parts]


def _file_system_of(path: str, mounts: Sequence[tuple[str, str]]) -> str | None:
    """Return the type of the file system that a real path lies on: the innermost; of two at one place the later, which covers the other."""
    at = [(len(folder), number, kind) for number, (folder, kind) in enumerate(mounts) if (path + "/").startswith(folder.rstrip("/") + "/")]
    return max(at)[2] if at else None


def _known(entry: Any, state: FileState) -> str | None:
    """Return the hash in a remembered entry if it is of exactly this state of a file."""
    if not isinstance(entry, list) or entry[:-1] != list(state) or not all(type(number) is int for number in entry[:-1]):
        return None
    return entry[-1] if isinstance(entry[-1], str) and re.fullmatch("[0-9a-f]{64}", entry[-1]) else None
