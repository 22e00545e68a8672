"""Report files written whole or not at all: a temporary file beside the target, then a rename."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from evalharness.api.errors import RecordError

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Give a UTF-8 text file (newlines as written) that takes the place of `path` when the block ends without an error.

    Raises `RecordError` when it cannot be written; an older `path` is then still there, and no temporary file is left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            yield file
        temporary.replace(path)
    except OSError as error:
        raise RecordError(
            f"{path} cannot be written: {error.strerror}; free space or choose another folder with --report-dir, then rebuild the report"
        ) from error
    finally:
        with suppress(OSError):  # the error that matters is already on its way
            temporary.unlink()
