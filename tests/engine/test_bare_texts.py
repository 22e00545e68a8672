"""Bare texts, started answers and joined responses: which ids are asked. Run: pytest tests/engine/test_bare_texts.py

Real engines: tests/contract. As lm-evaluation-harness makes them: tests/prompts/test_as_lm_eval.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from evalharness.api.errors import ContractTypeError, ContractValueError, RequestError
from evalharness.api.options import ChatTemplateOptions, GenerationOptions
from evalharness.api.requests import CompletionRequest, GenerationResult, TextGenerationRequest
from evalharness.api.scoring import ScoringRequest
from evalharness.backends.fake import FakeAnswer, FakeBackend, FakeTokenizer
from evalharness.engine.engine import Engine
from evalharness.engine.text_ids import bare_prompt, beginning_ids, joined_ids, text_ids
from evalharness.pytest_plugin.replay import changes

GREEDY = GenerationOptions(max_new_tokens=8)
CHAT = [{"role": "user", "content": "hi"}]


class Beginning(FakeTokenizer):
    """Puts tokens of its own around a text: before it, as GLM's two, and an end behind it."""

    def encode(self, text: str, add_special_tokens: bool = False, **more: Any) -> list[int]:
        ids = super().encode(text, **more)
        return [0, 1, *ids, 2] if add_special_tokens else ids


class Merging(FakeTokenizer):
    """Has tokens for `ab` and for a space with the letter behind it."""

    def encode(self, text: str, add_special_tokens: bool = False, **more: Any) -> list[int]:
        return super().encode(text.replace("ab", "\ue000").replace(" c", "\ue001"), **more)


def ask(*requests: Any, template: ChatTemplateOptions | None = None) -> list[Any]:
    engine = Engine(FakeBackend.from_answers(lambda prompt: FakeAnswer("x", logprobs=-1.0)), chat_template=template)
    outcomes = dict(engine.stream(list(requests), GREEDY))
    return [outcomes[place] for place in range(len(requests))]


def chars(text: str) -> tuple[int, ...]:
    return tuple(FakeTokenizer().encode(text))


def test_all_that_a_tokenizer_puts_before_a_text_stands_before_it_once_and_no_end_behind() -> None:
    assert beginning_ids(Beginning()) == (0, 1)
    assert bare_prompt(CompletionRequest("ab"), Beginning()) == ("ab", (0, 1, *chars("ab")))
    assert bare_prompt("<|endoftext|><|im_start|>ab", Beginning())[1] == (0, 1, *chars("ab"))
    assert beginning_ids(FakeTokenizer()) == ()


def test_what_is_written_like_a_special_token_is_text_unless_asked() -> None:
    text = "a<|im_end|>b<|image_pad|>"
    plain, read, known = ask(
        CompletionRequest(text), CompletionRequest("a<|im_end|>b", special_tokens=True), ScoringRequest(CompletionRequest(text), text)
    )
    assert (plain.num_prompt_tokens, read.num_prompt_tokens) == (len(text), 3)
    assert (known.num_prompt_tokens, len(known.token_ids)) == (len(text), len(text))
    assert plain.prompt_text == text


def test_a_tokenizer_that_reads_them_anyway_is_told_of() -> None:
    class Stubborn(FakeTokenizer):
        def encode(self, text: str, add_special_tokens: bool = False, **_: Any) -> list[int]:
            return super().encode(text)

    assert text_ids("ab", Stubborn(), special_tokens=False) == chars("ab")
    with pytest.raises(RequestError, match=r"^the prompt holds '<\|im_end\|>', which this tokenizer reads as a special token"):
        text_ids("a<|im_end|>", Stubborn(), special_tokens=False)


@pytest.mark.parametrize(
    ("prompt", "response", "head", "tail", "spans"),
    [
        ("a", " c", "a", " c", False),
        ("a ", "c", "a", " c", False),  # the space goes over
        ("a \n ", "c", "a", " \n c", False),
        ("a", "bc", "a", "c", True),  # one token is across the border
        ("x", "ab", "x", "ab", False),
    ],
)
def test_joined_texts_are_tokenised_as_one(prompt: str, response: str, head: str, tail: str, spans: bool) -> None:
    request = ScoringRequest(CompletionRequest(prompt), response, join="text")
    encode = Merging().encode
    assert joined_ids(request, prompt, Merging()) == (tuple(encode(head)), tuple(encode(tail)), spans)


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt_is_the_end_token_where_a_tokenizer_has_no_beginning(prompt: str) -> None:
    request = ScoringRequest(prompt, "ab", join="text")
    assert joined_ids(request, prompt, FakeTokenizer()) == ((FakeTokenizer.eos_token_id,), chars(prompt + "ab"), False)


def test_a_response_without_a_token_of_its_own_is_no_score() -> None:
    with pytest.raises(RequestError, match=r"^the response 'b' has no token of its own: the prompt alone has 1 token, both together 1"):
        joined_ids(ScoringRequest("a", "b", join="text"), "a", Merging())


def test_a_rendered_chat_is_joined_too_and_begins_as_its_template_does() -> None:
    (result,) = ask(ScoringRequest(TextGenerationRequest(CHAT), "yes", join="text"))
    assert result.prompt_text.endswith("assistant\n")
    assert result.token_ids == chars("\nyes")  # its last line break goes over
    assert (result.text, result.join) == ("yes", "text")


def test_an_answers_start_is_the_last_message_and_goes_on() -> None:
    (begun,) = ask(TextGenerationRequest(CHAT, prefill="It is "))
    assert begun.prompt_text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nIt is "
    assert (begun.text, begun.prefill) == ("x", "It is ")
    assert begun.ignored_options == ()
    (refused,) = ask(
        TextGenerationRequest(CHAT, prefill="It"), template=ChatTemplateOptions(add_generation_prompt=False, continue_final_message=True)
    )
    assert refused.problem.startswith("chat_template.continue_final_message has the last message go on")


def test_a_template_that_strips_the_start_of_an_answer_is_told_of() -> None:
    class Stripping(FakeTokenizer):
        def apply_chat_template(self, messages: Any, **options: Any) -> Any:
            return super().apply_chat_template([{**one, "content": one["content"].strip()} for one in messages], **options)

    engine = Engine(backend := FakeBackend.from_answers(["x"]))
    backend.tokenizer = Stripping()
    (result,) = engine.generate_text_batch([TextGenerationRequest(CHAT, prefill="It is ")], GREEDY)
    assert (result.prompt_text[-5:], result.ignored_options) == ("It is", ("chat template: the end ' ' of prefill left out of the prompt",))


def test_ids_of_worked_examples_come_back_and_are_written_only_where_there_are_some() -> None:
    with_shots, scored, none = ask(
        CompletionRequest("a", shots=["r1", "r2"]), ScoringRequest(CompletionRequest("a", shots=("r3",)), "b"), TextGenerationRequest(CHAT)
    )
    assert (with_shots.shots, scored.shots, none.shots) == (("r1", "r2"), ("r3",), ())
    assert not {"shots", "prefill", "join"} & none.to_json().keys()
    written = json.loads(json.dumps(with_shots.to_json()))
    assert GenerationResult.from_json(written) == with_shots


@pytest.mark.parametrize(
    ("make", "error", "problem"),
    [
        (lambda: CompletionRequest(None), ContractTypeError, r"^request\.prompt must be a str, got None"),  # type: ignore[arg-type]
        (lambda: CompletionRequest(text="a"), ContractTypeError, "has no argument 'text'; did you mean prompt"),  # type: ignore[call-arg]
        (lambda: CompletionRequest("a", shots="r1"), ContractTypeError, r"^request\.shots must be a sequence of ids"),
        (lambda: TextGenerationRequest(CHAT, shots=[1]), ContractTypeError, r"^request\.shots\[0\] must be a str"),  # type: ignore[list-item]
        (lambda: TextGenerationRequest(CHAT, prefill=b"x"), ContractTypeError, r"^request\.prefill must be a str"),  # type: ignore[arg-type]
        (lambda: ScoringRequest("a", "b", join="texts"), ContractValueError, "must be 'ids' or 'text', got 'texts'"),  # type: ignore[arg-type]
        (lambda: ScoringRequest([1], "b", join="text"), ContractValueError, "joins texts; give prompt and response as texts"),
        (lambda: ScoringRequest("a", [1], join="text"), ContractValueError, "or join='ids'"),
    ],
)
def test_what_is_no_such_request_is_refused(make: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        make()


HI = TextGenerationRequest(CHAT)
ODD = TextGenerationRequest([{"role": "user", "content": "a<|im_end|>"}])
SCORED = ScoringRequest(CompletionRequest("ab"), "c")


@pytest.mark.parametrize(
    ("then", "now", "what"),
    [
        (CompletionRequest("ab"), CompletionRequest("ab", shots=["r1"]), None),
        (CompletionRequest("ab"), CompletionRequest("abc"), "the text of its prompt"),
        (CompletionRequest("ab"), CompletionRequest("ab", special_tokens=True), "the text of its prompt"),
        (HI, replace(HI, prefill="It"), "its answer would be started in another way"),
        (ODD, ODD, None),
        (ODD, replace(ODD, special_tokens=False), "special tokens in its data would be text now"),
        (SCORED, SCORED, None),
        (SCORED, replace(SCORED, join="text"), "would be joined in another way"),
        (replace(SCORED, join="text"), replace(SCORED, join="text"), None),
    ],
    ids=["same", "text", "special tokens", "prefill", "same tokens", "tokens of chats", "same response", "join", "same joined"],
)
def test_a_recorded_answer_to_another_request_is_told(then: Any, now: Any, what: str | None) -> None:
    (made,) = ask(then)
    change = changes._difference(now, GenerationResult.from_json(made.to_json()))
    assert (change is None) if what is None else (change is not None and what in str(change))
