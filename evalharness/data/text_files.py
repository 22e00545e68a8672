"""Rows in text files: JSON lines, JSON, and tables with commas or tabs (CSV, TSV).

All are UTF-8, with or without a byte order mark. Only line feeds, carriage returns and both together end lines: U+2028 and its like are
text. A row's place is its line and its span of bytes, so that it is named and found again without its file in memory.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Collection, Iterator, Sequence
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import IO, Any

from evalharness.api.checks import excerpt, refuse_constant, shown
from evalharness.api.errors import ConfigError
from evalharness.api.json_schema import AnswerDecoder
from evalharness.data.stored import no_column
from evalharness.data.unpacked import Unpacked

_BOM = b"\xef\xbb\xbf"
_LENGTH_BITS, _START_BITS = 40, 48
_MAX_FIELD = 2**31 - 1
"""Characters of a field of a table, which may be an image in base64; Python's own limit of 131,072 is one of the whole process."""


def _null_if_nan(name: str) -> None:
    """Return None for NaN, with which Python and pandas write missing numbers; `ValueError` for infinity."""
    return None if name == "NaN" else refuse_constant(name)


_JSON = AnswerDecoder(parse_constant=_null_if_nan)


class _Spans:
    """A text file whose rows are spans of bytes; a place is a line, a start and a length."""

    def __init__(self, path: Path, name: str) -> None:
        self.name, self.path, self.folder = name, path, path.parent
        self._file = Unpacked(path, name)

    def where(self, place: int) -> str:
        """Return the file and the number of the line where the row begins, without reading it."""
        return f"{self.name}:{place >> _LENGTH_BITS + _START_BITS}"

    def row(self, place: int) -> dict[str, Any]:
        """Return the row at a span."""
        with self._file.open(place >> _LENGTH_BITS & (1 << _START_BITS) - 1) as file:
            content = file.read(place & (1 << _LENGTH_BITS) - 1)
        try:
            return self._read(content.decode())
        except (ValueError, csv.Error) as error:
            raise ConfigError(f"{self.where(place)} has changed since the cases were loaded: {error}") from error

    def _read(self, text: str) -> dict[str, Any]:
        raise NotImplementedError


def _place(line: int, start: int, length: int) -> int:
    return (line << _START_BITS | start) << _LENGTH_BITS | length


def _not_utf8(name: str, error: UnicodeDecodeError) -> ConfigError:
    return ConfigError(f"{name} is not UTF-8 ({error.reason}, byte {error.object[error.start : error.start + 1].hex()}); save it as UTF-8")


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a JSON object, a row by column, got {shown(value)}")
    return value


def read_json(content: bytes, where: str) -> Any:
    """Return the value of a JSON text; `ConfigError` where it is none."""
    try:
        return _JSON.decode(content.removeprefix(_BOM).decode())
    except UnicodeDecodeError as error:
        raise _not_utf8(where, error) from error
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error


class JsonLines(_Spans):
    """One JSON object a line; blank lines are passed over."""

    def scan(self, columns: Collection[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield spans and rows."""
        with self._file.open() as file:
            start = 0
            for number, line in enumerate(file, start=1):
                content = line.removeprefix(_BOM) if number == 1 else line
                where = f"{self.name}:{number}"
                if content.strip():
                    yield _place(number, start + len(line) - len(content), len(content)), _object(read_json(content, where), where)
                start += len(line)

    def _read(self, text: str) -> dict[str, Any]:
        return dict(_JSON.decode(text))


_AT_ONCE = 1 << 20
_GAP = re.compile(r"[ \t\n\r]*")


class Json(_Spans):
    """A JSON file that holds a list of objects, or objects by key (the value `__key__` of each row).

    A file of JSON lines is read as such. Else rows are the whole file, or one value of the object that is the whole file: that of `field`,
    by default the only list of objects in it. An object with no rows in it is a row itself.
    """

    def __init__(self, path: Path, name: str, field: str | None = None) -> None:
        super().__init__(path, name)
        self._field = field

    def scan(self, columns: Collection[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield spans and rows: a list's a few at a time; of an object, all of the text is in memory meanwhile."""
        try:
            with self._file.open() as file:
                elements = _Elements(file)
                if elements.goes_on_with("["):
                    yield from ((place, _object(value, self.where(place))) for place, value in elements)
                    return
            with self._file.open() as file:
                is_lines = self._field is None and _is_lines(file)
        except ConfigError:
            raise
        except ValueError:  # the whole text says where
            for _ in self._of_whole():
                pass
            raise
        yield from JsonLines(self.path, self.name).scan() if is_lines else self._of_whole()

    def _of_whole(self) -> Iterator[tuple[int, dict[str, Any]]]:
        with self._file.open() as file:
            content = file.read()
        position = len(_BOM) if content.startswith(_BOM) else 0
        try:
            text = content[position:].decode()
        except UnicodeDecodeError as error:
            raise _not_utf8(self.name, error) from error
        del content
        is_ascii, last, line = text.isascii(), 0, 1
        try:
            for key, begin, end, value in self._rows(text):
                position += begin - last if is_ascii else len(text[last:begin].encode())
                length = end - begin if is_ascii else len(text[begin:end].encode())
                line += text.count("\n", last, begin)
                place = _place(line, position, length)
                row = value if isinstance(value, dict) else _object(value, self.where(place))
                yield place, row if key is None else {**row, "__key__": key}
                line += text.count("\n", begin, end)
                last, position = end, position + length
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"{self.name} is not JSON: {error}") from error

    def _read(self, text: str) -> dict[str, Any]:
        if text.lstrip().startswith("{"):
            return dict(_JSON.decode(text))
        ((key, _, _, value),) = _members(f"{{{text}}}", 0)
        return {**value, "__key__": key}

    def _rows(self, text: str) -> Iterator[tuple[str | None, int, int, Any]]:
        begin = _after_gap(text, 0)
        if not text.startswith(("[", "{"), begin):
            raise ConfigError(f"{self.name} must hold a list of JSON objects, got {excerpt(text, 60)!r}; files of JSON lines end in .jsonl")
        if text[begin] == "[":
            return _members(text, begin, is_all=True)
        starts, lists, objects = dict[str, int](), dict[str, bool](), dict[str, bool]()
        for key, start, _, value in _members(text, begin, is_all=True):  # none is kept: rows are decoded again, one at a time
            starts[str(key)] = _value_start(text, start)
            lists[str(key)] = isinstance(value, list) and bool(value) and isinstance(value[0], dict)
            objects[str(key)] = isinstance(value, dict)
        if self._field is not None:
            if self._field not in starts:
                raise no_column(self._field, list(starts), self.name)
            return _members(text, starts[self._field])
        with_rows = [key for key, is_list in lists.items() if is_list]
        if len(with_rows) > 1:
            raise ConfigError(f"{self.name} holds several lists of objects, {', '.join(with_rows)}; say whose rows are meant with field=")
        if with_rows:
            return _members(text, starts[with_rows[0]])
        if objects and all(objects.values()):
            return _members(text, begin)
        return iter([(None, begin, len(text.rstrip()), _JSON.raw_decode(text, begin)[0])])


def _is_lines(file: IO[bytes]) -> bool:
    """Return whether an object stands in the first line and another begins in the next: JSON lines, as `datasets` reads .json, too."""
    lines = (line.removeprefix(_BOM).strip() for line in file)
    filled = (line for line in lines if line)
    first, second = next(filled, b""), next(filled, b"")
    if not (first.startswith(b"{") and second.startswith(b"{")):
        return False
    try:
        return isinstance(_JSON.decode(first.decode()), dict)
    except ValueError:
        return False


class _Elements:
    """The elements of a JSON list with their places, as their file is read; `ValueError` where it is none."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._decode = file, codecs.getincrementaldecoder("utf-8")().decode
        self._start = len(_BOM) if file.read(len(_BOM)) == _BOM else file.seek(0)
        self._line, self._text, self._at = 1, "", 0

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        while not self.goes_on_with("]"):
            value, end = self._value()
            line, start = self._line, self._start
            self._pass(end)
            yield _place(line, start, self._start - start), value
            if self._pass_gap() != "]" and not self.goes_on_with(","):
                raise ValueError("neither a comma nor the end of the list follows")
        if self._pass_gap():
            raise ValueError("the file goes on behind its end")

    def goes_on_with(self, mark: str) -> bool:
        """Return whether this mark is next, after white space, and pass it."""
        found = self._pass_gap() == mark
        if found:
            self._pass(self._at + 1)
        return found

    def _pass_gap(self) -> str:
        """Return the character behind white space, "" at the end of the file."""
        while True:
            self._pass(_GAP.match(self._text, self._at).end())  # type: ignore[union-attr]
            if self._at < len(self._text) or not self._read_on():
                return self._text[self._at : self._at + 1]

    def _value(self) -> tuple[Any, int]:
        while True:
            try:
                value, end = _JSON.raw_decode(self._text, self._at)
                if end < len(self._text) or not self._read_on():
                    return value, end
            except ValueError:
                if not self._read_on():
                    raise

    def _pass(self, end: int) -> None:
        passed = self._text[self._at : end]
        self._start += len(passed) if passed.isascii() else len(passed.encode())
        self._line += passed.count("\n")
        self._at = end

    def _read_on(self) -> bool:
        """Have more text, at least as much again as is not yet passed: an element is read anew, however long it is, a few times."""
        rest = self._text[self._at :]
        content = self._file.read(max(_AT_ONCE, len(rest)))
        self._text, self._at = rest + self._decode(content, final=not content), 0
        return bool(content)


def _after_gap(text: str, position: int, mark: str = "") -> int:
    """Return the position after white space, and after a mark with white space around it."""
    position = _GAP.match(text, position).end()  # type: ignore[union-attr]
    if not mark:
        return position
    if not text.startswith(mark, position):
        raise ValueError(f"{mark!r} is missing at character {position}, before {text[position : position + 20]!r}")
    return _after_gap(text, position + len(mark))


def _value_start(text: str, key_start: int) -> int:
    return _after_gap(text, _JSON.raw_decode(text, key_start)[1], ":")


def _members(text: str, begin: int, is_all: bool = False) -> Iterator[tuple[str | None, int, int, Any]]:
    """Yield key, span and value of what a list (without keys) or an object holds, one at a time; a span begins with its key.

    With `is_all`, nothing may follow it: what does would be rows that nobody misses.
    """
    closing = {"[": "]", "{": "}"}.get(text[begin])
    if closing is None:
        raise ConfigError(f"rows must be in a list or an object, got {excerpt(text[begin : begin + 61], 60)}")
    position = _after_gap(text, begin + 1)
    while not text.startswith(closing, position):
        key, start = None, position
        if closing == "}":
            key, position = _JSON.raw_decode(text, position)
            position = _after_gap(text, position, ":")
        value, end = _JSON.raw_decode(text, position)
        yield key, start, end, value
        position = _after_gap(text, end)
        if not text.startswith(closing, position):
            position = _after_gap(text, position, ",")
    end = _after_gap(text, position, closing)
    if is_all and end < len(text):
        raise ValueError(f"the file goes on behind its end at character {end}, with {text[end : end + 20]!r}; JSON lines end in .jsonl")


class Table(_Spans):
    """A table with a line of names first, or with the names `columns`; its values are texts."""

    def __init__(self, path: Path, name: str, columns: Sequence[str] | None = None) -> None:
        super().__init__(path, name)
        self._given = self._names = columns
        self._delimiter = "\t" if re.search(r"\.tsv(\.\w+)?$", path.name.lower()) else ","

    def scan(self, columns: Collection[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield spans and rows."""
        csv.field_size_limit(_MAX_FIELD)
        with self._file.open() as file:
            start = end = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
            file.seek(start)
            lines, first = 0, 1

            def each_line(text: TextIOWrapper) -> Iterator[str]:
                nonlocal end, lines
                for line in text:
                    end += len(line.encode())
                    lines += 1
                    yield line

            needs_header = self._given is None
            with TextIOWrapper(file, "utf-8", newline="") as text:  # splits at \r, \n and both, nowhere else
                try:
                    for values in csv.reader(each_line(text), delimiter=self._delimiter, strict=True):
                        if values and needs_header:
                            self._names, needs_header = self._header(values), False
                        elif values:
                            yield _place(first, start, end - start), self._row(values, first)
                        start, first = end, lines + 1
                except UnicodeDecodeError as error:
                    raise _not_utf8(self.name, error) from error
                except csv.Error as error:
                    problem = f"{error}; a quote within a quoted field is doubled"
                    raise ConfigError(f"{self.name}:{first} is not a row of a table: {problem}") from error

    def _header(self, values: list[str]) -> list[str]:
        twice = {name for name in values if values.count(name) > 1}
        if twice:
            names = ", ".join(map(repr, sorted(twice)))
            raise ConfigError(f"{self.name}: the first line must name each column once, got {names} twice; without names give columns=[…]")
        return values

    def _row(self, values: list[str], line: int) -> dict[str, Any]:
        assert self._names is not None
        if len(values) != len(self._names):
            wanted = f"as the first line has ({', '.join(self._names)})" if self._given is None else "as columns= has"
            raise ConfigError(f"{self.name}:{line} has {len(values)} values and must have {len(self._names)}, {wanted}")
        return dict(zip(self._names, values, strict=True))

    def _read(self, text: str) -> dict[str, Any]:
        if self._names is None:  # a file that was not scanned
            next(self.scan())
        lines = StringIO(text, newline="")  # unlike splitlines, which splits at U+2028 too
        return self._row(next(values for values in csv.reader(lines, delimiter=self._delimiter, strict=True) if values), 0)
