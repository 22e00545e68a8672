"""Python's garbage collector, kept from walking data that grows and stays: each round would look at all of it again, in vain."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector(*, on: bool) -> Iterator[None]:
    """Let the garbage collector run or not. Off: while rows, tables and tests are made, and while large libraries are imported."""
    was_on = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        yield
    finally:
        (gc.enable if was_on else gc.disable)()
