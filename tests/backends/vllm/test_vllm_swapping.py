"""A swap in a running vLLM equals a new start, to the token ids and log-probabilities of trained checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import CapabilityError
from evalharness.api.options import GenerationOptions, ModelLoadConfig, VllmEngineOptions
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


def with_a_head(checkpoint: str, folder: Path, *, factor: float = 1.0) -> str:
    """Return `folder`, now a checkpoint with a head beside the embedding that its config ties it to: as many times its numbers."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(CHECKPOINTS / checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = factor * tensors["model.language_model.embed_tokens.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


@pytest.mark.slow  # an engine of its own: what is tied is decided when it starts
def test_a_tied_head_in_the_files_is_swapped_where_it_equals_the_embedding_and_answers_as_a_new_start(tmp_path: Path) -> None:
    """Both ways were tried: swapped in, the second's ids were 718 718 718 718, of transformers and a new start 17 648 214 185."""
    final, middle = (with_a_head(name, tmp_path / name) for name in ("final", "middle"))
    parted = with_a_head("middle", tmp_path / "parted", factor=-1.0)
    helps = str(CHECKPOINTS / "lora-helps")
    options = VllmEngineOptions(max_model_len=2048, distributed_executor_backend="uni")
    greedy = GenerationOptions(max_new_tokens=6, temperature=0.0)
    asked = [TextGenerationRequest([{"role": "user", "content": "what is this"}])]
    with build_engine("vllm", ModelLoadConfig(final, torch_dtype="float32"), vllm_options=options) as engine:
        problem = engine.weights.why_not_swap(ModelLoadConfig(parted, torch_dtype="float32"))
        assert "which config.json ties; whether they differ decides how an engine starts" in (problem or "")
        for values in (ModelLoadConfig(middle, torch_dtype="float32"), ModelLoadConfig(middle, torch_dtype="float32", adapter_path=helps)):
            assert engine.weights.why_not_swap(values) is None
            engine.weights.swap(values)
            with build_engine("hf", values) as other:
                expected = [result.token_ids for result in other.generate_text_batch(asked, greedy)]
            assert [result.token_ids for result in engine.generate_text_batch(asked, greedy)] == expected
        engine.weights.unload_adapter()
        negative = {"lm_head.weight": -load_head(middle)}
        with pytest.raises(CapabilityError, match=r"lm_head.weight and .*embed_tokens.weight, and its files hold both: give equal values"):
            engine.weights.sync_from_state_dict(negative, strict=False)


def load_head(folder: str) -> Any:
    from safetensors.torch import load_file

    return load_file(Path(folder) / "model.safetensors")["lm_head.weight"]
