"""The backend of servers, on a server that is told what to say; a real one is in test_openai_on_vllm.py."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from evalharness.api.errors import BackendError, CapabilityError, ConfigError, RequestsFailed, UnsupportedOption
from evalharness.api.options import GenerationOptions, ModelLoadConfig, ServerOptions
from evalharness.api.requests import (
    CompletionRequest,
    GenerationFailure,
    GenerationResult,
    TextGenerationRequest,
    TokenGenerationRequest,
    VlmGenerationRequest,
)
from evalharness.backends.base import UnderWay
from evalharness.engine.build import build_engine
from evalharness.engine.engine import Engine
from tests.backends.http_server import Asked, Reply, Server, pass_time, serving

MODELS = {"data": [{"id": "served", "max_model_len": 200}]}
GREEDY = GenerationOptions(max_new_tokens=20)
PATIENCE_S = 120


def text(content: str = "hi") -> TextGenerationRequest:
    return TextGenerationRequest([{"role": "user", "content": content}])


def _listing(models: Any) -> Reply:
    return models if isinstance(models, Reply) else Reply(models)


class Told:
    """A server and an engine on it; `say` makes the reply to each request for an answer."""

    def __init__(self, checkpoint: Path) -> None:
        self.say: Callable[[Asked], Reply] = lambda asked: Reply({})
        self.models: Any = MODELS
        self._checkpoint = checkpoint
        self._open: list[Any] = []
        serving_server = serving(lambda asked: _listing(self.models) if asked.body is None else self.say(asked))
        self.server: Server = serving_server.__enter__()
        self._open.append(serving_server)

    def engine(self, **options: Any) -> Engine:
        config = ModelLoadConfig(str(self._checkpoint))
        engine = build_engine("openai", config, server_options=ServerOptions(**{"base_url": self.server.url, **options}))
        self._open.append(engine)
        return engine

    def close(self) -> None:
        for each in reversed(self._open):
            each.__exit__(None, None, None)


@pytest.fixture
def told(tiny_vlm_checkpoint: Path) -> Iterator[Told]:
    told = Told(tiny_vlm_checkpoint)
    yield told
    told.close()


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """What holds a server's answers back, at most until the test has ended."""
    event = threading.Event()
    yield event
    event.set()


def saying(tokenizer: Any, answer: str, *, ids: bool = True, end: bool = True, **more: Any) -> Callable[[Asked], Reply]:
    """A server that always says the same, as ids or as text."""
    spelled = tokenizer.encode(answer, add_special_tokens=False)
    generated = [*spelled, tokenizer.eos_token_id] if end else spelled
    choice = {"text": answer, "finish_reason": "stop" if end else "length", "token_ids": generated if ids else None, **more}
    return lambda asked: Reply({"choices": [choice], "usage": {"completion_tokens": len(generated)}})


def ask(engine: Engine, *requests: Any, options: GenerationOptions = GREEDY) -> list[Any]:
    outcomes = dict(engine.stream(list(requests), options))
    return [outcomes[index] for index in range(len(requests))]


def test_ids_are_sent_and_taken(told: Told, tiny_tokenizer: Any) -> None:
    told.say = saying(tiny_tokenizer, "good day")
    [result] = ask(told.engine(), text())
    [asked] = told.server.posts()
    assert asked.path == "/v1/completions"
    assert asked.body["model"] == "served"
    assert tiny_tokenizer.decode(asked.body["prompt"]) == result.prompt_text
    assert (result.text, result.finish_reason, result.stop_reason, result.exact_ids) == ("good day", "stop", None, True)
    assert result.num_completion_tokens == len(result.token_ids) == len(tiny_tokenizer.encode("good day")) + 1


def test_requests_that_wait_are_told_and_their_tokens_are_not_known(told: Told, tiny_tokenizer: Any) -> None:
    say = saying(tiny_tokenizer, "good day")
    told.say = lambda asked: replace(say(asked), delay_s=0.4)
    engine, seen = told.engine(concurrency=2), list[UnderWay | None]()

    def should_stop() -> bool:
        seen.append(engine.under_way())
        return False

    for _ in engine.stream([text(), text(), text()], GREEDY, should_stop=should_stop):
        pass
    assert UnderWay(2, None) in seen
    assert engine.under_way() == UnderWay(0, None)


def test_servers_of_text_get_the_rendered_prompt_and_their_ids_are_not_exact(told: Told, tiny_tokenizer: Any) -> None:
    told.say = saying(tiny_tokenizer, "good day", ids=False)
    [result] = ask(told.engine(server="openai"), text())
    assert told.server.posts()[0].body["prompt"] == result.prompt_text
    assert (result.text, result.finish_reason, result.exact_ids) == ("good day", "stop", False)
    assert result.num_completion_tokens == len(tiny_tokenizer.encode("good day")) + 1


def test_ids_that_are_asked_go_to_the_server_as_they_are(told: Told, tiny_tokenizer: Any) -> None:
    told.say = saying(tiny_tokenizer, "good day")
    first, second = ask(told.engine(), *[TokenGenerationRequest([9, 8, 7])] * 2)
    assert [(asked.body["prompt"], asked.body["return_token_ids"]) for asked in told.server.posts()] == [([9, 8, 7], True)] * 2
    assert first == second
    assert (first.text, first.num_prompt_tokens, first.exact_ids) == ("good day", 3, True)


def test_ids_go_as_text_only_where_that_gives_the_same_ids(told: Told, tiny_tokenizer: Any) -> None:
    told.say = saying(tiny_tokenizer, "x", ids=False)
    merged = tiny_tokenizer.encode("hello hello", add_special_tokens=False)
    apart = [token_id for letter in "hello" for token_id in tiny_tokenizer.encode(letter, add_special_tokens=False)]
    fine, refused = ask(told.engine(server="openai"), TokenGenerationRequest(merged), TokenGenerationRequest(apart))
    assert [asked.body["prompt"] for asked in told.server.posts()] == ["hello hello"]
    assert (fine.text, refused.kind) == ("x", "invalid")
    assert f"the text of these 5 ids is tokenised to {len(tiny_tokenizer.encode('hello'))} others" in refused.problem


def test_bare_texts_go_as_ids_or_as_texts_that_the_server_begins_itself(told: Told, tiny_tokenizer: Any) -> None:
    told.say = saying(tiny_tokenizer, "x", ids=False)
    texts = CompletionRequest("one two"), CompletionRequest("one<|im_end|>", special_tokens=True)
    plain = CompletionRequest("one<|im_end|>")
    assert [result.text for result in ask(told.engine(), *texts, plain)] == ["x"] * 3
    sent = [asked.body["prompt"] for asked in told.server.posts()]
    encode = tiny_tokenizer.encode
    assert sorted(sent) == sorted([*(encode(one.prompt) for one in texts), encode(plain.prompt, split_special_tokens=True)])
    *fine, refused = ask(told.engine(server="openai"), *texts, plain)
    assert ([result.text for result in fine], refused.kind) == (["x"] * 2, "invalid")  # such a server reads special tokens in data
    assert sorted(asked.body["prompt"] for asked in told.server.posts()[3:]) == ["one two", "one<|im_end|>"]
    told.say = lambda asked: Reply("no ids", 422) if isinstance(asked.body["prompt"], list) else saying(tiny_tokenizer, "x")(asked)
    ask(told.engine(concurrency=1), texts[0], text())
    assert [asked.body["add_special_tokens"] for asked in told.server.posts()[-2:]] == [True, False]


def test_each_sample_is_a_request_of_its_own_and_one_without_a_choice_takes_no_other_along(told: Told, tiny_tokenizer: Any) -> None:
    fine = saying(tiny_tokenizer, "x")
    told.say = lambda asked: Reply({"choices": []}) if asked.body["seed"] == 6 else fine(asked)
    with pytest.raises(RequestsFailed, match=r"1 of 2 requests failed.*expected 1, got 0") as caught:
        told.engine().generate_samples([TokenGenerationRequest([9])], GenerationOptions(max_new_tokens=4, temperature=1.0, seed=5), 2)
    assert [type(outcome) for outcome in caught.value.outcomes] == [GenerationResult, GenerationFailure]
    assert sorted((asked.body["seed"], asked.body["n"]) for asked in told.server.posts()) == [(5, 1), (6, 1)]


def test_a_server_that_takes_no_ids_gets_texts_from_then_on(told: Told, tiny_tokenizer: Any) -> None:
    fine = saying(tiny_tokenizer, "x", ids=False)
    told.say = lambda asked: Reply("no ids", 422) if isinstance(asked.body["prompt"], list) else fine(asked)
    engine = told.engine(concurrency=1)
    results = ask(engine, text(), text("again"))
    assert [result.text for result in results] == ["x", "x"]
    assert [type(asked.body["prompt"]) for asked in told.server.posts()] == [list, str, str]
    assert engine.describe()["prompts_as_text"]


def test_one_request_that_is_refused_in_either_form_makes_no_text_of_the_others(told: Told, tiny_tokenizer: Any) -> None:
    fine = saying(tiny_tokenizer, "x")
    told.say = lambda asked: Reply("no", 422) if asked.body["max_tokens"] == 3 else fine(asked)
    engine = told.engine(concurrency=1)
    outcomes = dict(engine.stream([text("a"), text("b")], [GenerationOptions(max_new_tokens=3), GREEDY]))
    assert (outcomes[0].kind, outcomes[1].text, outcomes[1].exact_ids) == ("invalid", "x", True)
    assert [type(asked.body["prompt"]) for asked in told.server.posts()] == [list, str, list]
    assert not engine.describe()["prompts_as_text"]


def test_a_broken_server_is_no_server_without_ids(told: Told) -> None:
    told.say = lambda asked: Reply("error 400 and 422", 500)
    [failure] = ask(told.engine(), text())
    assert (failure.kind, len(told.server.posts())) == ("error", 1)


def test_one_failure_takes_no_other_along(told: Told, tiny_tokenizer: Any) -> None:
    fine = saying(tiny_tokenizer, "fine")
    half = Reply({"choices": [{"text": "\ud800", "finish_reason": "stop"}]})  # no tokenizer takes half a character: it is read as U+FFFD
    bad = {"refused": Reply({"error": "context"}, 400), "broken": Reply("", 500), "odd": Reply({"choices": [{}, {}]}), "half": half}

    def say(asked: Asked) -> Reply:
        prompt = tiny_tokenizer.decode(asked.body["prompt"])
        return next((reply for word, reply in bad.items() if word in prompt), None) or fine(asked)

    told.say = say
    outcomes = ask(told.engine(), text("refused"), text("fine"), text("broken"), text("odd"), text("fine"), text("half"))
    assert [outcome.kind if isinstance(outcome, GenerationFailure) else outcome.text for outcome in outcomes] == [
        "invalid", "fine", "error", "error", "fine", "\ufffd",
    ]  # fmt: skip
    assert "expected 1, got 2" in outcomes[3].problem


def waiting_for(released: threading.Event, reply: Callable[[Asked], Reply], tokenizer: Any) -> Callable[[Asked], Reply]:
    """A server that keeps "slow" prompts until they are released, and answers others at once."""

    def say(asked: Asked) -> Reply:
        if "slow" in tokenizer.decode(asked.body["prompt"]):
            released.wait(PATIENCE_S)
        return reply(asked)

    return say


def test_one_that_is_never_answered_takes_no_other_along(told: Told, tiny_tokenizer: Any, released: threading.Event) -> None:
    fine = saying(tiny_tokenizer, "fine")

    def say(asked: Asked) -> Reply:
        prompt = tiny_tokenizer.decode(asked.body["prompt"])
        faults = {"gone": Reply(hang_up=True), "half": Reply(fine(asked).body, cut=True)}
        return next((reply for word, reply in faults.items() if word in prompt), None) or fine(asked)

    told.say = waiting_for(released, say, tiny_tokenizer)
    engine, outcomes = told.engine(request_timeout_s=1000, max_attempts=1), dict[int, Any]()
    for index, outcome in engine.stream([text(word) for word in ("slow", "a", "gone", "half", "b")], GREEDY):
        outcomes[index] = outcome
        if len(outcomes) == 4:
            pass_time(engine, 1001)
    assert "Timeout" in outcomes[0].problem
    assert [outcomes[i].kind if isinstance(outcomes[i], GenerationFailure) else outcomes[i].text for i in range(5)] == [
        "error", "fine", "error", "error", "fine",
    ]  # fmt: skip


def test_many_are_asked_at_once_but_no_more_than_was_said(told: Told, tiny_tokenizer: Any) -> None:
    fine, four = saying(tiny_tokenizer, "x"), threading.Barrier(4, timeout=PATIENCE_S)
    told.say = lambda asked: Reply(fine(asked).body) if four.wait() >= 0 else Reply({})
    results = ask(told.engine(concurrency=4), *[text(str(number)) for number in range(12)])
    assert [result.text for result in results] == ["x"] * 12
    assert told.server.most_at_once == 4


def test_answers_come_as_they_are_there(told: Told, tiny_tokenizer: Any, released: threading.Event) -> None:
    told.say = waiting_for(released, saying(tiny_tokenizer, "x"), tiny_tokenizer)
    stream = told.engine().stream([text("slow"), text("quick")], GREEDY)
    assert next(stream)[0] == 1
    released.set()
    assert [index for index, _ in stream] == [0]


def test_what_comes_while_others_are_asked_is_asked_beside_them(told: Told, tiny_tokenizer: Any, released: threading.Event) -> None:
    told.say = waiting_for(released, saying(tiny_tokenizer, "x"), tiny_tokenizer)
    engine, joining = told.engine(), ["later"]
    next_job = lambda: engine.prepare_join([text(joining.pop())], [GREEDY], 2) if joining and told.server.posts() else None  # noqa: E731
    stream = engine.stream([text("slow"), text("quick")], GREEDY, next_job=next_job)
    assert {next(stream)[0], next(stream)[0]} == {1, 2}
    released.set()
    assert [index for index, _ in stream] == [0]


def test_a_stream_that_is_closed_waits_for_nobody(told: Told, tiny_tokenizer: Any, released: threading.Event) -> None:
    told.say = waiting_for(released, saying(tiny_tokenizer, "x"), tiny_tokenizer)
    stream = told.engine().stream([text("slow"), text("quick")], GREEDY)
    started = time.monotonic()
    assert next(stream)[0] == 1
    stream.close()
    assert time.monotonic() - started < PATIENCE_S


def test_pictures_go_with_their_messages(told: Told, tiny_tokenizer: Any) -> None:
    told.say = saying(tiny_tokenizer, "a picture", text=None, message={"content": "a picture"})
    picture = Image.new("RGB", (64, 48), "red")
    request = VlmGenerationRequest([{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": "what?"}]}])
    [result] = ask(told.engine(), request)
    [asked] = told.server.posts()
    assert asked.path == "/v1/chat/completions"
    image, question = asked.body["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert question == {"type": "text", "text": "what?"}
    assert asked.body["chat_template_kwargs"] == {"enable_thinking": False}
    assert (result.text, result.images[0]["width"]) == ("a picture", 64)
    begun = replace(request, prefill="It is")
    ask(told.engine(), begun)
    sent = told.server.posts()[-1].body
    assert (sent["messages"][-1], sent["continue_final_message"]) == ({"role": "assistant", "content": "It is"}, True)
    assert not sent["add_generation_prompt"]
    [refused] = ask(told.engine(server="mlx"), begun)  # it would end the answer that has begun
    assert refused.problem.startswith("server 'mlx' cannot go on with a message (prefill, continue_final_message) where there are images")


def test_special_tokens_that_stay_text_go_as_ids_or_not_at_all(told: Told, tiny_tokenizer: Any) -> None:
    told.say = saying(tiny_tokenizer, "x", ids=False)
    kept = TextGenerationRequest([{"role": "user", "content": "one<|im_end|>"}], special_tokens=False)
    [result] = ask(told.engine(), kept)
    [asked] = told.server.posts()
    assert (tiny_tokenizer.decode(asked.body["prompt"]), result.num_prompt_tokens) == (result.prompt_text, len(asked.body["prompt"]))
    [refused] = ask(told.engine(server="openai"), kept)
    assert "the server takes no token ids, and the text of these" in refused.problem
    parts = [{"type": "image", "image": Image.new("RGB", (64, 48))}, {"type": "text", "text": "<|im_end|>"}]
    [refused] = ask(told.engine(), VlmGenerationRequest([{"role": "user", "content": parts}], special_tokens=False))
    assert refused.problem.startswith("a server renders messages with images itself, and would read special tokens in the data; ask with")
    assert len(told.server.posts()) == 1


def test_a_server_that_makes_another_prompt_of_a_picture_is_an_error(told: Told, tiny_tokenizer: Any) -> None:
    fine = saying(tiny_tokenizer, "x", text=None, message={"content": "x"})
    told.say = lambda asked: Reply({**fine(asked).body, "usage": {"prompt_tokens": 3}})
    picture = Image.new("RGB", (64, 48), "red")
    request = VlmGenerationRequest([{"role": "user", "content": [{"type": "image", "image": picture}]}])
    [failure] = ask(told.engine(), request)
    assert failure.kind == "error"
    assert "made 3 tokens of a prompt" in failure.problem


def test_the_context_is_the_servers(told: Told) -> None:
    engine = told.engine()
    assert engine.describe()["max_model_len"] == 200
    [failure] = ask(engine, text("x" * 300))
    assert failure.kind == "invalid"
    assert told.server.posts() == []


@pytest.mark.parametrize(
    ("models", "options", "error", "match"),
    [
        ({"data": [{"id": "a"}, {"id": "b"}]}, {}, ConfigError, "has 2 models; name one with --served-model: a, b"),
        (MODELS, {"served_model": "x"}, ConfigError, "has no model 'x'; it has: served"),
        ({"data": []}, {}, ConfigError, "has 0 models"),
        ({"models": []}, {}, BackendError, "lists no models"),
        (Reply({"error": "no"}, 400), {}, BackendError, "/v1/models cannot be read: the server refuses this request"),
    ],
)
def test_the_model_must_be_there(told: Told, models: Any, options: Any, error: type[Exception], match: str) -> None:
    told.models = models
    with pytest.raises(error, match=match):
        told.engine(**options)


def test_what_a_server_cannot_do_is_refused_before_anything_is_asked(told: Told) -> None:
    engine = told.engine(server="openai")
    with pytest.raises(UnsupportedOption, match="repetition_penalty"):
        ask(engine, text(), options=GenerationOptions(repetition_penalty=1.1))
    with pytest.raises((CapabilityError, UnsupportedOption), match="logprobs"):
        ask(engine, text(), options=GenerationOptions(logprobs=True))
    assert told.server.posts() == []


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"torch_dtype": "float32"}, "torch_dtype='float32' cannot be honoured by backend 'openai'; leave it out"),
        ({"device": "cuda:1"}, "device='cuda:1' cannot be honoured by backend 'openai'; leave it out"),
    ],
    ids=["dtype", "device"],
)
def test_what_only_the_server_can_choose_is_refused(tiny_vlm_checkpoint: Path, values: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        build_engine("openai", ModelLoadConfig(str(tiny_vlm_checkpoint), **values), server_options=ServerOptions())


def test_an_engine_that_is_closed_says_so(told: Told) -> None:
    engine = told.engine()
    engine.close()
    with pytest.raises(BackendError, match="backend 'openai' is closed; make a new one"):
        ask(engine, text())


def test_facts_are_plain_and_hold_no_key(told: Told, tiny_tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALHARNESS_API_KEY", "sk-very-secret-1234567890")
    told.say = saying(tiny_tokenizer, "x")
    engine = told.engine()
    [result] = ask(engine, text())
    assert isinstance(result, GenerationResult)
    assert told.server.asked[0].headers["authorization"] == "Bearer sk-very-secret-1234567890"
    facts = json.dumps(engine.describe())
    assert "very-secret" not in facts
    assert {"server": "vllm", "served_model": "served", "num_requests": 2, "num_retries": 0}.items() <= engine.describe().items()
