"""Parts of an eval's cases, for jobs that know nothing of each other: `--shard 2/8` is the same part wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from evalharness.api.errors import ConfigError

__all__ = ["LEGAL", "PATTERN", "cases_of_shard", "read_shard"]

PATTERN = r"[1-9]\d{0,4}/[1-9]\d{0,4}"
LEGAL = "a part and how many there are, such as 1/8, from 1 to 8"

_T = TypeVar("_T")


def read_shard(text: str) -> tuple[int, int]:
    """Return which part, from 1, and of how many; `ConfigError` where there is no such part."""
    part, num_parts = map(int, text.split("/"))
    if part > num_parts:
        raise ConfigError(f"--shard {text} is no part: of {num_parts} parts the last is {num_parts}/{num_parts}")
    return part, num_parts


def cases_of_shard(cases: Sequence[_T], text: str | None) -> Sequence[_T]:
    """Return every n-th of the cases, beginning with the i-th: parts are of equal size, and alike where cases are sorted by kind."""
    if text is None:
        return cases
    part, num_parts = read_shard(text)
    return cases[part - 1 :: num_parts]
