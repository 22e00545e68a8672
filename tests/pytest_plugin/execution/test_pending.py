"""What a unit hands to the engine at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.pytest_plugin.execution.pending import LEAST_AHEAD, OrderedRequests, PendingRequest


def requests_of(num_cases: int, num_samples: int = 1) -> OrderedRequests:
    pending = OrderedRequests((f"c{number}" for number in range(num_cases)), num_samples)
    for number in range(num_cases):
        case: Any = SimpleNamespace(case=SimpleNamespace(id=f"c{number}"))
        for sample in range(num_samples):
            pending.add(PendingRequest(case, None, sample, None, None))  # type: ignore[arg-type]
    return pending


def taken(pending: OrderedRequests) -> list[str]:
    return [request.case.case.id for request in pending.take(lambda: False)]


def test_no_more_cases_go_ahead_of_the_first_unfinished_one_than_are_finished() -> None:
    pending = requests_of(3000)
    assert taken(pending) == [f"c{number}" for number in range(LEAST_AHEAD)]
    assert pending
    assert not pending.is_ready
    assert taken(pending) == []
    for number in range(1, LEAST_AHEAD):
        pending.finish(f"c{number}")
    assert not pending.is_ready  # the first one is what a verdict waits for
    pending.finish("c0")
    assert len(taken(pending)) == LEAST_AHEAD
    for number in range(LEAST_AHEAD, 2 * LEAST_AHEAD):
        pending.finish(f"c{number}")
    assert len(taken(pending)) == 2 * LEAST_AHEAD


@pytest.mark.parametrize("num_samples", [1, 3])
def test_every_request_is_handed_out_once_whatever_the_order_of_answers(num_samples: int) -> None:
    pending, seen, at_engine = requests_of(1500, num_samples), [], []
    while pending or at_engine:
        batch = taken(pending)
        assert batch or at_engine  # else it would wait for ever
        seen += batch
        at_engine += batch
        for case_id in at_engine[-7::-2]:
            pending.finish(case_id)
            at_engine.remove(case_id)
        if at_engine:
            pending.finish(at_engine.pop(0))
    assert sorted(seen) == sorted(f"c{number}" for number in range(1500) for _ in range(num_samples))


def test_a_case_is_finished_when_all_of_its_samples_are() -> None:
    pending = requests_of(LEAST_AHEAD + 1, num_samples=2)
    taken(pending)
    pending.finish("c0")
    assert not pending.is_ready
    pending.finish("c0")
    assert taken(pending) == [f"c{LEAST_AHEAD}"] * 2
