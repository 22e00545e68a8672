"""The engine with a cache: what is asked of the backend again, and what is not. Run: pytest tests/engine/test_engine_cache.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationFailure, GenerationResult, TextGenerationRequest, VlmGenerationRequest
from evalharness.backends.fake import FakeAnswer, FakeBackend
from evalharness.engine.cache import ResponseCache
from evalharness.engine.engine import Engine
from tests.engine.watched import WatchedWeights

GREEDY = GenerationOptions(max_new_tokens=50)
IDENTITY = {"fingerprint": "f"}


def text(content: str = "hi") -> TextGenerationRequest:
    return TextGenerationRequest([{"role": "user", "content": content}])


def look(image: Any) -> VlmGenerationRequest:
    return VlmGenerationRequest([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}], [image])


class Asked:
    """An engine whose backend says with each answer how often it was asked."""

    def __init__(self, cache: ResponseCache | None = None) -> None:
        self.count = 0
        self.engine = Engine(WatchedWeights().of(FakeBackend.from_answers(self._answer)))
        self.cache = cache or ResponseCache()
        self.engine.use_cache(self.cache, IDENTITY)

    def _answer(self, prompt: Any) -> str:
        self.count += 1
        return f"answer {self.count}"

    def __call__(self, request: Any, options: GenerationOptions = GREEDY, **more: Any) -> GenerationResult:
        [(_, result)] = self.engine.stream([request], options, **more)
        assert isinstance(result, GenerationResult)
        return result


def test_a_greedy_question_is_asked_once() -> None:
    asked = Asked()
    first, second = asked(text()), asked(text())
    assert (first.text, first.cached) == ("answer 1", False)
    assert (second.text, second.cached) == ("answer 1", True)
    assert {**second.to_json(), "cached": False} == first.to_json()
    first.to_json()["token_ids"].clear()  # whatever a caller does with a result
    assert [result.cached for _, result in asked.engine.stream([text()] * 3, GREEDY)] == [True] * 3
    assert asked.count == 1
    assert [GenerationResult.from_json(json.loads(json.dumps(result.to_json()))) for result in (first, second)] == [first, second]


def test_an_unseeded_sample_is_drawn_each_time() -> None:
    asked = Asked()
    options = GenerationOptions(max_new_tokens=50, temperature=1.0)
    assert [asked(text(), options).text for _ in range(2)] == ["answer 1", "answer 2"]
    assert asked.cache.counts.not_cacheable == 2


def test_a_seeded_sample_is_drawn_once_for_each_seed() -> None:
    asked = Asked()
    options = [GenerationOptions(max_new_tokens=50, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert [asked(text(), each).text for each in options] == ["answer 1", "answer 1", "answer 2"]


def test_other_weights_are_asked_anew_even_under_the_identity_of_old_ones() -> None:
    asked = Asked()
    asked(text())
    asked.engine.use_cache(asked.cache, {**IDENTITY, "weight_version": 2})
    assert asked(text()).text == "answer 2"
    asked.engine.weights.mark_changed()
    asked.engine.use_cache(asked.cache, IDENTITY)
    assert [asked(text()).text for _ in range(2)] == ["answer 3", "answer 3"]


def test_another_way_of_reading_uses_the_same_tokens() -> None:
    asked = Asked()
    asked(text())
    stripped = GenerationOptions.from_mapping({"max_new_tokens": 50, "decode": {"strip_whitespace": False}})
    assert asked(text(), stripped).cached


def test_the_same_picture_is_known_by_its_content(tmp_path: Any) -> None:
    asked = Asked()
    for name, colour in (("a.png", "red"), ("b.png", "red"), ("c.png", "blue")):
        Image.new("RGB", (64, 48), colour).save(tmp_path / name)
    results = [asked(look(str(tmp_path / name))) for name in ("a.png", "b.png", "c.png")]
    assert [result.cached for result in results] == [False, True, False]
    assert [image["path"] for result in results[:2] for image in result.images] == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]


def test_a_picture_that_cannot_be_read_is_invalid_with_a_cache_too(tmp_path: Any) -> None:
    (tmp_path / "no.png").write_bytes(b"no picture")
    [(_, failure)] = Asked().engine.stream([look(str(tmp_path / "no.png"))], GREEDY)
    assert isinstance(failure, GenerationFailure)
    assert failure.kind == "invalid"


def test_an_answer_with_a_secret_stays_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "key-0123456789")
    answers = {"a": "it is key-0123456789", "b": "none"}
    for expected in ([False, False], [False, True]):
        engine = Engine(WatchedWeights().of(FakeBackend.from_answers(lambda prompt: answers["a" if "\na<" in prompt.text else "b"])))
        cache = ResponseCache(tmp_path)
        engine.use_cache(cache, IDENTITY)
        [(_, first)], [(_, second)] = (list(engine.stream([text(content)], GREEDY)) for content in ("a", "b"))
        assert isinstance(first, GenerationResult)
        assert isinstance(second, GenerationResult)
        assert (first.text, second.text) == (answers["a"], answers["b"])
        assert [first.cached, second.cached] == expected
        cache.close()


def test_failures_are_not_kept() -> None:
    answers = [FakeAnswer(error="no memory"), FakeAnswer("fine")]
    engine = Engine(FakeBackend.from_answers(lambda prompt: answers.pop(0)))
    engine.use_cache(ResponseCache(), IDENTITY)
    [(_, first)], [(_, second)] = (list(engine.stream([text()], GREEDY)) for _ in range(2))
    assert isinstance(first, GenerationFailure)
    assert isinstance(second, GenerationResult)
    assert (second.text, second.cached) == ("fine", False)


def test_known_and_new_questions_of_one_batch_all_come_out() -> None:
    asked = Asked()
    asked(text("b"))
    results = dict(asked.engine.stream([text("a"), text("b"), text("c")], GREEDY))
    assert {index: result.cached for index, result in results.items()} == {0: False, 1: True, 2: False}


class Shout:
    """A plugin that changes texts."""

    name = "shout"
    backends = ("fake",)
    request_types = ("text",)

    def postprocess_text(self, text: str) -> str:
        return text.upper()


def test_answers_of_plugins_are_not_cached() -> None:
    asked = Asked()
    said = [asked(text(), plugins=[Shout()]).text for _ in range(2)]
    assert (said, asked.count) == (["ANSWER 1", "ANSWER 2"], 2)
