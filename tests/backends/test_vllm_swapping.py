"""A swap in a running vLLM equals a new start: token ids and log-probabilities, texts and images, on trained checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evalharness.contracts import TextGenerationRequest
from evalharness.engine import Engine
from evalharness.engine_building import build_engine
from evalharness.engine_options import ModelLoadConfig, VllmEngineOptions
from evalharness.generation_options import GenerationOptions
from evalharness.tasks import stage_a
from fixtures.training.samples import stage_b_messages
from tests import vllm_installed

FIXTURES = Path(__file__).parents[2] / "fixtures"
CHECKPOINTS = FIXTURES / "checkpoints"

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not vllm_installed.IS_INSTALLED, reason=vllm_installed.WHY_NOT),
]


def config(checkpoint: str, adapter: str | None = None) -> ModelLoadConfig:
    path = str(CHECKPOINTS / adapter) if adapter is not None else None
    return ModelLoadConfig(str(CHECKPOINTS / checkpoint), torch_dtype="float32", adapter_path=path)


def start(checkpoint: str, adapter: str | None = None, backend: str = "vllm") -> Engine:
    return build_engine(backend, config(checkpoint, adapter), vllm_options=VllmEngineOptions(max_model_len=2048))


def answers(engine: Engine) -> list[tuple[str, Sequence[float]]]:
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
def swapped(tiny_vlm_checkpoint: Path) -> dict[str, Any]:
    """What one engine answered as one checkpoint after another, started on `early`."""
    engine = start("early")
    try:
        found: dict[str, Any] = {"early": answers(engine)}
        for name, values in (
            ("final", config("final")),
            ("lora-helps", config("middle", "lora-helps")),
            ("lora-hurts", config("middle", "lora-hurts")),
            ("middle", config("middle")),
            ("early again", config("early")),
        ):
            assert engine.why_not_swap(values) is None
            engine.swap(values)
            found[name] = answers(engine)
        found["why not"] = engine.why_not_swap(ModelLoadConfig(str(tiny_vlm_checkpoint), torch_dtype="float32"))
    finally:
        engine.close()
    return found


def test_the_checkpoints_answer_differently(swapped: dict[str, Any]) -> None:
    names = ("early", "final", "lora-helps", "lora-hurts", "middle")
    assert len({tuple(text for text, _ in swapped[name]) for name in names}) == 5


def test_a_swap_there_and_back_restores_every_logprob(swapped: dict[str, Any]) -> None:
    assert swapped["early again"] == swapped["early"]


def test_a_swapped_checkpoint_answers_as_a_new_start_to_the_last_logprob(swapped: dict[str, Any]) -> None:
    engine = start("final")
    try:
        assert answers(engine) == swapped["final"]
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("name", "checkpoint", "adapter"),
    [
        ("final", "final", None),
        ("middle", "middle", None),
        ("lora-helps", "middle", "lora-helps"),
        ("lora-hurts", "middle", "lora-hurts"),
    ],
    ids=lambda value: str(value),
)
def test_swapped_checkpoints_and_adapters_answer_as_on_hf(swapped: dict[str, Any], name: str, checkpoint: str, adapter: str | None) -> None:
    engine = start(checkpoint, adapter, "hf")
    assert [text for text, _ in answers(engine)] == [text for text, _ in swapped[name]]
    engine.close()


def test_another_architecture_starts_anew(swapped: dict[str, Any]) -> None:
    assert swapped["why not"].startswith("config.json differs in ")
