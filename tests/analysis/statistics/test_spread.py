"""Which cases `--limit` takes: spread over tags and groups, each as likely as any other, the same in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from evalharness.analysis.statistics.spread import SpreadSample
from evalharness.api.cases import Case
from evalharness.api.errors import ConfigError

CASES = [
    Case(id=f"c{i}", group=f"g{i // 5}", tags={"subject": f"s{min(i % 12, i % 7)}", "level": str(i % 3)} if i % 2 else {"subject": "s9"})
    for i in range(2000)
]


def drawn(cases: Sequence[Case], num: int, seed: int = 0) -> list[str]:
    with SpreadSample(seed) as sample:
        for case in cases:
            sample.add(case)
        return [cases[position].id for position in sample.draw(num)]


@pytest.mark.parametrize("num", [1, 7, 40, 200, 1999])
def test_each_value_of_a_tag_gets_its_share_up_to_two_cases(num: int) -> None:
    by_id = {case.id: case for case in CASES}
    in_all, in_sample = (Counter(case.tags["subject"] for case in cases) for cases in (CASES, map(by_id.get, drawn(CASES, num))))
    assert all(abs(in_sample[value] - count * num / len(CASES)) < 2 for value, count in in_all.items())


def test_groups_are_taken_once_before_any_is_taken_twice() -> None:
    cases = [Case(id=f"c{i}", group=f"g{i // 10}") for i in range(400)]
    assert len({int(case_id[1:]) // 10 for case_id in drawn(cases, 40)}) == 40


def test_a_sample_depends_on_the_seed_and_not_on_the_order_and_a_larger_one_holds_it() -> None:
    shuffled = Random(3).sample(CASES, len(CASES))
    assert set(drawn(shuffled, 50)) == set(drawn(CASES, 50)) < set(drawn(CASES, 120))
    assert set(drawn(CASES, 50, seed=1)) != set(drawn(CASES, 50))
    assert drawn(CASES, 5000) == [case.id for case in CASES]


def test_a_sample_is_the_one_that_earlier_versions_drew() -> None:
    cases = [
        Case(id=f"q{i}", group=f"d{i // 8}" if i % 9 else None, tags={"subject": f"s{i % 7}", "level": str(i % 3)}) for i in range(400)
    ]
    assert drawn(cases, 6) == ["q6", "q23", "q42", "q242", "q262", "q383"]
    assert drawn(cases, 3, seed=7) == ["q95", "q147", "q369"]


def test_cases_with_fewer_tags_make_the_same_sample_wherever_they_come() -> None:
    cases = [Case(id=f"c{i}", tags={"a": str(i % 3), **({"b": str(i % 5)} if i % 4 else {})}) for i in range(600)]
    assert set(drawn(cases, 50)) == set(drawn(sorted(cases, key=lambda case: len(case.tags)), 50))


def test_every_case_is_about_as_likely() -> None:
    cases = [Case(id=f"c{i}", group=f"g{int(i**0.5)}", tags={"kind": str(i % 3)}) for i in range(60)]
    counts = Counter(case_id for seed in range(300) for case_id in drawn(cases, 20, seed))
    assert all(50 < counts[case.id] < 160 for case in cases)  # 100 ± 6 standard deviations: no false alarm in a billion


def test_cases_without_tags_or_groups_are_drawn_too() -> None:
    sample = drawn([Case(id=f"c{i}") for i in range(100)], 10)
    assert len(sample) == 10
    assert sample != [f"c{i}" for i in range(10)]
    assert drawn([], 3) == []


def test_a_disk_without_room_is_named_with_what_to_do() -> None:
    with SpreadSample(0) as sample:
        sample._file.execute("PRAGMA max_page_count = 4")
        with pytest.raises(ConfigError, match="a temporary file cannot be written: database or disk is full; name a folder .* TMPDIR"):
            for case in CASES:
                sample.add(case)
