"""How often a number came before, among any many, in memory that hardly grows with them."""

from __future__ import annotations

import weakref

from evalharness.api.temporary_database import room_on_disk, temporary_database

_HALF = 1 << 63


class Repeats:
    """Numbers from 0 to 2**64 - 1, and how often each came. `ConfigError` where the disk is full."""

    def __init__(self) -> None:
        self._seen = temporary_database("seen (number INTEGER PRIMARY KEY, num INTEGER)")
        weakref.finalize(self, self._seen.close)  # else newer Pythons warn of it

    def count(self, number: int) -> int:
        """Return how often the number has come, this time included."""
        row = (number - _HALF,)  # SQLite's numbers have a sign
        with room_on_disk():  # by statements of any version: that of RHEL 9 knows no RETURNING
            if self._seen.execute("INSERT OR IGNORE INTO seen VALUES (?, 1)", row).rowcount:
                return 1
            self._seen.execute("UPDATE seen SET num = num + 1 WHERE number = ?", row)
            [(num,)] = self._seen.execute("SELECT num FROM seen WHERE number = ?", row)
        return int(num)
