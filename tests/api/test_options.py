"""How a generation is decoded: what is refused with its path, plain data and back. Run: pytest tests/api/test_options.py"""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.api.errors import ContractTypeError, ContractValueError
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
from evalharness.api.requests import TextGenerationRequest, TokenGenerationRequest
from evalharness.api.structured_output import StructuredOutput


@pytest.mark.parametrize(
    "values, path",
    [
        ({"stop": ("a", 5)}, r"stop\.stop\[1\] must be a str"),
        ({"stop": "END"}, r"stop\.stop must be a sequence of strings, got 'END' \(str\)"),
        ({"stop": b"a"}, r"stop\.stop must be a sequence"),
        ({"stop": {"a"}}, r"stop\.stop must be a sequence"),
        ({"stop": None}, r"stop\.stop must be a sequence"),
        ({"stop_token_ids": (True,)}, r"stop\.stop_token_ids\[0\] must be an int"),
        ({"stop_token_ids": (1, 2.0)}, r"stop\.stop_token_ids\[1\] must be an int"),
        ({"stop_token_ids": 7}, r"stop\.stop_token_ids must be a sequence"),
        ({"stop_token_ids": "7"}, r"stop\.stop_token_ids must be a sequence"),
    ],
    ids=["item", "bare", "bytes", "set", "none", "bool id", "float id", "bare id", "id as text"],
)
def test_stops_of_the_wrong_type_are_refused(values: dict[str, Any], path: str) -> None:
    with pytest.raises(ContractTypeError, match=f"^{path}"):
        StopOptions(**values)


def test_empty_strings_and_negative_ids_are_refused_and_lists_kept_as_tuples() -> None:
    with pytest.raises(ContractValueError, match=r"^stop\.stop\[1\] is empty"):
        StopOptions(stop=("a", ""))
    with pytest.raises(ValueError, match=r"^stop\.stop_token_ids\[1\] must be at least 0, got -1"):
        StopOptions(stop_token_ids=(3, -1))
    stops = StopOptions(stop=["a"], stop_token_ids=[1])  # type: ignore[arg-type]
    assert stops == StopOptions(("a",), (1,))
    assert hash(stops) == hash(StopOptions(("a",), (1,)))


FROM_MAPPING = {
    "None": (None, StopOptions()),
    "empty": ({}, StopOptions()),
    "nulls": ({"stop": None, "stop_token_ids": None}, StopOptions()),
    "empty strings dropped": ({"stop": ["", "a", ""]}, StopOptions(("a",))),
    "lists": ({"stop": ["a", "b"], "stop_token_ids": [0, 7]}, StopOptions(("a", "b"), (0, 7))),
}


@pytest.mark.parametrize("mapping, expected", FROM_MAPPING.values(), ids=FROM_MAPPING.keys())
def test_stops_come_from_plain_data(mapping: Any, expected: StopOptions) -> None:
    assert StopOptions.from_mapping(mapping) == expected


@pytest.mark.parametrize("given", ["", "END", 0, 5, False], ids=repr)
def test_stops_from_data_of_another_kind_are_refused(given: Any) -> None:
    with pytest.raises(ContractTypeError, match=r"^stop must be a mapping"):
        StopOptions.from_mapping(given)
    with pytest.raises(ContractTypeError, match=r"^stop\.stop must be a sequence of strings"):
        StopOptions.from_mapping({"stop": given})
    with pytest.raises(ContractValueError, match=r"^stop\.stop_strings is unknown; did you mean stop\?"):
        StopOptions.from_mapping({"stop_strings": ["a"]})


@pytest.mark.parametrize(
    "do_sample, temperature, samples", [(None, 0.0, False), (None, 0.7, True), (False, 0.7, False), (False, 0.0, False), (True, 0.7, True)]
)
def test_sampling_follows_do_sample_then_the_temperature(do_sample: bool | None, temperature: float, samples: bool) -> None:
    assert GenerationOptions(do_sample=do_sample, temperature=temperature).samples is samples


@pytest.mark.parametrize(
    "values, path",
    [
        ({"stop": None}, r"options\.stop must be a StopOptions"),
        ({"stop": ("a",)}, r"options\.stop must be a StopOptions"),
        ({"decode": {}}, r"options\.decode must be a DecodeOptions"),
        ({"eos_token_id": (1, True)}, r"options\.eos_token_id\[1\] must be an int"),
        ({"eos_token_id": "2"}, r"options\.eos_token_id must be a sequence of ints"),
        ({"extra_generation_kwargs": [("top_k", 1)]}, r"options\.extra_generation_kwargs must be a Mapping"),
        ({"extra_generation_kwargs": {5: 1}}, r"options\.extra_generation_kwargs key must be a str"),
    ],
    ids=["no stop", "bare stop", "decode", "eos item", "eos text", "extras", "key"],
)
def test_nested_options_of_the_wrong_type_are_refused(values: dict[str, Any], path: str) -> None:
    with pytest.raises(ContractTypeError, match=f"^{path}"):
        GenerationOptions(**values)


def test_sampling_at_temperature_zero_and_a_negative_eos_id_in_a_list_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^options\.do_sample is True but options\.temperature is 0; set a temperature above 0"):
        GenerationOptions(do_sample=True)
    with pytest.raises(ContractValueError, match=r"^options\.eos_token_id\[1\] must be at least 0"):
        GenerationOptions(eos_token_id=(5, -1))


@pytest.mark.parametrize(
    "key", ["max_new_tokens", "temperature", "seed", "stop", "max_length", "max_tokens", "stop_token_ids", "stop_strings"]
)
def test_an_extra_never_overrides_a_named_option(key: str) -> None:
    with pytest.raises(ContractValueError, match=rf"^options\.extra_generation_kwargs\.{key} would override a named option"):
        GenerationOptions(extra_generation_kwargs={key: 1})


def test_numbers_in_plain_data_are_cast() -> None:
    options = GenerationOptions.from_mapping(
        {"max_new_tokens": "64", "temperature": "0.5", "top_p": 1, "seed": 3.0, "no_repeat_ngram_size": "2", "pad_token_id": "0"}
    )
    assert options == GenerationOptions(max_new_tokens=64, temperature=0.5, top_p=1.0, seed=3, no_repeat_ngram_size=2, pad_token_id=0)
    assert isinstance(options.seed, int)


@pytest.mark.parametrize(
    "mapping, kind, problem",
    [
        ({"max_new_tokens": 64.5}, ContractValueError, r"options\.max_new_tokens must be a whole number, got 64\.5"),
        ({"max_new_tokens": math.inf}, ContractValueError, r"options\.max_new_tokens must be finite"),
        ({"max_new_tokens": math.nan}, ContractTypeError, r"options\.max_new_tokens must be a number"),
        ({"max_new_tokens": True}, ContractTypeError, r"options\.max_new_tokens must be a number, got True \(bool\)"),
        ({"max_new_tokens": "many"}, ContractTypeError, r"options\.max_new_tokens must be a number, got 'many' \(str\)"),
        ({"max_new_tokens": None}, ContractTypeError, r"options\.max_new_tokens must be an int, got None"),
        ({"temperature": "nan"}, ContractValueError, r"options\.temperature must be finite"),
        ({"temperature": math.nan}, ContractValueError, r"options\.temperature must be finite"),
        ({"temperature": 10**400}, ContractValueError, r"options\.temperature must be finite"),
        ({"temperature": [1]}, ContractTypeError, r"options\.temperature must be a number, got \[1\] \(list\)"),
        ({"stop": "END"}, ContractTypeError, r"options\.stop must be a StopOptions"),
        ({"stop": {"stop": "END"}}, ContractTypeError, r"stop\.stop must be a sequence of strings"),
        ({"decode": {"strip": False}}, ContractValueError, r"decode\.strip is unknown; known: skip_special_tokens"),
        ({"decode": None}, ContractTypeError, r"options\.decode must be a DecodeOptions"),
        ({"extra_generation_kwargs": None}, ContractTypeError, r"options\.extra_generation_kwargs must be a Mapping"),
        ({"top_k": 1, "extra_generation_kwargs": {"top_k": 2}}, ContractValueError, r"options\.top_k is given twice"),
        ({"max_length": 5}, ContractValueError, r"options\.extra_generation_kwargs\.max_length would override"),
        ("max_new_tokens=5", ContractTypeError, r"options must be a Mapping"),
    ],
)
def test_bad_plain_data_is_refused_with_its_path(mapping: Any, kind: type[Exception], problem: str) -> None:
    with pytest.raises(kind, match=f"^{problem}"):
        GenerationOptions.from_mapping(mapping)


@pytest.mark.parametrize(
    "value",
    [object(), {1}, b"x", Path("x"), 1j, len, [1, {"a": object()}], {(1, 2): 3}, Decimal("1"), range(3)],
    ids=["object", "set", "bytes", "path", "complex", "function", "nested", "key", "decimal", "range"],
)
def test_an_extra_that_is_no_json_is_refused_by_path(value: object) -> None:
    with pytest.raises(ContractTypeError, match=r"^options\.extra_generation_kwargs\.odd must be plain JSON data"):
        GenerationOptions(extra_generation_kwargs={"top_k": 5, "odd": value})


@pytest.mark.parametrize("name", ["max_new_tokens", "no_repeat_ngram_size"])
def test_a_number_too_long_to_be_recorded_is_refused(name: str) -> None:
    with pytest.raises(ContractValueError, match=rf"^options\.{name} must be at most 2147483647"):
        GenerationOptions(**{name: 10**4300 - 1})


def _holds_itself() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


def _nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, [1.0, -math.inf], {"a": math.nan}, _holds_itself(), _nested(100_000), 10**5000],
    ids=["nan", "infinity", "in a list", "in a mapping", "cycle", "deep", "huge"],
)
def test_an_extra_that_json_cannot_hold_is_refused_by_path(value: object) -> None:
    with pytest.raises(ContractValueError, match=r"^options\.extra_generation_kwargs\.odd must be plain JSON data"):
        GenerationOptions.from_mapping({"odd": value})


@pytest.mark.parametrize(
    "value",
    [None, True, 5, 0.5, "统计\ud800", [1, [2]], (1, 2), {"a": 1}, {7: -1.5}],
    ids=["none", "bool", "int", "float", "text", "list", "tuple", "mapping", "ids"],
)
def test_an_extra_of_plain_data_is_taken_and_can_be_recorded(value: object) -> None:
    json.dumps(GenerationOptions(extra_generation_kwargs={"odd": value}).to_json(), allow_nan=False)


def test_unknown_keys_go_to_the_extras_and_nested_data_becomes_nested_options() -> None:
    options = GenerationOptions.from_mapping({"top_k": 5, "extra_generation_kwargs": {"min_p": 0.1}})
    assert options.extra_generation_kwargs == {"top_k": 5, "min_p": 0.1}
    options = GenerationOptions.from_mapping({"stop": {"stop": ["a"]}, "decode": {"strip_whitespace": False}, "eos_token_id": [0, 2]})
    assert options.stop == StopOptions(("a",))
    assert options.decode == DecodeOptions(strip_whitespace=False)
    assert options.eos_token_id == (0, 2)
    assert GenerationOptions.from_mapping({"stop": None}).stop == StopOptions()
    given_extras = {"top_k": 1}
    options = GenerationOptions(extra_generation_kwargs=given_extras)
    given_extras["top_k"] = 2
    assert options.extra_generation_kwargs["top_k"] == 1
    with pytest.raises(TypeError, match="does not support item assignment"):
        options.extra_generation_kwargs["top_k"] = 3  # type: ignore[index]


texts = st.text(min_size=1, max_size=4)
ids = st.integers(0, 2**31 - 1)
extras = st.dictionaries(
    st.sampled_from(["top_k", "min_p", "bad_words_ids"]), st.one_of(st.integers(0, 9), st.just(0.5), st.lists(ids, max_size=2)), max_size=3
)


@st.composite
def generation_options(draw: st.DrawFn) -> GenerationOptions:
    temperature = draw(st.one_of(st.just(0.0), st.floats(0.01, 2.0)))
    return GenerationOptions(
        max_new_tokens=draw(st.integers(1, 10**6)),
        temperature=temperature,
        top_p=draw(st.floats(0.01, 1.0)),
        repetition_penalty=draw(st.floats(0.1, 5.0)),
        do_sample=draw(st.sampled_from([None, False, True] if temperature else [None, False])),
        no_repeat_ngram_size=draw(st.one_of(st.none(), st.integers(0, 9))),
        stop=StopOptions(tuple(draw(st.lists(texts, max_size=3))), tuple(draw(st.lists(ids, max_size=3)))),
        seed=draw(st.one_of(st.none(), ids)),
        use_cache=draw(st.booleans()),
        eos_token_id=draw(st.one_of(st.none(), ids, st.lists(ids, max_size=3).map(tuple))),
        pad_token_id=draw(st.one_of(st.none(), ids)),
        logprobs=draw(st.booleans()),
        max_prompt_tokens=draw(st.one_of(st.none(), st.integers(1, 10**6))),
        structured=draw(st.sampled_from([None, StructuredOutput(choice=("a", "b")), StructuredOutput(json_schema={"type": "object"})])),
        max_thinking_tokens=draw(st.one_of(st.none(), st.integers(0, 99))),
        decode=DecodeOptions(draw(st.booleans()), draw(st.booleans()), draw(st.booleans())),
        extra_generation_kwargs=draw(extras),
    )


@given(generation_options())
def test_options_come_back_from_their_json(options: GenerationOptions) -> None:
    assert GenerationOptions.from_mapping(json.loads(json.dumps(options.to_json(), allow_nan=False))) == options


@given(generation_options())
def test_options_are_pickled_copied_and_hashed(options: GenerationOptions) -> None:
    for other in (pickle.loads(pickle.dumps(options)), copy.copy(options), copy.deepcopy(options), replace(options)):
        assert other == options
        assert hash(other) == hash(options)


def test_a_deep_copy_shares_no_list_with_the_original() -> None:
    options = GenerationOptions(extra_generation_kwargs={"bad_words_ids": [[1]]})
    copied = copy.deepcopy(options)
    copied.extra_generation_kwargs["bad_words_ids"].append([2])
    assert options.extra_generation_kwargs["bad_words_ids"] == [[1]]


def test_options_are_equal_by_value_whatever_the_number_type() -> None:
    first, second = GenerationOptions(temperature=1), GenerationOptions(temperature=1.0, extra_generation_kwargs={})
    assert first == second
    assert hash(first) == hash(second)
    assert GenerationOptions(extra_generation_kwargs={"top_k": 1}) != GenerationOptions(extra_generation_kwargs={"top_k": 2})


NAMED_ELSEWHERE: dict[str, tuple[type, dict[str, Any], str]] = {
    "top_k": (GenerationOptions, {"top_k": 5}, r"has no argument 'top_k'; did you mean extra_generation_kwargs=\{'top_k': …\}\?"),
    "max_tokens": (GenerationOptions, {"max_tokens": 5}, r"did you mean max_new_tokens\?"),
    "stop_token_ids": (GenerationOptions, {"stop_token_ids": [1]}, r"did you mean stop=StopOptions\(stop_token_ids=\[…\]\)\?"),
    "misspelt": (GenerationOptions, {"temprature": 1.0}, r"'temprature'; did you mean 'temperature'\? known: max_new_tokens"),
    "texts as stop": (
        GenerationOptions,
        {"stop": ["END"]},
        r"must be a StopOptions, got .*; did you mean stop=StopOptions\(stop=\['END'\]\)\?",
    ),
    "text as stop": (GenerationOptions, {"stop": "END"}, r"did you mean stop=StopOptions\(stop=\['END'\]\)\?"),
    "ids as stop": (GenerationOptions, {"stop": [7]}, r"did you mean stop=StopOptions\(stop_token_ids=\[7\]\)\?"),
    "model": (ModelLoadConfig, {"model": "x"}, r"did you mean model_name_or_path\?"),
    "dtype": (ModelLoadConfig, {"model_name_or_path": "x", "dtype": "float32"}, r"did you mean torch_dtype\?"),
    "vllm's": (ModelLoadConfig, {"tensor_parallel_size": 2}, r"did you mean vllm_options=VllmEngineOptions"),
    "preprocess": (VlmPreprocessOptions, {"max_pixel": 5}, r"did you mean 'max_pixels'\? known: max_pixels"),
    "stops": (StopOptions, {"stop_strings": ["x"]}, r"did you mean stop\?"),
    "ids": (TokenGenerationRequest, {"input_ids": [1]}, r"did you mean prompt_token_ids\?"),
    "number of a device": (ModelLoadConfig, {"model_name_or_path": "x", "device": 1}, r"did you mean 'cuda:1'\?"),
    "thinking": (ChatTemplateOptions, {"thinking": True}, r"did you mean enable_thinking\?"),
    "half pairs": (VllmEngineOptions, {"extra": ["max_num_seqs"]}, r"vllm\.extra must hold \(name, value\) pairs"),
    "one text": (VllmEngineOptions, {"extra": "max_num_seqs=3"}, r"vllm\.extra must be a sequence of \(name, value\) pairs"),
    "prompt": (TextGenerationRequest, {"prompt": "x"}, r"did you mean messages="),
}


@pytest.mark.parametrize(("kind", "given", "hint"), NAMED_ELSEWHERE.values(), ids=NAMED_ELSEWHERE)
def test_what_other_libraries_call_an_argument_gets_its_name_here(kind: Any, given: dict[str, Any], hint: str) -> None:
    with pytest.raises(ContractTypeError, match=hint):
        kind(**given)


def test_a_named_option_among_extras_is_refused_with_its_name() -> None:
    with pytest.raises(ContractValueError, match="max_tokens would override a named option; set that one instead: max_new_tokens"):
        GenerationOptions.from_mapping({"max_tokens": 5})


def test_further_arguments_of_vllm_are_a_mapping_or_pairs() -> None:
    made = VllmEngineOptions(extra={"max_num_seqs": 3})  # type: ignore[arg-type]
    assert made == VllmEngineOptions(extra=(("max_num_seqs", 3),))


def test_paths_and_torchs_own_types_are_taken_where_their_names_are() -> None:
    assert ModelLoadConfig(Path("a/b"), adapter_path=Path("c")) == ModelLoadConfig("a/b", adapter_path="c")  # type: ignore[arg-type]
    assert ServerOptions(adapter_dir=Path("d")).adapter_dir == "d"  # type: ignore[arg-type]


@pytest.mark.engine
def test_dtypes_and_devices_of_torch_are_taken_where_their_names_are() -> None:
    torch = pytest.importorskip("torch")
    config = ModelLoadConfig("x", torch_dtype=torch.bfloat16, device=torch.device("cpu"))
    assert (config.torch_dtype, config.device) == ("bfloat16", "cpu")
    assert ModelLoadConfig("x", device=torch.device("cuda", 1)).device == "cuda:1"
    assert VllmEngineOptions(dtype=torch.float16).dtype == "float16"
