"""Rows in Arrow's files: Parquet, and Arrow IPC as a file or a stream (what `datasets` writes).

Columns with bytes, such as images, are read only where a row's bytes are used; other columns a part of the file at a time.
"""

from __future__ import annotations

import bisect
import itertools
import json
import shutil
import tempfile
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evalharness.api.checks import read_regular
from evalharness.api.errors import ConfigError, ImageError, MissingDependency
from evalharness.api.images import ERRORS_OF_THE_FILE, StoredBytes
from evalharness.api.installing import missing_package
from evalharness.data.stored import no_column, plain_value

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_CACHED_BYTES = 64 << 20
_MAX_PART_BYTES = 32 << 20
"""Of what is decoded at once, uncompressed; pandas and pyarrow write a million rows into one row group."""
_MAX_SCANNED_BYTES = 4 << 20
_MAX_STARTS = 2
_MAX_SHARE_OF_DISK = 0.25
_BUFFER_BYTES = 1 << 16
"""With it, and without buffering ahead, pyarrow does not hold all of a row group's compressed columns."""
_ROWS_AT_ONCE = 1024
_UNKNOWN: Any = object()
"""Stands for a value whose bytes must be read to know whether there are any."""


def pyarrow_for(what: str) -> Any:
    """Return the package; `MissingDependency` names what needs it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependency(missing_package(what, error, "parquet")) from error
    return pyarrow


def _pyarrow() -> Any:
    return pyarrow_for("a Parquet or Arrow file")


def _errors() -> tuple[type[Exception], ...]:
    return (_pyarrow().ArrowException, OSError, UnicodeDecodeError)


def _is_bytes(kind: pa.DataType) -> bool:
    types = _pyarrow().types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind) or str(kind) == "binary_view")


def _has_bytes(kind: pa.DataType) -> bool:
    return _is_bytes(kind) or any(_has_bytes(kind.field(i).type) for i in range(kind.num_fields))


def _is_image(kind: pa.DataType) -> bool:
    """Return whether values of a type are bytes, perhaps with their path, or lists of these."""
    types = _pyarrow().types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return _is_bytes(kind) or (types.is_struct(kind) and {kind.field(i).name for i in range(kind.num_fields)} <= {"bytes", "path"})


def _wrapped(value: Any, where: str) -> Any:
    """Return a plain value with its bytes as `StoredBytes`."""
    if isinstance(value, bytes):
        return StoredBytes(where, lambda: value)
    if isinstance(value, dict):
        return {key: _wrapped(each, f"{where}.{key}") for key, each in value.items()}
    return [_wrapped(each, f"{where}[{index}]") for index, each in enumerate(value)] if isinstance(value, list) else value


def _from_json(value: Any, kind: pa.DataType) -> Any:
    """Return a value with its parts of the type `arrow.json` read; `datasets` writes objects of differing keys so."""
    if value is None or getattr(kind, "extension_name", "") != "arrow.json":
        inner = [kind.field(i).type for i in range(kind.num_fields)]
        if isinstance(value, list):
            return [_from_json(each, inner[0]) for each in value]
        return {key: _from_json(each, kind.field(key).type) for key, each in value.items()} if isinstance(value, dict) else value
    return json.loads(value)


def _stays(kind: pa.DataType) -> bool:
    """Return whether values of a type are as JSON has them once Arrow made them Python's."""
    types = _pyarrow().types
    return bool(types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind) or types.is_boolean(kind))


def _file_content(path: Path, name: str) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        if error.errno in ERRORS_OF_THE_FILE:
            raise ImageError(f"{name} has no bytes, and its file cannot be read: {error} (URLs are not fetched)") from error
        raise


class _Parts:
    """Parts of files that were decoded last, of all files together; the newest is kept whatever its size."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Any, ...], pa.Table] = OrderedDict()

    def get(self, key: tuple[Any, ...], read: Callable[[], pa.Table]) -> pa.Table:
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


class Part(NamedTuple):
    """Rows of a file that are decoded together: the part of this number in a group, all of which begin at multiples of `size`."""

    start: int
    group: int
    number: int = 0
    size: int = 0


class _ArrowRows:
    """Rows by their number; subclasses give tables of them."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name, self.folder = path, name, path.parent
        self._cursors = threading.local()
        try:
            self.schema, self.num_rows = self._open()
            self._binary = [field.name for field in self.schema if _has_bytes(field.type)]
            twice = [column for column, count in Counter(self.schema.names).items() if count > 1]
            self._mixed = [name for name in self._binary if name not in twice and not _is_image(self.schema.field(name).type)]
            """Columns of objects with bytes somewhere in them: read whole with their rows."""
        except _errors() as error:
            raise self._unreadable(error) from error
        if twice:
            raise ConfigError(f"{name} has {', '.join(map(repr, twice))} more than once; give each column its own name")
        self._parts: dict[tuple[str, ...], list[Part]] = {}

    def _open(self) -> tuple[pa.Schema, int]:
        """Return the schema and the number of rows."""
        raise NotImplementedError

    def _parts_of(self, columns: tuple[str, ...]) -> list[Part]:
        """Return in which parts these columns are decoded: names, and dotted paths of what is in them."""
        raise NotImplementedError

    def _part(self, part: Part, columns: tuple[str, ...]) -> pa.Table:
        """Return these columns of a part."""
        raise NotImplementedError

    def _in_order(self, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        """Yield these columns of all rows, some at a time; nothing of them is kept, as a scan does not come back."""
        raise NotImplementedError

    def _light(self, names: Collection[str]) -> tuple[str, ...]:
        """Return what is read of these columns to make rows: all but bytes."""
        return tuple(name for name in names if name not in self._binary)

    def _has_all(self, column: str) -> bool:
        """Return whether it is known that a column of bytes has some in every row."""
        return False

    def _unreadable(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self.name} cannot be read, it is damaged or cut off: {error}; copy it again")

    def where(self, place: int) -> str:
        """Return the row's number, from 1."""
        return f"{self.name}: row {place + 1}"

    def row(self, place: int) -> dict[str, Any]:
        """Return the row of a number, from 0."""
        table, start = self._table(place, self._light(self.schema.names))
        (row,) = self._rows(table.slice(place - start, 1), place, 1, self.schema.names)
        return row

    def scan(self, columns: Collection[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield numbers and rows."""
        names = self.schema.names if columns is None else [*dict.fromkeys(map(self._top, columns))]
        place = 0
        for whole in self._guarded(self._in_order(self._light(names))):
            for start in range(0, whole.num_rows, _ROWS_AT_ONCE):
                num = min(_ROWS_AT_ONCE, whole.num_rows - start)  # a slice of a table without columns does not know it
                yield from enumerate(self._rows(whole.slice(start, num), place, num, names), place)
                place += num
        if place != self.num_rows:
            raise self._unreadable(OSError(f"it has {place} of {self.num_rows} rows"))

    def _guarded(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        try:
            yield from tables
        except _errors() as error:
            raise self._unreadable(error) from error

    def _top(self, name: str) -> str:
        """Return the column of a name, which may be `outer.inner`."""
        top = name if name in self.schema.names else name.partition(".")[0]
        if top not in self.schema.names:
            raise no_column(name, self.schema.names, self.name)
        return top

    def _table(self, place: int, columns: tuple[str, ...]) -> tuple[pa.Table, int]:
        """Return the part in which a row is, and its first row."""
        if columns not in self._parts:
            self._parts[columns] = self._parts_of(columns)
        parts = self._parts[columns]
        part = parts[bisect.bisect_right(parts, place, key=lambda each: each.start) - 1]

        def read() -> pa.Table:
            try:
                return self._part(part, columns)
            except _errors() as error:
                raise self._unreadable(error) from error

        return _PARTS.get((self, part, columns), read), part.start

    def _rows(self, table: pa.Table, start: int, num: int, names: Collection[str]) -> list[dict[str, Any]]:
        values: dict[str, list[Any]] = {}
        for name in names:
            column = table[name].to_pylist() if name in table.column_names else [_UNKNOWN] * num
            if name in self._mixed:
                wholes = ((place, plain_value(self._binary_value(name, place))) for place in range(start, start + num))
                values[name] = [_wrapped(whole, f"{self.where(place)}, {name}") for place, whole in wholes]
            elif name in self._binary:
                values[name] = [self._stored(name, place, light) for place, light in enumerate(column, start)]
            else:
                kind = table.schema.field(name).type
                if "extension<arrow.json>" in str(kind):
                    column = [_from_json(value, kind) for value in column]
                values[name] = column if _stays(kind) else [plain_value(value) for value in column]
        return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)] if values else [{}] * num

    def _stored(self, column: str, place: int, light: Any) -> Any:
        """Return what stands for the bytes of a row's column: `StoredBytes`, a list of them, or None.

        `light` is the value without its bytes, which are read only if it says nothing.
        """
        if light is _UNKNOWN and self._has_all(column):
            return self._handle(column, place, None)
        if light is _UNKNOWN:
            light = self._binary_value(column, place)
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
                return _file_content(self.folder / path, name)
            if not isinstance(content, bytes):
                raise ImageError(f"{name} holds no bytes")
            return content

        return StoredBytes(name, read, path or "")

    def _binary_value(self, column: str, place: int) -> Any:
        table, start = self._table(place, (column,))
        return table[column][place - start].as_py()


class ParquetRows(_ArrowRows):
    """A Parquet file, whose row groups are decoded whole if they are small, else some rows at a time."""

    def _open(self) -> tuple[pa.Schema, int]:
        self._starts: Counter[tuple[int, tuple[str, ...]]] = Counter()
        self._copies: dict[tuple[int, tuple[str, ...]], _Copy] = {}
        with _pyarrow().parquet.ParquetFile(self.path) as file:
            self._metadata = file.metadata
            self._leaves = [file.schema.column(i) for i in range(len(file.schema))]
            return file.schema_arrow, self._metadata.num_rows

    def _light(self, names: Collection[str]) -> tuple[str, ...]:
        within = [leaf.path for leaf in self._leaves if leaf.logical_type.type != "NONE" or "BYTE_ARRAY" not in leaf.physical_type]
        beside = (
            path for name in names if name in self._binary and name not in self._mixed for path in within if path.startswith(f"{name}.")
        )
        return (*super()._light(names), *beside)

    def _has_all(self, column: str) -> bool:
        leaves = [number for number, leaf in enumerate(self._leaves) if leaf.path == column]
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        found = [group.column(leaf).statistics for group in groups for leaf in leaves]
        return bool(found) and all(each is not None and each.has_null_count and each.null_count == 0 for each in found)

    def _parts_of(self, columns: tuple[str, ...]) -> list[Part]:
        parts, start = [], 0
        for number in range(self._metadata.num_row_groups):
            group = self._metadata.row_group(number)
            num_bytes = self._num_bytes(number, columns)
            size = group.num_rows if num_bytes <= _MAX_PART_BYTES else max(1, group.num_rows * _MAX_PART_BYTES // num_bytes // 4)
            parts += [Part(start + at, number, at // size, size) for at in range(0, group.num_rows, size or 1)]
            start += group.num_rows
        return parts

    def _num_bytes(self, number: int, columns: tuple[str, ...]) -> int:
        """Return how many bytes these columns of a row group are, unpacked."""
        leaves = (leaf for leaf, at in enumerate(self._leaves) if any(f"{at.path}.".startswith(f"{name}.") for name in columns))
        return sum(self._metadata.row_group(number).column(leaf).total_uncompressed_size for leaf in leaves)

    def _part(self, part: Part, columns: tuple[str, ...]) -> pa.Table:
        """Return a part; of a large group by going on from the part that this thread read before, or from the group's beginning.

        Where that happens often, as cases are asked in random order or by several threads, its rows are decoded once more, into a
        temporary file, if there is room.
        """
        key = part.group, columns
        if key in self._copies:
            return self._copies[key].part(part.number)
        cursors: dict[tuple[str, ...], tuple[int, int, Iterator[pa.Table]]] = self._cursors.__dict__.setdefault("by_columns", {})
        group, number, tables = cursors.pop(columns, (-1, 0, iter(())))
        if group != part.group or number > part.number:
            self._starts[key] += part.size < self._metadata.row_group(part.group).num_rows
            if self._starts[key] > _MAX_STARTS and self._num_bytes(part.group, columns) < _free_bytes() * _MAX_SHARE_OF_DISK:
                self._copies[key] = _Copy(self._tables(part, columns))
                return self._copies[key].part(part.number)
            number, tables = 0, self._tables(part, columns)
        for table in tables:
            number += 1
            if number > part.number:
                if number * part.size < self._metadata.row_group(part.group).num_rows:
                    cursors[columns] = part.group, number, tables
                return table
        raise OSError(f"row group {part.group + 1} has fewer rows than its head says")

    def _in_order(self, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        for number in range(self._metadata.num_row_groups):
            group = self._metadata.row_group(number)
            fitting = group.num_rows * _MAX_SCANNED_BYTES // max(1, self._num_bytes(number, columns))
            yield from self._tables(Part(0, number, 0, max(1, min(_ROWS_AT_ONCE, fitting))), columns)

    def _tables(self, part: Part, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        pa = _pyarrow()
        with pa.parquet.ParquetFile(self.path, metadata=self._metadata, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            for batch in file.iter_batches(part.size, row_groups=[part.group], columns=list(columns), use_threads=False):
                yield pa.Table.from_batches([batch])


def _free_bytes() -> int:
    return shutil.disk_usage(tempfile.gettempdir()).free


class _Copy:
    """The parts of a row group in a temporary file, each of which is read alone."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        pa = _pyarrow()
        first = next(tables)
        with tempfile.NamedTemporaryFile(prefix="evalharness-", suffix=".arrow") as file:  # mapped, it stays without its name
            with pa.OSFile(file.name, "wb") as sink, pa.ipc.new_file(sink, first.schema) as writer:
                for table in itertools.chain([first], tables):
                    writer.write_batch(table.combine_chunks().to_batches()[0])
            self._reader = pa.ipc.open_file(pa.memory_map(file.name))

    def part(self, number: int) -> pa.Table:
        """Return the part of a number."""
        return _pyarrow().Table.from_batches([self._reader.get_batch(number)])


class IpcRows(_ArrowRows):
    """An Arrow file or stream, mapped into memory; its parts are the record batches."""

    def _open(self) -> tuple[pa.Schema, int]:
        pa = _pyarrow()
        source = pa.memory_map(str(self.path))
        if source.read(6) == b"ARROW1":
            reader = pa.ipc.open_file(source)
            self._batch = reader.get_batch
            sizes = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
        else:
            source.seek(0)
            reader = pa.ipc.open_stream(source)
            batches = list(reader)
            self._batch = batches.__getitem__
            sizes = [batch.num_rows for batch in batches]
        starts = itertools.accumulate([0, *sizes])
        self._starts = [Part(start, group) for group, start in zip(range(len(sizes)), starts, strict=False)]
        return reader.schema, sum(sizes)

    def _parts_of(self, columns: tuple[str, ...]) -> list[Part]:
        return self._starts

    def _in_order(self, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        return (self._part(part, columns) for part in self._starts)

    def _part(self, part: Part, columns: tuple[str, ...]) -> pa.Table:
        table = _pyarrow().Table.from_batches([self._batch(part.group)]).select(list(columns))
        table.validate(full=True)  # Arrow trusts offsets in a file: wrong ones end the process
        return table
