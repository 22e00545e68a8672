"""The trainers' interface on our engines: names, shapes, what is refused. Run: pytest tests/training/test_trainer_engine.py"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import CheckpointError, ConfigError, RequestsFailed, UnsupportedOption
from evalharness.api.options import ServerOptions
from evalharness.backends.fake import FakeBackend, FakeTokenizer
from evalharness.engine.engine import Engine
from evalharness.training.trainer_engine import SampleResult, TrainerEngine, create_engine
from tests.backends.http_server import Reply
from tests.backends.lora_server import BASE, HELPS, HURTS, LoraServer, copied, who

IDS = FakeTokenizer().encode


@pytest.fixture
def server() -> Iterator[LoraServer]:
    server = LoraServer("vllm")
    yield server
    server.close()


def letters(sample: SampleResult) -> str:
    return "".join(map(chr, sample.token_ids))


def scripted(answer: Any) -> TrainerEngine:
    return TrainerEngine(Engine(FakeBackend.from_answers(answer)))


def test_samples_come_by_prompt_with_their_ids_and_why_they_end() -> None:
    engine = scripted(lambda prompt: f"{prompt.text}!")
    groups = engine.generate([IDS("a"), IDS("b")], 2, 8, 1.0, 0.9, seed=5)
    assert [[sample.seed for sample in group] for group in groups] == [[5, 6], [5, 6]]
    assert groups[0][0] == SampleResult([*IDS("a!"), FakeTokenizer.eos_token_id], [0.0, 0.0, 0.0], None, "stop", 5)
    assert groups[1][0].token_ids[:2] == IDS("b!")
    [[sample]] = scripted(lambda prompt: "long text").generate([IDS("a")], 1, 3, 0.0, 1.0)
    assert (sample.token_ids, sample.finish_reason, sample.seed) == (IDS("lon"), "length", None)


def test_what_an_engine_of_this_process_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_samples 2 with greedy decoding"):
        scripted(lambda prompt: "x").generate([IDS("a")], 2, 3, 0.0, 1.0)
    with pytest.raises(RequestsFailed, match="1 of 2 requests failed: the prompt has no token ids"):
        scripted(lambda prompt: "x").generate([[], IDS("a")], 1, 3, 0.0, 1.0)
    with pytest.raises(
        ValueError, match="engine 'x' is unknown. Known: pytorch, huggingface, max, vllm, sglang, trtllm, mlx, openai, auto"
    ):
        create_engine("x", "model")
    with pytest.raises(ConfigError, match="engine 'pytorch' runs in this process, so nothing is asked at http://h"):
        create_engine("pytorch", "model", url="http://h")


@pytest.mark.engine
def test_options_of_servers_are_taken_or_refused_but_never_left_out(server: LoraServer) -> None:
    engine = create_engine("sglang", str(BASE), server_options=ServerOptions(base_url=server.url))
    assert engine.performance_counters()["base_url"] == server.url
    engine.shutdown()
    with pytest.raises(ConfigError, match="url and server_options.base_url are two addresses; give one"):
        create_engine("vllm", str(BASE), url=server.url, server_options=ServerOptions(base_url="http://h"))
    with pytest.raises(ConfigError, match="engine 'vllm' runs in this process without a url, so server_options mean nothing"):
        create_engine("vllm", str(BASE), server_options=ServerOptions(concurrency=2))


@pytest.mark.engine
def test_an_address_makes_a_server_of_a_name_that_is_asked_for_logprobs_if_wanted(server: LoraServer) -> None:
    engine = create_engine("vllm", str(BASE), url=f"{server.url}/")
    [[sample]] = engine.generate([[5, 6, 7]], 1, 20, 0.0, 1.0)
    assert sample.logprobs == [-0.5] * 4
    assert letters(sample) == "base"
    assert engine.performance_counters()["base_url"] == server.url
    engine.shutdown()
    engine.shutdown()
    engine = create_engine("vllm", str(BASE), url=server.url, logprobs_kind=None)
    [[sample]] = engine.generate([[5]], 1, 20, 0.0, 1.0)
    engine.shutdown()
    assert (sample.logprobs, "logprobs" in server.questions()[-1]) == (None, False)


@pytest.mark.engine
def test_new_adapters_are_loaded_between_steps_and_tried_again(server: LoraServer, tmp_path: Path) -> None:
    engine = create_engine("vllm", str(BASE), url=server.url, server_options=ServerOptions(concurrency=2))
    live = tmp_path / "live"
    for adapter in (HELPS, HURTS):
        server.refuse = Reply("no room", 500)
        copied(adapter, live)
        with pytest.raises(CheckpointError, match="no room"):
            engine.reload_weights(str(live))
        assert engine.reload_weights(str(live)).source == str(live)
        assert [letters(sample) for [sample] in engine.generate([[5], [6]], 1, 20, 0.0, 1.0)] == [who(adapter)] * 2
    engine.shutdown()


@pytest.mark.engine
def test_a_server_of_texts_gives_no_logprobs_instead_of_zeros() -> None:
    server = LoraServer("mlx")
    engine = create_engine("mlx", str(BASE), url=server.url)
    [[sample]] = engine.generate([engine.engine.tokenizer.encode("hi")], 1, 20, 0.0, 1.0)
    assert (sample.logprobs, engine.engine.tokenizer.decode(sample.token_ids)) == (None, "base")
    with pytest.raises(UnsupportedOption, match="entropies"):
        engine.generate([[5]], 1, 20, 0.0, 1.0, compute_entropy=True)
    engine.shutdown()
    server.close()


def test_the_trainers_own_framework_gives_ids_logprobs_and_entropies(tiny_vlm_checkpoint: Path) -> None:
    from tests.backends.hf_models import one_thread

    with one_thread():
        engine = create_engine("pytorch", str(tiny_vlm_checkpoint), device="cpu", dtype="float32")
        first, second = engine.generate([[5, 6, 7], [8]], 2, 4, 1.0, 0.9, compute_entropy=True, seed=3)
        again, _ = engine.generate([[5, 6, 7], [8]], 2, 4, 1.0, 0.9, compute_entropy=True, seed=3)
        engine.shutdown()
    assert first == again
    assert len(second) == 2
    for sample in first:
        assert sample.logprobs is not None
        assert sample.token_entropies is not None
        assert len(sample.token_ids) == len(sample.logprobs) == len(sample.token_entropies) <= 4
        assert all(value is not None and value < 0 for value in sample.logprobs)
