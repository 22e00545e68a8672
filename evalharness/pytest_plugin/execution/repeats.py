"""Which cases --noise asks again, and in which order: other company than the first time, and with xdist mostly another worker.

Each repeat is a case with an id of its own (`runs/repeats.py`), whose tests run like any other's. All cases of one repeat of an eval are a
work unit, in an order drawn anew, which comes after the eval's own units.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random

import pytest

from evalharness.api.cases import Case
from evalharness.config import RunConfig
from evalharness.pytest_plugin._pytest_internals import with_parameter
from evalharness.pytest_plugin.execution.units import is_eval_test
from evalharness.runs.journal import EvalNode, parse_nodeid
from evalharness.runs.repeats import repeat_id, repeat_number


def sample_of(cases: Sequence[Case], num: int, seed: str) -> list[Case]:
    """Return at most `num` cases drawn at random, spread over groups: two of each, then two more, and so on. Invalid ones are left out.

    Two, as one alone would not show whether cases of a group flip together.
    """
    random = Random(seed)
    groups: defaultdict[tuple[bool, str], list[Case]] = defaultdict(list)
    for case in cases:
        if case.invalid is None:
            groups[case.group is None, case.id if case.group is None else case.group].append(case)
    for group in groups.values():
        random.shuffle(group)
    order = random.sample(range(len(groups)), len(groups))
    ranked = [
        ((place // 2, rank, place), case) for rank, group in zip(order, groups.values(), strict=True) for place, case in enumerate(group)
    ]
    ranked.sort(key=lambda entry: entry[0])
    return [case for _, case in ranked[:num]]


def repeats_of(cases: Sequence[Case], name: str, run: RunConfig) -> dict[str, Case]:
    """Return the cases of an eval that are asked again by the ids of their repeats: each repeat in an order of its own."""
    sample = sample_of(cases, run.noise_cases, f"{run.seed}/{name}")
    repeats: dict[str, Case] = {}
    for number in range(1, run.noise + 1):
        Random(f"{run.seed}/{name}/{number}").shuffle(sample)
        repeats |= {repeat_id(case.id, number): case for case in sample}
    return repeats


def as_repeat(repeated_id: str, case: Case) -> Case:
    """Return the case under the id of its repeat."""
    repeat = copy.copy(case)
    object.__setattr__(repeat, "id", repeated_id)  # cases are frozen, and subclasses may not be made from their fields
    return repeat


def repeat_tests(
    items: Sequence[pytest.Item], draw: Callable[[str, Collection[str]], Mapping[str, Case]], engine_ids: Sequence[str]
) -> list[pytest.Item]:
    """Return the tests of repeats, given the tests that are to run: each test on each engine, in the order of the repeats.

    `draw(path, case_ids)` returns the cases of an eval to ask again, by the ids of repeats.
    """
    by_path: dict[str, dict[EvalNode, dict[str, pytest.Function]]] = {}
    for item in items:
        node = parse_nodeid(item.nodeid, engine_ids) if is_eval_test(item) else None
        if node is not None and isinstance(item, pytest.Function):
            of_test = by_path.setdefault(node.path, {}).setdefault(node._replace(case_id=""), {})
            of_test[item.callspec.params["case"].id] = item  # type: ignore[attr-defined]
    made: list[pytest.Item] = []
    for path, tests in by_path.items():
        repeats = draw(path, {case_id for of_test in tests.values() for case_id in of_test})
        for of_test in tests.values():
            for repeated_id, case in repeats.items():
                if case.id in of_test:
                    made.append(with_parameter(of_test[case.id], "case", as_repeat(repeated_id, case), repeated_id.removeprefix(case.id)))
    return made


def put_repeats_last(items: list[pytest.Item]) -> None:
    """Move the tests of repeats behind all other tests of their engine, repeat by repeat; other tests keep their places."""
    repeats: dict[str, list[tuple[int, pytest.Item]]] = {}
    others: list[pytest.Item] = []
    for item in items:
        number = repeat_number(item.nodeid) if is_eval_test(item) else 0
        if number:
            repeats.setdefault(_engine(item), []).append((number, item))
        else:
            others.append(item)
    last = {_engine(item): place for place, item in enumerate(others)}
    ordered: list[pytest.Item] = []
    for place, item in enumerate(others):
        ordered.append(item)
        engine = _engine(item)
        if place == last[engine]:
            ordered += _in_order(repeats.pop(engine, []))
    items[:] = [*ordered, *(item for left in repeats.values() for item in _in_order(left))]


def _engine(item: pytest.Item) -> str:
    return str(getattr(getattr(item, "callspec", None), "params", {}).get("engine", ""))


def _in_order(repeats: list[tuple[int, pytest.Item]]) -> list[pytest.Item]:
    """Return the tests by repeat, then by eval; within both they keep their order."""
    paths = {path: place for place, path in enumerate(dict.fromkeys(item.nodeid.partition("::")[0] for _, item in repeats))}
    ordered = sorted(repeats, key=lambda entry: (entry[0], paths[entry[1].nodeid.partition("::")[0]]))
    return [item for _, item in ordered]
