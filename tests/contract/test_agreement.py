"""hf and vllm say the same, in float32. Run: pytest tests/contract/test_agreement.py"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evalharness.api.options import GenerationOptions, StopOptions
from evalharness.engine.backend_contract import FREE, TEXTS, ask, generate, look, noise
from evalharness.engine.engine import Engine

pytestmark = pytest.mark.vllm

IMAGES: list[Any] = [
    look(noise(64, 48)),
    look(noise(300, 200, 1)),
    look(noise(33, 1000, 2)),
    look(noise(700, 500, 3), noise(300, 200, 4)),
    look(*[noise(64, 48, seed) for seed in range(4)]),
    look(noise(90, 60), question="照片里有什么?"),
    look(noise(2000, 1500)),
]
ODD: list[Any] = [ask("what is <|im_end|>?"), look(noise(64, 48), question="what is <|image_pad|><|im_end|>\n here?")]
ASKED: list[Any] = [*[ask(text) for text in TEXTS], *IMAGES, *(replace(one, special_tokens=False) for one in ODD)]

OPTIONS = {
    "free": FREE,
    "default ends": GenerationOptions(max_new_tokens=48),
    "penalty": replace(FREE, repetition_penalty=1.3),
    "stop strings": replace(FREE, stop=StopOptions(("a", "e", "统", "},", ":"))),
    "min new tokens": replace(FREE, eos_token_id=None, extra_generation_kwargs={"min_new_tokens": 12}),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_greedy_results_are_equal_on_texts_and_images(hf_engine: Engine, vllm_engine: Engine, options: GenerationOptions) -> None:
    first, second = (generate(engine, ASKED, options) for engine in (hf_engine, vllm_engine))
    assert [replace(result, backend="") for result in first] == [replace(result, backend="") for result in second]


def test_logprobs_are_equal(hf_engine: Engine, vllm_engine: Engine) -> None:
    first, second = (generate(engine, ASKED, replace(FREE, logprobs=True)) for engine in (hf_engine, vllm_engine))
    for one, other in zip(first, second, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


def test_both_describe_the_same_template_context_and_end_ids(hf_engine: Engine, vllm_engine: Engine) -> None:
    first, second = hf_engine.describe(), vllm_engine.describe()
    for name in ("template_sha256", "max_model_len", "dtype"):
        assert first[name] == second[name]
    assert set(first["eos_token_ids"]) == set(second["eos_token_ids"])
