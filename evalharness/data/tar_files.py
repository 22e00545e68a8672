"""Rows in tar files as WebDataset writes them: files of the same name up to its first dot, one after the other, are a row.

The rest of the name is the column: `0001.jpg` and `0001.json` are a row with the columns `jpg` and `json`, and `__key__` "0001". JSON is
read, texts and whole numbers too; all else is bytes that are read when they are used. Nothing is unpacked, links are passed over, and
pickles (`pkl`, `pyd`, `pth`, `npy`) stay bytes.
"""

from __future__ import annotations

import tarfile
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

from evalharness.api.errors import ConfigError, ImageError
from evalharness.api.images import StoredBytes
from evalharness.data.text_files import read_json
from evalharness.data.unpacked import Unpacked

_TEXTS = frozenset({"txt", "text", "caption", "transcript"})
_NUMBERS = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
_AT_ONCE = 1 << 20


class TarRows:
    """A tar file of rows, also one that is packed as .tar.gz; a place is where a row's first member begins."""

    def __init__(self, path: Path, name: str) -> None:
        self.name, self.path, self.folder = name, path, path.parent
        self._file = Unpacked(path, name)

    def where(self, place: int) -> str:
        """Return the row's key."""
        return f"{self.name}: {self.row(place)['__key__']}"

    def row(self, place: int) -> dict[str, Any]:
        """Return the row that begins at a place."""
        return next(self._rows(place))[1]

    def scan(self, columns: Collection[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield places and rows."""
        return self._rows(0)

    def _rows(self, start: int) -> Iterator[tuple[int, dict[str, Any]]]:
        place, row = start, dict[str, Any]()
        with self._file.open(start) as file:
            try:
                with tarfile.open(fileobj=file, mode="r:") as archive:
                    while (member := archive.next()) is not None:
                        vars(archive)["members"] = []  # else it keeps all
                        key, column = _split(member.name)
                        if not column or not member.isreg() or member.issparse():
                            continue
                        if row and row["__key__"] != key:
                            yield place, row
                            row = {}
                        if not row:
                            place, row = member.offset, {"__key__": key}
                        if column in row:
                            raise ConfigError(f"{self.name} holds {member.name} twice in one row")
                        row[column] = self._value(column, member, archive)
            except tarfile.TarError as error:
                raise ConfigError(f"{self.name} cannot be read, it is damaged or cut off: {error}; copy it again") from error
        if row:
            yield place, row

    def _value(self, column: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> Any:
        where = f"{self.name}: {member.name}"
        kind = column.rpartition(".")[2]
        if kind != "json" and kind not in _TEXTS and kind not in _NUMBERS:
            return StoredBytes(where, partial(self._read, where, member.offset_data, member.size), member.name)
        file = archive.extractfile(member)
        assert file is not None, "a regular file has content"
        content = _read(file, member.size)
        if kind == "json":
            return read_json(content, where)
        try:
            text = content.decode("utf-8-sig")
            return int(text) if kind in _NUMBERS else text
        except ValueError as error:
            wanted = "UTF-8" if kind in _TEXTS else "a whole number"
            raise ConfigError(f"{where} is not {wanted}: {error}") from error

    def _read(self, where: str, start: int, size: int) -> bytes:
        with self._file.open(start) as file:
            content = _read(file, size)
        if len(content) < size:
            raise ImageError(f"{where} is cut off: {len(content)} of {size} bytes are there; copy {self.name} again")
        return content


def _read(file: IO[bytes], size: int) -> bytes:
    """Return the next bytes, fewer where the file ends: `size` is what a header says, and `file.read` would make room for that first."""
    parts = list[bytes]()
    while size > 0 and (part := file.read(min(size, _AT_ONCE))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _split(name: str) -> tuple[str, str]:
    """Return key and column of a file's name: what is before and after the first dot of its last part."""
    folder, slash, last = name.rpartition("/")
    stem, _, column = last.partition(".")
    return f"{folder}{slash}{stem}", column.lower()
