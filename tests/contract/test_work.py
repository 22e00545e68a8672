"""A backend that counts its work counts every token's step, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationResult, VlmGenerationRequest
from evalharness.backends.base import Backend, CountedWork
from evalharness.engine.backend_contract import ask
from evalharness.engine.engine import Engine
from tests.backends.vllm_models import noise
from tests.contract.conftest import HF, REAL

COUNTING = [HF, *(param for param in REAL if param.id == "vllm")]
LONG = GenerationOptions(max_new_tokens=24, eos_token_id=())


@pytest.fixture(params=COUNTING)
def counting(request: pytest.FixtureRequest, backend_of: Callable[[str], Backend]) -> Engine:
    """The engines whose backends count."""
    return Engine(backend_of(request.param))


def work_of(engine: Engine, ask_all: Callable[[], list[GenerationResult]]) -> tuple[dict[str, float], list[GenerationResult]]:
    """Return the difference that a call makes, and its results."""
    before = engine.work()
    results = ask_all()
    return {name: value - before[name] for name, value in engine.work().items()}, results


def test_each_token_is_in_one_step(counting: Engine) -> None:
    assert isinstance(counting.backend, CountedWork)
    requests = [ask(f"Tell me about the number {number}.") for number in range(3)]
    work, results = work_of(counting, lambda: counting.generate_text_batch(requests, LONG))
    assert work["step_rows"] == sum(result.num_completion_tokens or 0 for result in results) == 3 * 24
    assert work["new_rows"] == 3
    assert 24 <= work["num_steps"] <= 3 * 24
    assert 0 < work["plain_s"] <= work["step_s"]
    nothing, _ = work_of(counting, list)
    assert set(nothing.values()) == {0.0}


def test_pictures_are_counted_with_the_wait_for_them(counting: Engine) -> None:
    picture = noise(200, 100, seed=11)
    chat = [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": "What is it?"}]}]
    work, _ = work_of(counting, lambda: counting.generate_vlm_batch([VlmGenerationRequest(chat)], LONG))
    assert (work["num_patches"], work["sum_patch_squares"]) == (72, 72 * 72)
    assert work["picture_wait_s"] > 0
    assert counting.work()["num_first_pictures"] == 1
