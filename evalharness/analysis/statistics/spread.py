"""A random sample of cases that is spread over their tags and groups: `--limit`.

Every case is about as likely as any other, so means over the sample estimate means over all. But each value of the first tag gets its
share of the sample, up to a case or two; within it each value of the second tag, and so on, and within these each group. A larger
sample holds every smaller one of the same seed. The sample depends on ids, groups, tags and the seed alone: not on the order of cases,
the machine or the checkpoint.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from evalharness.api.cases import Case


class SpreadSample:
    """Collects cases as numbers, 8 bytes a case for its id, its group and each of its tags, and then draws."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._shared = lru_cache(maxsize=4096)(self._number)  # of tags and groups, which many cases share
        self._cases = array("Q")
        self._levels: list[array[int]] = []
        """One for each tag, and the last for the group: numbers of the sets of cases that agree in all so far."""

    def add(self, case: Case) -> None:
        """Add the next case."""
        tags = tuple(case.tags.items())
        own = self._number("case", case.id)
        sets = [self._shared("tags", tags[:depth]) for depth in range(1, len(tags) + 1)]
        while len(self._levels) <= len(tags):  # the first case, or one with more tags than those before it
            self._levels.append(array("Q", self._levels[-1] if self._levels else ()))
        sets += [sets[-1] if sets else 0] * (len(self._levels) - 1 - len(sets))
        sets.append(own if case.group is None else self._shared("group", (tags, case.group)))
        for level, number in zip(self._levels, sets, strict=True):
            level.append(number)
        self._cases.append(own)

    def _number(self, kind: str, value: object) -> int:
        text = f"{self._seed}\0{kind}\0{value!r}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")

    def __len__(self) -> int:
        return len(self._cases)

    def repeated(self) -> list[int]:
        """Return the positions of cases whose id another case before them has."""
        _, first = np.unique(np.frombuffer(self._cases, np.uint64), return_index=True)
        return sorted(set(range(len(self._cases))) - set(first.tolist())) if len(first) < len(self._cases) else []

    def has(self, cases: Sequence[Case], positions: Sequence[int]) -> bool:
        """Return whether these are the cases that were added at these positions."""
        return [self._number("case", case.id) for case in cases] == [self._cases[position] for position in positions]

    def draw(self, num: int) -> list[int]:
        """Return the sorted positions of at most `num` cases."""
        numbers = np.frombuffer(self._cases, np.uint64)
        shares = numbers / 2.0**64
        for level in reversed(self._levels):
            sets = np.frombuffer(level, np.uint64)
            rank, size = _ranks(sets, shares, numbers)
            shares = (rank + sets / 2.0**64) / size  # of the set around it: so much of it comes before this case
        return sorted(np.lexsort((numbers, shares))[:num].tolist())


def _ranks(sets: np.ndarray, shares: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rank of each case in its set by share, from 0, and the size of the set."""
    order = np.lexsort((numbers, shares, sets))
    _, first, size = np.unique(sets[order], return_index=True, return_counts=True)
    rank = np.empty(len(sets))
    rank[order] = np.arange(len(sets)) - np.repeat(first, size)
    sizes = np.empty(len(sets))
    sizes[order] = np.repeat(size, size)
    return rank, sizes
