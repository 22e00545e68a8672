"""Files that may be packed by gzip, read from any place in them."""

from __future__ import annotations

import gzip
import mmap
import shutil
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from evalharness.api.checks import open_regular
from evalharness.api.errors import ConfigError

_DAMAGE = (gzip.BadGzipFile, EOFError, zlib.error)


class Unpacked:
    """A file, or what is in it if its name ends in .gz or .tgz: that is unpacked into a temporary file once a place in it is asked for."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._is_packed = path.name.lower().endswith((".gz", ".tgz"))
        self._lock = threading.Lock()
        self._copy: Any = None

    @contextmanager
    def open(self, start: int = 0) -> Iterator[IO[bytes]]:
        """Open the content at a place; threads may do so at once. `OSError`, or `ConfigError` for damage that shows while it is open."""
        try:
            if self._is_packed and not start:  # to read it all, once
                with open_regular(self._path) as packed, gzip.open(packed) as content:
                    yield content  # type: ignore[misc]
                return
            with self._unpacked() if self._is_packed else open_regular(self._path) as file:
                file.seek(start)
                yield file
        except _DAMAGE as error:
            raise ConfigError(f"{self._name} cannot be read, it is damaged or cut off: {error}; copy it again") from error

    def _unpacked(self) -> Any:
        with self._lock:
            if self._copy is None:
                copy = tempfile.TemporaryFile(prefix="evalharness-")  # noqa: SIM115 -- closed by `__del__`
                with open_regular(self._path) as packed, gzip.open(packed) as content:
                    shutil.copyfileobj(content, copy)
                copy.flush()
                self._copy = copy
            return mmap.mmap(self._copy.fileno(), 0, access=mmap.ACCESS_READ)  # each has a position of its own

    def __del__(self) -> None:
        if self._copy is not None:
            self._copy.close()
