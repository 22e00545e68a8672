"""Backends for the contract tests: a stand-in before a real one, and a fake as arbitrary as a random model."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from evalharness.backends.base import Backend, BackendOutput, Prompt, SamplingPlan
from evalharness.backends.fake import FakeAnswer, FakeBackend

CONTEXT = 4096


class StandIn:
    """Stands before a backend: all that it is, while subclasses change what it does."""

    def __init__(self, backend: Backend, name: str | None = None) -> None:
        self.backend = backend
        self.name = name or backend.name
        self.capabilities, self.weights = backend.capabilities, backend.weights
        self.tokenizer, self.processor = backend.tokenizer, backend.processor
        self.eos_token_ids, self.max_model_len = backend.eos_token_ids, backend.max_model_len
        self.num_calls = 0

    def generate(self, prompts: Iterable[Prompt], **options: Any) -> Iterator[BackendOutput]:
        self.num_calls += 1
        return self.backend.generate(prompts, **options)

    def check_plan(self, plan: SamplingPlan) -> None:
        self.backend.check_plan(plan)

    def describe(self) -> Mapping[str, Any]:
        return self.backend.describe()

    def close(self) -> None:
        """The real one is closed by its fixture."""


def arbitrary_fake() -> FakeBackend:
    """Return a fake whose answers look random, depend on every part of the prompt, and hold end tokens here and there."""
    return FakeBackend.from_answers(_arbitrary_answer, max_model_len=CONTEXT)


def _arbitrary_answer(prompt: Prompt) -> FakeAnswer:
    digest = hashlib.sha256(prompt.text.encode())
    if prompt.load_images is not None:
        try:
            for image in prompt.load_images():
                digest.update(image.tobytes())
        except Exception:
            return FakeAnswer("the backend itself will say why")
    draw = random.Random(digest.digest())
    characters = [draw.choice("abcdefg  \n,.统计€") for _ in range(200)]
    for position in draw.sample(range(3, 60), 2):
        characters[position] = "<|im_end|>"
    return FakeAnswer("".join(characters), ends=False)
