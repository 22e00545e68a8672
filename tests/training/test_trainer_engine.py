"""The trainers' interface on our engines: names, shapes, what is refused. Run: pytest tests/training/test_trainer_engine.py"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import (
    BackendError,
    CapabilityError,
    CheckpointError,
    ConfigError,
    ContractTypeError,
    ContractValueError,
    RequestsFailed,
    UnsupportedOption,
)
from evalharness.backends.fake import FakeBackend, FakeTokenizer
from evalharness.engine.engine import Engine
from evalharness.training import (
    InferenceEngine,
    MAXLocalEngine,
    MAXServeEngine,
    OpenAIEngine,
    PyTorchEngine,
    SampleResult,
    TrainerEngine,
    VLLMEngine,
    create_engine,
    register_engine,
    trainer_engine,
)
from tests.backends.http_server import Reply
from tests.backends.live_models import make_adapter, state_dict
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
    with pytest.raises(ContractTypeError, match="path must be the path of a folder, got None"):
        scripted(lambda prompt: "x").reload_weights(None)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="engine 'x' is unknown. Known: pytorch, huggingface, max, vllm, sglang, trtllm, mlx, openai, auto"
    ):
        create_engine("x", "model")
    with pytest.raises(ConfigError, match="engine 'pytorch' runs in this process, so nothing is asked at http://h"):
        create_engine("pytorch", "model", url="http://h")


@pytest.mark.engine
def test_options_of_servers_are_taken_or_refused_but_never_left_out(server: LoraServer) -> None:
    with create_engine("sglang", BASE, url=server.url, concurrency=3) as engine:
        assert type(engine) is OpenAIEngine
        assert engine.performance_counters()["base_url"] == server.url
    with MAXServeEngine(str(BASE), server.url) as engine:
        assert engine.performance_counters()["server"] == "max"
    with pytest.raises(ConfigError, match="server.concurrency=2 cannot be honoured by backend 'vllm'; leave it out"):
        create_engine("vllm", str(BASE), concurrency=2)
    with pytest.raises(ConfigError, match="kind 'vlm' of server is unknown; did you mean 'vllm'"):
        OpenAIEngine(str(BASE), server.url, kind="vlm")


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
    engine = create_engine("vllm", str(BASE), url=server.url, concurrency=2)
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
    engine = OpenAIEngine(str(BASE), server.url, kind="mlx")
    [[sample]] = engine.generate([engine.engine.tokenizer.encode("hi")], 1, 20, 0.0, 1.0)
    assert (sample.logprobs, engine.engine.tokenizer.decode(sample.token_ids)) == (None, "base")
    with pytest.raises(UnsupportedOption, match="entropies"):
        engine.generate([[5]], 1, 20, 0.0, 1.0, compute_entropy=True)
    engine.shutdown()
    server.close()


def test_the_trainers_own_framework_gives_ids_logprobs_and_entropies(tiny_vlm_checkpoint: Path) -> None:
    from tests.backends.hf_models import one_thread

    with one_thread():
        engine: Any = create_engine("pytorch", tiny_vlm_checkpoint, device="cpu", dtype="float32")
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


class Threes(InferenceEngine):
    """An engine of somebody else's."""

    def __init__(self, model: str, **options: Any) -> None:
        self.model, self.options = model, options

    def generate(
        self, prompt_ids_list: Any, num_samples: int, max_tokens: int, temperature: float, top_p: float
    ) -> list[list[SampleResult]]:
        return [[SampleResult([3] * max_tokens, None)] * num_samples for _ in prompt_ids_list]

    def reload_weights(self, adapter_path: str) -> None:
        self.model = adapter_path

    def shutdown(self) -> None:
        self.model = "gone"


def test_an_engine_of_ones_own_is_a_subclass_with_a_registered_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_engine, "_registered", {})
    register_engine("threes", Threes)
    register_engine("threes", Threes)
    engine = create_engine("threes", "base", url="http://h", rank=8)
    assert isinstance(engine, Threes)
    assert (engine.model, engine.options) == ("base", {"url": "http://h", "rank": 8})
    with engine:
        assert engine.generate([[1], [2]], 2, 3, 1.0, 1.0)[1][1].token_ids == [3, 3, 3]
        with pytest.raises(CapabilityError, match="Threes takes no weights from memory; save them and call reload_weights"):
            engine.sync_from_state_dict({})
    assert engine.model == "gone"
    with pytest.raises(ConfigError, match="engine 'vllm' is there already"):
        register_engine("vllm", Threes)
    for name, make in (("", Threes), (None, Threes), ("fours", None), ("fours", "threes")):
        with pytest.raises(ContractTypeError, match="name"):
            register_engine(name, make)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'threes'"):
        create_engine("three", "base")
    with pytest.raises(TypeError, match="abstract"):
        InferenceEngine()  # type: ignore[abstract]


@pytest.mark.parametrize("engine", [PyTorchEngine, VLLMEngine, MAXLocalEngine, MAXServeEngine, OpenAIEngine])
def test_each_engine_of_the_trainers_document_has_its_name_and_its_three_methods(engine: type[InferenceEngine]) -> None:
    assert issubclass(engine, InferenceEngine)
    first = ["self", "prompt_ids_list", "num_samples", "max_tokens", "temperature", "top_p"]
    assert list(inspect.signature(engine.generate).parameters)[:6] == first
    assert list(inspect.signature(engine.reload_weights).parameters)[:2] == ["self", "adapter_path"]
    assert list(inspect.signature(engine.shutdown).parameters) == ["self"]


@pytest.mark.engine
def test_a_model_in_memory_is_shared_and_a_loop_may_bring_its_weights_all_the_same(trainers_parts: tuple[Any, Any], tmp_path: Path) -> None:
    import peft

    model, _ = trainers_parts
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    engine = create_engine("pytorch", wrapped)
    assert isinstance(engine, PyTorchEngine)
    assert engine.engine.backend.model is model  # type: ignore[attr-defined]
    wrapped.save_pretrained(tmp_path / "live")
    assert engine.reload_weights(str(tmp_path / "live")).weight_version == "1"
    assert engine.sync_from_state_dict(peft.get_peft_model_state_dict(wrapped)).weight_version == "2"
    [[sample]] = engine.generate([[5, 6]], 1, 4, 0.0, 1.0)
    assert (len(sample.token_ids) > 0, engine.engine.weights.version) == (True, "2")
    engine.shutdown()
    with pytest.raises(BackendError, match="is closed; make a new one"):
        engine.generate([[5, 6]], 1, 4, 0.0, 1.0)
    with pytest.raises(ConfigError, match="dtype says how a checkpoint is loaded, and the PeftModel is in memory already"):
        create_engine("pytorch", wrapped, dtype="float32")
    for name, way in (
        ("vllm", r", and send the model's weights with sync_from_state_dict\(.*"),
        ("max", ""),
        ("sglang", ".*LoRA adapter.*"),
    ):
        message = f"engine '{name}' .*got a PeftModel: give the folder that training starts from{way}; only 'pytorch' shares"
        with pytest.raises(ConfigError, match=message) as refusal:
            create_engine(name, wrapped)
        assert len(str(refusal.value)) < 300  # it prints no tree of modules


@pytest.mark.parametrize("name", ["pytorch", "vllm", "max", "sglang", "auto"])
@pytest.mark.parametrize("model", [None, 5, ["a"]])
def test_what_is_neither_a_folder_nor_a_model_is_refused_by_every_engine(name: str, model: Any) -> None:
    with pytest.raises(ContractTypeError, match="model must be the folder of a checkpoint or its name on the hub"):
        create_engine(name, model)


@pytest.mark.engine
def test_the_tensors_of_a_lora_are_enough_where_an_adapter_says_how_they_are_scaled(hf_text_checkpoint: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter", 1)
    tensors = state_dict(make_adapter(tmp_path / "other", 2))
    with PyTorchEngine(hf_text_checkpoint, device="cpu") as engine:
        with pytest.raises(ContractValueError, match="tensors do not say how they are scaled; give adapter_config, peft's LoraConfig"):
            engine.sync_from_state_dict(tensors)
        engine.reload_weights(str(adapter))
        assert engine.sync_from_state_dict(tensors).adapter["scalings"] == [2.0]
    with PyTorchEngine(hf_text_checkpoint, device="cpu", adapter_path=str(adapter)) as engine:
        assert engine.sync_from_state_dict(tensors).adapter["scalings"] == [2.0]
