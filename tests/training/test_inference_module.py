"""The InferenceModule's interface on our engines. Run: pytest tests/training/test_inference_module.py"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import BackendError, CapabilityError, ConfigError, ContractTypeError, RequestError
from evalharness.api.options import ModelLoadConfig
from evalharness.backends.fake import FakeAnswer, FakeBackend, FakeTokenizer
from evalharness.engine.engine import Engine
from evalharness.training import EngineBackend, InferenceBackend, InferenceModule, InferenceResult, ToolCallParser, create_inference_module
from tests.backends.live_models import make_adapter
from tests.backends.lora_server import BASE, LoraServer
from tests.engine.watched import WatchedWeights

SEARCH = {"name": "search", "description": "Search the web", "parameters": {"query": "string"}}
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "AI news"}}\n</tool_call>'


def module(answer: Any = lambda prompt: prompt.text.upper(), **options: Any) -> InferenceModule:
    return on(Engine(FakeBackend.from_answers(answer)), **options)


def on(engine: Engine, **options: Any) -> InferenceModule:
    return InferenceModule(backend=EngineBackend(engine), **options)


def engine_of(module: InferenceModule) -> Engine:
    backend = module.backend
    assert isinstance(backend, EngineBackend)
    return backend.engine


@pytest.fixture(scope="module")
def real(tiny_vlm_checkpoint: Path) -> Iterator[InferenceModule]:
    from tests.backends.hf_models import one_thread

    with one_thread():
        found = InferenceModule(str(tiny_vlm_checkpoint), device="cpu", dtype="float32")
        yield found
        found.close()


def test_a_prompt_is_asked_as_it_is_and_samples_lie_flat() -> None:
    result = module(lambda prompt: f"{prompt.text}{prompt.plan.seed}").generate(["a", "b"], num_return_sequences=2, seed=5)
    assert result.texts == ["a5", "a6", "b5", "b6"]
    assert [facts["seed"] for facts in result.metadata] == [5, 6, 5, 6]
    assert (result.logprobs, result.logits, len(result.token_ids)) == (None, None, 4)
    assert module().generate("hi").texts == ["HI"]


def test_options_go_by_the_names_of_ours_and_stops_are_plain_data() -> None:
    seen = []
    module(lambda prompt: seen.append(prompt.plan) or "x").generate("a", max_new_tokens=3, temperature=0.5, top_p=0.8, top_k=4)
    assert (seen[0].max_new_tokens, seen[0].temperature, seen[0].top_p, seen[0].extra) == (3, 0.5, 0.8, (("top_k", 4),))
    assert module(["one;two"]).generate("a", stop=[";"]).texts == module(["one;two"]).generate("a", stop=";").texts == ["one"]


@pytest.mark.parametrize(
    ("prompts", "error", "problem"),
    [
        (None, ContractTypeError, "prompts must be a sequence of texts, got None"),
        (["a", b"b"], ContractTypeError, r"prompts\[1\] must be a str, got b'b'"),
        ("\ud800", RequestError, "half of a surrogate pair"),
    ],
    ids=["none", "bytes", "surrogate"],
)
def test_what_is_no_text_is_refused(prompts: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        module().generate(prompts)


def test_a_prompt_has_no_end_token_whatever_the_tokenizer_adds() -> None:
    class Ending(FakeTokenizer):
        def encode(self, text: str, add_special_tokens: bool = False, **_: Any) -> list[int]:
            return [*super().encode(text), *([self.eos_token_id] if add_special_tokens else [])]

    backend = FakeBackend.from_answers(lambda prompt: prompt.text)
    backend.tokenizer = Ending()
    assert on(Engine(backend)).generate("a").texts == ["a"]


def test_only_deterministic_answers_are_taken_from_the_cache_and_they_can_be_cleared() -> None:
    asked: list[str] = []
    found = module(lambda prompt: asked.append(prompt.text) or f"{len(asked)}")
    assert [found.generate("a", temperature=0.0).texts for _ in range(2)] == [["1"], ["1"]]
    assert found.generate("a", temperature=1.0).texts != found.generate("a", temperature=1.0).texts
    assert found.generate("a", use_cache=False, temperature=0.0).texts == ["4"]
    found.clear_cache()
    assert found.generate("a", temperature=0.0).texts == ["5"]
    assert found.generate(["a|||b"], temperature=0.0).texts == ["6"]
    assert found.generate(["a", "b"], temperature=0.0).texts == ["5", "7"]


def test_threads_keep_their_own_word_on_the_cache() -> None:
    found = module(lambda prompt: prompt.text)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: found.generate(f"{number}", use_cache=number % 2 == 0, temperature=0.0), range(200)))
    assert len(found.generation_cache) == 100


def watched() -> tuple[InferenceModule, WatchedWeights]:
    weights = WatchedWeights()
    backend = FakeBackend.from_answers(lambda prompt: f"weights {weights.number}")
    return on(Engine(weights.of(backend))), weights


def greedy(found: InferenceModule) -> tuple[str, bool]:
    result = found.generate("a", temperature=0.0)
    return result.texts[0], result.metadata[0]["cached"]


def test_changed_and_shared_weights_are_never_answered_from_the_cache() -> None:
    found, weights = watched()
    seen = []
    for weights.number in (1, 2):
        engine_of(found).weights.mark_changed("policy")
        seen += [greedy(found), greedy(found)]
    assert seen == [("weights 1", False), ("weights 1", True), ("weights 2", False), ("weights 2", True)]
    found, _ = watched()
    assert greedy(found) == ("weights 0", False)
    engine_of(found).weights.swap(ModelLoadConfig("other"))
    assert (engine_of(found).weights.version, greedy(found)) == ("0", ("weights 7", False))
    found, weights = watched()
    weights.is_shared = True
    assert [greedy(on(engine_of(found))) for _ in range(2)] == [("weights 0", False)] * 2
    found = module(cache_size=0)
    found.clear_cache()
    assert found.generate("a", temperature=0.0).metadata[0]["cached"] is found.generate("a", temperature=0.0).metadata[0]["cached"] is False


def test_tools_are_offered_and_whole_calls_come_back() -> None:
    prompts: list[str] = []
    found = module(lambda prompt: prompts.append(prompt.text) or CALL)
    result, calls = found.batch_generate_with_tools("Search for AI news", [SEARCH])
    assert [(call.name, call.arguments) for call in calls[0]] == [("search", {"query": "AI news"})]
    assert '"query"' in prompts[0]
    assert result.metadata[0]["finish_reason"] == "stop"
    call = CALL.replace('"query": "AI news"', "")
    [of_any] = module(lambda prompt: call).batch_generate_with_tools("a", [{**SEARCH, "parameters": {"type": "object"}}])[1]
    assert [(found.name, found.arguments) for found in of_any] == [("search", {})]
    cut = module(lambda prompt: FakeAnswer(CALL, ends=False))
    assert cut.batch_generate_with_tools("a", [SEARCH])[1] == [[]]
    wrong = CALL.replace('"AI news"', "5")
    assert module(lambda prompt: wrong).batch_generate_with_tools("a", [SEARCH])[1] == [[]]
    [failed] = ToolCallParser().parse(wrong, [SEARCH]).failed
    assert failed.arguments == {"query": 5}


def test_without_tools_none_is_offered_and_calls_that_a_model_writes_are_read() -> None:
    prompts: list[str] = []
    found = module(lambda prompt: prompts.append(prompt.text) or (CALL if "news" in prompt.text else "no call"))
    result, calls = found.batch_generate_with_tools(["hello", "news"])
    assert not any("You can call" in prompt for prompt in prompts)
    assert (result.texts, [[call.name for call in of_one] for of_one in calls]) == (["no call", CALL], [[], ["search"]])


@pytest.mark.engine
def test_the_weights_may_lie_as_a_device_map_says_or_at_a_server(tiny_vlm_checkpoint: Path) -> None:
    with_map = InferenceModule(str(tiny_vlm_checkpoint), device_map={"": "cpu"}, attn_implementation="eager")
    facts = engine_of(with_map).describe()
    assert (facts["device_map"], facts["attn_implementation"]) == ({"": "cpu"}, "eager")
    with_map.close()
    server = LoraServer("vllm")
    try:
        served = create_inference_module(str(BASE), "vllm", url=server.url)
        assert [served.generate("a", temperature=0.0).metadata[0]["backend"] for _ in range(2)] == ["openai"] * 2
        assert len(server.questions()) == 2, "its weights may change unseen, so nothing is taken from a cache"
        served.close()
    finally:
        server.close()


def test_tensors_are_of_responses_alone_and_gaps_count_nothing(real: InferenceModule, torch: Any) -> None:
    prompts = [engine_of(real).tokenizer.encode(text) for text in ("hello", "a longer prompt")]
    responses = [[5, 6, 7, 8], [9, 10]]
    scores, logits = real.get_logprobs(prompts, responses), real.get_logits(prompts, responses)
    assert scores.shape == logits.shape[:2] == (2, 4)
    assert scores[1, 2:].tolist() == [0.0, 0.0]
    assert logits[1, 2:].count_nonzero() == 0
    with_mask = engine_of(real).get_logprobs(prompts, responses)
    assert scores[torch.tensor(with_mask.mask)].tolist() == pytest.approx(with_mask.values[with_mask.mask].tolist(), abs=1e-4)
    assert logits.log_softmax(-1)[0].gather(1, torch.tensor(responses[0])[:, None]).squeeze(1).tolist() == pytest.approx(
        scores[0].tolist(), abs=1e-4
    )


def test_gradients_reach_the_weights_as_the_grad_mode_of_torch_says(real: InferenceModule, torch: Any) -> None:
    embedding = real.backend.model.get_input_embeddings().weight
    result = real.generate(["hello", "a"], max_new_tokens=3, seed=1, return_logprobs=True, return_logits=True)
    for values in (result.logits, real.get_logits(["a"], [" b"]), real.get_logprobs(["a", "b c"], [" b", " and more"])):
        embedding.grad = None
        values.mean().backward()
        assert embedding.grad.isfinite().all()
        assert embedding.grad.count_nonzero() > 0
    embedding.grad = None
    assert not real.get_logprobs(["a"], [" b"], grad=False).requires_grad
    with torch.no_grad():
        assert not real.get_logits(["a"], [" b"]).requires_grad
        old = real.get_logprobs(["hello", "a"], result.token_ids)
    assert result.logprobs.shape == old.shape == result.logits.shape[:2]
    assert result.logprobs.flatten().tolist() == pytest.approx(old.flatten().tolist(), abs=1e-4)


@pytest.mark.engine
def test_logits_that_a_backend_has_not_are_refused_before_anything_is_generated() -> None:
    asked: list[str] = []
    found = module(lambda prompt: asked.append(prompt.text) or "x")
    with pytest.raises(CapabilityError, match="backend 'fake' gives no logits; take 'huggingface'"):
        found.generate("a", return_logits=True)
    with pytest.raises(CapabilityError, match="gives no logits"):
        found.get_logits(["a"], ["b"])
    with pytest.raises(CapabilityError, match="backend 'fake' cannot give gradients"):
        found.get_logprobs(["a"], ["b"], grad=True)
    with pytest.raises(CapabilityError, match="the model of backend 'fake' is not a torch module of this process"):
        _ = found.backend.model
    assert asked == []


@pytest.mark.engine
def test_scores_of_any_backend_are_a_tensor() -> None:
    scored = module(lambda prompt: FakeAnswer("", logprobs=-1.5))
    assert scored.get_logprobs(["a", "b"], ["xy", "z"]).tolist() == [[-1.5, -1.5], [-1.5, 0.0]]


class Parrot(InferenceBackend):
    """Says what it is asked."""

    def generate(self, prompts: Any, *, cache: Any = None, **options: Any) -> InferenceResult:
        return InferenceResult(
            [f"{text}{options['max_new_tokens']}" for text in prompts], [[1]] * len(prompts), None, None, [{}] * len(prompts)
        )

    def get_logits(self, prompts: Any, responses: Any, *, grad: bool | None = None) -> Any:
        raise CapabilityError("none")

    get_logprobs = get_logits


def test_a_backend_of_ones_own_is_a_subclass() -> None:
    found = InferenceModule(backend=Parrot())
    assert found.generate(["a", "b"], max_new_tokens=7).texts == ["a7", "b7"]
    found.clear_cache()
    found.close()
    result, calls = found.batch_generate_with_tools(CALL, [SEARCH], max_new_tokens=1)
    assert "You can call these tools" in result.texts[0]
    assert [call.name for call in calls[0]] == ["search"]
    with pytest.raises(ContractTypeError, match="or an object of a class of InferenceBackend, got the class Parrot"):
        InferenceModule("model", Parrot)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Parrot is made already: give model and options to its constructor"):
        InferenceModule("model", Parrot())


@pytest.mark.engine
def test_a_closed_module_says_so() -> None:
    found = module()
    found.close()
    found.close()
    for use in (lambda: found.generate("a"), lambda: found.get_logprobs(["a"], ["b"])):
        with pytest.raises(BackendError, match="backend 'fake' is closed; make a new one"):
            use()


def test_every_keyword_of_loading_reaches_the_backend(hf_text_checkpoint: Path, tmp_path: Path, torch_in_one_thread: None) -> None:
    found = InferenceModule(
        hf_text_checkpoint,
        device_map={"": "cpu"},
        attn_implementation="eager",
        adapter_path=str(make_adapter(tmp_path / "adapter", 1)),
        trust_remote_code=False,
        dtype="bfloat16",
        variant="text",
        max_model_len=64,
    )
    facts = engine_of(found).describe()
    assert (facts["device_map"], facts["attn_implementation"], facts["dtype"]) == ({"": "cpu"}, "eager", "bfloat16")
    assert (facts["adapter"]["ranks"], facts["max_model_len"]) == ([2], 64)
    found.close()


@pytest.mark.parametrize(("options", "backend"), [({"tensor_parallel_size": 2}, "vllm"), ({"tensor_parallel_size": None}, "auto")])
def test_options_of_one_backend_alone_leave_no_choice(monkeypatch: pytest.MonkeyPatch, options: Any, backend: str) -> None:
    asked = []
    engine = Engine(FakeBackend.from_answers("x"))
    monkeypatch.setattr("evalharness.training.opening.build_engine", lambda name, config, **others: asked.append(name) or engine)
    create_inference_module("model", **options)
    assert asked == [backend]


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown": ("huggingface", {"attn": "sdpa"}, "engine 'huggingface' has no option 'attn'.* Known: adapter_dir, adapter_path"),
    "other name": ("vllm", {"base_url": "http://h"}, "engine 'vllm' has no option 'base_url'; write url."),
    "of vLLM": ("huggingface", {"tensor_parallel_size": 4}, "vllm.tensor_parallel_size=4 cannot be honoured by backend 'hf'"),
    "of servers": ("vllm", {"concurrency": 4}, "server.concurrency=4 cannot be honoured by backend 'vllm'"),
    "of a model in memory": ("huggingface", {"tokenizer": 1}, "tokenizer belongs to a model in memory; model has its own"),
    "kind of backend": ("x", {}, r"engine 'x' is unknown. Known: .*hf.*vllm"),
    "tool parser": ("huggingface", {"tool_parser": "xlm"}, "the format 'xlm' of tool calls is unknown"),
}


@pytest.mark.parametrize(("backend", "options", "problem"), REFUSED.values(), ids=REFUSED)
def test_options_that_mean_nothing_are_refused_before_anything_is_loaded(backend: str, options: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        create_inference_module("model", backend, **options)


def test_several_greedy_sequences_and_other_tools_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_samples 2 with greedy decoding"):
        module().generate("a", temperature=0.0, num_return_sequences=2)
    with pytest.raises(ContractTypeError, match=r"tools\[0\] must be a Tool or a mapping, got 5"):
        module().batch_generate_with_tools("a", [5])  # type: ignore[list-item]
