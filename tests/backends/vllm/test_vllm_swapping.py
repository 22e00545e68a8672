"""A swap in a running vLLM equals a new start, to the token ids and log-probabilities of trained checkpoints; and a killed engine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from evalharness.api.errors import BackendError
from evalharness.api.options import GenerationOptions, ModelLoadConfig, VllmEngineOptions
from evalharness.api.requests import TextGenerationRequest
from evalharness.engine.build import build_engine
from evalharness.engine.engine import Engine
from evalharness.tasks import stage_a
from fixtures.training.samples import stage_b_messages
from tests import vllm_installed
from tests.backends.vllm_models import chat, prompt_of

FIXTURES = Path(__file__).parents[3] / "fixtures"
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
def started() -> Iterator[tuple[Engine, set[psutil.Process]]]:
    """An engine that was started on `early`, and its processes; the last test kills it, the others know what it answered."""
    others = children()
    with start("early") as engine:
        yield engine, children() - others


def children() -> set[psutil.Process]:
    """Return the processes below this one, without the tracker that Python itself starts."""
    return {child for child in psutil.Process().children(recursive=True) if "resource_tracker" not in " ".join(child.cmdline())}


@pytest.fixture(scope="module")
def swapped(started: tuple[Engine, set[psutil.Process]], tiny_vlm_checkpoint: Path) -> dict[str, Any]:
    """What it answered as one checkpoint after another."""
    engine, _ = started
    answered: dict[str, Any] = {"early": answers(engine)}
    for name, values in (
        ("final", config("final")),
        ("endless", config("endless")),
        ("lora-helps", config("middle", "lora-helps")),
        ("lora-hurts", config("middle", "lora-hurts")),
        ("middle", config("middle")),
        ("early again", config("early")),
    ):
        assert engine.weights.why_not_swap(values) is None
        engine.weights.swap(values)
        answered[name] = answers(engine)
    answered["why not"] = engine.weights.why_not_swap(ModelLoadConfig(str(tiny_vlm_checkpoint), torch_dtype="float32"))
    return answered


def test_the_checkpoints_answer_differently(swapped: dict[str, Any]) -> None:
    names = ("early", "final", "lora-helps", "lora-hurts", "middle")
    assert len({tuple(text for text, _ in swapped[name]) for name in names}) == 5


def test_a_swap_there_and_back_restores_every_logprob(swapped: dict[str, Any]) -> None:
    assert swapped["early again"] == swapped["early"]


def test_a_swapped_checkpoint_answers_as_a_new_start_to_the_last_logprob(swapped: dict[str, Any], vllm_endless: Engine) -> None:
    assert answers(vllm_endless) == swapped["endless"] != swapped["final"]


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


def test_a_killed_engine_is_an_error_of_the_machine_and_closing_it_ends_no_process_of_others(
    swapped: dict[str, Any], started: tuple[Engine, set[psutil.Process]]
) -> None:
    engine, processes = started
    backend = engine.backend
    endless = [prompt_of(backend.tokenizer, chat("count"), index, max_new_tokens=1500, stop_token_ids=()) for index in range(40)]
    endless[0] = prompt_of(backend.tokenizer, chat("count"), 0, max_new_tokens=2)
    outputs = backend.generate(endless)
    next(outputs)
    for process in processes:
        if "EngineCore" in process.name():
            process.kill()
    with pytest.raises(BackendError, match="the vLLM engine failed"):
        list(outputs)
    with pytest.raises(BackendError, match="the vLLM engine cannot be used"):
        list(backend.generate(endless))
    foreign = subprocess.Popen(["sleep", "600"])
    try:
        backend.close()
        assert foreign.poll() is None  # started while the engine lived, but not by it
    finally:
        foreign.kill()
        foreign.wait(timeout=30)
    assert psutil.wait_procs(processes, timeout=60)[1] == []
