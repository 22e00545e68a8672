"""How often a number came before, whether it is still in memory or in the file."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from evalharness.api.errors import ConfigError
from evalharness.data import repeats
from evalharness.data.repeats import Repeats


@pytest.mark.parametrize(("in_memory", "page", "block"), [(2, 3, 1), (7, 1, 2), (50, 3, 5)])
def test_numbers_are_counted_through_memory_and_file(monkeypatch: pytest.MonkeyPatch, in_memory: int, page: int, block: int) -> None:
    for name, value in {"_IN_MEMORY": in_memory, "_PAGE": page, "_BLOCK_PAGES": block}.items():
        monkeypatch.setattr(repeats, name, value)
    draw, counts, counted = random.Random(in_memory), Counter[int](), Repeats()
    for kind in draw.choices(("few", "many", "ends"), k=300):
        number = {"few": draw.randrange(20), "many": draw.getrandbits(64), "ends": draw.choice((0, 2**64 - 1))}[kind]
        counts[number] += 1
        assert counted.count(number) == counts[number]


def test_a_file_that_cannot_be_written_says_where_and_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(repeats, "_IN_MEMORY", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    counted = Repeats()
    counted.count(1)
    with pytest.raises(ConfigError, match="a temporary file in .*none cannot be written: .*TMPDIR"):
        counted.count(2)
