"""Drafts on the hf backend: whatever they say, greedy answers are those without them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from evalharness.backends.base import Completion, Prompt
from tests.backends.vllm_models import chat, completions, noise, prompt_of

if TYPE_CHECKING:
    from evalharness.backends.hf.backend import HfBackend

TEXTS = ("say yes", "count from one to ten, please", "What is in this picture?", "统计", "and now?")


@pytest.fixture(autouse=True)
def _fresh(hf_vlm_backend: HfBackend) -> None:
    """Forget what earlier tests taught the backend's drafts."""
    from evalharness.backends.hf.drafts import HfDrafts

    hf_vlm_backend._drafts = HfDrafts()


def prompts(backend: HfBackend, **changes: Any) -> list[Prompt]:
    return [prompt_of(backend.tokenizer, chat(text * (1 + number)), number, **changes) for number, text in enumerate(TEXTS)]


def drafted(asked: Sequence[Prompt], drafts: Sequence[Sequence[int]]) -> list[Prompt]:
    return [replace(prompt, draft_ids=tuple(draft)) for prompt, draft in zip(asked, drafts, strict=True)]


def hurt(ids: Sequence[int], draw: random.Random) -> list[int]:
    made = list(ids)
    place = draw.randrange(len(made))
    made[place : place + draw.randint(0, 2)] = [draw.randrange(600) for _ in range(draw.randint(0, 2))]
    return made


def counts(backend: HfBackend, before: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in backend.work.read().items() if name.startswith("draft_")}


def check(backend: HfBackend, asked: Sequence[Prompt]) -> None:
    """Assert that the prompts' answers are the same with right, wrong, hostile and absent drafts."""
    draw, expected = random.Random(0), completions(backend.generate(asked))
    right = [done.token_ids for done in expected]
    for drafts in (
        right,
        [hurt(ids, draw) for ids in right],
        [[draw.randrange(600) for _ in ids] for ids in right],
        [right[0], *[()] * (len(right) - 1)],
        [[*ids, 2**31 - 1] for ids in right],  # another tokenizer's
    ):
        before = backend.work.read()
        assert completions(backend.generate(drafted(asked, drafts))) == expected
        if drafts is right:
            made = counts(backend, before)
            assert made["draft_num_taken"] + made["draft_num_row_steps"] == made["draft_num_tokens"] == sum(map(len, right))
            assert made["draft_num_taken"] > 0


@pytest.mark.parametrize(
    "changes",
    [{}, {"max_new_tokens": 1}, {"max_new_tokens": 48}, {"stop_strings": ("e", "1")}, {"stop_token_ids": (642, 640, 30, 31, 32, 33)}],
    ids=["plain", "one-token", "long", "strings", "ids"],
)
def test_answers_are_those_without_drafts(hf_vlm_backend: HfBackend, changes: dict[str, Any]) -> None:
    asked = prompts(hf_vlm_backend, **changes)
    if changes.get("max_new_tokens") == 1:
        assert completions(hf_vlm_backend.generate(drafted(asked, [[5, 6]] * len(asked)))) == completions(hf_vlm_backend.generate(asked))
    else:
        check(hf_vlm_backend, asked)


def test_answers_about_images_are_those_without_drafts(hf_vlm_backend: HfBackend) -> None:
    sizes = [(300, 200), (64, 48), (33, 500)]
    texts = [chat(f"what is it? {'again ' * number}", 1) for number in range(len(sizes))]
    asked = [
        prompt_of(hf_vlm_backend.tokenizer, text, number, images=[noise(*size, seed=number)])
        for number, (text, size) in enumerate(zip(texts, sizes, strict=True))
    ]
    check(hf_vlm_backend, asked)


@pytest.mark.parametrize(
    "changes", [{"temperature": 0.9}, {"repetition_penalty": 1.3}, {"logprobs": True}, {"extra": (("min_new_tokens", 3),)}], ids=str
)
def test_what_looks_at_scores_runs_without_drafts(hf_vlm_backend: HfBackend, changes: dict[str, Any]) -> None:
    asked, before = prompts(hf_vlm_backend, **changes), hf_vlm_backend.work.read()
    expected = completions(hf_vlm_backend.generate(asked))
    assert completions(hf_vlm_backend.generate(drafted(asked, [done.token_ids for done in expected]))) == expected
    assert not any(counts(hf_vlm_backend, before).values())


def test_a_cache_with_many_gaps_is_closed_up(hf_vlm_backend: HfBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    from evalharness.backends.hf import drafts

    closed = []
    original = drafts._Drafted._close_up
    monkeypatch.setattr(drafts, "_WASTE", 0.0)
    monkeypatch.setattr(drafts, "LONGEST", 0)
    monkeypatch.setattr(drafts._Drafted, "_close_up", lambda self: (closed.append(1), original(self)))
    check(hf_vlm_backend, prompts(hf_vlm_backend, max_new_tokens=32))
    assert closed


def test_rows_end_at_a_stop_and_leave_the_others(hf_vlm_backend: HfBackend) -> None:
    asked = prompts(hf_vlm_backend)
    asked = [replace(prompt, plan=replace(prompt.plan, max_new_tokens=24)) for prompt in asked]
    taken = hf_vlm_backend.generate(drafted(asked, [[1, 2, 3]] * len(asked)))
    first = next(iter(taken))
    assert isinstance(first, Completion)
    taken.close()  # type: ignore[attr-defined]
    assert completions(hf_vlm_backend.generate(asked))[first.index] == first
