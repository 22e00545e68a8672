"""Which files a name means, and how each is read."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.api.checks import first_names, open_regular, read_regular
from evalharness.api.errors import ConfigError, EvalHarnessError, MissingData
from evalharness.data.arrow_files import IpcRows, ParquetRows
from evalharness.data.stored import Row, RowFile
from evalharness.data.tar_files import TarRows
from evalharness.data.text_files import Json, JsonLines, Table, read_json
from evalharness.data.unpacked import PACKED

_POINTER = b"version https://git-lfs.github.com/"
Needs: TypeAlias = "Sequence[str] | Callable[[Row], bool]"
"""Columns that the first row of a file has, or what is true of it."""
_TEXTS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".tar")
KINDS = (".parquet", ".arrow", ".feather", *_TEXTS, *(f"{end}{packed}" for end in _TEXTS for packed in PACKED), ".tgz")
"""The ends of the names of files of rows."""


def row_files(
    names: Sequence[str], data_dir: Path | str | None, *, field: str | None = None, columns: Sequence[str] | None = None, needs: Needs = ()
) -> list[RowFile]:
    """Return the files that the first of `names` means that means any, in the order of their names; `MissingData` if none does.

    A name is a path or a glob pattern relative to `data_dir`, of files or of a folder of files. A `data_dir` that is a file, or a data
    set that `datasets` saved, is meant itself; of its splits, the one that a name has in it. A folder of the hub's cache stands for its
    snapshot, the whole cache for those of all its data sets. A file is not meant if its first row lacks a column of `needs`, or if that is
    not true of it.
    """
    root = _snapshot(Path(data_dir)) if data_dir is not None else None
    if root is None and not any(Path(name).is_absolute() for name in names):
        raise MissingData(f"no data was given; give a file, or a folder that holds {_wanted(names)}, with --data")
    if root is not None and not root.exists():
        raise MissingData(f"{root} does not exist; give a file, or a folder that holds {_wanted(names)}, with --data")
    unfit: list[str] = []
    for paths in _found(root, names):
        files = [open_file(path, _shown(path, root), field=field, columns=columns) for path in paths]
        if meant := [file for file in files if not needs or _is_meant(next(scan(file), (0, {}))[1], needs)]:
            _refuse_several(root, meant)
            return meant
        unfit += [file.name for file in files]
    if unfit:
        lack = "the rows of another data set" if callable(needs) else f"not the columns {', '.join(needs)}"
        raise MissingData(f"{first_names(unfit, 4)} in {root} has {lack}; give {_wanted(names)} with --data")
    here = first_names(sorted(path.name + "/" * path.is_dir() for path in root.iterdir()), 8) if root is not None else ""
    raise MissingData(f"{root} holds no {_wanted(names)}; it has {here or 'nothing in it'}")


def _refuse_several(root: Path | None, files: Sequence[RowFile]) -> None:
    """Raise `ConfigError` for files of several data sets or revisions in the hub's cache, which are hardly meant as one."""
    having = [folder for folder in _folders(root) if any(file.path and file.path.is_relative_to(folder) for file in files)] if root else []
    if len(having) > 1:
        raise ConfigError(
            f"{root} has such files in {first_names([_shown(each, root) for each in having], 4)}; give one of these with --data"
        )


def _is_meant(row: Row, needs: Needs) -> bool:
    return needs(row) if callable(needs) else set(needs) <= set(row)


def _wanted(names: Sequence[str]) -> str:
    return " or ".join(names) or f"files of rows ({first_names(KINDS, 7)})"


def _found(root: Path | None, names: Sequence[str]) -> Iterator[list[Path]]:
    """Yield what each name means, of those that mean any."""
    if root is not None and (root.is_file() or not names or _is_saved(root)):
        if paths := [root] if root.is_file() else _in_folder(root):
            yield paths
        return
    splits = _splits(root) if root is not None else ()
    folders = [root or Path()] if root is None or not root.is_dir() else _folders(root)
    for name in names:
        if root is None and not Path(name).is_absolute():
            continue
        paths = list(dict.fromkeys(path for folder in folders for path in _matching(folder, name)))  # an absolute one each time
        if not paths and splits and root is not None:
            meant = [split for split in splits if re.search(rf"(?<![A-Za-z0-9]){re.escape(split)}(?![A-Za-z0-9])", name)]
            paths = [path for split in meant[:1] for path in _in_folder(root / split)]
        if paths:
            yield paths


def _shown(path: Path, root: Path | None) -> str:
    return path.relative_to(root).as_posix() if root is not None and root != path and path.is_relative_to(root) else path.name


def _in_order(path: Path) -> list[tuple[int, str]]:
    """Return the key that sorts numbers in names by their values."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", path.as_posix())]


def _matching(root: Path, name: str) -> list[Path]:
    whole = root / name
    if whole.is_file():
        return [whole]
    if whole.is_dir():
        return _in_folder(_snapshot(whole))
    if not glob.has_magic(name):
        return []
    paths = (Path(path) for path in glob.iglob(str(whole) if whole.is_absolute() else name, root_dir=root, recursive=True))
    return sorted((root / path for path in paths if (root / path).is_file() and _kind(path)), key=_in_order)


def _in_folder(folder: Path) -> list[Path]:
    """Return the files of a folder, all of one kind: those that `datasets` lists in its state, else all that hold rows."""
    if _is_saved(folder):
        files = [str(entry.get("filename")) for entry in _read_object(folder / "state.json").get("_data_files") or ()]
        if any(Path(name).name != name for name in files):
            raise ConfigError(f"{folder / 'state.json'} names files outside of its folder")
        return [folder / name for name in files]
    if splits := _splits(folder):
        raise ConfigError(f"{folder} holds the splits {', '.join(splits)}; give the folder of one, {folder.name}/{splits[0]}")
    found = sorted((path for path in folder.iterdir() if path.is_file() and _kind(path) and not path.name.startswith(".")), key=_in_order)
    kinds = sorted({_kind(path) for path in found})
    if len(kinds) > 1:
        raise ConfigError(f"{folder} holds files of rows of several kinds, {', '.join(kinds)}; name those that are meant")
    return found


def _is_saved(folder: Path) -> bool:
    return (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()


def _splits(folder: Path) -> list[str]:
    """Return the splits of a data set that `datasets` saved with several; each is a folder."""
    path = folder / "dataset_dict.json"
    return [str(split) for split in _read_object(path).get("splits") or () if _is_saved(folder / str(split))] if path.is_file() else []


def _read_object(path: Path) -> Mapping[str, Any]:
    try:
        content = read_regular(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    value = read_json(content, str(path))
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return value


def given_folder(data: Path) -> Path:
    """Return where a data set's other files are: the folder around one file or around one split that `datasets` saved, else the path."""
    return data.parent if data.is_file() or _is_saved(data) else data


def _folders(root: Path) -> list[Path]:
    """Return the folders that names are relative to: of the hub's whole cache the snapshots of its data sets, else the folder itself."""
    return [each for path in sorted(root.glob("datasets--*")) if (path / "snapshots").is_dir() for each in _snapshots(path)] or [root]


def _snapshot(folder: Path) -> Path:
    """Return the one snapshot of a folder of the hub's cache; any other path as it is."""
    found = _snapshots(folder)
    if len(found) != 1:
        problem = f"{folder / 'snapshots'} holds {len(found)} revisions, and refs/main names none of them"
        raise ConfigError(f"{problem}; give the folder of one")
    return found[0]


def _snapshots(folder: Path) -> list[Path]:
    """Return the snapshots of a folder of the hub's cache that may be meant: that of main, else all; any other path as it is."""
    snapshots = folder / "snapshots"
    if not snapshots.is_dir() or not (folder / "blobs").is_dir():
        return [folder]
    main = folder / "refs" / "main"
    revisions = sorted(path.name for path in snapshots.iterdir() if path.is_dir())
    if main.is_file() and (revision := read_regular(main).decode("ascii", "replace").strip()) in revisions:
        return [snapshots / revision]
    return [snapshots / revision for revision in revisions]


def _kind(path: Path) -> str:
    """Return the end of a name that says how the file is read, "" if it has none."""
    return next((kind for kind in KINDS if path.name.lower().endswith(kind)), "")


def open_file(path: Path, name: str, *, field: str | None = None, columns: Sequence[str] | None = None) -> RowFile:
    """Return a file of rows by the end of its name; `ConfigError` for one that is not known or damaged."""
    _refuse_pointer(path, name)
    kind = _kind(path).removesuffix(".gz").removesuffix(".zst")
    if kind == ".parquet":
        return ParquetRows(path, name)
    if kind in (".arrow", ".feather"):
        return IpcRows(path, name)
    if kind in (".csv", ".tsv"):
        return Table(path, name, columns)
    if kind in (".jsonl", ".ndjson"):
        return JsonLines(path, name)
    if kind == ".json":
        return Json(path, name, field)
    if kind in (".tar", ".tgz"):
        return TarRows(path, name)
    raise ConfigError(f"{path} has no end that says how it is read; known are {', '.join(KINDS)}")


def _refuse_pointer(path: Path, name: str) -> None:
    """Raise `ConfigError` for what a clone of a repository has in place of a large file."""
    try:
        with open_regular(path) as file:
            start = file.read(len(_POINTER))
    except OSError:  # its reader says so
        return
    if start == _POINTER:
        raise ConfigError(f"{name} is a Git LFS pointer, not the file itself; run `git lfs pull` where it was cloned, or download the file")


def scan(file: RowFile, columns: Collection[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield places and rows of a file; `ConfigError` where it cannot be read."""
    try:
        yield from file.scan(columns)
    except (OSError, ValueError) as error:
        if isinstance(error, EvalHarnessError):
            raise
        raise ConfigError(f"{file.name} cannot be read: {error}") from error


def read_rows(
    *names: str | Path, data_dir: Path | str | None = None, field: str | None = None, columns: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the files that the first of `names` means, as plain values by column, a few in memory at a time.

    Names are paths or glob patterns, relative to `data_dir`, else to the working directory. `field` names the value of a JSON file that
    holds the rows, `columns` those of a table without a line of names. Each row has its file's name as `__file__`. Bytes are `StoredBytes`.
    `MissingData` if there is no such file, `ConfigError` names the row that cannot be read.
    """
    for file in row_files([str(name) for name in names], data_dir if data_dir is not None else Path(), field=field, columns=columns):
        for _, row in scan(file):
            yield {**row, "__file__": file.name}
