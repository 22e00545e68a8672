"""How often a number came before, among any many, in memory that hardly grows with them."""

from __future__ import annotations

from evalharness.api.temporary_database import room_on_disk, temporary_database

_ADD = "INSERT INTO seen VALUES (?, 1) ON CONFLICT (number) DO UPDATE SET num = num + 1 RETURNING num"
_HALF = 1 << 63


class Repeats:
    """Numbers from 0 to 2**64 - 1, and how often each came. `ConfigError` where the disk is full."""

    def __init__(self) -> None:
        self._seen = temporary_database("seen (number INTEGER PRIMARY KEY, num INTEGER)")

    def count(self, number: int) -> int:
        """Return how often the number has come, this time included."""
        with room_on_disk():
            [(num,)] = self._seen.execute(_ADD, (number - _HALF,))  # SQLite's numbers have a sign
        return int(num)

    def __del__(self) -> None:
        self._seen.close()  # else newer Pythons warn of it
