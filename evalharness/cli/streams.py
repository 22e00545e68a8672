"""A stdout that is ours alone, while libraries print what they like."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

__all__ = ["own_stdout"]


@contextlib.contextmanager
def own_stdout() -> Iterator[TextIO]:
    """Yield a stream to stdout. What anything else prints there meanwhile, child processes included, goes to stderr."""
    ours = sys.stdout
    try:
        is_process_wide = ours.fileno() == 1
    except (AttributeError, io.UnsupportedOperation):
        is_process_wide = False
    if not is_process_wide:
        with contextlib.redirect_stdout(sys.stderr):
            yield ours
        return
    ours.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with (
            open(kept, "w", encoding=ours.encoding, errors="backslashreplace", closefd=False) as stream,
            contextlib.redirect_stdout(sys.stderr),
        ):
            yield stream
    finally:
        os.dup2(kept, 1)
        os.close(kept)
