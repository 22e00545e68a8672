"""What every backend must do, as tests that a backend's own test suite inherits. Needs pytest; nothing else here imports this module.

    # conftest.py: failed assertions then show their values
    pytest.register_assert_rewrite("evalharness.engine.backend_contract")

    # test_acme.py
    @pytest.fixture(scope="module")
    def engine():
        with build_engine("acme", ModelLoadConfig("path/of/a/checkpoint")) as engine:
            yield engine

    class TestAcme(BackendContract):
        pass

Any checkpoint will do, a tiny one is fastest: most tests generate 12 texts of 24 tokens. They let the model answer without stops first, and
then stop it at something it said. What the backend's `Capabilities` exclude is skipped, never failed.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from evalharness.api.errors import CapabilityError, PromptTooLong, UnsupportedOption
from evalharness.api.options import DecodeOptions, GenerationOptions, StopOptions
from evalharness.api.requests import (
    CompletionRequest,
    GenerationFailure,
    GenerationResult,
    TextGenerationRequest,
    TokenGenerationRequest,
    VlmGenerationRequest,
)
from evalharness.api.scoring import ScoringRequest
from evalharness.backends.base import Backend
from evalharness.engine.engine import Engine

if TYPE_CHECKING:
    from PIL import Image


TEXTS = (
    "hi",
    "Say yes or no, count from one to ten, and name the colour of the sky. " * 4,
    "统计",
    "What is in this picture? Write one short sentence.",
    "一" * 40,
    "The quick brown fox jumps over the lazy dog.",
    "no",
    "请根据照片输出一行 JSON 摘要, 只写看得见的内容, 不写判断。",
    "1 2 3 4 5 6 7 8 9",
    "{}",
    "count from one to ten, please",
    "say yes",
)
"""Of very different lengths, so that a batch has much padding."""

FREE = GenerationOptions(max_new_tokens=24, eos_token_id=())
"""Only the length cap ends these."""

SHORT = replace(FREE, max_new_tokens=4)
SAMPLED = replace(FREE, temperature=1.2, seed=11)


def ask(text: str) -> TextGenerationRequest:
    """Return a chat of one user turn."""
    return TextGenerationRequest([{"role": "user", "content": text}])


CHATS = tuple(ask(text) for text in TEXTS)


def look(*images: Any, question: str = "what is it?", verify: bool = False) -> VlmGenerationRequest:
    """Return a chat of one user turn that shows the images first."""
    parts = [{"type": "image", "image": image} for image in images]
    return VlmGenerationRequest([{"role": "user", "content": [*parts, {"type": "text", "text": question}]}], verify=verify)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return an image of random pixels."""
    from PIL import Image

    return Image.frombytes("RGB", (width, height), random.Random(seed).randbytes(width * height * 3))


def decode(engine: Engine, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
    """Return the text of these ids, nothing stripped."""
    text: str = engine.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
    return text


def outcomes_of(engine: Engine, requests: Sequence[Any], options: Any) -> list[GenerationResult | GenerationFailure]:
    """Return one result or failure per request, in order."""
    outcomes = dict(engine.stream(requests, options))
    assert sorted(outcomes) == list(range(len(requests)))
    return [outcomes[index] for index in range(len(requests))]


def generate(engine: Engine, requests: Sequence[Any], options: Any) -> list[GenerationResult]:
    """Return one result per request, in order; a failure fails the test."""
    outcomes = outcomes_of(engine, requests, options)
    assert [outcome for outcome in outcomes if not isinstance(outcome, GenerationResult)] == []
    return [outcome for outcome in outcomes if isinstance(outcome, GenerationResult)]


class EndsAfter:
    """A plugin that ends each row after its own number of new tokens."""

    name = "ends-after"

    def __init__(self, num_new: int) -> None:
        self._num_new = num_new

    def watch(self, tokenizer: Any) -> Any:
        positions = itertools.count(1)
        return SimpleNamespace(push=lambda token_id: next(positions) == self._num_new)


def _strings_in(engine: Engine, answer: GenerationResult, *, num_characters: int = 3) -> Iterator[tuple[str, str, int]]:
    """Yield strings of several tokens that a text holds, the text before each, and the number of tokens up to its end."""
    whole = decode(engine, answer.token_ids)
    for start in range(1, len(whole) - num_characters):
        string = whole[start : start + num_characters]
        # Blanks at its edges would be stripped; the mark of a broken character is no text.
        if string == string.strip() and "\ufffd" not in string and len(engine.tokenizer.encode(string, add_special_tokens=False)) > 1:
            num_tokens = next(n for n in range(1, len(answer.token_ids) + 1) if string in decode(engine, answer.token_ids[:n]))
            yield string, whole[: whole.find(string)].strip(), num_tokens


class BackendContract:
    """The contract. It needs a fixture `engine`, an `Engine` on the backend, which all tests share."""

    @pytest.fixture(scope="class")
    @classmethod
    def free(cls, engine: Engine) -> list[GenerationResult]:
        """The engine's answers to `CHATS` if only the length cap ends them."""
        return generate(engine, CHATS, FREE)

    def test_the_backend_has_the_protocols_attributes_and_describes_itself_in_json(self, engine: Engine) -> None:
        assert isinstance(engine.backend, Backend)
        assert json.loads(json.dumps(dict(engine.backend.describe())))

    # Batches

    def test_a_batch_of_mixed_lengths_gives_what_single_requests_give(self, engine: Engine) -> None:
        options = GenerationOptions(max_new_tokens=24)
        together = generate(engine, CHATS, options)
        assert together == [generate(engine, [chat], options)[0] for chat in CHATS]
        assert len({result.num_prompt_tokens for result in together}) > 5

    def test_many_requests_give_one_result_each_in_order_and_none_give_none(self, engine: Engine, free: list[GenerationResult]) -> None:
        results = engine.generate_text_batch(CHATS * 6, SHORT)
        assert [result.token_ids for result in results] == [answer.token_ids[:4] for answer in free] * 6
        assert engine.generate_text_batch([], FREE) == engine.generate_vlm_batch([], FREE) == []
        assert list(engine.stream([], FREE)) == []

    def test_options_may_differ_by_request(self, engine: Engine, free: list[GenerationResult]) -> None:
        caps = [1 + position % 5 for position in range(len(CHATS))]
        results = generate(engine, CHATS, [replace(FREE, max_new_tokens=cap) for cap in caps])
        assert [result.token_ids for result in results] == [answer.token_ids[:cap] for answer, cap in zip(free, caps, strict=True)]

    def test_counts_are_those_of_prompt_and_completion(self, engine: Engine) -> None:
        for result in generate(engine, CHATS, GenerationOptions(max_new_tokens=24)):
            ids = engine.tokenizer.encode(result.prompt_text, add_special_tokens=False)
            assert result.num_prompt_tokens == len(ids)
            assert result.num_completion_tokens == len(result.token_ids)
            assert result.num_total_tokens == len(ids) + len(result.token_ids)

    def test_texts_are_those_of_the_ids(self, engine: Engine, free: list[GenerationResult]) -> None:
        assert [answer.text for answer in free] == [decode(engine, answer.token_ids).strip() for answer in free]
        assert [answer.raw_text for answer in free] == [
            decode(engine, answer.token_ids, skip_special_tokens=False).strip() for answer in free
        ]
        for result in generate(engine, CHATS, replace(FREE, decode=DecodeOptions(strip_whitespace=False))):
            assert result.text == decode(engine, result.token_ids)

    def test_the_ids_of_a_prompt_give_what_its_chat_gives(self, engine: Engine) -> None:
        options = GenerationOptions(max_new_tokens=8)
        chats = generate(engine, CHATS, options)
        prompts = [engine.tokenizer.encode(result.prompt_text, add_special_tokens=False) for result in chats]
        results = engine.generate_token_batch([TokenGenerationRequest(ids) for ids in prompts], options)
        assert [replace(result, prompt_sha256="") for result in results] == [replace(chat, prompt_sha256="") for chat in chats]

    # Bare texts, and answers that are started

    def test_a_bare_text_goes_in_without_a_template_behind_the_tokenizers_own_beginning(self, engine: Engine) -> None:
        results = engine.generate_text_batch([CompletionRequest(text) for text in TEXTS], SHORT)
        ids = [engine.tokenizer.encode(text, add_special_tokens=True) for text in TEXTS]
        given = engine.generate_token_batch([TokenGenerationRequest(one) for one in ids], SHORT)
        assert [result.prompt_text for result in results] == list(TEXTS)
        assert [(result.token_ids, result.num_prompt_tokens) for result in results] == [
            (one.token_ids, one.num_prompt_tokens) for one in given
        ]

    def test_special_tokens_in_a_bare_text_stay_text_unless_asked(self, engine: Engine) -> None:
        end = engine.tokenizer.eos_token
        requests = [CompletionRequest(f"a{end}b", special_tokens=read) for read in (True, False)]
        read, plain = outcomes_of(engine, requests, SHORT)
        assert isinstance(read, GenerationResult)
        if isinstance(plain, GenerationFailure):
            assert plain.kind == "invalid", "a tokenizer that cannot read them as text"
        else:
            assert (plain.num_prompt_tokens or 0) > (read.num_prompt_tokens or 0)
            assert plain.prompt_sha256 != read.prompt_sha256

    def test_special_tokens_in_a_chat_are_read_unless_they_are_to_stay_text(self, engine: Engine) -> None:
        end = engine.tokenizer.eos_token
        texts = (f"a{end}b", "ab")
        chats = [
            TextGenerationRequest([{"role": "user", "content": text}], special_tokens=read) for text in texts for read in (True, False)
        ]
        read, kept, plain, same = outcomes_of(engine, chats, SHORT)
        assert isinstance(read, GenerationResult)
        assert isinstance(plain, GenerationResult)
        assert isinstance(same, GenerationResult)
        assert f"data: special token {end} read as a token" in read.ignored_options
        assert (plain.prompt_sha256, plain.token_ids, plain.ignored_options) == (same.prompt_sha256, same.token_ids, same.ignored_options)
        if isinstance(kept, GenerationFailure):
            assert kept.kind == "invalid", "a tokenizer, or a server, that cannot read them as text"
        else:
            assert (kept.num_prompt_tokens or 0) > (read.num_prompt_tokens or 0)
            assert (kept.prompt_text, kept.prompt_sha256 == read.prompt_sha256) == (read.prompt_text, False)

    def test_an_answer_goes_on_from_its_start(self, engine: Engine) -> None:
        begun = [replace(chat, prefill="The answer is:") for chat in CHATS]
        results = engine.generate_text_batch(begun, SHORT)
        assert all(result.prompt_text.endswith("The answer is:") for result in results)
        prompts = [engine.tokenizer.encode(result.prompt_text, add_special_tokens=False) for result in results]
        given = engine.generate_token_batch([TokenGenerationRequest(ids) for ids in prompts], SHORT)
        assert [result.token_ids for result in results] == [one.token_ids for one in given]

    # Requests that cannot run

    @pytest.mark.parametrize("num_new", [1, 9])
    def test_the_context_can_be_used_to_its_last_token_and_not_beyond(self, engine: Engine, num_new: int) -> None:
        context = engine.backend.max_model_len
        if context is None:
            pytest.skip("the backend knows no limit of its context")
        prompts = [TokenGenerationRequest([5] * num_tokens) for num_tokens in (context - num_new, context - num_new + 1, 3)]
        full, beyond, other = outcomes_of(engine, prompts, replace(FREE, max_new_tokens=num_new))
        assert isinstance(full, GenerationResult)
        assert (full.num_total_tokens, full.finish_reason) == (context, "length")
        assert isinstance(beyond, GenerationFailure)
        assert (beyond.kind, type(beyond.error)) == ("invalid", PromptTooLong)
        assert isinstance(other, GenerationResult)

    def test_one_token_more_than_max_prompt_tokens_fails_alone(self, engine: Engine) -> None:
        (kept,) = generate(engine, CHATS[1:2], SHORT)
        assert kept.num_prompt_tokens is not None
        budgets = [replace(SHORT, max_prompt_tokens=kept.num_prompt_tokens - less) for less in (0, 1)]
        good, bad = outcomes_of(engine, [CHATS[1], CHATS[1]], budgets)
        assert good == kept
        assert isinstance(bad, GenerationFailure)
        assert (bad.kind, type(bad.error)) == ("invalid", PromptTooLong)

    @pytest.mark.parametrize("bad", [TextGenerationRequest([]), ask("\ud83d"), TokenGenerationRequest([])], ids=["empty", "text", "no ids"])
    def test_a_bad_request_fails_alone(self, engine: Engine, bad: Any) -> None:
        good, failed, other = outcomes_of(engine, [CHATS[0], bad, CHATS[1]], SHORT)
        assert isinstance(failed, GenerationFailure)
        assert failed.kind == "invalid"
        assert [good, other] == generate(engine, CHATS[:2], SHORT)

    def test_an_id_that_the_model_does_not_have_fails_alone(self, engine: Engine) -> None:
        beyond = engine.backend.capabilities.vocab_size or len(engine.tokenizer)
        failed, other = outcomes_of(engine, [TokenGenerationRequest([5, beyond]), TokenGenerationRequest([5, 6])], SHORT)
        assert isinstance(failed, GenerationFailure)
        assert (failed.kind, f"token id {beyond}" in failed.problem) == ("invalid", True)
        assert isinstance(other, GenerationResult)

    @pytest.mark.parametrize("text", ["\x00", "\u2028", "e\u0301", "🏳️‍🌈", "%s {} {{ x }}", "{% if %}", "<|im_end|>", "<think>"], ids=ascii)
    def test_odd_texts_are_asked_as_they_are(self, engine: Engine, text: str) -> None:
        (result,) = generate(engine, [ask(text)], SHORT)
        assert text in result.prompt_text

    # Ends from outside

    def test_closing_a_stream_and_should_stop_end_what_runs_and_leave_the_engine_usable(
        self, engine: Engine, free: list[GenerationResult]
    ) -> None:
        stream = engine.stream(CHATS, [replace(FREE, max_new_tokens=4 if position == 0 else 200) for position in range(len(CHATS))])
        next(stream)
        stream.close()
        assert generate(engine, CHATS, FREE) == free
        assert list(engine.stream(CHATS, FREE, should_stop=lambda: True)) == []
        num_asked = 0

        def should_stop() -> bool:
            nonlocal num_asked
            num_asked += 1
            return num_asked > 3

        outcomes = list(engine.stream(CHATS * 4, replace(FREE, max_new_tokens=200), should_stop=should_stop))
        assert len(outcomes) < len(CHATS) * 4
        assert generate(engine, CHATS, FREE) == free

    # Stops

    def test_a_stop_string_of_several_tokens_ends_generation_and_cuts_text_only(self, engine: Engine, free: list[GenerationResult]) -> None:
        stops = [
            (chat, answer, *stop) for chat, answer in zip(CHATS, free, strict=True) for stop in list(_strings_in(engine, answer))[::3][:4]
        ]
        assert stops, "nothing that the model says can be a stop string"
        options = [replace(FREE, stop=StopOptions((string,)), max_new_tokens=200) for _, _, string, _, _ in stops]
        results = generate(engine, [chat for chat, *_ in stops], options)
        for (_, answer, string, text, num_tokens), result in zip(stops, results, strict=True):
            assert result.text == text, string
            assert result.token_ids == answer.token_ids[:num_tokens], string
            assert (result.finish_reason, result.stop_reason) == ("stop", string)
            assert result.raw_text == decode(engine, result.token_ids, skip_special_tokens=False).strip()

    def test_the_earliest_of_several_stop_strings_counts(self, engine: Engine, free: list[GenerationResult]) -> None:
        for chat, answer in zip(CHATS, free, strict=True):
            strings = list(_strings_in(engine, answer))
            if len(strings) > 3 and len(strings[0][1]) < len(strings[3][1]):
                options = replace(FREE, stop=StopOptions((strings[3][0], "never said", strings[0][0])))
                (result,) = generate(engine, [chat], options)
                assert (result.text, result.stop_reason) == (strings[0][1], strings[0][0])
                return
        pytest.skip("no text has two stop strings")

    def test_an_ordinary_token_given_as_stop_id_is_not_in_the_text(self, engine: Engine, free: list[GenerationResult]) -> None:
        options = [replace(FREE, stop=StopOptions((), (answer.token_ids[5],))) for answer in free]
        for answer, result in zip(free, generate(engine, CHATS, options), strict=True):
            ids = answer.token_ids[: answer.token_ids.index(answer.token_ids[5]) + 1]
            assert result.token_ids == ids
            assert result.text == decode(engine, ids[:-1]).strip()
            assert (result.finish_reason, result.stop_reason) == ("stop", answer.token_ids[5])

    @pytest.mark.parametrize("num_new", [1, 2, 7])
    def test_the_length_cap_is_exact(self, engine: Engine, free: list[GenerationResult], num_new: int) -> None:
        for answer, result in zip(free, generate(engine, CHATS, replace(FREE, max_new_tokens=num_new)), strict=True):
            assert (result.finish_reason, result.stop_reason) == ("length", None)
            assert result.token_ids == answer.token_ids[:num_new]

    def test_a_text_ends_at_its_first_end_token_even_the_last_allowed_one(self, engine: Engine, free: list[GenerationResult]) -> None:
        ends = (free[0].token_ids[8], free[0].token_ids[4])
        num_tokens = min(map(free[0].token_ids.index, ends)) + 1
        for num_new in (FREE.max_new_tokens, num_tokens):
            (result,) = generate(engine, CHATS[:1], replace(FREE, eos_token_id=ends, max_new_tokens=num_new))
            assert result.token_ids == free[0].token_ids[:num_tokens]
            assert (result.finish_reason, result.stop_reason) == ("stop", None)

    # Sampling

    @pytest.mark.filterwarnings("ignore::evalharness.engine.engine.EngineWarning")  # top_p changes nothing then
    def test_greedy_is_repeatable_and_so_is_what_amounts_to_it(self, engine: Engine, free: list[GenerationResult]) -> None:
        assert generate(engine, CHATS, FREE) == free
        results = generate(engine, CHATS, replace(FREE, do_sample=False, temperature=0.7, top_p=0.3, seed=5))
        assert [(result.token_ids, result.seed) for result in results] == [(answer.token_ids, None) for answer in free]
        results = generate(engine, CHATS, replace(SAMPLED, top_p=1e-6))  # sampling among the best token alone
        assert [result.token_ids for result in results] == [answer.token_ids for answer in free]

    def test_a_seed_given_or_drawn_gives_the_same_again_alone_and_in_any_company(self, engine: Engine) -> None:
        first = generate(engine, CHATS, SAMPLED)
        assert generate(engine, CHATS, SAMPLED) == first
        assert generate(engine, CHATS[3:4], SAMPLED) == first[3:4]
        assert generate(engine, CHATS[::-1], SAMPLED) == first[::-1]
        assert {result.seed for result in first} == {11}
        (drawn,) = generate(engine, CHATS[:1], replace(SAMPLED, seed=None))
        assert drawn.seed is not None
        assert generate(engine, CHATS[:1], replace(SAMPLED, seed=drawn.seed)) == [drawn]

    # Scores

    def test_logprobs_are_one_per_id_finite_and_not_above_zero(self, engine: Engine, free: list[GenerationResult]) -> None:
        if not engine.backend.capabilities.supports_logprobs:
            pytest.skip("the backend gives no log-probabilities")
        for result in generate(engine, CHATS, replace(FREE, eos_token_id=None, logprobs=True)):
            assert result.logprobs is not None
            assert len(result.logprobs) == len(result.token_ids) == result.num_completion_tokens
            assert all(value is not None and math.isfinite(value) and value <= 0 for value in result.logprobs)
            assert result.logprobs_kind == "raw"
        assert {(result.logprobs, result.logprobs_kind) for result in free} == {(None, None)}, "nobody asked for them"

    def test_given_responses_are_scored_or_refused(self, engine: Engine) -> None:
        requests = [ScoringRequest(chat, response) for chat, response in zip(CHATS, ("blue", "", "yes, it is. " * 6), strict=False)]
        if not engine.backend.capabilities.supports_scoring:
            with pytest.raises(CapabilityError, match=f"backend '{engine.name}'"):
                generate(engine, requests, GenerationOptions())
            return
        for outcome in outcomes_of(engine, requests, GenerationOptions()):
            if isinstance(outcome, GenerationResult):  # a script may have no scores
                assert (outcome.finish_reason, len(outcome.logprobs or ())) == ("scored", len(outcome.token_ids))
        asked = [replace(request, greedy=True) for request in requests]
        if not engine.backend.capabilities.supports_greedy_checks:
            with pytest.raises(CapabilityError, match=f"backend '{engine.name}' cannot tell what is greedy"):
                generate(engine, asked, GenerationOptions())
            return
        for outcome in outcomes_of(engine, asked, GenerationOptions()):
            assert not isinstance(outcome, GenerationResult) or (outcome.is_greedy is None) == (not outcome.token_ids)

    # Options and plugins that cannot be honoured

    def test_an_unknown_option_is_refused_and_named(self, engine: Engine) -> None:
        with pytest.raises(UnsupportedOption, match=rf"^backend '{engine.name}' cannot honour: no_such_option=4\."):
            engine.generate_text_batch(CHATS, replace(FREE, extra_generation_kwargs={"no_such_option": 4}))

    def test_a_plugin_that_watches_tokens_ends_each_row_by_itself(self, engine: Engine, free: list[GenerationResult]) -> None:
        if not engine.backend.capabilities.supports_token_watchers:
            with pytest.raises(CapabilityError, match=f"backend '{engine.name}'"):
                engine.generate_text_batch(CHATS, FREE, plugins=[EndsAfter(5)])
            return
        results = engine.generate_text_batch(CHATS, FREE, plugins=[EndsAfter(5)])
        assert [result.token_ids for result in results] == [answer.token_ids[:5] for answer in free]
        assert {(result.finish_reason, result.stop_reason) for result in results} == {("stop", "ends-after")}
        assert engine.generate_text_batch(CHATS, FREE, plugins=[EndsAfter(1_000)]) == free

    # Images

    def test_images_go_in_in_message_order_or_are_refused(self, engine: Engine) -> None:
        wide, small = noise(300, 200, 1), noise(64, 48, 3)
        requests = [look(wide, small), look(small, wide), look(wide, small)]
        if not engine.backend.capabilities.supports_vlm:
            with pytest.raises(CapabilityError, match=f"^backend '{engine.name}' cannot run image requests"):
                generate(engine, requests, SHORT)
            return
        first, second, again = generate(engine, requests, SHORT)
        (begun,) = generate(engine, [replace(requests[0], prefill="It is")], SHORT)
        assert begun.prompt_text.endswith("It is")
        assert first == again
        assert first.token_ids != second.token_ids
        assert [(fact["width"], fact["height"]) for fact in first.images] == [wide.size, small.size]

    def test_images_of_mixed_sizes_and_texts_give_what_single_requests_give(self, engine: Engine) -> None:
        self._require_vision(engine)
        requests = [look(noise(64, 48)), CHATS[0], look(noise(300, 200), noise(70, 90)), CHATS[1], look(noise(33, 500))]
        assert generate(engine, requests, FREE) == [generate(engine, [request], FREE)[0] for request in requests]

    def test_special_tokens_beside_an_image_stay_text_where_asked(self, engine: Engine) -> None:
        self._require_vision(engine)
        encode, odd = engine.tokenizer.encode, f"a{engine.tokenizer.eos_token}b"
        asked = [replace(look(noise(64, 48), question=question), special_tokens=False) for question in (odd, "ab")]
        kept, plain = outcomes_of(engine, asked, SHORT)
        if isinstance(kept, GenerationFailure):
            assert kept.kind == "invalid", "a server that renders messages itself"
        else:
            more = len(encode(odd, add_special_tokens=False, split_special_tokens=True)) - len(encode("ab", add_special_tokens=False))
            assert isinstance(plain, GenerationResult)
            assert (kept.num_prompt_tokens or 0) - (plain.num_prompt_tokens or 0) == more

    @pytest.mark.parametrize("bad", ["absent.jpg", b"", b"no image"], ids=["missing", "empty", "no image"])
    def test_an_image_that_cannot_be_opened_fails_alone(self, engine: Engine, bad: Any) -> None:
        self._require_vision(engine)
        good, failed, text = outcomes_of(engine, [look(noise(64, 48)), look(noise(64, 48), bad), CHATS[0]], SHORT)
        assert isinstance(failed, GenerationFailure)
        assert failed.kind == "invalid"
        assert [good, text] == generate(engine, [look(noise(64, 48)), CHATS[0]], SHORT)

    def _require_vision(self, engine: Engine) -> None:
        if not engine.backend.capabilities.supports_vlm:
            pytest.skip("the backend takes no images")
