"""A swap in a running vLLM equals a new start, to the token ids and log-probabilities of trained checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.options import GenerationOptions, ModelLoadConfig
from evalharness.api.requests import TextGenerationRequest
from evalharness.engine.build import build_engine
from evalharness.engine.engine import Engine
from evalharness.tasks import stage_a
from fixtures.training.samples import stage_b_messages

FIXTURES = Path(__file__).parents[3] / "fixtures"
CHECKPOINTS = FIXTURES / "checkpoints"

pytestmark = pytest.mark.vllm


def config(checkpoint: str, adapter: str | None = None) -> ModelLoadConfig:
    path = str(CHECKPOINTS / adapter) if adapter is not None else None
    return ModelLoadConfig(str(CHECKPOINTS / checkpoint), torch_dtype="float32", adapter_path=path)


CONFIGS = {
    "endless": config("endless"),
    "final": config("final"),
    "lora-helps": config("middle", "lora-helps"),
    "lora-hurts": config("middle", "lora-hurts"),
    "middle": config("middle"),
}


def answers(engine: Engine) -> list[tuple[str, list[float]]]:
    """Return text and log-probabilities of some of the default cases: verdicts of text alone, and pictures."""
    options = GenerationOptions(max_new_tokens=64, temperature=0.0, logprobs=True)
    lines = (FIXTURES / "site_photos" / "RRU线缆_stage_a.jsonl").read_text(encoding="utf-8").splitlines()[:6]
    groups = [json.loads(line)["per_image"].values() for line in lines]
    verdicts = [
        TextGenerationRequest(stage_b_messages("RRU线缆", [one if one == stage_a.IRRELEVANT else json.loads(one) for one in group]))
        for group in groups
    ]
    pictures = [stage_a.request(case) for case in stage_a.load_cases(FIXTURES / "site_photos")[::60]]
    results = [*engine.generate_text_batch(verdicts, options), *engine.generate_vlm_batch(pictures, options)]
    return [(result.raw_text, [value for value in result.logprobs or () if value is not None]) for result in results]


@pytest.fixture(scope="module")
def swapped(vllm_endless: Engine) -> dict[str, Any]:
    """What it answers as one checkpoint after another, the first as it was started."""
    answered = {"endless": answers(vllm_endless)}
    for name, values in [*list(CONFIGS.items())[1:], ("endless again", CONFIGS["endless"])]:
        assert vllm_endless.weights.why_not_swap(values) is None
        vllm_endless.weights.swap(values)
        answered[name] = answers(vllm_endless)
    return answered


def test_a_swap_there_and_back_restores_every_logprob(swapped: dict[str, Any]) -> None:
    assert len({repr(swapped[name]) for name in CONFIGS}) == len(CONFIGS)
    assert swapped["endless again"] == swapped["endless"]


@pytest.mark.parametrize("name", CONFIGS)
def test_swapped_checkpoints_and_adapters_answer_as_on_hf(swapped: dict[str, Any], name: str) -> None:
    with build_engine("hf", CONFIGS[name]) as engine:
        for (text, logprobs), (ours, theirs) in zip(answers(engine), swapped[name], strict=True):
            assert ours == text
            assert theirs == pytest.approx(logprobs, abs=1e-2)


def test_another_architecture_starts_anew(vllm_endless: Engine, tiny_vlm_checkpoint: Path) -> None:
    problem = vllm_endless.weights.why_not_swap(ModelLoadConfig(str(tiny_vlm_checkpoint), torch_dtype="float32"))
    assert (problem or "").startswith("config.json differs in ")
