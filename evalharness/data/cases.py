"""Cases from rows: their ids, groups, tags and references from columns, or ids made of what the rows hold."""

from __future__ import annotations

import hashlib
import itertools
import json
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from evalharness.api.cases import Case
from evalharness.api.checks import check_sequence, named_parameters, shown
from evalharness.api.errors import ConfigError, ContractTypeError, ContractValueError, ImageError
from evalharness.api.images import StoredBytes
from evalharness.api.temporary_database import room_on_disk, temporary_database
from evalharness.data.finding import Needs, row_files, scan
from evalharness.data.image_columns import image_source
from evalharness.data.stored import GivenRows, Row, RowFile, no_column

Column: TypeAlias = "str | Callable[[Mapping[str, Any]], Any]"
"""A column's name, `outer.inner` for what is in an object, or a function of the row."""
_HALF = 1 << 63
_ID_DIGITS = 16
_MANY_TAGS = 10_000


@dataclass(frozen=True, kw_only=True)
class RowCase(Case):
    """A row as a case. `row` and `images` are read from the file each time, so that cases stay small.

    `position`: its number among all cases of its source, from 0, whatever --limit takes. `data_dir`: what the source was called with.
    """

    source: RowCases = field(compare=False)
    file: RowFile = field(compare=False)
    place: int
    position: int
    data_dir: Path | None

    @property
    def row(self) -> Mapping[str, Any]:
        """All columns as plain values, read-only, and its file's name as `__file__`; bytes are `StoredBytes`, read when they are used."""
        row = self.source.mapped(self.file.row(self.place), self.file)
        if row is None:
            raise ConfigError(f"{self.file.where(self.place)}: map left this row out now, and did not when the cases were loaded")
        return MappingProxyType(_Columns(row))

    @property
    def images(self) -> tuple[StoredBytes | Path, ...]:
        """The row's images in the order of their columns, for a `VlmGenerationRequest`; `ImageError` for one that cannot be a picture."""
        return tuple(self.source.images_of(self.row, self.file, self.place)) if self.source.image else ()


def _failure(error: Exception) -> str:
    """Return how a function of the row failed, and at which of its lines."""
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    where = f" at {Path(theirs[0].filename).name}:{theirs[0].lineno}, {theirs[0].line}" if theirs else ""
    return f"failed{where}: {type(error).__name__}: {error}"


class _Columns(dict[str, Any]):
    """A row whose `KeyError` says which columns there are."""

    def __missing__(self, name: str) -> Any:
        raise KeyError(str(no_column(name, list(self), str(self.get("__file__", "the row")))))


@named_parameters(
    split='the files of the split, as in cases_from("test-*.parquet")',
    data_files="the files' names, as the first arguments",
    dataset_path="the files' names, as the first arguments",
    data_dir="--data FOLDER, or data=FOLDER in the eval marker",
    process_docs="map",
    doc_to_target="reference, or target in a template",
    target="reference",
    answer="reference",
    limit="--limit N",
)
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
    needs: Needs = (),
) -> RowCases:
    """Return the `cases` function of an eval marker, whose cases are the rows of files.

    `names`: paths or glob patterns relative to the data folder, of which the first that means a file counts; --data may also name the file
    itself. Or rows in memory, in one list. `id`, `group`, `reference`: a column or a function of the row; `id` may be several columns,
    joined by "-". Without `id` it is a hash of what the row holds, whatever its place: equal rows get "-2", "-3"… `tags`: columns, or
    columns by tag. `image`: columns with images: bytes, paths relative to the file, base64, or lists of these; URLs are not fetched, such
    a case is invalid. `map` changes rows, or leaves one out by None; ids of contents are those of the rows before. `field`: the value of
    a JSON file that holds the rows. `columns`: the names of a table without a first line of names. `needs`: columns that the first row of a
    file has, or what is true of it; other files are another data set's and passed over.
    """
    sources = tuple(name if isinstance(name, (str, Path)) else _given_rows(name) for name in names)
    if any(isinstance(source, list) for source in sources):
        unused = [f"{name}=" for name, value in (("field", field), ("columns", columns), ("needs", needs)) if value]
        if len(sources) > 1 or unused:
            beside = f"with {', '.join(unused)}" if unused else "beside other names"
            raise ContractValueError(f"rows in memory are the only source of their cases, and were given {beside}; leave one of them out")
    if map is not None and not callable(map):
        raise ContractTypeError(f"cases_from.map must be a function of a row, got {shown(map)}")
    if columns is not None:
        check_sequence("cases_from.columns", columns, "names")
    tags = tags if isinstance(tags, Mapping) else {tag: tag for tag in _names_of("tags", tags)}
    for argument, column in {"group": group, "reference": reference, **{f"tags[{tag!r}]": column for tag, column in tags.items()}}.items():
        if not (column is None or isinstance(column, str) or callable(column)):
            raise ContractTypeError(f"cases_from.{argument} must be a column's name or a function of the row, got {shown(column)}")
    return RowCases(
        names=sources,
        id=id if id is None or callable(id) else _names_of("id", id),
        group=group,
        tags=tags,
        reference=reference,
        image=_names_of("image", image),
        map=map,
        field=field,
        columns=columns,
        needs=needs,
    )


def _names_of(argument: str, given: str | Sequence[str]) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    check_sequence(f"cases_from.{argument}", names, "columns' names")
    for name in names:
        if not isinstance(name, str):
            raise ContractTypeError(f"cases_from.{argument} must be names of columns, got {shown(name)}")
    return tuple(names)


def _given_rows(rows: object) -> list[Row]:
    given: list[Any] = list(rows) if isinstance(rows, Iterable) else [rows]
    for row in given:
        if not isinstance(row, Mapping):
            problem = f"cases_from takes names of files, one after the other, or rows (mappings), got {shown(row)}"
            example = "frame.to_dict('records')" if hasattr(rows, "to_dict") else "'a.csv', 'b.csv'" if isinstance(row, str) else None
            raise ContractTypeError(f"{problem}; write cases_from({example})" if example else problem)
    return given


@dataclass(frozen=True, kw_only=True)
class RowCases:
    """What `cases_from` returns: called with the data folder or file, it yields the cases."""

    names: Sequence[str | Path | list[Row]]
    id: Callable[[Mapping[str, Any]], Any] | Sequence[str] | None
    group: Column | None
    tags: Mapping[str, Column]
    reference: Column | None
    image: tuple[str, ...]
    map: Callable[[dict[str, Any]], Mapping[str, Any] | None] | None
    field: str | None
    columns: Sequence[str] | None
    needs: Needs

    def __repr__(self) -> str:
        return f"cases_from({', '.join(map(shown, self.names))})"

    def __call__(self, data_dir: Path | None) -> Iterator[RowCase]:
        """Yield the cases; `ConfigError` names the row that makes none."""
        repeats = Repeats()
        known_tags: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        positions = itertools.count()
        for file in self._files(data_dir):
            for place, original in scan(file, self._needed()):
                content_id = _counted(content_hash(original), repeats) if self.id is None else None
                row = self._mapped_at(original, file, place)
                if row is None:
                    continue
                cell = _Cells(row, file, place)
                tags = tuple((tag, text) for tag, column in self.tags.items() if (text := cell.text(column, f"tag {tag}")) is not None)
                if len(known_tags) > _MANY_TAGS:
                    known_tags.clear()
                yield RowCase(
                    id=content_id or self._id(cell),
                    group=None if self.group is None else cell.text(self.group, "group"),
                    tags=known_tags.setdefault(tags, dict(tags)),
                    reference=None if self.reference is None else cell.value(self.reference, "reference"),
                    invalid=self._why_invalid(cell),
                    source=self,
                    file=file,
                    place=place,
                    position=next(positions),
                    data_dir=data_dir,
                )

    def mapped(self, row: dict[str, Any], file: RowFile) -> dict[str, Any] | None:
        """Return a row of a file as the eval wants it, None if it is left out."""
        row["__file__"] = file.name
        if self.map is None:
            return row
        changed = self.map(row)
        if changed is not None and not isinstance(changed, Mapping):
            raise ConfigError(f"{file.name}: map must return a row (a mapping), or None to leave it out, got {shown(changed)}")
        return None if changed is None else dict(changed)

    def _mapped_at(self, row: dict[str, Any], file: RowFile, place: int) -> dict[str, Any] | None:
        try:
            return self.mapped(row, file)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{file.where(place)}: map {_failure(error)}") from error

    def images_of(self, row: Mapping[str, Any], file: RowFile, place: int) -> Iterator[StoredBytes | Path]:
        """Yield the images of a row."""
        cell = _Cells(row, file, place)
        for name in self.image:
            value = cell.value(name, "image")
            for index, each in enumerate(value if isinstance(value, (list, tuple)) else (value,)):
                if each is None or each == "":
                    continue
                image = each if isinstance(each, StoredBytes) else image_source(each, f"{file.where(place)}, {name}", file.folder)
                if isinstance(image, StoredBytes) and file.path is not None:
                    image.address = {"file": str(file.path.absolute()), "place": str(place), "column": name, "index": index}
                yield image

    def _why_invalid(self, cell: _Cells) -> str | None:
        try:
            for _ in self.images_of(cell.row, cell.file, cell.place):
                pass
        except ImageError as error:
            return str(error)
        return None

    def _files(self, data_dir: Path | None) -> list[RowFile]:
        given = [name for name in self.names if not isinstance(name, (str, Path))]
        if given:
            return [GivenRows(rows, folder=data_dir) for rows in given]
        return row_files([str(name) for name in self.names], data_dir, field=self.field, columns=self.columns, needs=self.needs)

    def _needed(self) -> set[str] | None:
        """Return the columns that cases are made of; None if it takes whole rows."""
        ids = self.id if isinstance(self.id, (list, tuple)) else [self.id]
        used = [*ids, self.group, self.reference, *self.tags.values(), *self.image]
        if self.id is None or self.map is not None or any(callable(column) for column in used):
            return None
        return {column for column in used if isinstance(column, str) and column != "__file__"}

    def _id(self, cell: _Cells) -> str:
        columns = [self.id] if callable(self.id) else self.id or ()
        parts = [cell.text(column, "id") for column in columns]
        case_id = "-".join(part for part in parts if part is not None)
        if None in parts or not case_id.strip() or not case_id.isprintable() or "::" in case_id:
            got = " and ".join(map(shown, parts))
            raise ConfigError(f"{cell.where}: an id must be printable text without '::', got {got}; without id= one is made of the content")
        return case_id


class _Cells:
    """The values of one row."""

    def __init__(self, row: Mapping[str, Any], file: RowFile, place: int) -> None:
        self.row, self.file, self.place = row, file, place

    @property
    def where(self) -> str:
        """How messages name the row."""
        return self.file.where(self.place)

    def value(self, column: Column, what: str) -> Any:
        """Return the value of a column, of `outer.inner`, or of a function of the row, which is `what` of the case."""
        if callable(column):
            try:
                return column(_Columns(self.row))
            except Exception as error:
                raise ConfigError(f"{self.where}: the function for its {what} {_failure(error)}") from error
        if column in self.row:
            return self.row[column]
        value: Any = self.row
        for name in column.split("."):
            if not isinstance(value, Mapping) or name not in value:
                raise no_column(column, list(self.row), self.where)
            value = value[name]
        return value

    def text(self, column: Column, what: str) -> str | None:
        """Return an id, a group or a tag as a text, numbers by their digits and truth values by their names; None where there is none."""
        value = self.value(column, what)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        if not isinstance(value, (int, float)):
            raise ConfigError(f"{self.where}: {what} must be a text or a number, got {shown(value)}")
        return str(value)


def content_hash(row: Mapping[str, Any]) -> str:
    """Return the first 16 hex digits of the SHA-256 of what a row holds, whatever its file and the order of its columns.

    Formats differ in missing values, which count as absent, and in 1 and 1.0, which are equal. Bytes count by their content.
    """
    held = {key: value for key, value in row.items() if key != "__file__"}
    text = json.dumps(_canonical(held), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]


class Repeats:
    """Numbers from 0 to 2**64 - 1, and how often each came, in a temporary file. `ConfigError` where the disk is full."""

    def __init__(self) -> None:
        self._seen = temporary_database("seen (number INTEGER PRIMARY KEY, num INTEGER)")
        weakref.finalize(self, self._seen.close)  # else newer Pythons warn of it

    def count(self, number: int) -> int:
        """Return how often the number has come, this time included."""
        row = (number - _HALF,)  # SQLite's numbers have a sign
        with room_on_disk():  # by statements of any version: that of RHEL 9 knows no RETURNING
            if self._seen.execute("INSERT OR IGNORE INTO seen VALUES (?, 1)", row).rowcount:
                return 1
            self._seen.execute("UPDATE seen SET num = num + 1 WHERE number = ?", row)
            [(num,)] = self._seen.execute("SELECT num FROM seen WHERE number = ?", row)
        return int(num)


def _counted(content_id: str, repeats: Repeats) -> str:
    """Return the id, for equal rows after the first with their number; as they are equal, it does not matter which is which."""
    count = repeats.count(int(content_id, 16))
    return content_id if count == 1 else f"{content_id}-{count}"


def _canonical(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {key: _canonical(each) for key, each in value.items() if each is not None}
    if isinstance(value, (list, tuple)):
        return [_canonical(each) for each in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, StoredBytes):
        try:
            value = value.read()
        except ImageError:  # the case is invalid, and has an id all the same
            return value.path
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value
