"""Prompts given as token ids, and several samples of one prompt: what is asked, refused and recorded.

Run: pytest tests/engine/test_token_prompts.py. Real engines: tests/contract/test_contract.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from evalharness.api.errors import ConfigError, ContractTypeError, ContractValueError, RequestsFailed
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationFailure, GenerationResult, TextGenerationRequest, TokenGenerationRequest
from evalharness.backends.fake import FakeAnswer, FakeBackend, FakeTokenizer
from evalharness.engine.engine import Engine, options_of_samples
from evalharness.engine.prompts import token_ids_sha256

GREEDY = GenerationOptions(max_new_tokens=20)
DRAWN = GenerationOptions(max_new_tokens=20, temperature=1.0, seed=7)
TOKENIZER = FakeTokenizer()


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text))


def engine(answers: Any = lambda prompt: prompt.text.upper(), **more: Any) -> Engine:
    return Engine(FakeBackend.from_answers(answers, **more))


def ask(asked: Engine, *requests: Any) -> list[Any]:
    outcomes = dict(asked.stream(list(requests), GREEDY))
    return [outcomes[index] for index in range(len(requests))]


def test_ids_are_asked_as_they_are_beside_chats() -> None:
    chat = TextGenerationRequest([{"role": "user", "content": "hi"}])
    first, second = ask(engine(), TokenGenerationRequest(ids("hi")), chat)
    assert (first.text, first.prompt_text, first.num_prompt_tokens) == ("HI", "hi", 2)
    assert first.token_ids == (*ids("HI"), TOKENIZER.eos_token_id)
    assert second.prompt_text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_ids_need_no_chat_template() -> None:
    asked = engine()
    asked.backend.tokenizer = type("Bare", (FakeTokenizer,), {"chat_template": None})()
    asked.backend.processor = None
    assert ask(asked, TokenGenerationRequest(ids("hi")))[0].text == "HI"


def test_what_was_asked_is_told_by_the_ids_and_not_by_their_text() -> None:
    class Merging(FakeTokenizer):
        def decode(self, token_ids: Any, *_: Any, **__: Any) -> str:
            return "same"

    asked = engine()
    asked.backend.tokenizer = Merging()
    first, second = ask(asked, TokenGenerationRequest([5]), TokenGenerationRequest([6]))
    assert (first.prompt_text, second.prompt_text) == ("same", "same")
    assert (first.prompt_sha256, second.prompt_sha256) == (token_ids_sha256([5]), token_ids_sha256([6]))


@pytest.mark.parametrize(
    ("token_ids", "problem"),
    [
        ([], "the prompt has no token ids; give at least one"),
        ([5, len(TOKENIZER)], f"the prompt has token id {len(TOKENIZER)}; the vocabulary ends at {len(TOKENIZER) - 1}"),
        ([5] * 40, "exceed the context of 50"),
        ([5] * 50, "the prompt has 50 tokens, the context 50"),
        ([TOKENIZER.encode("<|image_pad|>")[0]], "1 image placeholder"),
    ],
)
def test_ids_that_cannot_be_asked_are_invalid_and_take_no_other_along(token_ids: list[int], problem: str) -> None:
    failure, fine = ask(engine(max_model_len=50), TokenGenerationRequest(token_ids), TokenGenerationRequest(ids("hi")))
    assert isinstance(failure, GenerationFailure)
    assert failure.kind == "invalid"
    assert problem in failure.problem
    assert fine.text == "HI"


@pytest.mark.parametrize(
    ("token_ids", "error", "match"),
    [
        ("hi", ContractTypeError, r"request.prompt_token_ids must be a sequence of ints, got 'hi'"),
        ([1, "2"], ContractTypeError, r"request.prompt_token_ids\[1\] must be an int, got '2'"),
        ([True], ContractTypeError, r"request.prompt_token_ids\[0\] must be an int"),
        ([-1], ContractValueError, r"request.prompt_token_ids\[0\] must be at least 0"),
        ([2**31], ContractValueError, r"request.prompt_token_ids\[0\] must be at most"),
    ],
)
def test_what_is_no_id_is_refused_where_it_is_written(token_ids: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        TokenGenerationRequest(token_ids)


def test_ids_beyond_the_tokenizer_but_in_the_model_can_be_asked() -> None:
    asked = engine()
    asked.backend.capabilities = type(asked.backend.capabilities)(vocab_size=len(TOKENIZER) + 10)
    [result] = ask(asked, TokenGenerationRequest([*ids("hi"), len(TOKENIZER) + 9]))
    assert (result.prompt_text, result.num_prompt_tokens) == ("hi", 3)


def test_a_prompt_is_decoded_once_for_all_its_samples() -> None:
    class Counting(FakeTokenizer):
        decoded: list[Any] = []  # noqa: RUF012

        def decode(self, token_ids: Any, *_: Any, **more: Any) -> str:
            self.decoded.append(list(token_ids))
            return super().decode(token_ids, **more)

    asked = engine(lambda prompt: "x")
    asked.backend.tokenizer = Counting()
    asked.generate_samples([TokenGenerationRequest(ids("hello"))], DRAWN, 4)
    assert Counting.decoded.count(list(ids("hello"))) == 1


def test_each_sample_has_a_seed_of_its_own_and_the_first_that_of_one_alone() -> None:
    asked = engine(lambda prompt: f"{prompt.text} {prompt.plan.seed}")
    requests = [TokenGenerationRequest(ids(text)) for text in "ab"]
    alone = asked.generate_samples(requests, DRAWN, 1)
    three = asked.generate_samples(requests, DRAWN, 3)
    assert [[result.text for result in group] for group in three] == [["a 7", "a 8", "a 9"], ["b 7", "b 8", "b 9"]]
    assert [group[0] for group in three] == [group[0] for group in alone]


@pytest.mark.parametrize(
    ("options", "num_samples", "error", "problem"),
    [
        (GREEDY, 2, ConfigError, "num_samples 2 with greedy decoding gives equal samples; set a temperature above 0"),
        (DRAWN, 0, ContractValueError, "num_samples must be"),
        (DRAWN, "2", ContractTypeError, "num_samples must be"),
    ],
    ids=["greedy", "none", "text"],
)
def test_a_number_of_samples_that_cannot_be_is_refused(options: Any, num_samples: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        options_of_samples(options, num_samples)
    assert options_of_samples(options, 1) == [options]


def test_a_sample_that_fails_is_told_and_the_others_are_kept() -> None:
    asked = engine(lambda prompt: FakeAnswer(error="no power") if prompt.plan.seed == 8 else "x")
    with pytest.raises(RequestsFailed, match="1 of 3 requests failed: no power") as caught:
        asked.generate_samples([TokenGenerationRequest(ids("a"))], DRAWN, 3)
    assert [isinstance(outcome, GenerationResult) for outcome in caught.value.outcomes] == [True, False, True]
