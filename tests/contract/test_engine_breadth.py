"""Answers that are known beforehand, on hf and vllm. Run: pytest tests/contract/test_engine_breadth.py

The model's weights say which word follows which (`tests/backends/word_model.py`). vLLM runs them as 8-bit integers, transformers
as they are: so a quantised checkpoint is really run, and must answer the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evalharness import ChatTemplateOptions, GenerationOptions, GenerationResult, ModelLoadConfig, StopOptions, StructuredOutput
from evalharness.api.errors import ConfigError, UnsupportedOption
from evalharness.api.options import VllmEngineOptions, VlmPreprocessOptions
from evalharness.backends.base import Backend
from evalharness.engine.backend_contract import FREE, TEXTS, ask, generate, look, noise
from evalharness.engine.build import build_backend
from evalharness.engine.engine import Engine
from tests.backends.word_model import BEGINS_AGAIN, ONLY_THREE, SAYS_SENTENCE, THINKS, make_word_checkpoint, token_id
from tests.contract.conftest import HF, BackendOf

BACKENDS = [HF, pytest.param("vllm", id="vllm", marks=pytest.mark.vllm)]


@pytest.fixture(scope="module")
def word_backend_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Backend]]:
    """Returns the backend of that name whose model says what is written into its weights."""
    started: dict[str, Backend] = {}

    def start(name: str) -> Backend:
        if name not in started:
            path = make_word_checkpoint(tmp_path_factory.mktemp("words") / "words", int8=name == "vllm")
            options = VllmEngineOptions(max_model_len=256, distributed_executor_backend="uni") if name == "vllm" else VllmEngineOptions()
            started[name] = build_backend(name, ModelLoadConfig(str(path), torch_dtype="float32"), VlmPreprocessOptions(), options)
        return started[name]

    yield start
    for backend in started.values():
        backend.close()


@pytest.fixture(scope="module", params=BACKENDS)
def word_backend(request: pytest.FixtureRequest, word_backend_of: Callable[[str], Backend]) -> Backend:
    """Each of them."""
    return word_backend_of(request.param)


def say(backend: Backend, last: str, thinks: bool = False, **options: Any) -> GenerationResult:
    """Return the answer to a prompt that ends with this character."""
    template = ChatTemplateOptions(enable_thinking=thinks)
    engine = Engine(backend, chat_template=template, on_notice=lambda notice: None)
    (result,) = generate(engine, [ask(f"say {last}")], GenerationOptions(**{"max_new_tokens": 32, **options}))
    return result


def test_the_same_token_for_ever_ends_at_the_cap_or_at_its_own_end(word_backend: Backend) -> None:
    at_cap = say(word_backend, ONLY_THREE, max_new_tokens=2, eos_token_id=7)
    assert (at_cap.token_ids, at_cap.finish_reason) == ((3, 3), "length")
    at_end = say(word_backend, ONLY_THREE, max_new_tokens=2, eos_token_id=3)
    assert (at_end.token_ids, at_end.finish_reason) == ((3,), "stop")


@pytest.mark.parametrize(
    ("stop", "included", "text", "num_ids"),
    [
        ("row", False, "The quick b", 3),
        ("row", True, "The quick brow", 3),
        ("ck br", False, "The qui", 3),
        (" fox", True, "The quick brown fox", 4),
    ],
    ids=["inside a token", "included", "across tokens", "a token"],
)
def test_a_stop_string_cuts_the_text_and_keeps_the_ids(word_backend: Backend, stop: str, included: bool, text: str, num_ids: int) -> None:
    result = say(word_backend, SAYS_SENTENCE, stop=StopOptions((stop,), include_in_text=included))
    assert (result.text, len(result.token_ids)) == (text, num_ids)
    assert (result.finish_reason, result.stop_reason) == ("stop", stop)


@pytest.mark.parametrize("temperature", [0.01, 2.0])
def test_the_edges_of_the_range_run(word_backend: Backend, temperature: float) -> None:
    assert len(say(word_backend, SAYS_SENTENCE, temperature=temperature, seed=1, max_new_tokens=3).token_ids) <= 3


def test_the_end_token_or_a_stop_id_is_kept_and_the_cap_is_length(word_backend: Backend) -> None:
    brown = token_id(" brown")
    for options, text, last, reason in (
        ({}, "The quick brown fox jumps", 0, ("stop", None)),
        ({"stop": StopOptions((), (brown,))}, "The quick", brown, ("stop", brown)),
        ({"max_new_tokens": 2}, "The quick", token_id(" quick"), ("length", None)),
    ):
        result = say(word_backend, SAYS_SENTENCE, **options)
        assert (result.text, result.token_ids[-1], (result.finish_reason, result.stop_reason)) == (text, last, reason)


TEMPLATE = (
    "{%- for message in messages -%}{{ message.content }}{%- endfor -%}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}"
)


def test_thinking_off_ends_the_prompt_with_an_empty_thought(word_backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [say(word_backend, SAYS_SENTENCE, thinks=thinks, max_new_tokens=1).prompt_text for thinks in (False, True)]
    assert plain == ["say $", "say $"], "a template without it is unchanged"
    monkeypatch.setattr(word_backend.tokenizer, "chat_template", TEMPLATE)
    off, on = (say(word_backend, SAYS_SENTENCE, thinks=thinks, max_new_tokens=1) for thinks in (False, True))
    assert (off.prompt_text, on.prompt_text) == ("say $<think>\n\n</think>\n\n", "say $")
    assert (off.num_prompt_tokens or 0) - (on.num_prompt_tokens or 0) == 6
    assert Engine(word_backend).describe()["template_knows_enable_thinking"] is True


@pytest.mark.parametrize(("budget", "thought"), [(0, ""), (1, "hmm"), (3, "hmm well hmm")])
def test_a_thought_that_never_ends_is_ended_at_its_budget(word_backend: Backend, budget: int, thought: str) -> None:
    result = say(word_backend, THINKS, thinks=True, max_thinking_tokens=budget, max_new_tokens=20)
    assert result.thinking is not None
    assert (result.thinking.text, result.thinking.is_closed, result.thinking.num_tokens) == (thought, True, budget + 2)
    assert (result.answer, result.text) == ("yes", f"<think>{' ' if thought else ''}{thought}</think> yes")
    assert (result.finish_reason, result.stop_reason) == ("stop", None)


def test_without_a_budget_it_goes_on_to_the_cap_and_is_no_answer(word_backend: Backend) -> None:
    result = say(word_backend, THINKS, thinks=True, max_new_tokens=6)
    assert result.thinking is not None
    assert (result.thinking.is_closed, result.answer, result.finish_reason) == (False, "", "length")


def test_what_is_said_before_a_thought_is_no_part_of_its_budget(word_backend: Backend) -> None:
    result = say(word_backend, BEGINS_AGAIN, thinks=True, max_thinking_tokens=1, max_new_tokens=6)
    assert result.raw_text == "no<think> hmm</think> yes<end>"


@pytest.mark.vllm
def test_a_vllm_engine_knows_one_pair_of_marks(vllm_vlm_backend: Any) -> None:
    template = ChatTemplateOptions(thinking_marks=("<tool_call>", "</tool_call>"))
    with pytest.raises(
        UnsupportedOption, match="was started with other marks of thoughts; give them with --engine-option reasoning_config="
    ):
        generate(Engine(vllm_vlm_backend, chat_template=template), [ask("hi")], GenerationOptions(max_thinking_tokens=3))


STRUCTURES = {
    "choice": StructuredOutput(choice=("yes", "no", "maybe so", '{"a": "\\n"}')),
    "regex": StructuredOutput(regex=r"[a-c]{3}-\d{2,4}"),
    "json_schema": StructuredOutput(
        json_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, optional=True
    ),
    "grammar": StructuredOutput(grammar='root ::= "a" b+\nb ::= [x-z]'),
}
ASKED = [*[ask(text) for text in TEXTS[:6]], look(noise(64, 48)), look(noise(300, 200, 1))]


@pytest.mark.vllm
@pytest.mark.parametrize("structured", STRUCTURES.values(), ids=STRUCTURES)
def test_structured_answers_to_texts_and_pictures_are_equal_on_hf_and_vllm(
    hf_engine: Engine, vllm_engine: Engine, structured: StructuredOutput
) -> None:
    options = GenerationOptions(max_new_tokens=24, structured=structured)
    first, second = (generate(engine, ASKED, options) for engine in (hf_engine, vllm_engine))
    assert [result.token_ids for result in first] == [result.token_ids for result in second]
    assert [result.text for result in first] == [result.text for result in second]
    assert {result.ignored_options for result in (*first, *second)} == {()}
    if structured.kind == "choice":
        assert {result.text for result in first} <= set(structured.choice or ())
        assert {result.finish_reason for result in first} == {"stop"}


BAD = {
    "look-ahead": (StructuredOutput(regex="(?=a)b"), r"structured\.regex cannot be made a grammar: .*[Ll]ook"),
    "rule": (StructuredOutput(grammar="root ::= other"), r"structured\.grammar cannot be made a grammar: .*other"),
}


@pytest.mark.parametrize(("structured", "problem"), BAD.values(), ids=BAD)
def test_what_no_grammar_can_be_made_of_is_refused_before_anything_runs(
    real_engine: Engine, structured: StructuredOutput, problem: str
) -> None:
    if structured.kind not in real_engine.backend.capabilities.structures:
        pytest.skip("this backend holds answers to no structure")
    with pytest.raises(ConfigError, match=f"(?s){problem}"):
        real_engine.check_options([GenerationOptions(structured=structured)])


@pytest.mark.parametrize("options", [{"temperature": 1.5, "seed": 3}, {"repetition_penalty": 1.3}, {"logprobs": True}], ids=str)
def test_structure_goes_together_with_other_options(real_engine: Engine, options: dict[str, Any]) -> None:
    asked = GenerationOptions(max_new_tokens=24, structured=STRUCTURES["regex"], **options)
    if "logprobs" in options and real_engine.name == "vllm":  # which takes them after the grammar's mask
        with pytest.raises(UnsupportedOption, match="after the mask of options.structured"):
            generate(real_engine, ASKED, asked)
        return
    for result in generate(real_engine, ASKED, asked):
        assert result.finish_reason == "stop"
        assert len(result.text) in (6, 7, 8)
        assert result.logprobs is None or len(result.logprobs) == len(result.token_ids)


def test_structured_and_free_requests_share_a_call(real_engine: Engine, backend_of: BackendOf) -> None:
    if not real_engine.backend.capabilities.structures:
        pytest.skip("this backend holds answers to no structure")
    held = GenerationOptions(max_new_tokens=24, structured=STRUCTURES["choice"])
    alone = generate(real_engine, [ask(TEXTS[0])], FREE)
    first, second = generate(real_engine, [ask(TEXTS[0]), ask(TEXTS[0])], [FREE, held])
    assert first == alone[0]
    assert second.text in (STRUCTURES["choice"].choice or ())
