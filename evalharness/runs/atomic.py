"""Writes a file whole or not at all: into a temporary file beside it, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from evalharness.api.errors import EvalHarnessError, RecordError


@contextmanager
def write_atomically(
    path: Path, advice: str = "", *, error: type[EvalHarnessError] = RecordError, make_folder: bool = False, durable: bool = False
) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `path` when the block ends without an exception.

    On an exception `path` stays as it was, and the temporary file is removed. An error of the system raises `error`, whose message ends
    with `advice`. With `durable` the content is on disk before the rename: after a power failure `path` holds the old or the new content.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as problem:
        what_to_do = f"; {advice}" if advice else ""
        raise error(f"{path} cannot be written: {problem.strerror or problem}{what_to_do}") from problem
    finally:
        with suppress(OSError):  # renamed by now, or the error that matters is already on its way
            temporary.unlink()
