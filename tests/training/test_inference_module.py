"""The InferenceModule's interface on our engines. Run: pytest tests/training/test_inference_module.py"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import ConfigError, ContractTypeError, RequestError
from evalharness.api.options import ModelLoadConfig
from evalharness.backends.fake import FakeAnswer, FakeBackend, FakeTokenizer
from evalharness.engine.engine import Engine
from evalharness.training.inference_module import InferenceModule, create_inference_module
from tests.engine.watched import WatchedWeights

SEARCH = {"name": "search", "description": "Search the web", "parameters": {"query": "string"}}
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "AI news"}}\n</tool_call>'


def module(answer: Any = lambda prompt: prompt.text.upper(), **options: Any) -> InferenceModule:
    return InferenceModule.on(Engine(FakeBackend.from_answers(answer)), **options)


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
        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            return [*super().encode(text), *([self.eos_token_id] if add_special_tokens else [])]

    backend = FakeBackend.from_answers(lambda prompt: prompt.text)
    backend.tokenizer = Ending()
    assert InferenceModule.on(Engine(backend)).generate("a").texts == ["a"]


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


def watched() -> tuple[InferenceModule, WatchedWeights]:
    weights = WatchedWeights()
    backend = FakeBackend.from_answers(lambda prompt: f"weights {weights.number}")
    return InferenceModule.on(Engine(weights.of(backend))), weights


def greedy(found: InferenceModule) -> tuple[str, bool]:
    result = found.generate("a", temperature=0.0)
    return result.texts[0], result.metadata[0]["cached"]


def test_changed_and_shared_weights_are_never_answered_from_the_cache() -> None:
    found, weights = watched()
    seen = []
    for weights.number in (1, 2):
        found.engine.weights.mark_changed("policy")
        seen += [greedy(found), greedy(found)]
    assert seen == [("weights 1", False), ("weights 1", True), ("weights 2", False), ("weights 2", True)]
    found, _ = watched()
    assert greedy(found) == ("weights 0", False)
    found.engine.weights.swap(ModelLoadConfig("other"))
    assert (found.engine.weights.version, greedy(found)) == ("0", ("weights 7", False))
    found, weights = watched()
    weights.is_shared = True
    assert [greedy(InferenceModule.on(found.engine)) for _ in range(2)] == [("weights 0", False)] * 2
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
    [failed] = module().parse_tool_calls(wrong, [SEARCH]).failed
    assert failed.arguments == {"query": 5}


def test_scores_are_of_responses_alone(real: InferenceModule) -> None:
    result = real.generate(["hello", "a longer prompt"], max_new_tokens=4, temperature=0.0, return_logprobs=True, return_logits=True)
    prompts = [real.engine.tokenizer.encode(text) for text in ("hello", "a longer prompt")]
    scores = real.get_logprobs(prompts, result.token_ids)
    for row, written in zip(scores.rows(), result.logprobs or (), strict=True):
        assert row == pytest.approx(written, abs=1e-4)
    assert result.logits is not None
    assert result.logits.values.shape[:2] == scores.values.shape
    assert real.get_logits(prompts, result.token_ids).values.shape == result.logits.values.shape
    assert real.get_logprobs(prompts, result.token_ids, grad=True).values.requires_grad


def test_several_greedy_sequences_other_tools_and_unknown_backends_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_samples 2 with greedy decoding"):
        module().generate("a", temperature=0.0, num_return_sequences=2)
    with pytest.raises(ConfigError, match=r"backend 'x' is unknown. Known: .*hf.*vllm"):
        create_inference_module("model", "x")
    with pytest.raises(ContractTypeError, match=r"tools\[0\] must be a Tool or a mapping, got 5"):
        module().batch_generate_with_tools("a", [5])  # type: ignore[list-item]
