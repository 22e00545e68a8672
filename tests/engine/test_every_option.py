"""Every field of every options class on every backend: it has an effect, or is refused, or is announced as without effect.

Made from the classes themselves, so that a new field needs its line here. Run: pytest tests/engine/test_every_option.py
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import BackendError, ConfigError, ContractValueError, RequestsFailed, UnsupportedOption
from evalharness.api.options import (
    ChatTemplateOptions,
    DecodeOptions,
    GenerationOptions,
    ModelLoadConfig,
    ServerOptions,
    StopOptions,
    VllmEngineOptions,
    VlmPreprocessOptions,
)
from evalharness.api.requests import TextGenerationRequest
from evalharness.api.structured_output import StructuredOutput
from evalharness.backends.fake import FakeBackend
from evalharness.backends.option_support import HONOURED_BY, PERMISSIONS, SCRIPTED, SHIPPED, WITHOUT_EFFECT, LoadOptions, default_of
from evalharness.engine.build import build_engine
from evalharness.engine.engine import Engine, EngineWarning

ROOT = Path(__file__).parents[2]
GIVEN = LoadOptions(ModelLoadConfig("x"), VlmPreprocessOptions(), VllmEngineOptions(), ServerOptions())
LOADING: dict[str, Any] = {
    "model.model_name_or_path": "y",
    "model.torch_dtype": "bfloat16",
    "model.device": "cpu",
    "model.device_map": "cpu",
    "model.attn_implementation": "eager",
    "model.trust_remote_code": True,
    "model.allow_pickle": True,
    "model.variant": "text",
    "model.adapter_path": "lora",
    "model.download": True,
    "preprocess.max_pixels": 5000,
    "preprocess.min_pixels": 5000,
    "preprocess.do_resize": False,
    "preprocess.padding_side": "right",
    "preprocess.truncation_side": "right",
    "preprocess.pad_token_fallback": False,
    "vllm.tensor_parallel_size": 2,
    "vllm.pipeline_parallel_size": 2,
    "vllm.distributed_executor_backend": "mp",
    "vllm.gpu_memory_utilization": 0.5,
    "vllm.max_model_len": 64,
    "vllm.trust_remote_code": True,
    "vllm.dtype": "bfloat16",
    "vllm.enforce_eager": False,
    "vllm.batch_invariant": True,
    "vllm.extra": (("max_num_seqs", 3),),
    "vllm.tune": True,
    "vllm.drafts": True,
    "server.server": "openai",
    "server.base_url": "http://x",
    "server.served_model": "m",
    "server.concurrency": 2,
    "server.request_timeout_s": 5.0,
    "server.max_attempts": 1,
    "server.adapter_dir": "d",
}
"""Each option of how an engine is made, set to something else than its default."""


def set_to(path: str, value: Any) -> LoadOptions:
    group, name = path.split(".")
    return replace(GIVEN, **{group: replace(getattr(GIVEN, group), **{name: value})})


def test_no_field_of_the_classes_is_forgotten() -> None:
    every = {f"{group.name}.{option.name}" for group in fields(GIVEN) for option in fields(getattr(GIVEN, group.name))}
    assert set(LOADING) == every
    assert {path for path in (*HONOURED_BY, *WITHOUT_EFFECT, *PERMISSIONS) if not path.startswith("options.")} == every
    assert not set(HONOURED_BY) & set(WITHOUT_EFFECT)
    assert all(
        value != default_of(option) for path, value in LOADING.items() for option in fields(GIVEN.vllm) if path.endswith(option.name)
    )


@pytest.mark.parametrize("backend", sorted(SHIPPED))
@pytest.mark.parametrize("path", LOADING)
def test_an_option_reaches_a_backend_or_is_refused_or_announced(path: str, backend: str) -> None:
    given, group, name = set_to(path, LOADING[path]), *path.split(".")
    made = getattr(getattr(given.honoured_by(backend), group), name)
    if backend in HONOURED_BY.get(path, ()):
        assert list(given.check(backend)) == []
        assert made == LOADING[path]
    elif path in WITHOUT_EFFECT or path in PERMISSIONS:
        (notice,) = given.check(backend)
        assert notice.startswith(path)
        assert re.search("changes no answer|is not needed", notice)
    else:
        with pytest.raises(
            UnsupportedOption, match=rf"^{re.escape(path)}=.* cannot be honoured by backend '{backend}'; leave it out, or use"
        ):
            list(given.check(backend))
        assert made != LOADING[path]


def test_other_packages_backends_get_everything() -> None:
    for path, value in LOADING.items():
        assert list(set_to(path, value).check("acme")) == []
        assert set_to(path, value).honoured_by("acme") == set_to(path, value)


def test_what_only_the_fallback_honours_goes_there_and_is_announced() -> None:
    given = set_to("model.attn_implementation", "eager")
    assert list(given.check("vllm", "hf")) == [
        "model.attn_implementation='eager' is honoured by one backend only: 'vllm' has nothing of it"
    ]
    assert given.honoured_by("vllm") == GIVEN
    assert list(set_to("vllm.enforce_eager", True).check("vllm", "hf")) == []
    with pytest.raises(UnsupportedOption, match="cannot be honoured by backend 'vllm' or 'openai'"):
        list(given.check("vllm", "openai"))


def test_an_engine_is_refused_before_anything_is_loaded() -> None:
    for options in ({"vllm_options": VllmEngineOptions(enforce_eager=True)}, {"server_options": ServerOptions(base_url="http://x")}):
        with pytest.raises(UnsupportedOption, match="cannot be honoured by backend 'hf'"):
            build_engine("hf", ModelLoadConfig("no such folder"), **options)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedOption, match=r"model.torch_dtype='bfloat16' cannot be honoured by backend 'openai'"):
        build_engine("openai", ModelLoadConfig("no such folder", torch_dtype="bfloat16"))
    with pytest.warns(EngineWarning, match="padding_side='right' changes no answer: rows are padded by hand"):
        build_engine("fake", ModelLoadConfig("echo"), preprocess=VlmPreprocessOptions(padding_side="right")).close()


CONTRADICTIONS = {
    "device and map": (lambda: ModelLoadConfig("x", device="cpu", device_map="auto"), "both say where the weights go; give one"),
    "meta": (lambda: ModelLoadConfig("x", device="meta"), r"model\.device names 'meta', where there are no weights in memory"),
    "meta in a map": (lambda: ModelLoadConfig("x", device_map={"": "meta"}), r"model\.device_map names 'meta'"),
    "disk": (lambda: ModelLoadConfig("x", device_map="disk"), r"model\.device_map names 'disk'"),
    "pixels": (
        lambda: VlmPreprocessOptions(max_pixels=5, do_resize=False),
        "max_pixels changes nothing where preprocess.do_resize is False",
    ),
}


@pytest.mark.parametrize(("make", "problem"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_options_that_make_each_other_idle_are_refused(make: Any, problem: str) -> None:
    with pytest.raises(ContractValueError, match=problem):
        make()


# Generation options: what changes an answer, or what is recorded of it

SAMPLED = {"temperature": 1.5, "seed": 1}
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # field: options around it; the field, maybe made of the answer without it
    "max_new_tokens": ({}, {"max_new_tokens": 3}),
    "temperature": ({"seed": 1}, {"temperature": 1.5}),
    "top_p": (SAMPLED, {"top_p": 0.01}),
    "repetition_penalty": ({}, {"repetition_penalty": 9.0}),
    "do_sample": (SAMPLED, {"do_sample": False}),
    "no_repeat_ngram_size": ({}, {"no_repeat_ngram_size": 1}),
    "stop": ({}, {"stop": lambda before: StopOptions(stop=(before["text"][2],))}),
    "seed": (SAMPLED, {"seed": 2}),
    "use_cache": ({}, {"use_cache": False}),
    "eos_token_id": ({}, {"eos_token_id": lambda before: before["token_ids"][3]}),
    "pad_token_id": ({}, {"pad_token_id": 3}),
    "logprobs": ({}, {"logprobs": True}),
    "max_prompt_tokens": ({}, {"max_prompt_tokens": 1}),
    "structured": ({}, {"structured": StructuredOutput(choice=("yes", "no"))}),
    "max_thinking_tokens": ({}, {"max_thinking_tokens": 1}),
    "decode": ({}, {"decode": DecodeOptions(strip_whitespace=False)}),
    "logprobs_kind": ({**SAMPLED, "logprobs": True}, {"logprobs_kind": "processed"}),
    "entropies": ({}, {"entropies": True}),
    "extra_generation_kwargs": (SAMPLED, {"extra_generation_kwargs": {"top_k": 1}}),
}


def answers(engine: Engine, options: GenerationOptions, asked: str = " <think>\nhow? well ") -> Any:
    """Return all that is recorded of an answer, or the error that it is."""
    try:
        (made,) = engine.generate_text_batch([TextGenerationRequest([{"role": "user", "content": asked}])], options)
    except (RequestsFailed, BackendError) as error:
        return str(error)
    return made.to_json()


def check_field(engine: Engine, name: str, without_effect: set[str]) -> None:
    """Fail unless the field changes what is recorded of an answer, is refused, or is one of those without effect."""
    around, field = OPTIONS[name]
    before = answers(engine, GenerationOptions(**{"max_new_tokens": 12, **around}))
    options = GenerationOptions(**{"max_new_tokens": 12, **around, name: field[name](before) if callable(field[name]) else field[name]})
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            after = answers(engine, options)
    except ConfigError:
        return  # refused
    assert any(f"{name}=" in str(warning.message) for warning in caught) == (f"options.{name}" in WITHOUT_EFFECT)
    if isinstance(after, dict):
        before, after = ({key: value for key, value in made.items() if key != "seed"} for made in (before, after))
    assert (after == before) == (name in without_effect or f"options.{name}" in WITHOUT_EFFECT), f"{name}: {after}"


def test_no_generation_option_is_forgotten() -> None:
    assert set(OPTIONS) == {option.name for option in fields(GenerationOptions)}
    assert set(SCRIPTED) < set(OPTIONS)


@pytest.fixture(scope="module")
def fake() -> Iterator[Engine]:
    with Engine(FakeBackend.from_answers(lambda prompt: prompt.text.split("user\n")[-1].split("<|im_end|>")[0])) as engine:
        yield engine


@pytest.mark.parametrize("name", OPTIONS)
def test_a_generation_option_changes_scripted_answers_or_is_listed_as_without_effect_there(fake: Engine, name: str) -> None:
    check_field(fake, name, set(SCRIPTED))


@pytest.fixture(scope="module")
def real(torch_in_one_thread: None) -> Iterator[Engine]:
    with build_engine("hf", ModelLoadConfig(ROOT / "fixtures/checkpoints/final", torch_dtype="float32", device="cpu")) as engine:  # type: ignore[arg-type]
        yield engine


IDLE: dict[str, tuple[dict[str, Any], str]] = {
    "top_p": ({"top_p": 0.5}, r"options\.top_p=0\.5 changes nothing: decoding is greedy; set a temperature above 0"),
    "top_k": ({"extra_generation_kwargs": {"top_k": 3}}, r"options\.top_k=3 changes nothing: decoding is greedy"),
    "do_sample": ({**SAMPLED, "do_sample": False, "top_p": 0.5}, r"options\.top_p=0\.5 changes nothing: decoding is greedy"),
    "logprobs_kind": ({"logprobs_kind": "processed"}, "options.logprobs_kind='processed' changes nothing: no log-probabilities are asked"),
}


@pytest.mark.parametrize(("values", "notice"), IDLE.values(), ids=IDLE)
def test_an_option_that_others_make_idle_is_announced(values: dict[str, Any], notice: str) -> None:
    said: list[str] = []
    backend = FakeBackend.from_answers(["x"])
    backend.capabilities = replace(backend.capabilities, supports_processed_logprobs=True)  # type: ignore[misc]
    answers(Engine(backend, on_notice=said.append), GenerationOptions(**values))
    assert [bool(re.match(notice, sentence)) for sentence in said] == [True]


TEMPLATES: dict[str, Any] = {
    "add_generation_prompt": False,
    "tokenize": True,
    "enable_thinking": True,
    "continue_final_message": True,
    "thinking_marks": ("how?", "well"),
    "special_tokens": False,
}
STOPS_AND_DECODING: dict[str, StopOptions | DecodeOptions] = {
    "stop": StopOptions(stop=("w",)),
    "stop_token_ids": StopOptions(stop_token_ids=(FakeBackend.from_answers(["x"]).tokenizer.encode("w")[0],)),
    "include_in_text": StopOptions(stop=("w",), include_in_text=True),
    "skip_special_tokens": DecodeOptions(skip_special_tokens=False),
    "clean_up_tokenization_spaces": DecodeOptions(clean_up_tokenization_spaces=True),
    "strip_whitespace": DecodeOptions(strip_whitespace=False),
}


@pytest.mark.parametrize("name", STOPS_AND_DECODING)
def test_every_stop_and_way_of_decoding_changes_the_text(name: str) -> None:
    assert set(STOPS_AND_DECODING) == {option.name for kind in (StopOptions, DecodeOptions) for option in fields(kind)}
    given = STOPS_AND_DECODING[name]
    field = "stop" if isinstance(given, StopOptions) else "decode"
    around = {"stop": StopOptions(stop=("w",))} if name == "include_in_text" else {}
    engine = Engine(FakeBackend.from_answers([" <|im_start|>don 't how"]))
    before, after = (answers(engine, GenerationOptions(**values)) for values in (around, {field: given}))
    if name == "clean_up_tokenization_spaces":  # of tokenizers that write words apart: tests/contract
        assert after == before
    else:
        assert after["text"] != before["text"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_option_of_the_chat_template_changes_the_prompt_or_its_reading_or_is_refused(name: str) -> None:
    assert set(TEMPLATES) == {option.name for option in fields(ChatTemplateOptions)}
    more = {"add_generation_prompt": False} if name == "continue_final_message" else {}
    said: list[str] = []

    def made(**values: Any) -> Any:
        template = ChatTemplateOptions(**{**more, **values})
        engine = Engine(FakeBackend.from_answers(["how? x"]), chat_template=template, on_notice=said.append)
        return answers(engine, GenerationOptions(), " <think>\nhow? well <|im_end|>")

    before = made()
    if name == "tokenize":
        with pytest.raises(TypeError, match="tokenize"):
            made(tokenize=True)
    elif name == "enable_thinking":
        made(enable_thinking=True)
        assert said == ["thinking was asked for, but the chat template does not know enable_thinking: the prompts are as without it"]
    else:
        assert made(**{name: TEMPLATES[name]}) != before


SAME_BY_DESIGN = {"use_cache", "max_thinking_tokens", "decode"}
"""Computes the same without keys and values kept; closes a thought, and this model has none; cuts blanks, and its answer has none. Tests
of all three are in tests/backends/hf and tests/contract."""


@pytest.mark.engine
@pytest.mark.parametrize("name", OPTIONS)
def test_a_generation_option_changes_a_models_answer(real: Engine, name: str) -> None:
    check_field(real, name, SAME_BY_DESIGN)


def test_the_fake_engine_says_which_options_change_none_of_its_answers(fake: Engine) -> None:
    assert fake.describe()["options_without_effect"] == list(SCRIPTED)
