"""Files that may be packed, by gzip or Zstandard, read from any place in them.

What a file unpacks to is bounded by its own size: a few kilobytes may otherwise fill any memory or disk.
"""

from __future__ import annotations

import errno
import gzip
import io
import mmap
import os
import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

from evalharness.api.checks import open_regular
from evalharness.api.errors import ConfigError
from evalharness.api.temporary import no_room
from evalharness.data.arrow_files import pyarrow_for

PACKED = (".gz", ".zst")
"""The ends of the names of packed files."""
_MAX_RATIO = 200
"""Texts of much repetition, such as one prompt in each row, are packed to a hundredth; zeros to a thousandth, by Zstandard far less."""
_ALWAYS_ALLOWED = 256 << 20
_AT_ONCE = 1 << 18
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_Unpack: TypeAlias = "Callable[[IO[bytes]], Any]"


class Unpacked:
    """A file, or what is in it if its name says that it is packed: a temporary file has that once a place in it is asked for."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        end = path.name.lower()
        self._unpack: _Unpack | None = _zstd if end.endswith(".zst") else gzip.open if end.endswith((".gz", ".tgz")) else None
        self._lock = threading.Lock()
        self._copy: Any = None

    @contextmanager
    def open(self, start: int = 0) -> Iterator[IO[bytes]]:
        """Open the content at a place; threads may do so at once. `OSError`, or `ConfigError` for damage that shows while it is open."""
        if self._unpack is None:
            with open_regular(self._path) as file:
                file.seek(start)
                yield file
        elif start:
            with self._unpacked(self._unpack) as copy:
                copy.seek(start)
                yield copy
        else:  # to read it all, once
            with self._content(self._unpack) as content:
                yield content

    @contextmanager
    def _content(self, unpack: _Unpack) -> Iterator[IO[bytes]]:
        try:
            with open_regular(self._path) as packed:
                max_bytes = max(_ALWAYS_ALLOWED, _MAX_RATIO * os.fstat(packed.fileno()).st_size)
                with io.BufferedReader(_Bounded(packed, unpack, max_bytes, self._name), _AT_ONCE) as content:
                    yield content
        except (OSError, EOFError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the system's, not of what is packed
                raise
            raise ConfigError(f"{self._name} cannot be read, it is damaged or cut off: {error}; copy it again") from error

    def _unpacked(self, unpack: _Unpack) -> Any:
        with self._lock:
            if self._copy is None:
                copy = tempfile.TemporaryFile(prefix="evalharness-")  # noqa: SIM115 -- closed by `__del__`
                try:
                    with self._content(unpack) as content:
                        shutil.copyfileobj(content, copy, _AT_ONCE)
                    copy.flush()
                except BaseException as error:
                    copy.close()
                    if isinstance(error, OSError) and error.errno in _NO_ROOM:
                        raise no_room(error) from error
                    raise
                self._copy = copy
            return mmap.mmap(self._copy.fileno(), 0, access=mmap.ACCESS_READ)  # each has a position of its own

    def __del__(self) -> None:
        if self._copy is not None:
            self._copy.close()


def _zstd(packed: IO[bytes]) -> Any:
    return pyarrow_for("a .zst file").CompressedInputStream(packed, "zstd")


class _Bounded(io.RawIOBase):
    """The content of a packed file; `ConfigError` where it goes on behind `max_bytes`."""

    def __init__(self, packed: IO[bytes], unpack: _Unpack, max_bytes: int, name: str) -> None:
        self._packed, self._unpack, self._max_bytes, self._name = packed, unpack, max_bytes, name
        self._content, self._position = unpack(packed), 0

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def seekable(self) -> bool:
        """Return that places in it can be reached, by reading up to them."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes, and return how many."""
        num = int(self._content.readinto(buffer))
        self._position += num
        if self._position > self._max_bytes:
            problem = f"{self._name} unpacks to more than {self._max_bytes >> 20} MB, which is over {_MAX_RATIO} times its size"
            raise ConfigError(f"{problem}; if that is meant, unpack it and give what was in it")
        return num

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, from the beginning or from here, and return it."""
        target = offset + (self._position if whence == os.SEEK_CUR else 0)
        if target < self._position:
            self._packed.seek(0)
            self._content, self._position = self._unpack(self._packed), 0
        while self._position < target and self.readinto(bytearray(min(_AT_ONCE, target - self._position))):
            pass
        return self._position
