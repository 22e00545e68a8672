"""Requests for the contract suite, and a fake that is as arbitrary as a random model."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from PIL import Image

from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationResult, TextGenerationRequest, VlmGenerationRequest
from evalharness.backends.base import Backend, BackendOutput, Prompt, SamplingPlan
from evalharness.backends.fake import FakeAnswer, FakeBackend
from evalharness.engine.engine import Engine

CONTEXT = 4096

# Of very different lengths, so that a batch has much padding.
TEXTS = (
    "hi",
    "Say yes or no, count from one to ten, and name the colour of the sky. " * 4,
    "统计",
    "What is in this picture? Write one short sentence.",
    "一" * 40,
    "The quick brown fox jumps over the lazy dog.",
    "no",
    "请根据照片输出一行 JSON 摘要, 只写看得见的内容, 不写判断。",
    "1 2 3 4 5 6 7 8 9",
    "{}",
    "count from one to ten, please",
    "say yes",
)

FREE = GenerationOptions(max_new_tokens=24, eos_token_id=())
"""Nothing ends these but the length cap."""


def ask(text: str) -> TextGenerationRequest:
    """Return a chat of one user turn."""
    return TextGenerationRequest([{"role": "user", "content": text}])


def look(*images: Any, question: str = "what is it?", verify: bool = False) -> VlmGenerationRequest:
    """Return a chat of one user turn that shows the images first."""
    parts = [{"type": "image", "image": image} for image in images]
    return VlmGenerationRequest([{"role": "user", "content": [*parts, {"type": "text", "text": question}]}], verify=verify)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a picture of random pixels."""
    return Image.frombytes("RGB", (width, height), random.Random(seed).randbytes(width * height * 3))


def decode(engine: Engine, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
    """Return the text of these ids, nothing stripped."""
    return engine.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)


def generate(engine: Engine, requests: Sequence[Any], options: Any) -> list[GenerationResult]:
    """Return one result per request, in order; a failure fails the test."""
    outcomes = dict(engine.stream(requests, options))
    assert len(outcomes) == len(requests)
    ordered = [outcomes[i] for i in range(len(requests))]
    assert [outcome for outcome in ordered if not isinstance(outcome, GenerationResult)] == []
    return ordered  # type: ignore[return-value]


class StandIn:
    """Stands before a backend: all that it is, while subclasses change what it does."""

    def __init__(self, backend: Backend, name: str | None = None) -> None:
        self.backend = backend
        self.name = name or backend.name
        self.capabilities = backend.capabilities
        self.tokenizer, self.processor = backend.tokenizer, backend.processor
        self.eos_token_ids, self.max_model_len = backend.eos_token_ids, backend.max_model_len
        self.num_calls = 0

    @property
    def supports_vlm(self) -> bool:
        return self.backend.supports_vlm

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
