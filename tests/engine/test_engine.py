"""The engine on the scripted backend: order, failures, refusals, fallback, plugins. Run: pytest tests/engine/test_engine.py

What needs a real model is in tests/contract.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from evalharness.api.errors import (
    BackendError,
    CapabilityError,
    CheckpointError,
    ConfigError,
    ContractTypeError,
    ContractValueError,
    ImageError,
    RequestsFailed,
    UnsupportedOption,
)
from evalharness.api.options import ChatTemplateOptions, GenerationOptions, ModelLoadConfig, StopOptions
from evalharness.api.requests import GenerationFailure, GenerationResult, TextGenerationRequest, VlmGenerationRequest
from evalharness.api.structured_output import StructuredOutput
from evalharness.backends.base import Capabilities, Completion
from evalharness.backends.fake import FakeAnswer, FakeBackend, FakeTokenizer
from evalharness.backends.option_support import SCRIPTED
from evalharness.engine.build import build_engine
from evalharness.engine.engine import Engine, EngineWarning

GREEDY = GenerationOptions(max_new_tokens=50)
PHOTO = Image.new("RGB", (64, 48), "red")


def text(content: Any = "hi") -> TextGenerationRequest:
    return TextGenerationRequest([{"role": "user", "content": content}])


def look(question: str = "what?", image: Any = PHOTO, *, verify: bool = False) -> VlmGenerationRequest:
    return VlmGenerationRequest(
        [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": question}]}], verify=verify
    )


def echo(prompt: Any) -> str:
    return prompt.text.split("user\n")[-1].split("<|im_end|>")[0].replace("<|image_pad|>", "")


class TextOnly(FakeBackend):
    """A backend that cannot take images, nor any option beyond the common ones."""

    name = "textonly"
    capabilities = Capabilities(supports_logprobs=False)


def backend(answers: Any = echo, cls: type[FakeBackend] = FakeBackend) -> FakeBackend:
    return cls.from_answers(answers)


def engine(answers: Any = echo, **options: Any) -> Engine:
    return Engine(backend(answers), **options)


def test_results_come_in_the_order_of_their_requests() -> None:
    class Backwards(FakeBackend):
        def generate(self, prompts: Any, **options: Any) -> Iterator[Any]:
            yield from reversed(list(super().generate(prompts, **options)))

    words = [f"word {i}" for i in range(20)]
    results = Engine(backend(cls=Backwards)).generate_text_batch([text(word) for word in words], GREEDY)
    assert [result.text for result in results] == words


def test_a_stream_gives_each_result_as_soon_as_it_is_finished() -> None:
    asked: list[int] = []

    def answer(prompt: Any) -> str:
        asked.append(prompt.index)
        return "x"

    stream = engine(answer).stream([text() for _ in range(3)], GREEDY)
    assert asked == []
    for position in range(3):
        assert next(stream)[0] == position
        assert asked == list(range(position + 1))


def test_a_result_says_what_was_asked_and_what_came_back() -> None:
    (result,) = engine().generate_text_batch([text("ab")], GenerationOptions(temperature=0.5, seed=4, logprobs=True))
    assert (result.text, result.raw_text) == ("ab", "ab<|im_end|>")
    assert (result.finish_reason, result.stop_reason) == ("stop", None)
    assert result.prompt_text == "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"
    assert (result.num_prompt_tokens, result.num_completion_tokens, result.num_total_tokens) == (
        len("user\nab\nassistant\n") + 3,
        3,
        21 + 3,
    )
    assert result.token_ids == (*FakeTokenizer().encode("ab"), 2)
    assert (result.logprobs, result.logprobs_kind) == ((0.0, 0.0, 0.0), "raw")
    assert (result.seed, result.backend, result.fallback, result.ignored_options) == (4, "fake", None, ())
    assert len(result.prompt_sha256) == 64
    json.dumps(result.to_json(), allow_nan=False)


def test_as_many_options_as_requests_or_one() -> None:
    with pytest.raises(ContractValueError, match="^options is a list of 1, requests one of 2; give one for all or one per request"):
        list(engine().stream([text(), text()], [GREEDY]))


BAD = {
    "empty": (TextGenerationRequest([]), "invalid", "has no messages"),
    "content of the wrong type": (text(5), "error", "preparing the prompt failed: TypeError: 'int' object is not iterable"),
    "placeholder": (text("<|image_pad|>"), "invalid", "1 image placeholder"),
    "half a surrogate": (text("\udc00"), "invalid", "half of a surrogate pair"),
    "image missing": (look(image="absent.jpg"), "invalid", "absent.jpg"),
    "image empty": (look(image=b""), "invalid", "0 bytes"),
    "no image": (VlmGenerationRequest([{"role": "user", "content": "hi"}]), "invalid", "needs at least one image"),
}


@pytest.mark.parametrize("bad, kind, problem", BAD.values(), ids=BAD.keys())
def test_a_bad_request_fails_alone(bad: Any, kind: str, problem: str) -> None:
    outcomes = dict(engine().stream([text("a"), bad, look("b")], GREEDY))
    assert [outcomes[0].text, outcomes[2].text] == ["a", "b"]
    assert outcomes[1].kind == kind
    assert problem in outcomes[1].problem


def test_only_bad_requests_give_only_failures() -> None:
    outcomes = dict(engine().stream([TextGenerationRequest([])] * 3, GREEDY))
    assert [outcomes[i].kind for i in range(3)] == ["invalid"] * 3


@pytest.mark.parametrize(
    ("bad", "match", "cause"),
    [
        (look(image="absent.jpg"), r"^1 of 2 requests failed: .*absent\.jpg", ImageError),
        (text(5), "'int' object is not iterable", TypeError),
    ],
    ids=["image", "template"],
)
def test_a_batch_call_with_failures_raises_with_all_outcomes(bad: Any, match: str, cause: type[Exception]) -> None:
    with pytest.raises(RequestsFailed, match=match) as raised:
        engine().generate_vlm_batch([look("a"), bad], GREEDY)
    assert [type(outcome) for outcome in raised.value.outcomes] == [GenerationResult, GenerationFailure]
    assert isinstance(raised.value.__cause__, cause)


def test_a_request_that_the_backend_leaves_out_is_an_error_not_a_missing_row() -> None:
    class Forgetful(FakeBackend):
        def generate(self, prompts: Any, **options: Any) -> Iterator[Any]:
            yield from (output for output in super().generate(prompts, **options) if getattr(output, "index", None) != 1)

    outcomes = dict(Engine(backend(cls=Forgetful)).stream([text()] * 3, GREEDY))
    assert outcomes[1] == GenerationFailure("error", "backend 'fake' gave no output for this request")
    assert len(outcomes) == 3


def test_tokens_that_cannot_be_decoded_fail_alone() -> None:
    class Broken(FakeBackend):
        def generate(self, prompts: Any, **options: Any) -> Iterator[Any]:
            for prompt in prompts:
                yield Completion(prompt.index, (2**40,) if prompt.index == 0 else FakeTokenizer().encode("b"), 1, "length")  # type: ignore[arg-type]

    outcomes = dict(Engine(backend(cls=Broken)).stream([text(), text()], GREEDY))
    assert (outcomes[0].kind, outcomes[1].text) == ("error", "b")
    # chr() raises OverflowError, from Python 3.13 on ValueError
    assert re.match("reading the completion failed: (OverflowError|ValueError)", outcomes[0].problem)


def refused(kind: type[Exception], match: str, run: Callable[[], Any], fake: FakeBackend) -> None:
    with pytest.raises(kind, match=match):
        run()
    assert fake.num_calls == 0


def test_a_wrong_template_option_or_stop_is_refused_before_anything_runs() -> None:
    fake = backend()
    asked = Engine(fake, chat_template=ChatTemplateOptions(tokenize=True))
    refused(TypeError, r"chat_template\.tokenize must be False", lambda: asked.generate_text_batch([text()], GREEDY), fake)
    bad = GenerationOptions(stop=StopOptions(("x<|im_end|>",)))
    refused(ConfigError, "can never be found", lambda: list(Engine(fake).stream([text(), text()], [GREEDY, bad])), fake)


@pytest.mark.parametrize("request_", [text(), look()], ids=["text", "image"])
def test_a_tokenizer_without_template_method_is_refused_before_anything_runs(request_: Any) -> None:
    fake: Any = backend()
    fake.tokenizer = fake.processor = SimpleNamespace(encode=FakeTokenizer().encode)
    refused(AttributeError, "has no apply_chat_template", lambda: list(Engine(fake).stream([request_], GREEDY)), fake)


UNSUPPORTED = {
    "ngrams": (GenerationOptions(no_repeat_ngram_size=3), "no_repeat_ngram_size=3"),
    "cache": (GenerationOptions(use_cache=False), "use_cache=False"),
    "logprobs": (GenerationOptions(logprobs=True), "logprobs=True"),
    "structure": (GenerationOptions(structured=StructuredOutput(choice=("a", "b"))), "structured.choice"),
    "thinking budget": (GenerationOptions(max_thinking_tokens=9), "max_thinking_tokens=9"),
    "extra": (GenerationOptions(extra_generation_kwargs={"num_beams": 4}), "num_beams=4"),
}


@pytest.mark.parametrize("options, listed", UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_an_option_that_cannot_be_honoured_is_refused_before_anything_runs_or_listed(options: GenerationOptions, listed: str) -> None:
    fake = backend(cls=TextOnly)
    match = f"backend 'textonly' cannot honour: {listed}. Leave them out, or allow it with --unsupported-options warn"
    refused(UnsupportedOption, match, lambda: list(Engine(fake).stream([text(), text()], [GREEDY, options])), fake)
    with pytest.warns(EngineWarning, match=f"^backend 'textonly' ignores: {listed}$"):
        (result,) = Engine(fake, unsupported_options="warn").generate_text_batch([text()], options)
    assert result.ignored_options == (listed,)


def test_an_optional_form_is_listed_where_it_cannot_be_held_and_another_option_is_refused_as_ever() -> None:
    form = StructuredOutput(choice=("a", "b"), optional=True)
    for asked in (Engine(backend(cls=TextOnly)), engine(chat_template=ChatTemplateOptions(enable_thinking=True), on_notice=print)):
        (result,) = asked.generate_text_batch([text("free")], GenerationOptions(structured=form))
        assert (result.text, result.ignored_options) == ("free", ("structured.choice",))
    (scripted,) = engine().generate_text_batch([text("free")], GenerationOptions(structured=form))
    assert (scripted.text, scripted.ignored_options) == ("free", ())
    wrong = GenerationOptions(structured=form, logprobs=True)
    fake = backend(cls=TextOnly)
    refused(UnsupportedOption, "cannot honour: logprobs=True. Leave", lambda: list(Engine(fake).stream([text()], wrong)), fake)


def test_options_left_out_with_permission_are_warned_about_once_listed_and_not_passed_on() -> None:
    plans: list[Any] = []

    def answer(prompt: Any) -> str:
        plans.append(prompt.plan)
        return "x"

    options = GenerationOptions(no_repeat_ngram_size=3, use_cache=False, logprobs=True, extra_generation_kwargs={"num_beams": 4})
    asked = Engine(backend(answer, TextOnly), unsupported_options="warn")
    listed = ("no_repeat_ngram_size=3", "use_cache=False", "logprobs=True", "num_beams=4")
    with pytest.warns(EngineWarning, match=f"^backend 'textonly' ignores: {', '.join(listed)}$") as caught:
        results = [asked.generate_text_batch([text()], options)[0] for _ in range(3)]
    assert len(caught) == 1
    assert {(result.ignored_options, result.logprobs) for result in results} == {(listed, None)}
    assert {(plan.no_repeat_ngram_size, plan.use_cache, plan.logprobs, plan.extra) for plan in plans} == {(0, True, False, ())}
    (result,) = asked.generate_text_batch([text()], GenerationOptions(no_repeat_ngram_size=0))
    assert result.ignored_options == (), "0 asks for nothing"
    with pytest.raises(UnsupportedOption, match=r"num_beams=4\..*Extra options it knows: min_new_tokens, min_p, top_k"):
        engine().generate_text_batch([text()], GenerationOptions(extra_generation_kwargs={"num_beams": 4, "top_k": 1}))


def test_nothing_runs_either_where_texts_stand_beside_the_images() -> None:
    fake = backend(cls=TextOnly)
    refused(RuntimeError, "--fallback-backend hf", lambda: list(Engine(fake).stream([text(), look()], GREEDY)), fake)


def test_images_go_to_the_fallback_with_one_warning_and_say_so() -> None:
    primary, other = backend(cls=TextOnly), backend()
    asked = Engine(primary, fallback_backend=other)
    with pytest.warns(EngineWarning, match="cannot run image requests with this checkpoint: they run on 'fake'") as caught:
        results = [*asked.generate_vlm_batch([look("a"), look("b")], GREEDY), *asked.generate_vlm_batch([look("c")], GREEDY)]
    assert len(caught) == 1
    assert [result.text for result in results] == ["a", "b", "c"]
    assert {result.backend for result in results} == {"fake"}
    assert all(result.fallback and result.fallback.startswith("fake: backend 'textonly' cannot run image") for result in results)
    assert primary.num_calls == 0


@pytest.mark.filterwarnings("ignore::evalharness.engine.engine.EngineWarning")
def test_texts_never_go_to_the_fallback() -> None:
    primary, other = backend(cls=TextOnly), backend()
    outcomes = dict(Engine(primary, fallback_backend=other).stream([look("a"), text("b")], GREEDY))
    assert (outcomes[1].backend, outcomes[1].fallback, outcomes[0].backend) == ("textonly", None, "fake")
    assert list(outcomes) == [1, 0]


def test_a_fallback_is_made_when_it_is_needed_and_once() -> None:
    made: list[FakeBackend] = []

    def make() -> FakeBackend:
        made.append(backend())
        return made[-1]

    asked = Engine(backend(cls=TextOnly), fallback_backend=make)
    asked.generate_text_batch([text()], GREEDY)
    assert made == []
    with pytest.warns(EngineWarning, match="they run on"):
        asked.generate_vlm_batch([look()], GREEDY)
    asked.generate_vlm_batch([look()], GREEDY)
    assert len(made) == 1


def test_a_fallback_is_not_made_for_a_backend_that_takes_images_nor_to_be_closed() -> None:
    with engine(fallback_backend=lambda: pytest.fail("the fallback was made")) as asked:
        assert asked.generate_vlm_batch([look()], GREEDY)[0].fallback is None


def test_a_fallback_without_vision_is_refused_too() -> None:
    primary = backend(cls=TextOnly)
    asked = Engine(primary, fallback_backend=backend(cls=TextOnly))
    refused(CapabilityError, "and neither can the fallback 'textonly'", lambda: list(asked.stream([text(), look()], GREEDY)), primary)


@pytest.mark.filterwarnings("ignore::evalharness.engine.engine.EngineWarning")
def test_plugins_and_options_are_checked_against_the_fallback_before_the_texts_run() -> None:
    primary = backend(cls=TextOnly)
    primary.capabilities = Capabilities(extra_options=frozenset({"best_of"}))
    asked = Engine(primary, fallback_backend=backend())
    plugins = [SimpleNamespace(name="own", backends=("textonly",), postprocess_text=str)]
    run = lambda: list(asked.stream([text(), look()], GREEDY, plugins=plugins))  # noqa: E731
    refused(CapabilityError, "plugin 'own' does not work on backend 'fake'", run, primary)
    options = GenerationOptions(extra_generation_kwargs={"best_of": 2})
    refused(UnsupportedOption, "backend 'fake' cannot honour: best_of=2", lambda: list(asked.stream([text(), look()], options)), primary)


def test_an_error_while_generating_reaches_the_caller_and_the_fallback_is_not_called() -> None:
    class Dying(FakeBackend):
        def generate(self, prompts: Any, **options: Any) -> Iterator[Any]:
            yield from list(super().generate(prompts, **options))[:1]
            raise BackendError("the card fell off the bus")

    other = backend()
    stream = Engine(backend(cls=Dying), fallback_backend=other).stream([look("a"), look("b")], GREEDY)
    assert next(stream)[1].text == "a"  # type: ignore[union-attr]
    with pytest.raises(BackendError, match="the card fell off the bus"):
        next(stream)
    assert other.num_calls == 0


@pytest.mark.parametrize(("num_answered", "expected"), [(0, [0, 2]), (1, [0, 2, 1])], ids=["at once", "after an answer"])
def test_what_was_refused_is_said_before_a_broken_backend_is(num_answered: int, expected: list[int]) -> None:
    class Breaks(FakeBackend):
        def generate(self, prompts: Any, **options: Any) -> Iterator[Any]:
            pulled = list(prompts)  # many at once, as the real ones do
            yield from super().generate(pulled[:num_answered], **options)
            raise BackendError("the machine is gone")

    said = []
    with pytest.raises(BackendError, match="the machine is gone"):
        for position, _ in Engine(backend(cls=Breaks)).stream([text(5), text("a"), text(5), text("b")], GREEDY):
            said.append(position)
    assert said == expected


def test_a_post_processor_has_the_last_word_on_text_and_leaves_raw_text() -> None:
    (result,) = engine(lambda prompt: " ab ").generate_text_batch(
        [text()], GREEDY, plugins=[SimpleNamespace(postprocess_text=" {}\n".format)]
    )
    assert (result.text, result.raw_text) == (" ab\n", "ab <|im_end|>")


def test_a_post_processor_that_fails_fails_its_request_only() -> None:
    plugins = [SimpleNamespace(name="strict", postprocess_text=lambda words: {"a": "A"}[words])]
    outcomes = dict(engine().stream([text("a"), text("b")], GREEDY, plugins=plugins))
    assert outcomes[0].text == "A"
    assert outcomes[1].kind == "error"
    assert outcomes[1].problem == "reading the completion failed: KeyError: 'b'"


def test_plugins_given_as_an_iterator_act_on_every_group() -> None:
    asked = Engine(backend(cls=TextOnly), fallback_backend=backend())
    with pytest.warns(EngineWarning, match="they run on"):
        outcomes = dict(asked.stream([text("a"), look("b")], GREEDY, plugins=iter([SimpleNamespace(postprocess_text=str.upper)])))  # type: ignore[arg-type]
    assert [outcomes[i].text for i in range(2)] == ["A", "B"]


def test_the_facts_of_an_image_are_recorded_and_more_of_them_to_verify_it() -> None:
    blue = Image.new("RGB", (64, 48), "blue")
    first, second, again, verified = engine().generate_vlm_batch([look(), look(image=blue), look(), look(verify=True)], GREEDY)
    assert [sorted(fact) for fact in first.images] == [["height", "sha256", "width"]]
    assert (first.images[0]["width"], first.images[0]["height"]) == (64, 48)
    assert first.prompt_sha256 == again.prompt_sha256 != second.prompt_sha256
    assert first.prompt_text == second.prompt_text
    (fact,) = verified.images
    assert set(fact) == {"width", "height", "sha256", "grid", "expected_prompt_tokens", "actual_prompt_tokens"}
    assert fact["actual_prompt_tokens"] == verified.num_prompt_tokens


class Closing(FakeBackend):
    """Notes when its iterator is closed."""

    is_closed = False

    def generate(self, prompts: Any, **options: Any) -> Iterator[Any]:
        try:
            yield from super().generate(prompts, **options)
        finally:
            self.is_closed = True


def test_closing_a_stream_closes_the_backends_iterator_even_where_somebody_still_holds_it() -> None:
    held: list[Any] = []

    class Held(Closing):
        def generate(self, prompts: Any, **options: Any) -> Iterator[Any]:
            held.append(super().generate(prompts, **options))
            return held[-1]

    fake = backend(cls=Held)
    asked = Engine(fake)
    stream = asked.stream([text()] * 5, GREEDY)
    next(stream)
    stream.close()
    assert fake.is_closed  # type: ignore[attr-defined]
    assert asked.generate_text_batch([text("a")], GREEDY)[0].text == "a"


def test_should_stop_ends_a_stream_without_failures_for_the_rest() -> None:
    stop = threading.Event()
    seen = []
    for position, _ in engine().stream([text()] * 9, GREEDY, should_stop=stop.is_set):
        seen.append(position)
        if len(seen) == 3:
            stop.set()
    assert seen == [0, 1, 2]


def test_calls_from_several_threads_wait_for_each_other() -> None:
    running, most = 0, 0

    def answer(prompt: Any) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.005)
        running -= 1
        return echo(prompt)

    asked = engine(answer)
    found: dict[int, Sequence[GenerationResult]] = {}
    threads = [
        threading.Thread(target=lambda i=i: found.update({i: asked.generate_text_batch([text(f"{i} {j}") for j in range(5)], GREEDY)}))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert most == 1
    assert {i: [result.text for result in found[i]] for i in found} == {i: [f"{i} {j}" for j in range(5)] for i in range(4)}


@pytest.mark.parametrize("is_stuck", [False, True], ids=["closes", "fails to close"])
def test_closing_closes_both_backends_and_may_be_done_twice(is_stuck: bool) -> None:
    closed: list[str] = []

    def noting(cls: type[FakeBackend]) -> FakeBackend:
        made: Any = backend(cls=cls)
        made.close = lambda: closed.append(made.name)
        return made

    primary: Any = noting(TextOnly)
    if is_stuck:
        primary.close = lambda: (_ for _ in ()).throw(BackendError("does not end"))
    asked = Engine(primary, fallback_backend=noting(FakeBackend))
    for _ in range(2):
        with pytest.raises(BackendError, match="does not end") if is_stuck else contextlib.nullcontext():
            asked.close()
    assert closed == (["fake"] if is_stuck else ["textonly", "fake"]) * 2


def test_notices_go_to_who_asks_for_them_instead_of_being_warned_of() -> None:
    notices: list[str] = []
    asked = Engine(backend(cls=TextOnly), fallback_backend=backend(), unsupported_options="warn", on_notice=notices.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            asked.generate_text_batch([text()], GenerationOptions(logprobs=True))
            asked.generate_vlm_batch([look()], GREEDY)
    assert [notice.split(":")[0] for notice in notices] == [
        "backend 'textonly' ignores",
        "backend 'textonly' cannot run image requests with this checkpoint",
    ]


def test_its_description_is_plain_json_with_template_and_context() -> None:
    facts = json.loads(json.dumps(Engine(FakeBackend.from_answers(["x"], max_model_len=99)).describe()))
    assert facts == {
        "backend": "fake",
        "options_without_effect": list(SCRIPTED),
        "template_sha256": facts["template_sha256"],
        "enable_thinking": False,
        "template_knows_enable_thinking": False,
        "max_model_len": 99,
        "eos_token_ids": [2, 0],
    }
    assert len(facts["template_sha256"]) == 64


def test_a_picture_is_let_go_with_its_request() -> None:
    asked = engine()
    picture = Image.new("RGB", (32, 32))
    held = weakref.ref(picture)
    results = asked.generate_vlm_batch([look(image=picture)], GREEDY)
    del picture
    gc.collect()
    assert held() is None
    assert len(results) == 1


WRONG: dict[str, tuple[str, str, dict[str, str], str]] = {
    "backend": ("vlm", "echo", {}, r"'vlm' is unknown.*did you mean 'vllm'.*Known: fake, hf, max, openai, vllm"),
    "fallback": ("fake", "absent", {"fallback_backend": "hff"}, r"'hff' is unknown.*did you mean 'hf'"),
    "treatment": ("fake", "echo", {"unsupported_options": "ignore"}, "unsupported_options must be 'refuse' or 'warn', got 'ignore'"),
    "checkpoint": ("fake", "absent", {}, "give 'echo' or a JSONL file"),
}


@pytest.mark.parametrize(("name", "path", "more", "problem"), WRONG.values(), ids=WRONG)
def test_an_engine_is_built_by_name_or_what_is_wrong_is_named(name: str, path: str, more: Any, problem: str) -> None:
    with pytest.raises((ConfigError, CheckpointError), match=problem):
        build_engine(name, ModelLoadConfig(path), **more)
    with build_engine("fake", ModelLoadConfig("echo")) as asked:
        assert asked.generate_text_batch([text("ab")], GREEDY)[0].text == "ab"


def test_no_warning_comes_without_a_reason() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine([FakeAnswer("a")]).generate_vlm_batch([look()], GREEDY)


WRONG_ARGUMENTS: dict[str, tuple[Any, Any, str]] = {
    "texts": (["x"], GREEDY, r"^requests\[0\] must be a TextGenerationRequest, .* got 'x' \(str\); a text is CompletionRequest"),
    "chats": ([[{"role": "user", "content": "x"}]], GREEDY, r"^requests\[0\] must be a .* got \[\{'content'|^requests\[0\] must be"),
    "one request": (text(), GREEDY, r"^requests must be a list, got one TextGenerationRequest; did you mean \[request\]\?"),
    "one text": ("x", GREEDY, "^requests must be a sequence of"),
    "nothing": (None, GREEDY, "^requests must be a sequence of"),
    "options as data": ([text()], {"max_new_tokens": 5}, r"^options must be .* \(dict\); GenerationOptions.from_mapping"),
    "no options": ([text()], None, "^options must be GenerationOptions, or a list of them, got None"),
}


@pytest.mark.parametrize("call", ["generate_text_batch", "generate_vlm_batch", "generate_token_batch", "generate_samples"])
@pytest.mark.parametrize(("requests", "options", "problem"), WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS)
def test_arguments_of_a_wrong_kind_are_refused_before_anything_runs(requests: Any, options: Any, problem: str, call: str) -> None:
    fake = backend()
    more = (1,) if call == "generate_samples" else ()
    if more and "options" in problem:
        problem = "^options must be a GenerationOptions"
    with pytest.raises(ContractTypeError, match=problem):
        getattr(Engine(fake), call)(requests, options, *more)
    assert fake.num_calls == 0


def test_options_must_be_given() -> None:
    fake = backend()
    refused(TypeError, "missing 1 required positional argument: 'options'", lambda: Engine(fake).generate_text_batch([text()]), fake)  # type: ignore[call-arg]


def test_an_engine_is_not_built_of_arguments_of_a_wrong_kind() -> None:
    with pytest.raises(ContractTypeError, match=r"^config must be a ModelLoadConfig, got str; did you mean ModelLoadConfig\('echo'\)\?"):
        build_engine("fake", "echo")  # type: ignore[arg-type]
    with pytest.raises(ContractTypeError, match="^preprocess must be a VlmPreprocessOptions, got {'max_pixels': 5}"):
        build_engine("fake", ModelLoadConfig("echo"), preprocess={"max_pixels": 5})  # type: ignore[arg-type]
    with pytest.raises(ContractTypeError, match="^config must be .* a model in memory is taken by build_engine_around"):
        build_engine("hf", SimpleNamespace(forward=id))  # type: ignore[arg-type]
