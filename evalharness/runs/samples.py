"""samples.jsonl: one row per test, with the generation as the journal has it, byte by byte. Knows no pytest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.api.errors import RecordError
from evalharness.runs.journal import encode
from evalharness.runs.records import Recorded

__all__ = ["write_samples"]

Row: TypeAlias = "dict[str, Any]"

_APART = ("options", "generation", "generations", "steps")  # encoded once for many rows, or there as bytes


def write_samples(run_dir: Path, rows: Sequence[Row]) -> None:
    """Write samples.jsonl whole or not at all, row by row; raises `RecordError`."""
    path = run_dir / "samples.jsonl"
    partial = path.with_suffix(".jsonl.partial")
    try:
        with partial.open("wb") as file:
            file.writelines(_lines(rows))
        partial.replace(path)
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error.strerror}; the journal beside it keeps what was recorded") from error


def _lines(rows: Iterable[Row]) -> Iterator[bytes]:
    with ExitStack() as stack:
        files: dict[Path, int] = {}

        def whole(recorded: Recorded | None) -> bytes:
            if recorded is None:
                return b"null"
            if recorded.path not in files:
                files[recorded.path] = os.open(recorded.path, os.O_RDONLY)
                stack.callback(os.close, files[recorded.path])
            return os.pread(files[recorded.path], recorded.num_bytes, recorded.offset)

        options: dict[int, bytes] = {}  # rows share them; by their own ids, as long as the rows hold them

        def encoded(shared: Any) -> bytes:
            if id(shared) not in options:
                options[id(shared)] = encode(shared).encode("ascii")
            return options[id(shared)]

        for row in rows:
            short = encode({name: value for name, value in row.items() if name not in _APART})
            line = [short[:-1].encode("ascii")]
            if "options" in row:
                line += b',"options":', encoded(row["options"])
            line += b',"generation":', whole(row["generation"])
            if "generations" in row:
                line += b',"generations":', _array(map(whole, row["generations"]))
            if "steps" in row:
                line += b',"steps":', _array(_array(map(whole, step)) for step in row["steps"])
            yield b"".join((*line, b"}\n"))


def _array(elements: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(elements) + b"]"
