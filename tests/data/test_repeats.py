"""How often a number came before, and what is said where that finds no room."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from evalharness.api.errors import ConfigError
from evalharness.data.cases import Repeats


def test_numbers_are_counted_from_end_to_end() -> None:
    draw, counts, counted = random.Random(0), Counter[int](), Repeats()
    for kind in draw.choices(("few", "many", "ends"), k=300):
        number = {"few": draw.randrange(20), "many": draw.getrandbits(64), "ends": draw.choice((0, 2**64 - 1))}[kind]
        counts[number] += 1
        assert counted.count(number) == counts[number]


def test_a_disk_without_room_is_named_with_what_to_do() -> None:
    counted = Repeats()
    counted._seen.execute("PRAGMA max_page_count = 4")
    with pytest.raises(ConfigError, match="a temporary file cannot be written: database or disk is full; name a folder .* TMPDIR"):
        for number in range(3000):
            counted.count(number)
