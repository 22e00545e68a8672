"""Scores of given responses on the scripted backend: requests, records, refusals, cache. Run: pytest tests/engine/test_engine_scoring.py

What the numbers are worth is in tests/contract/test_scoring.py and tests/backends/hf/test_scoring.py.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from PIL import Image

from evalharness.api.errors import (
    CapabilityError,
    CheckpointError,
    ContractTypeError,
    ContractValueError,
    RequestsFailed,
    UnsupportedOption,
)
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationFailure, GenerationResult, TextGenerationRequest, VlmGenerationRequest
from evalharness.api.scoring import ScoringRequest
from evalharness.backends.base import Capabilities
from evalharness.backends.fake import FakeAnswer, FakeBackend, FakeTokenizer, read_script
from evalharness.engine.cache import ResponseCache
from evalharness.engine.engine import Engine

OPTIONS = GenerationOptions()
PHOTO = Image.new("RGB", (64, 48), "red")


def text(content: str = "hi") -> TextGenerationRequest:
    return TextGenerationRequest([{"role": "user", "content": content}])


def look(image: Any = PHOTO) -> VlmGenerationRequest:
    return VlmGenerationRequest([{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "what?"}]}])


def engine(answers: Any = None, **kwargs: Any) -> Engine:
    return Engine(FakeBackend.from_answers(answers or [FakeAnswer(logprobs=-0.5)], **kwargs))


def only(engine: Engine, request: Any, options: GenerationOptions = OPTIONS) -> Any:
    [(_, outcome)] = engine.stream([request], options)
    return outcome


def test_a_scored_response_is_a_result_like_any_other() -> None:
    result = only(engine(), ScoringRequest(look(), " yes ", ends=True))
    assert (result.text, result.raw_text) == (" yes ", " yes <|im_end|>")
    assert (result.finish_reason, result.stop_reason, result.seed) == ("scored", None, None)
    assert result.logprobs == (-0.5,) * 6
    assert result.num_completion_tokens == 6
    assert result.prompt_text.endswith("<|im_start|>assistant\n")
    assert len(result.images) == 1
    assert GenerationResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_what_was_asked_has_another_identity_with_another_response() -> None:
    hashes = {only(engine(), request).prompt_sha256 for request in (ScoringRequest(text(), "a"), ScoringRequest(text(), "b"))}
    hashes.add(only(engine(["x"]), text()).prompt_sha256)
    assert len(hashes) == 3


def test_scores_are_rows_of_responses() -> None:
    scores = engine(lambda prompt: FakeAnswer(logprobs=[-float(i) for i, _ in enumerate(prompt.response_ids)])).get_logprobs(
        [text(), "", [5, 6]], ["abc", "xy", [7]]
    )
    assert scores.rows() == [[0.0, -1.0, -2.0], [None, -1.0], [0.0]]
    assert scores.mask.tolist() == [[True, True, True], [False, True, False], [True, False, False]]
    assert [[math.isnan(value) for value in row] for row in scores.values.tolist()] == (~scores.mask).tolist()
    assert scores.num_prompt_tokens == (21, 0, 2)


def test_a_script_answers_for_prompt_and_response(tmp_path: Any) -> None:
    script = tmp_path / "answers.jsonl"
    rows = [{"contains": "assistant\nyes", "logprobs": -0.1}, {"contains": "no", "logprobs": [-1, -2]}, {"text": "generated"}]
    script.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scripted = Engine(FakeBackend.from_answers(read_script(str(script))))
    assert only(scripted, ScoringRequest(text(), "no")).logprobs == (-1.0, -2.0)
    assert only(scripted, ScoringRequest(text(), "yes")).logprobs == (-0.1,) * 3
    assert only(scripted, text()).text == "generated"
    assert only(scripted, ScoringRequest(text(), "maybe")).problem == "the script has no logprobs for this response; add them to its answer"
    assert "2 logprobs for a response of 4 tokens" in only(scripted, ScoringRequest(text(), "nono")).problem


@pytest.mark.parametrize("logprobs", [0.5, [-1, 0.1], True, "a", [None]])
def test_a_script_with_impossible_logprobs_is_refused(logprobs: Any) -> None:
    with pytest.raises(ContractValueError, match="answer.logprobs must be a number of at most 0, or a list of them"):
        FakeAnswer(logprobs=logprobs)


def test_such_a_line_of_a_script_is_named(tmp_path: Any) -> None:
    (tmp_path / "answers.jsonl").write_text('{"logprobs": 1}\n')
    with pytest.raises(CheckpointError, match="answers.jsonl:1 is not a script row .*known keys: .*logprobs"):
        read_script(str(tmp_path / "answers.jsonl"))


class WithBos(FakeTokenizer):
    """Begins each text with a token of its own, as Llama's tokenizers do."""

    bos_token_id = 0

    def encode(self, text: str, add_special_tokens: bool = False, **more: Any) -> list[int]:
        ids = super().encode(text, **more)
        return [0, *ids] if add_special_tokens else ids


def with_bos() -> tuple[Engine, list[Any]]:
    seen: list[Any] = []

    def answer(prompt: Any) -> FakeAnswer:
        seen.append(prompt)
        return FakeAnswer(logprobs=-1.0)

    backend = FakeBackend.from_answers(answer)
    backend.tokenizer = WithBos()
    return Engine(backend), seen


@pytest.mark.parametrize("prompt", ["ab", "<|endoftext|>ab"], ids=["added", "written already"])
def test_a_bare_text_begins_as_its_tokenizer_begins_texts_once(prompt: str) -> None:
    asked, seen = with_bos()
    asked.get_logprobs([prompt], ["c"])
    assert seen[0].token_ids == (0, *FakeTokenizer().encode("ab"))
    assert seen[0].response_ids == tuple(FakeTokenizer().encode("c"))


def test_ids_and_rendered_chats_get_nothing_added() -> None:
    asked, seen = with_bos()
    asked.get_logprobs([[7, 8], text(), ""], ["c"] * 3)
    assert seen[0].token_ids == (7, 8)
    assert seen[1].token_ids[0] != 0
    assert seen[2].token_ids == (0,)  # an empty text is its beginning


@pytest.mark.engine
def test_a_response_of_sentencepiece_gets_no_space_of_its_own() -> None:
    """Metaspace tokenizers, as Llama 2's and Mistral's, write a space before a text that stands alone."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from evalharness.engine.text_ids import response_ids

    words = ["\u2581yes", "yes", "\u2581", "\n", "\u2581no", "y", "e", "s", "n", "o"]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Metaspace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert fast.encode("yes", add_special_tokens=False) == [0]
    behind = response_ids(ScoringRequest("x", "yes"), fast)
    assert fast.convert_ids_to_tokens(list(behind)) == ["y", "e", "s"]
    assert response_ids(ScoringRequest("x", " no"), fast) == tuple(fast.encode(" no", add_special_tokens=False))


def test_a_backend_that_cannot_score_is_refused_before_anything_runs() -> None:
    class CannotScore(FakeBackend):
        capabilities = Capabilities(supports_vlm=True)

    backend = CannotScore.from_answers(["x"])
    with pytest.raises(CapabilityError, match="backend 'fake' cannot score given responses"):
        Engine(backend).get_logprobs([text()], ["a"])
    backend.capabilities = Capabilities(supports_scoring=True)
    with pytest.raises(CapabilityError, match="backend 'fake' cannot tell what is greedy"):
        only(Engine(backend), ScoringRequest(text(), "a", greedy=True))
    assert backend.num_calls == 0


def test_what_is_greedy_is_told_where_it_is_asked_and_cached_apart() -> None:
    asked, unasked = ScoringRequest(text(), "a", greedy=True), ScoringRequest(text(), "a")
    one = engine([FakeAnswer(logprobs=-0.5, is_greedy=True)])
    one.use_cache(ResponseCache(), {"fingerprint": "f"})
    found = [only(one, request) for request in (unasked, asked, asked, unasked)]
    assert [(each.is_greedy, each.cached) for each in found] == [(None, False), (True, False), (True, True), (None, True)]
    assert ["is_greedy" in each.to_json() for each in found[:2]] == [False, True]
    assert GenerationResult.from_json(json.loads(json.dumps(found[1].to_json()))) == found[1]
    assert only(engine(), asked).problem == "the script has no is_greedy for this response; add it to its answer"
    with pytest.raises(ContractTypeError, match=r"scoring.greedy must be"):
        ScoringRequest("x", "y", greedy=1)  # type: ignore[arg-type]


def test_no_logits_and_no_gradients_come_from_a_script() -> None:
    for ask in (lambda one: one.get_logits([text()], ["a"]), lambda one: one.get_logprobs([text()], ["a"], grad=True)):
        with pytest.raises(CapabilityError, match="backend 'fake' cannot give .*not a torch module"):
            ask(engine())


@pytest.mark.parametrize("options", [{"entropies": True}, {"logprobs_kind": "processed"}], ids=["entropies", "processed"])
def test_what_a_backend_cannot_say_is_refused_or_left_out_with_permission(options: dict[str, Any]) -> None:
    asked = GenerationOptions(**options)
    with pytest.raises(UnsupportedOption, match="backend 'fake' cannot honour"):
        engine().get_logprobs([text()], ["a"], asked)
    allowed = Engine(FakeBackend.from_answers([FakeAnswer(logprobs=-1.0)]), unsupported_options="warn", on_notice=lambda message: None)
    result = only(allowed, ScoringRequest(text(), "a"), asked)
    assert (result.logprobs_kind, result.entropies, len(result.ignored_options)) == ("raw", None, 1)


@pytest.mark.parametrize(
    ("prompts", "responses", "error", "problem"),
    [
        ([text(), text()], ["a"], ContractValueError, "2 prompts but 1 response;"),
        ([text(), text()], "ab", ContractValueError, "responses must be a list, one per pair, got one text: 'ab'"),
        ([text()], None, ContractTypeError, "responses must be a sequence of texts, token ids or chats, one per pair, got None"),
        ([text()] * 2, ["a", np.arange(9)], ContractTypeError, r"pair 1: scoring.response must be .*ndarray\); give its .tolist\(\)"),
        ([[-1]], ["a"], ContractValueError, r"pair 0: scoring.prompt\[0\] must be at least 0"),
        ([5], ["a"], ContractTypeError, "scoring.prompt must be a sequence of token ids, or a text"),
        (["a"], [[1, "b"]], ContractTypeError, r"scoring.response\[1\] must be"),
        (["a"], [[-1]], ContractValueError, r"scoring.response\[0\] must be at least 0"),
    ],
    ids=["fewer", "one text", "none", "array", "negative id of a prompt", "prompt", "response", "negative id"],
)
def test_a_wrong_prompt_or_response_is_named(prompts: Any, responses: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        engine().get_logprobs(prompts, responses)
    with pytest.raises(ContractTypeError, match="scoring.ends must be"):
        ScoringRequest("a", "b", ends=1)  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused_with_both_lengths_and_never_cut() -> None:
    small = engine(max_model_len=24)
    assert only(small, ScoringRequest(text(), "abc")).finish_reason == "scored"
    outcome = only(small, ScoringRequest(text(), "abcd"))
    assert isinstance(outcome, GenerationFailure)
    assert (outcome.kind, outcome.cause) == ("invalid", "PromptTooLong")
    assert outcome.problem.startswith("prompt (21 tokens) + response (4 tokens) exceed the context of 24;")
    with pytest.raises(RequestsFailed, match=r"1 of 2 requests failed: prompt \(21 tokens\) \+ response \(4 tokens\)"):
        small.get_logprobs([text(), text()], ["a", "abcd"])


def test_an_end_that_the_checkpoint_does_not_name_is_refused() -> None:
    outcome = only(engine(), ScoringRequest(text(), "a", ends=True), GenerationOptions(eos_token_id=()))
    assert outcome.problem.startswith("the response is to end, but the checkpoint names no end-of-sequence token")


def test_a_scored_response_is_scored_once_whatever_the_temperature() -> None:
    calls: list[Any] = []

    def answer(prompt: Any) -> FakeAnswer:
        calls.append(prompt)
        return FakeAnswer(logprobs=-float(len(calls)))

    asked = engine(answer)
    asked.use_cache(ResponseCache(), {"fingerprint": "f"})
    options = GenerationOptions(temperature=1.0)  # nothing is drawn
    found = [only(asked, ScoringRequest(*pair), options) for pair in [("", "ab"), ("", "ab"), ("a", "b"), ("a", "b")]]
    assert [result.cached for result in found] == [False, True, False, True]
    assert [result.logprobs for result in found] == [(None, -1.0), (None, -1.0), (-2.0,), (-2.0,)]
