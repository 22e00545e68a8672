"""A random sample of cases that is spread over their tags and groups: `--limit`.

Every case is about as likely as any other, so means over the sample estimate means over all. But each value of the first tag gets its
share of the sample, up to a case or two; within it each value of the second tag, and so on, and within these each group. A larger
sample holds every smaller one of the same seed. The sample depends on ids, groups, tags and the seed alone: not on the order of cases,
the machine or the checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import nsmallest
from itertools import groupby, islice
from operator import itemgetter
from types import TracebackType
from typing import TypeAlias

from evalharness.api.cases import Case
from evalharness.api.temporary_database import room_on_disk, temporary_database

_DIGEST = 8
_WRITTEN_AT_ONCE = 1024
_Row: TypeAlias = "tuple[bytes, bytes, bytes, int]"
"""The digests of its tags, one after the other, of its group and of its id; and its position."""
_Member: TypeAlias = "tuple[float, bytes, int]"
"""The share of the set around it that comes before a case; the digest of its id, and its position."""


class SpreadSample:
    """Collects cases, and then draws some. Digests of all of them lie in a temporary file, so memory holds no more than the sample.

    SQLite sorts there; the file has no name. `ConfigError` where the disk is full.
    """

    def __init__(self, seed: int) -> None:
        self._seed, self._num, self._unwritten = seed, 0, list[_Row]()
        self._shared = lru_cache(maxsize=4096)(self._digest)  # of tags and groups, which many cases share
        self._file = temporary_database("cases (tags BLOB, grouped BLOB, id BLOB, position INTEGER PRIMARY KEY)")

    def __enter__(self) -> SpreadSample:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def add(self, case: Case) -> None:
        """Add the next case."""
        tags = tuple(case.tags.items())
        own = self._digest("case", case.id)
        path = b"".join([self._shared("tags", tags[:depth]) for depth in range(1, len(tags) + 1)])
        self._unwritten.append((path, own if case.group is None else self._shared("group", (tags, case.group)), own, self._num))
        self._num += 1
        if len(self._unwritten) == _WRITTEN_AT_ONCE:
            with room_on_disk():
                self._write()

    def _write(self) -> None:
        self._file.executemany("INSERT INTO cases VALUES (?, ?, ?, ?)", self._unwritten)
        self._unwritten.clear()

    def _digest(self, kind: str, value: object) -> bytes:
        text = f"{self._seed}\0{kind}\0{value!r}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=_DIGEST).digest()

    def __len__(self) -> int:
        return self._num

    def repeated(self, num: int) -> list[int]:
        """Return the positions of the first `num` cases whose id others behind them have."""
        found = "SELECT min(position) FROM cases GROUP BY id HAVING count(*) > 1 ORDER BY 1 LIMIT ?"
        with room_on_disk():
            self._write()
            return [position for (position,) in self._file.execute(found, (num,))]

    def has(self, cases: Sequence[Case], positions: Sequence[int]) -> bool:
        """Return whether these are the cases that were added at these positions."""
        ids = (self._file.execute("SELECT id FROM cases WHERE position = ?", (position,)).fetchone()[0] for position in positions)
        return len(cases) == len(positions) and all(self._digest("case", case.id) == own for case, own in zip(cases, ids, strict=True))

    def draw(self, num: int) -> list[int]:
        """Return the sorted positions of at most `num` cases."""
        if num >= self._num:
            return list(range(self._num))
        with room_on_disk():
            self._write()
            rows = self._file.execute("SELECT * FROM cases ORDER BY tags, grouped, id, position")
            return sorted(position for _, _, position in _first(rows, num)[0])


def _first(rows: Iterable[_Row], num: int, depth: int = 0, node: bytes = b"") -> tuple[list[_Member], int]:
    """Return the first `num` of sorted rows that agree in so many tags, of which `node` is the digest; and the number of rows."""
    sets = groupby(rows, lambda row: row[0][depth * _DIGEST : (depth + 1) * _DIGEST])
    # Rows without a further tag are a set beside those that have one.
    firsts = ((tag or node, _first(some, num, depth + 1, tag) if tag else _first_of_groups(some, num)) for tag, some in sets)
    return _joined(firsts, num)


def _first_of_groups(rows: Iterable[_Row], num: int) -> tuple[list[_Member], int]:
    return _joined(((group, _first_of_group(some, num)) for group, some in groupby(rows, itemgetter(1))), num)


def _first_of_group(rows: Iterator[_Row], num: int) -> tuple[list[_Member], int]:
    members = [(0.0, own, position) for _, _, own, position in islice(rows, num)]
    return members, len(members) + sum(1 for _ in rows)


def _joined(sets: Iterable[tuple[bytes, tuple[list[_Member], int]]], num: int) -> tuple[list[_Member], int]:
    """Return the first `num` members of sets, in each of which they are spread evenly, behind an offset that its digest draws."""
    total = 0

    def members() -> Iterator[_Member]:
        nonlocal total
        for digest, (first, size) in sets:
            total += size
            offset = int.from_bytes(digest, "big") / 2**64
            for rank, (_, own, position) in enumerate(first):
                yield (rank + offset) / size, own, position

    return nsmallest(num, members()), total
