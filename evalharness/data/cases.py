"""Cases from rows: their ids, groups, tags and references from columns, or ids made of what the rows hold."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from evalharness.api.cases import Case
from evalharness.api.checks import shown
from evalharness.api.errors import ConfigError
from evalharness.api.images import StoredBytes
from evalharness.data.finding import row_files
from evalharness.data.stored import GivenRows, Row, RowFile, no_column

Column: TypeAlias = "str | Callable[[Mapping[str, Any]], Any]"
"""A column's name, or a function of the row."""
_ID_DIGITS = 16


@dataclass(frozen=True, kw_only=True)
class RowCase(Case):
    """A row as a case. `row` and `images` are read from the file each time, so that cases stay small.

    `position`: its number among all cases of its source, from 0, whatever --limit takes. `data_dir`: what the source was called with.
    """

    source: _Source = field(compare=False)
    file: RowFile = field(compare=False)
    place: int
    position: int
    data_dir: Path | None

    @property
    def row(self) -> Mapping[str, Any]:
        """All columns as plain values, read-only, and its file's name as `__file__`; bytes are `StoredBytes`, read when they are used."""
        row = self.source.mapped(self.file, self.file.row(self.place))
        assert row is not None, "map gave a row before, and None now"
        return MappingProxyType(row)

    @property
    def images(self) -> tuple[StoredBytes | Path, ...]:
        """The row's images in the order of their columns, for a `VlmGenerationRequest`."""
        return tuple(self.source.images_of(self.row, self.file)) if self.source.image else ()


def cases_from(
    *names: str | Path | Iterable[Row],
    id: Column | Sequence[str] | None = None,
    group: Column | None = None,
    tags: str | Sequence[str] | Mapping[str, Column] = (),
    reference: Column | None = None,
    image: str | Sequence[str] = (),
    map: Callable[[dict[str, Any]], Mapping[str, Any] | None] | None = None,
    field: str | None = None,
    columns: Sequence[str] | None = None,
    needs: Sequence[str] | Callable[[Row], bool] = (),
) -> Callable[[Path | None], Iterator[RowCase]]:
    """Return the `cases` function of an eval marker, whose cases are the rows of files.

    `names`: paths or glob patterns relative to the data folder, of which the first that means a file counts; --data may also name the file
    itself. `id`, `group`, `reference`: a column or a function of the row; `id` may be several columns, joined by "-". Without `id` it is a
    hash of what the row holds, whatever its place: equal rows get "-2", "-3"… `tags`: columns, or columns by tag. `image`: columns with
    images, as bytes or as paths relative to the file. `map` changes rows, or leaves one out by None; ids are made of rows before.
    `field`: the value of a JSON file that holds the rows. `columns`: the names of a table without a first line of names. `needs`: columns
    of its first row, or what is true of it; a file without is another data set's and passed over.
    """
    return _Source(
        names=names,
        id=(id,) if isinstance(id, str) else id,
        group=group,
        tags=_by_tag(tags),
        reference=reference,
        image=(image,) if isinstance(image, str) else tuple(image),
        map=map,
        field=field,
        columns=columns,
        needs=needs,
    )


def _by_tag(tags: str | Sequence[str] | Mapping[str, Column]) -> dict[str, Column]:
    if isinstance(tags, Mapping):
        return dict(tags)
    return {tag: tag for tag in ([tags] if isinstance(tags, str) else tags)}


@dataclass(frozen=True, kw_only=True)
class _Source:
    """What `cases_from` was given; called with the data folder, it yields the cases."""

    names: Sequence[str | Path | Iterable[Row]]
    id: Callable[[Mapping[str, Any]], Any] | Sequence[str] | None
    group: Column | None
    tags: Mapping[str, Column]
    reference: Column | None
    image: tuple[str, ...]
    map: Callable[[dict[str, Any]], Mapping[str, Any] | None] | None
    field: str | None
    columns: Sequence[str] | None
    needs: Sequence[str] | Callable[[Row], bool]

    def __call__(self, data_dir: Path | None) -> Iterator[RowCase]:
        """Yield the cases; `ConfigError` names the row that makes none."""
        seen: dict[str, int] = {}
        positions = itertools.count()
        for file in self._files(data_dir):
            for place, original in file.scan(self._needed()):
                row = self.mapped(file, original)
                if row is None:
                    continue
                if self.id is None:
                    case_id = content_hash(original)
                    seen[case_id] = seen.get(case_id, 0) + 1
                    if seen[case_id] > 1:
                        case_id = f"{case_id}-{seen[case_id]}"
                else:
                    case_id = self._id(row, file, place)
                yield RowCase(
                    id=case_id,
                    group=None if self.group is None else _text(_value(row, self.group, file, place), "group", file, place),
                    tags={tag: _text(_value(row, column, file, place), f"tag {tag}", file, place) for tag, column in self.tags.items()},
                    reference=None if self.reference is None else _value(row, self.reference, file, place),
                    source=self,
                    file=file,
                    place=place,
                    position=next(positions),
                    data_dir=data_dir,
                )

    def mapped(self, file: RowFile, row: dict[str, Any]) -> dict[str, Any] | None:
        """Return the row as the eval wants it, None if it is left out."""
        row["__file__"] = file.name
        if self.map is None:
            return row
        changed = self.map(row)
        return None if changed is None else dict(changed)

    def images_of(self, row: Mapping[str, Any], file: RowFile) -> Iterator[StoredBytes | Path]:
        """Yield the images of a row."""
        for name in self.image:
            value = row.get(name)
            for image in value if isinstance(value, (list, tuple)) else (value,):
                if image is not None:
                    yield file.folder / image if isinstance(image, str) else image

    def _files(self, data_dir: Path | None) -> list[RowFile]:
        given = [name for name in self.names if not isinstance(name, (str, Path))]
        if given:
            return [GivenRows(rows, folder=data_dir) for rows in given]
        return row_files([str(name) for name in self.names], data_dir, field=self.field, columns=self.columns, needs=self.needs)

    def _needed(self) -> set[str] | None:
        """Return the columns that cases are made of; None if it takes whole rows."""
        used = [*(self.id if isinstance(self.id, (list, tuple)) else [self.id]), self.group, self.reference, *self.tags.values()]
        if self.id is None or self.map is not None or any(callable(column) for column in used):
            return None
        return {column for column in used if isinstance(column, str)}

    def _id(self, row: Mapping[str, Any], file: RowFile, place: int) -> str:
        if callable(self.id):
            return _text(self.id(row), "id", file, place)
        assert self.id is not None
        return "-".join(_text(_value(row, column, file, place), "id", file, place) for column in self.id)


def _value(row: Mapping[str, Any], column: Column, file: RowFile, place: int) -> Any:
    if callable(column):
        return column(row)
    if column not in row:
        raise no_column(column, list(row), file.where(place))
    return row[column]


def _text(value: object, what: str, file: RowFile, place: int) -> str:
    """Return an id, a group or a tag as a text: a number or a truth value by its digits or name."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        if isinstance(value, bool):
            return str(value).lower()
        raise ConfigError(f"{file.where(place)}: {what} must be a text or a number, got {shown(value)}")
    return str(value)


def content_hash(row: Mapping[str, Any]) -> str:
    """Return the first 16 hex digits of the SHA-256 of what a row holds, whatever its file and the order of its columns.

    Formats differ in missing values, which count as absent, and in 1 and 1.0, which are equal. Bytes count by their content.
    """
    held = {key: value for key, value in row.items() if key != "__file__"}
    text = json.dumps(_canonical(held), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]


def _canonical(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {key: _canonical(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_canonical(each) for each in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, (bytes, StoredBytes)):
        return hashlib.sha256(value if isinstance(value, bytes) else value.read()).hexdigest()
    return value
