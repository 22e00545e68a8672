"""Responses that share their prompt read its keys and values, and their numbers are those of requests that read nothing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from evalharness.backends.base import Prompt
from evalharness.backends.vllm.prefixes import PrefixReading, has_read_too_much
from tests.backends.plans import PLAN
from tests.backends.vllm_models import completions

if TYPE_CHECKING:
    from evalharness.backends.vllm.backend import VllmBackend


def asked(index: int, context: list[int], response: list[int] | None, **changes: Any) -> Prompt:
    given = None if response is None else tuple(response)
    return Prompt(index, "", tuple(context), len(context), replace(PLAN, **changes), response_ids=given)


@pytest.mark.vllm
def test_shared_prompts_are_read_and_nothing_changes(vllm_vlm_backend: VllmBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts around the border of a block; responses that begin alike, are equal, or end within another's."""
    backend, prompts = vllm_vlm_backend, []
    for length in (31, 32, 33, 70):
        context = [100 + (7 * place + length) % 90 for place in range(length)]
        for response in ([60, 61], [60, 61, 62] * 20, [60, 61], [63], [64, 65, 66] * 12):
            prompts.append(asked(len(prompts), context, response))
    assert backend._prefixes.is_possible
    backend._engine._llm.llm_engine.reset_prefix_cache()
    read: list[int] = []
    keep = backend.work.keep
    monkeypatch.setattr(backend.work, "keep", lambda num: (read.append(num or 0), keep(num)))
    for _ in range(2):  # the second time all of them has been computed before, and most are asked again
        shared = completions(backend.generate(prompts))
        assert sum(read) > 0
    assert len(read) > 2 * len(prompts)
    assert (backend._prefixes._num_needed, backend._prefixes._readers) == (0, set())
    read.clear()
    monkeypatch.setattr(backend._prefixes, "is_possible", False)
    alone = completions(backend.generate(prompts))
    assert sum(read) == 0
    for one, other in zip(shared, alone, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def reading(num_blocks: int = 10, *, has_drafts: bool = False, **text: Any) -> PrefixReading:
    model = SimpleNamespace(hf_text_config=SimpleNamespace(**text), is_hybrid=False, get_sliding_window=lambda: text.get("sliding_window"))
    cache = SimpleNamespace(block_size=32, num_gpu_blocks=num_blocks, enable_prefix_caching=True)
    return PrefixReading(SimpleNamespace(cache_config=cache, model_config=model), has_drafts=has_drafts)


@pytest.mark.vllm
@pytest.mark.parametrize(
    "changes, possible",
    [
        ({}, True),
        ({"layer_types": ["full_attention"]}, True),
        ({"layer_types": ["full_attention", "sliding_attention"]}, False),
        ({"sliding_window": 64}, False),
        ({"has_drafts": True}, False),
        ({"num_blocks": 0}, False),
    ],
)
def test_only_plain_caches_are_read(changes: dict[str, Any], possible: bool) -> None:
    assert reading(**changes).is_possible == possible


@pytest.mark.vllm
def test_nothing_is_read_unless_all_have_room() -> None:
    prefixes = reading()  # of ten blocks nine count
    given, generated = asked(0, [5] * 64, [6] * 20), asked(1, [5] * 64, None, max_new_tokens=64)
    assert prefixes.may_read(given)
    assert not prefixes.may_read(generated)
    prefixes.begin("a", given, reads=True)  # 85 tokens: three blocks
    assert prefixes.has_room(generated)  # 128 tokens: four
    prefixes.begin("b", generated, reads=False)
    assert not prefixes.has_room(given)
    assert not prefixes.may_read(given)
    assert prefixes.end("a")
    assert prefixes.has_room(given)  # nobody reads
    assert not prefixes.end("b")
    picture = replace(given, load_images=list)
    assert not prefixes.may_read(picture)
    prefixes.begin("c", picture, reads=False)
    assert not prefixes.may_read(given)


@pytest.mark.parametrize("num_cached, too_much", [(0, False), (31, False), (32, True), (96, True), (None, True)])
def test_the_last_token_of_the_prompt_must_be_computed(num_cached: int | None, too_much: bool) -> None:
    assert has_read_too_much(asked(0, [5] * 32, [6]), num_cached) == too_much
