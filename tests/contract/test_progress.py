"""A backend that tells how far it is sees tokens before an answer has ended, and nothing where nothing is generated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evalharness.api.options import GenerationOptions
from evalharness.backends.base import Backend, ToldProgress, UnderWay
from evalharness.backends.fake import FakeAnswer, FakeBackend
from evalharness.engine.backend_contract import ask
from evalharness.engine.engine import Engine
from tests.contract.conftest import FAKE, REAL

LONG = GenerationOptions(max_new_tokens=48)


@pytest.fixture(params=[FAKE, *REAL])
def telling(request: pytest.FixtureRequest, backend_of: Callable[[str], Backend]) -> Engine:
    """The engines whose backends tell."""
    slow = FakeBackend.from_answers([FakeAnswer("x" * 40, delay_s=0.2, ends=False)])
    return Engine(slow if request.param == "fake" else backend_of(request.param))


def seen_by(engine: Engine, num_requests: int) -> tuple[list[UnderWay], int]:
    """Return what was under way at every step before the first answer, and the tokens of all answers."""
    seen: list[UnderWay] = []
    answered: list[int] = []

    def should_stop() -> bool:
        now = engine.under_way()
        assert now is not None
        if not answered:
            seen.append(now)
        return False

    requests = [ask(f"Tell me about the number {number}.") for number in range(num_requests)]
    for _, outcome in engine.stream(requests, LONG, should_stop=should_stop):
        answered.append(outcome.num_completion_tokens)
    return seen, sum(answered)


@pytest.mark.parametrize("num_requests", [1, 3])
def test_tokens_are_seen_before_an_answer_ends(telling: Engine, num_requests: int) -> None:
    assert isinstance(telling.backend, ToldProgress)
    seen, num_tokens = seen_by(telling, num_requests)
    at_most = max(seen, key=lambda now: now.num_tokens or 0)
    assert at_most.num_tokens is not None
    assert 0 < at_most.num_tokens <= num_tokens
    assert 1 <= at_most.num_rows <= num_requests
    assert telling.under_way() == UnderWay(), "nothing is generated any more"


def test_a_backend_need_not_tell(backend_of: Callable[[str], Backend]) -> None:
    class Silent(FakeBackend):
        under_way = None  # type: ignore[assignment]

    assert Engine(Silent.from_answers(["x"])).under_way() is None
