"""What a file of rows gives: its rows in order, any one of them again, and bytes that are read only when they are used.

A row is plain JSON-like values by column. Bytes stand in it as `StoredBytes`, so that rows with images stay small. Nothing in a file is
ever unpickled.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from evalharness.api.errors import ConfigError, did_you_mean

Row = Mapping[str, Any]


class RowFile(Protocol):
    """One file of rows, or some rows in memory. A *place* is an int by which a row is found again."""

    name: str
    """For messages, and the value `__file__` of each of its rows."""
    folder: Path
    """What paths in its rows are relative to."""

    @property
    def path(self) -> Path | None:
        """The file, None for rows in memory."""

    def scan(self, columns: Collection[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield places and rows, in order and a few at a time; `columns` are all that is asked for where not None."""

    def row(self, place: int) -> dict[str, Any]:
        """Return one row again; threads may ask at once."""

    def where(self, place: int) -> str:
        """Return how messages name a row."""


class GivenRows:
    """Rows in memory; they are kept as they are, and each use gets a copy with plain values, as rows of files have them."""

    def __init__(self, rows: Sequence[Row], name: str = "rows", folder: Path | None = None) -> None:
        self.name, self.folder, self._rows = name, folder or Path(), rows
        self.path: Path | None = None

    def scan(self, columns: Collection[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield positions and rows."""
        for place in range(len(self._rows)):
            yield place, self.row(place)

    def row(self, place: int) -> dict[str, Any]:
        """Return one row."""
        return {name: plain_value(value) for name, value in self._rows[place].items()}

    def where(self, place: int) -> str:
        """Return the row's number, from 1."""
        return f"{self.name}: row {place + 1}"


def plain_value(value: Any) -> Any:
    """Return a value of Arrow's, pandas' or numpy's as JSON has it: dates as ISO texts, what is missing as None; any other as it is."""
    if value is None or isinstance(value, (str, int, bytes)):
        return value
    if type(value).__name__ == "NAType" or (isinstance(value, (float, datetime.date, datetime.timedelta)) and value != value):
        return None
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {key: plain_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(each) for each in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if type(value).__module__ == "numpy":
        return plain_value(value.tolist())
    return str(value) if isinstance(value, uuid.UUID) else value


def no_column(name: str, known: Sequence[str], where: str) -> ConfigError:
    """Return the error for a column that is not there."""
    columns = [column for column in known if column != "__file__"]
    other = next((mark for mark in ";|\t" if len(columns) == 1 and mark in columns[0]), None)
    hint = f"; values are parted by commas (tabs in .tsv), not by {other!r}: save it so" if other else ""
    return ConfigError(f"{where} has no {name!r}{did_you_mean(name, known) or ';'} it has: {', '.join(columns) or 'none'}{hint}")
