"""The loops of docs/training_loops.md on transformers, run as they stand there. On vLLM: tests/backends/vllm/test_weights.py."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from evalharness.engine.engine import Engine
from tests.backends.hf_models import load, model_of
from tests.backends.live_models import answers, training_loops

PROMPTS = [[5, 6, 7], [40, 41], [9]]


pytestmark = pytest.mark.usefixtures("torch_in_one_thread")


@pytest.fixture
def parts(trainers_parts: tuple[Any, Any]) -> tuple[Any, Any]:
    """A model in training and its tokenizer."""
    model, tokenizer = trainers_parts
    return model.train(), tokenizer


def reward(sample: Any) -> float:
    return sum(token_id < 50 for token_id in sample.token_ids) / len(sample.token_ids)


def test_a_shared_model_learns_and_each_step_is_a_version(parts: tuple[Any, Any], hf_text_checkpoint: Path) -> None:
    engine, history = training_loops()["train_shared"](*parts, PROMPTS, reward, 8)
    versions, rewards = zip(*history, strict=True)
    assert versions == tuple(map(str, range(8)))
    assert rewards[-1] > rewards[0] + 0.2
    assert answers(engine) != answers(Engine(load(hf_text_checkpoint)))
    assert parts[0].training


def test_an_engine_of_its_own_samples_from_what_was_trained(parts: tuple[Any, Any], hf_text_checkpoint: Path) -> None:
    model, tokenizer = parts
    engine = Engine(load(hf_text_checkpoint))
    before = answers(engine)
    loops = training_loops()
    history = loops["train_beside"](engine, model, tokenizer, PROMPTS, reward, 3)
    assert [version for version, _ in history] == ["1", "2", "3"]
    assert engine.weights.version == "4"
    assert answers(engine) == answers(loops["build_engine_around"](model, tokenizer)) != before


def test_an_engine_sleeps_while_something_trains(hf_text_checkpoint: Path) -> None:
    engine = Engine(load(hf_text_checkpoint))
    before = answers(engine)
    model = model_of(engine)
    seen = []

    def train() -> None:
        seen.append(sum(parameter.numel() for parameter in model.parameters()))

    training_loops()["asleep_while_training"](engine, train)
    assert (seen, answers(engine)) == ([0], before)


def test_training_one_step_behind(parts: tuple[Any, Any], hf_text_checkpoint: Path) -> None:
    import torch

    model, tokenizer = parts
    engine = Engine(load(hf_text_checkpoint))
    loops = training_loops()
    trained = loops["build_engine_around"](model, tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    used: list[str] = []
    saved: list[int] = []

    def train(groups: Any) -> float:
        used.append(groups[0][0].weight_version)
        return loops["policy_gradient_step"](trained, optimizer, PROMPTS, groups, reward)

    def take_snapshot() -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    losses = loops["train_behind"](engine, train, take_snapshot, [(PROMPTS, step) for step in range(3)], lambda step, _: saved.append(step))
    assert losses[0] == 0.0
    assert all(0 < loss <= 1 for loss in losses[1:])
    assert len(losses) == 4
    assert used == ["1", "2", "3"]
    assert len(saved) == 3
    assert all(step <= number for number, step in enumerate(saved, 1))


@pytest.mark.slow
def test_the_reward_of_the_whole_example_rises(tiny_vlm_checkpoint: Path) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "policy_gradient.py"))
    history = example["train"](str(tiny_vlm_checkpoint), "pytorch", None, 12)
    assert history[-1] > history[0] + 0.2
