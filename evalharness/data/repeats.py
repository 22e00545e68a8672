"""How often a number came before, among any many, in memory that hardly grows with them."""

from __future__ import annotations

import bisect
import os
import tempfile
from array import array
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from evalharness.api.temporary import no_room

if TYPE_CHECKING:
    import numpy as np

_IN_MEMORY = 1 << 16
_PAGE = 128
"""Records that are read to find one. Memory holds the first number of each page."""
_RECORD_BYTES = 16
_BLOCK_PAGES = 512


class Repeats:
    """Numbers below 2**64 and how often each came: the newest in a dictionary, the others in a temporary file in their order.

    `ConfigError` if that cannot be written.
    """

    def __init__(self) -> None:
        self._new: dict[int, int] = {}
        self._file: IO[bytes] | None = None
        self._firsts = array("Q")

    def count(self, number: int) -> int:
        """Return how often the number has come, this time included."""
        if len(self._new) >= _IN_MEMORY:
            self._write()
        before = self._new.get(number)
        if before is None:
            before = self._written(number)
        self._new[number] = before + 1
        return before + 1

    def _written(self, number: int) -> int:
        page = bisect.bisect_right(self._firsts, number) - 1
        if self._file is None or page < 0:
            return 0
        records = array("Q", os.pread(self._file.fileno(), _PAGE * _RECORD_BYTES, page * _PAGE * _RECORD_BYTES))
        numbers = records[::2]
        at = bisect.bisect_left(numbers, number)
        return records[2 * at + 1] if numbers[at : at + 1] == array("Q", [number]) else 0

    def _write(self) -> None:
        """Write the file anew, with the numbers in memory among the others."""
        import numpy as np

        firsts, size = array("Q"), 0
        try:
            file = tempfile.TemporaryFile(prefix="evalharness-")  # noqa: SIM115 -- closed with this object
            for records in self._merged(np.array(sorted(self._new.items()), np.uint64)):
                file.write(records.tobytes())
                firsts.frombytes(records[-size % _PAGE :: _PAGE, 0].tobytes())
                size += len(records)
            file.flush()
        except OSError as error:
            raise no_room(error) from error
        self._close()
        self._file, self._firsts = file, firsts
        self._new.clear()

    def _merged(self, new: np.ndarray) -> Iterator[np.ndarray]:
        """Yield all records in the order of their numbers, with the counts of the new ones."""
        import numpy as np

        for page in range(0, len(self._firsts), _BLOCK_PAGES):
            assert self._file is not None, "it has pages"
            content = os.pread(self._file.fileno(), _BLOCK_PAGES * _PAGE * _RECORD_BYTES, page * _PAGE * _RECORD_BYTES)
            old = np.frombuffer(content, np.uint64).reshape(-1, 2)
            within, new = np.split(new, [np.searchsorted(new[:, 0], old[-1, 0], "right")])
            both = np.concatenate([within, old])
            both = both[np.argsort(both[:, 0], kind="stable")]
            yield both[np.diff(both[:, 0], prepend=~both[:1, 0]) != 0]
        yield new

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
