"""A database in a temporary file without a name, for what is known of many cases: memory holds a few megabytes of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from evalharness.api.temporary import no_room

_CACHE_KIB = 8192


def temporary_database(table: str) -> sqlite3.Connection:
    """Return a new database with one table, as SQL declares it. Nothing is ever committed: it goes with the connection."""
    with room_on_disk():
        database = sqlite3.connect("", isolation_level=None, check_same_thread=False)  # any thread may collect what is left of it
        for setting in ("journal_mode=OFF", "synchronous=OFF", "temp_store=FILE", f"cache_size=-{_CACHE_KIB}"):
            database.execute(f"PRAGMA {setting}")
        database.execute(f"CREATE TABLE {table}")
        database.execute("BEGIN")
    return database


@contextmanager
def room_on_disk() -> Iterator[None]:
    """Raise `ConfigError` where the database cannot be written; it says how to name another place."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise no_room(error) from error
