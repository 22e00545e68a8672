"""Which files a name means, and how each is read."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from evalharness.api.checks import first_names
from evalharness.api.errors import ConfigError, MissingData
from evalharness.data.arrow_files import IpcRows, ParquetRows
from evalharness.data.stored import Row, RowFile
from evalharness.data.text_files import Json, JsonLines, Table

SUFFIXES = (".parquet", ".arrow", ".feather", ".csv", ".tsv", ".jsonl", ".ndjson", ".json")


def row_files(
    names: Sequence[str],
    data_dir: Path | str | None,
    *,
    field: str | None = None,
    columns: Sequence[str] | None = None,
    needs: Sequence[str] | Callable[[Row], bool] = (),
) -> list[RowFile]:
    """Return the files of the first name that means any, in the order of their names; `MissingData` if none does.

    A name is a path or a glob pattern, relative to `data_dir`. A `data_dir` that is a file is meant itself, whatever the names. Files whose
    first row lacks a column of `needs`, or for which it is not true, are not meant.
    """
    folder = Path(data_dir) if data_dir is not None else None
    unfit: list[str] = []
    is_meant = needs if callable(needs) else set(needs).issubset
    lack = "other rows than this eval's" if callable(needs) else f"not the columns {', '.join(needs)}"

    def fitting(paths: Sequence[Path], root: Path) -> list[RowFile]:
        files = [open_file(path, _shown(path, root), field=field, columns=columns) for path in paths]
        fit = [file for file in files if not needs or is_meant(next(file.scan(), (0, {}))[1])]
        unfit.extend(file.name for file in files if file not in fit)
        return fit

    if folder is not None and folder.is_file():
        if files := fitting([folder], folder.parent):
            return files
        raise MissingData(f"{folder} has {lack}")
    for name in names:
        if folder is None and not Path(name).is_absolute():
            continue
        paths = _matching(folder or Path(), name)
        if paths:
            root = folder if folder is not None else paths[0].parent
            if files := fitting(paths, root):
                return files
    wanted = first_names(names, 6) or "the rows"
    if folder is None:
        raise MissingData(f"no data was given; give a file, or a folder that holds {wanted}, with --data")
    if not folder.exists():
        raise MissingData(f"{folder} does not exist; give a file, or a folder that holds {wanted}, with --data")
    others = f"; {first_names(unfit, 4)} has {lack}" if unfit else ""
    raise MissingData(f"{folder} holds no {wanted}; it has {_content(folder)}{others}")


def _content(folder: Path) -> str:
    names = sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())
    return first_names(names, 8) or "nothing in it"


def _shown(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def _in_order(path: Path) -> list[Any]:
    """Return the key that sorts numbers in names by their values."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", path.as_posix())]


def _matching(folder: Path, name: str) -> list[Path]:
    whole = folder / name
    if whole.is_file():
        return [whole]
    if not glob.has_magic(name):
        return []
    return sorted((path for path in folder.glob(name) if path.is_file() and path.suffix in SUFFIXES), key=_in_order)


def open_file(path: Path, name: str, *, field: str | None = None, columns: Sequence[str] | None = None) -> RowFile:
    """Return a file of rows by the end of its name; `ConfigError` for one that is not known or damaged."""
    openers: dict[str, Callable[[], RowFile]] = {
        ".parquet": lambda: ParquetRows(path, name),
        ".arrow": lambda: IpcRows(path, name),
        ".feather": lambda: IpcRows(path, name),
        ".csv": lambda: Table(path, name, columns),
        ".tsv": lambda: Table(path, name, columns),
        ".jsonl": lambda: JsonLines(path, name),
        ".ndjson": lambda: JsonLines(path, name),
        ".json": lambda: Json(path, name, field),
    }
    if path.suffix not in openers:
        raise ConfigError(f"{path} has no end that says how it is read; known are {', '.join(SUFFIXES)}")
    return openers[path.suffix]()


def read_rows(
    *names: str | Path, data_dir: Path | str | None = None, field: str | None = None, columns: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the files that the first of `names` means, as plain values by column, a few in memory at a time.

    Names are paths or glob patterns, relative to `data_dir`, else to the working directory. `field` names the value of a JSON file that
    holds the rows, `columns` those of a table without a line of names. Each row has its file's name as `__file__`. Bytes are `StoredBytes`.
    `MissingData` if there is no such file, `ConfigError` names the row that cannot be read.
    """
    for file in row_files([str(name) for name in names], data_dir if data_dir is not None else Path(), field=field, columns=columns):
        for _, row in file.scan():
            yield {**row, "__file__": file.name}
