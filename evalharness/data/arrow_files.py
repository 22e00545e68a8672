"""Rows in Arrow's files: Parquet, and Arrow IPC as a file or a stream (what `datasets` writes).

Columns with bytes, such as images, are read only where a row's bytes are used; other columns a part of the file at a time.
"""

from __future__ import annotations

import bisect
import datetime
import decimal
import threading
import uuid
from collections import OrderedDict
from collections.abc import Collection, Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalharness.api.errors import ConfigError, ImageError, MissingDependency
from evalharness.api.images import StoredBytes
from evalharness.data.stored import no_column

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_CACHED_BYTES = 256 << 20
_ROWS_AT_ONCE = 1024
_UNKNOWN: Any = object()
"""Stands for a value whose bytes must be read to know whether there are any."""


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependency("Parquet and Arrow files need pyarrow; pip install 'evalharness[parquet]'") from error
    return pyarrow


def _plain(value: Any) -> Any:
    """Return a value of Arrow's as JSON has it: dates as ISO texts, NaN as None."""
    if value is None or isinstance(value, (str, int, bytes)):
        return value
    if isinstance(value, float):
        return None if value != value else value
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value) if isinstance(value, uuid.UUID) else value


def _has_bytes(kind: pa.DataType) -> bool:
    types = _pyarrow().types
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind) or str(kind) == "binary_view":
        return True
    return any(_has_bytes(kind.field(i).type) for i in range(kind.num_fields))


def _stays(kind: pa.DataType) -> bool:
    """Return whether values of a type are as JSON has them once Arrow made them Python's."""
    types = _pyarrow().types
    return bool(types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind) or types.is_boolean(kind))


class _Parts:
    """Parts of files that were decoded last, of all files together; the newest is kept whatever its size."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Any, ...], pa.Table] = OrderedDict()

    def get(self, key: tuple[Any, ...], read: Any) -> Any:
        """Return the part of this key, made by `read` unless it is kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            part = self._kept[key] = read()
            while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > _MAX_CACHED_BYTES:
                self._kept.popitem(last=False)
            return part


_PARTS = _Parts()


class _ArrowRows:
    """Rows by their number; subclasses give tables of them."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name, self.folder = path, name, path.parent
        try:
            self.schema, sizes = self._open()
        except (_pyarrow().ArrowException, OSError) as error:
            raise self._unreadable(error) from error
        self._starts = [0, *accumulate(sizes)]
        self._binary = [field.name for field in self.schema if _has_bytes(field.type)]

    def _open(self) -> tuple[pa.Schema, list[int]]:
        """Return the schema and the numbers of rows of the parts."""
        raise NotImplementedError

    def _part(self, part: int, columns: tuple[str, ...]) -> pa.Table:
        """Return these columns of a part: names, and dotted paths of what is in them."""
        raise NotImplementedError

    def _light_columns(self, names: Collection[str]) -> tuple[str, ...]:
        """Return what is read of these columns to make rows: all but bytes."""
        raise NotImplementedError

    def _unreadable(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self.name} cannot be read, it is damaged or cut off: {error}; copy it again")

    def where(self, place: int) -> str:
        """Return the row's number, from 1."""
        return f"{self.name}: row {place + 1}"

    def row(self, place: int) -> dict[str, Any]:
        """Return the row of a number, from 0."""
        part, at = self._locate(place)
        (row,) = self._rows(self._read(part, self._light_columns(self.schema.names)).slice(at, 1), part, place, self.schema.names)
        return row

    def scan(self, columns: Collection[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield numbers and rows."""
        for name in columns or ():
            if name not in self.schema.names:
                raise no_column(name, self.schema.names, self.name)
        names = [name for name in self.schema.names if columns is None or name in columns]
        light = self._light_columns(names)
        for part, (start, end) in enumerate(zip(self._starts, self._starts[1:], strict=False)):
            table = self._read(part, light)
            for place in range(start, end, _ROWS_AT_ONCE):
                rows = self._rows(table.slice(place - start, _ROWS_AT_ONCE), part, place, names)
                yield from enumerate(rows, place)

    def _locate(self, place: int) -> tuple[int, int]:
        part = bisect.bisect_right(self._starts, place) - 1
        return part, place - self._starts[part]

    def _read(self, part: int, columns: tuple[str, ...]) -> pa.Table:
        def read() -> pa.Table:
            try:
                return self._part(part, columns)
            except (_pyarrow().ArrowException, OSError) as error:
                raise self._unreadable(error) from error

        return _PARTS.get((self.path, part, columns), read)

    def _rows(self, table: pa.Table, part: int, start: int, names: Collection[str]) -> list[dict[str, Any]]:
        num_rows = min(table.num_rows if table.num_columns else _ROWS_AT_ONCE, self._starts[part + 1] - start)
        values = {}
        for name in names:
            if name in self._binary:
                light = table[name].to_pylist() if name in table.column_names else [_UNKNOWN] * num_rows
                values[name] = [self._stored(name, start + at, light[at]) for at in range(num_rows)]
            else:
                column = table[name].to_pylist()
                values[name] = column if _stays(table.schema.field(name).type) else [_plain(value) for value in column]
        return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]

    def _stored(self, column: str, place: int, light: Any) -> Any:
        """Return what stands for the bytes of a row's column: `StoredBytes`, a list of them, or None."""
        if light is _UNKNOWN:
            value = self._binary_value(column, place)
            light = [None if each is None else True for each in value] if isinstance(value, list) else None if value is None else True
        if isinstance(light, list):
            return [None if each is None else self._handle(column, place, each, index) for index, each in enumerate(light)]
        return None if light is None else self._handle(column, place, light)

    def _handle(self, column: str, place: int, light: Any, index: int | None = None) -> StoredBytes:
        name = f"{self.where(place)}, {column}" + ("" if index is None else f"[{index}]")
        path = light.get("path") if isinstance(light, dict) else None

        def read() -> bytes:
            value = self._binary_value(column, place)
            value = value if index is None else value[index]
            content = next((each for each in value.values() if isinstance(each, bytes)), None) if isinstance(value, dict) else value
            if content is None and path:
                return (self.folder / path).read_bytes()
            if content is None:
                raise ImageError(f"{name} has no bytes")
            return content

        return StoredBytes(name, read, path or "")

    def _binary_value(self, column: str, place: int) -> Any:
        part, at = self._locate(place)
        return self._read(part, (column,))[column][at].as_py()


class ParquetRows(_ArrowRows):
    """A Parquet file; its parts are the row groups."""

    def _open(self) -> tuple[pa.Schema, list[int]]:
        with _pyarrow().parquet.ParquetFile(self.path) as file:
            self._metadata = file.metadata
            leaves = [file.schema.column(i) for i in range(len(file.schema))]
            is_raw = {leaf.path: leaf.logical_type.type == "NONE" and "BYTE_ARRAY" in leaf.physical_type for leaf in leaves}
            self._leaves = [path for path, raw in is_raw.items() if not raw]
            return file.schema_arrow, [self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)]

    def _light_columns(self, names: Collection[str]) -> tuple[str, ...]:
        light = [name for name in names if name not in self._binary]
        return (*light, *(leaf for name in names if name in self._binary for leaf in self._leaves if leaf.startswith(f"{name}.")))

    def _part(self, part: int, columns: tuple[str, ...]) -> pa.Table:
        with _pyarrow().parquet.ParquetFile(self.path, metadata=self._metadata, memory_map=True) as file:
            return file.read_row_group(part, columns=list(columns))


class IpcRows(_ArrowRows):
    """An Arrow file or stream, mapped into memory; its parts are the record batches."""

    def _open(self) -> tuple[pa.Schema, list[int]]:
        pa = _pyarrow()
        source = pa.memory_map(str(self.path))
        if source.read(6) == b"ARROW1":
            reader = pa.ipc.open_file(source)
            self._batches: Any = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        else:
            source.seek(0)
            reader = pa.ipc.open_stream(source)
            self._batches = list(reader)
        return reader.schema, [batch.num_rows for batch in self._batches]

    def _light_columns(self, names: Collection[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name not in self._binary)

    def _part(self, part: int, columns: tuple[str, ...]) -> pa.Table:
        return _pyarrow().Table.from_batches([self._batches[part]]).select(list(columns))
