"""Node ids read and units made, on plain strings."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from evalharness.pytest_plugin.execution.units import UnitKey, assign_units, first_tests
from evalharness.runs.journal import EvalNode, parse_nodeid


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("e/test_a.py::test_s[hf:x-c1]", EvalNode("e/test_a.py", "test_s", "hf:x", "c1")),
        ("e/test_a.py::TestA::test_s[a-b-hf:x-c-1]", EvalNode("e/test_a.py", "TestA::test_s[a-b]", "hf:x", "c-1")),
        ("test_a.py::test_s[hf:x-y-c1]", EvalNode("test_a.py", "test_s", "hf:x-y", "c1")),
        ("test_a.py::test_s[hf:x-a[1]]", EvalNode("test_a.py", "test_s", "hf:x", "a[1]")),
        ("test_a.py::test_s[hf:x-]", EvalNode("test_a.py", "test_s", "hf:x", "")),
        ("test_a.py::test_s[hf:z-c1]", None),
        ("test_a.py::test_s[hf:x]", None),
        ("test_a.py::test_s", None),
        ("test_a.py", None),
        ("", None),
    ],
)
def test_an_id_says_module_test_engine_and_case(nodeid: str, expected: EvalNode | None) -> None:
    assert parse_nodeid(nodeid, ["hf:x", "hf:x-y"]) == expected


def ids(num_cases: int, tests: str = "s", engine: str = "hf:x") -> list[str]:
    return [f"test_a.py::test_{test}[{engine}-c{case}]" for test in tests for case in range(num_cases)]


@pytest.mark.parametrize(
    ("num_cases", "num_workers", "num_units"),
    [(1, 0, 1), (100, 0, 1), (100, 1, 1), (1, 4, 1), (3, 4, 3), (4, 4, 4), (40, 4, 4), (1000, 4, 24), (17, 2, 2), (48, 2, 4)],
)
def test_there_are_units_for_every_worker_but_no_tiny_ones(num_cases: int, num_workers: int, num_units: int) -> None:
    units = assign_units(ids(num_cases, engine="fake:x"), ["fake:x"], num_workers)
    assert len(units) == num_cases
    assert len(set(units.values())) == num_units


@pytest.mark.parametrize(
    ("engine", "num_cases", "sizes"),
    [
        ("hf:x", 40, [10, 10, 10, 10]),
        ("hf:x", 1000, [125] * 4 + [62] * 4 + [63] * 4),
        ("vllm:x", 2, [1, 1]),
        ("vllm:x", 6144, [768] * 4 + [384] * 4 + [192] * 4 + [96] * 4 + [48] * 4 + [48] * 4),
    ],
)
def test_the_engine_that_ends_the_run_is_split_ever_finer_and_evenly(engine: str, num_cases: int, sizes: list[int]) -> None:
    units = list(assign_units(ids(num_cases, engine=engine), [engine], 4).values())
    assert [units.count(unit) for unit in dict.fromkeys(units)] == sizes


@given(num_cases=st.integers(1, 3000), num_workers=st.integers(2, 9), backend=st.sampled_from(["fake", "hf", "vllm", "openai"]))
def test_equally_quick_workers_get_equally_many_cases(num_cases: int, num_workers: int, backend: str) -> None:
    units = list(assign_units(ids(num_cases, engine=f"{backend}:x"), [f"{backend}:x"], num_workers).values())
    sizes = [units.count(unit) for unit in dict.fromkeys(units)]
    assert sum(sizes) == num_cases
    workers = [sum(sizes[number::num_workers]) for number in range(num_workers)]
    assert max(workers) - min(workers) <= 1


def test_of_many_engines_only_those_left_over_are_split() -> None:
    engines = [f"vllm:c{number}" for number in range(10)]
    nodeids = [nodeid for engine in engines for nodeid in ids(1000, engine=engine)]
    units = set(assign_units(nodeids, engines, 4).values())
    assert [sum(unit.engine == engine for unit in units) for engine in engines] == [1] * 8 + [2, 2]


def test_of_two_evals_the_large_one_is_split() -> None:
    nodeids = [*ids(2000, engine="fake:x"), *(f"test_b.py::test_s[fake:x-c{case}]" for case in range(10))]
    units = set(assign_units(nodeids, ["fake:x"], 4).values())
    assert [sum(unit.path == path for unit in units) for path in ("test_a.py", "test_b.py")] == [28, 1]


def test_the_first_test_of_each_case_is_known() -> None:
    nodeids = [*ids(2, tests="ab"), *ids(1, engine="hf:x-c"), "test_b.py::test_s[hf:x-c0]", "test_b.py::test_plain"]
    units = assign_units(nodeids, ["hf:x", "hf:x-c"], 2)
    assert first_tests(units) == {*ids(2, tests="a"), *ids(1, engine="hf:x-c"), "test_b.py::test_s[hf:x-c0]"}


def test_all_tests_of_a_case_share_a_unit_and_engines_and_modules_none() -> None:
    nodeids = [*ids(2, tests="abc"), *ids(2, engine="hf:y"), "test_b.py::test_s[hf:x-c0]", "test_b.py::test_plain"]
    units = assign_units(nodeids, ["hf:x", "hf:y"], 0)
    assert set(units.values()) == {UnitKey("hf:x", "test_a.py", 0), UnitKey("hf:y", "test_a.py", 0), UnitKey("hf:x", "test_b.py", 0)}
    assert "test_b.py::test_plain" not in units
    units = assign_units(ids(50, tests="abc"), ["hf:x"], 4)
    for case in range(50):
        assert len({units[f"test_a.py::test_{test}[hf:x-c{case}]"] for test in "abc"}) == 1
    assert assign_units(ids(3), [], 2) == {}
