"""Files of JSON that tasks write and read: one row a line in readable Chinese, whole files or none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evalharness.api.errors import RecordError
from evalharness.tasks.shared import loads

__all__ = ["json_lines", "read_lines", "write_whole"]


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return rows as JSON, one line each, in UTF-8. No reader of ours or the original's needs ASCII, and people read them."""
    return b"".join(map(_line, rows))


def _line(row: Mapping[str, Any]) -> bytes:
    try:
        return f"{json.dumps(dict(row), ensure_ascii=False, allow_nan=False)}\n".encode()
    except UnicodeEncodeError:  # a lone surrogate from a model; escaped, it is read back as the same text
        return f"{json.dumps(dict(row), allow_nan=False)}\n".encode()


def read_lines(path: Path | str) -> Iterator[tuple[str, Any]]:
    """Yield `path:line` and value of each line that is not blank; `RecordError` for what cannot be read, or is no JSON."""
    try:
        # Not splitlines: a text may hold other line ends as they are.
        lines = Path(path).read_bytes().decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield f"{path}:{number}", loads(line)
            except ValueError as error:
                raise RecordError(f"{path}:{number} is no JSON: {error}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that no reader ever sees half of it, and a lost machine leaves the old or the new one; `RecordError` if not."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RecordError(f"{path} cannot be written: {error}") from error
