"""What goes in and comes out: types, ranges, paths in messages, plain data. Run: pytest tests/test_contracts.py"""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalharness.contracts import (
    ChatTemplateOptions,
    DecodeOptions,
    FinishReason,
    GenerationFailure,
    GenerationOptions,
    GenerationResult,
    ModelLoadConfig,
    StopOptions,
    TextGenerationRequest,
    VllmEngineOptions,
    VlmGenerationRequest,
    VlmPreprocessOptions,
)
from evalharness.errors import ContractTypeError, ContractValueError, ImageError, PromptTooLong, RequestError
from evalharness.structured_output import StructuredOutput

USER = {"role": "user", "content": "hi"}

# Fields by what they take; a value of another kind must be refused with the field's path.
WRONG_TYPES: dict[str, list[Any]] = {
    "bool": [1, 0, "yes", [], 0.0],
    "bool?": [1, "no", []],
    "int": [True, 1.0, "1", None, [1]],
    "int?": [False, 1.5, "1", [1]],
    "number": [True, "0.5", None, [0.5]],
    "number?": [True, "0.5", [0.5]],
    "str": [None, 1, b"x", ["x"]],
    "str?": [1, b"x", ["x"], True],
}

FIELDS: dict[str, tuple[type, dict[str, Any], dict[str, str]]] = {
    "decode": (
        DecodeOptions,
        {},
        {"skip_special_tokens": "bool", "clean_up_tokenization_spaces": "bool", "strip_whitespace": "bool"},
    ),
    "chat_template": (
        ChatTemplateOptions,
        {},
        {"add_generation_prompt": "bool", "tokenize": "bool", "enable_thinking": "bool", "continue_final_message": "bool"},
    ),
    "preprocess": (
        VlmPreprocessOptions,
        {},
        {
            "max_pixels": "int?",
            "min_pixels": "int?",
            "do_resize": "bool?",
            "padding_side": "str",
            "truncation_side": "str",
            "pad_token_fallback": "bool",
        },
    ),
    "model": (
        ModelLoadConfig,
        {"model_name_or_path": "somewhere"},
        {
            "model_name_or_path": "str",
            "torch_dtype": "str?",
            "device": "str?",
            "attn_implementation": "str?",
            "trust_remote_code": "bool",
            "allow_pickle": "bool",
            "variant": "str?",
            "adapter_path": "str?",
        },
    ),
    "vllm": (
        VllmEngineOptions,
        {},
        {
            "tensor_parallel_size": "int",
            "pipeline_parallel_size": "int",
            "distributed_executor_backend": "str?",
            "gpu_memory_utilization": "number?",
            "max_model_len": "int?",
            "trust_remote_code": "bool",
            "dtype": "str?",
            "enforce_eager": "bool?",
        },
    ),
    "options": (
        GenerationOptions,
        {},
        {
            "max_new_tokens": "int",
            "temperature": "number",
            "top_p": "number",
            "repetition_penalty": "number",
            "do_sample": "bool?",
            "no_repeat_ngram_size": "int?",
            "seed": "int?",
            "use_cache": "bool",
            "eos_token_id": "int?",
            "pad_token_id": "int?",
            "logprobs": "bool",
            "logprobs_kind": "str",
            "entropies": "bool",
            "max_prompt_tokens": "int?",
            "max_thinking_tokens": "int?",
        },
    ),
}

WRONG = [
    pytest.param(path, name, value, id=f"{path}.{name}={value!r}")
    for path, (_, _, kinds) in FIELDS.items()
    for name, kind in kinds.items()
    for value in WRONG_TYPES[kind]
    if not (name == "eos_token_id" and value == [1])
]


@pytest.mark.parametrize("path, name, value", WRONG)
def test_a_value_of_the_wrong_type_is_refused_with_its_path(path: str, name: str, value: Any) -> None:
    cls, needed, _ = FIELDS[path]
    with pytest.raises(ContractTypeError, match=rf"^{path}\.{name} must be .*got "):
        cls(**{**needed, name: value})


@pytest.mark.parametrize("path", FIELDS)
def test_every_field_is_in_the_table_of_wrong_types(path: str) -> None:
    cls, _, kinds = FIELDS[path]
    # These take contracts or mappings and have tests of their own; device_map is passed on as it is.
    nested = {"stop", "decode", "extra", "extra_generation_kwargs", "device_map", "thinking_marks", "structured"}
    assert {f.name for f in fields(cls)} - nested == set(kinds)


RANGES: list[tuple[str, str, Any, str]] = [
    ("preprocess", "max_pixels", 0, "at least 1"),
    ("preprocess", "min_pixels", -5, "at least 1"),
    ("preprocess", "padding_side", "middle", "'left' or 'right'"),
    ("options", "logprobs_kind", "cooked", "'raw' or 'processed'"),
    ("preprocess", "truncation_side", "Left", "'left' or 'right'"),
    ("model", "model_name_or_path", " \t", "is empty"),
    ("model", "variant", "vision", "'vlm', 'text' or None"),
    ("vllm", "tensor_parallel_size", 0, "at least 1"),
    ("vllm", "gpu_memory_utilization", 0.0, "greater than 0"),
    ("vllm", "gpu_memory_utilization", 1.01, "at most 1"),
    ("vllm", "gpu_memory_utilization", math.nan, "finite"),
    ("vllm", "max_model_len", 0, "at least 1"),
    ("options", "max_new_tokens", 0, "at least 1"),
    ("options", "temperature", -0.1, "at least 0"),
    ("options", "temperature", math.inf, "finite"),
    ("options", "temperature", 10**400, "finite"),
    ("options", "temperature", 1e-7, r"0 \(greedy\) or from 0.01 to 2, which every backend can honour, got 1e-07"),
    ("options", "temperature", 3, r"0 \(greedy\) or from 0.01 to 2, which every backend can honour, got 3"),
    ("options", "top_p", 0, "greater than 0"),
    ("options", "top_p", 1.5, "at most 1"),
    ("options", "top_p", math.nan, "finite"),
    ("options", "repetition_penalty", 0.0, "greater than 0"),
    ("options", "no_repeat_ngram_size", -1, "at least 0"),
    ("options", "seed", -1, "at least 0"),
    ("options", "seed", 2**63, "at most 9223372036854775807"),
    ("options", "eos_token_id", -1, "at least 0"),
    ("options", "eos_token_id", 2**31, "at most 2147483647"),
    ("options", "pad_token_id", 2**70, "at most 2147483647"),
    ("options", "pad_token_id", -2, "at least 0"),
    ("options", "max_prompt_tokens", 0, "at least 1"),
    ("options", "max_prompt_tokens", 2**31, "at most 2147483647"),
    ("options", "max_thinking_tokens", -1, "at least 0"),
]


@pytest.mark.parametrize("path, name, value, legal", RANGES, ids=[f"{path}.{name}={str(value)[:12]}" for path, name, value, _ in RANGES])
def test_a_value_out_of_range_is_refused_with_its_path(path: str, name: str, value: Any, legal: str) -> None:
    cls, needed, _ = FIELDS[path]
    with pytest.raises(ContractValueError, match=rf"^{path}\.{name} .*{legal}"):
        cls(**{**needed, name: value})


LEGAL_EDGES: list[tuple[str, str, Any]] = [
    ("vllm", "gpu_memory_utilization", 1),
    ("vllm", "gpu_memory_utilization", 0.01),
    ("options", "temperature", 0),
    ("options", "temperature", 0.01),
    ("options", "temperature", 2),
    ("options", "max_thinking_tokens", 0),
    ("options", "top_p", 1),
    ("options", "seed", 0),
    ("options", "seed", 2**63 - 1),
    ("options", "eos_token_id", 0),
    ("options", "pad_token_id", 0),
    ("options", "no_repeat_ngram_size", 0),
    ("options", "max_new_tokens", 1),
    ("options", "max_prompt_tokens", 1),
    ("preprocess", "max_pixels", 1),
]


@pytest.mark.parametrize("path, name, value", LEGAL_EDGES, ids=[f"{path}.{name}={value}" for path, name, value in LEGAL_EDGES])
def test_the_edges_of_a_range_are_legal(path: str, name: str, value: Any) -> None:
    cls, needed, _ = FIELDS[path]
    assert getattr(cls(**{**needed, name: value}), name) == value


@pytest.mark.parametrize("path", FIELDS)
def test_contracts_are_frozen(path: str) -> None:
    cls, needed, kinds = FIELDS[path]
    with pytest.raises(FrozenInstanceError, match="cannot assign"):
        setattr(cls(**needed), next(iter(kinds)), None)


@pytest.mark.parametrize("path", FIELDS)
def test_an_unknown_keyword_is_refused(path: str) -> None:
    cls, needed, _ = FIELDS[path]
    with pytest.raises(TypeError, match="unexpected keyword argument 'tempurature'"):
        cls(**needed, tempurature=1)


# --- stops -------------------------------------------------------------------------------------------------------------


def test_b05_a_bare_string_as_stop_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^stop\.stop must be a sequence of strings, got 'END' \(str\)"):
        StopOptions(stop="END")  # type: ignore[arg-type]


def test_b05_a_negative_stop_id_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^stop\.stop_token_ids\[1\] must be at least 0, got -1"):
        StopOptions(stop_token_ids=(3, -1))


@pytest.mark.parametrize(
    "values, path",
    [
        ({"stop": ("a", 5)}, r"stop\.stop\[1\] must be a str"),
        ({"stop": b"a"}, r"stop\.stop must be a sequence"),
        ({"stop": {"a"}}, r"stop\.stop must be a sequence"),
        ({"stop": None}, r"stop\.stop must be a sequence"),
        ({"stop_token_ids": (True,)}, r"stop\.stop_token_ids\[0\] must be an int"),
        ({"stop_token_ids": (1, 2.0)}, r"stop\.stop_token_ids\[1\] must be an int"),
        ({"stop_token_ids": 7}, r"stop\.stop_token_ids must be a sequence"),
        ({"stop_token_ids": "7"}, r"stop\.stop_token_ids must be a sequence"),
    ],
    ids=["item", "bytes", "set", "none", "bool id", "float id", "bare id", "id as text"],
)
def test_stops_of_the_wrong_type_are_refused(values: dict[str, Any], path: str) -> None:
    with pytest.raises(ContractTypeError, match=f"^{path}"):
        StopOptions(**values)


def test_an_empty_stop_string_is_refused_where_it_was_written_on_purpose() -> None:
    with pytest.raises(ContractValueError, match=r"^stop\.stop\[1\] is empty"):
        StopOptions(stop=("a", ""))


def test_stops_given_as_lists_are_kept_as_tuples() -> None:
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


@pytest.mark.parametrize("mapping", ["", "END", [], 0, False], ids=repr)
def test_stops_from_something_that_is_no_mapping_are_refused(mapping: Any) -> None:
    with pytest.raises(ContractTypeError, match=r"^stop must be a mapping"):
        StopOptions.from_mapping(mapping)


@pytest.mark.parametrize("stop", ["", "END", 0, 5, False], ids=repr)
def test_a_stop_list_from_plain_data_must_be_a_list(stop: Any) -> None:
    with pytest.raises(ContractTypeError, match=r"^stop\.stop must be a sequence of strings"):
        StopOptions.from_mapping({"stop": stop})


def test_an_unknown_key_of_stops_is_refused() -> None:
    with pytest.raises(ContractValueError, match=r"^stop\.stop_strings is unknown; known: stop, stop_token_ids"):
        StopOptions.from_mapping({"stop_strings": ["a"]})


# --- combinations ------------------------------------------------------------------------------------------------------


def test_min_pixels_above_max_pixels_is_refused() -> None:
    with pytest.raises(ContractValueError, match=r"^preprocess\.min_pixels \(10\) must not exceed preprocess\.max_pixels \(9\)"):
        VlmPreprocessOptions(min_pixels=10, max_pixels=9)


def test_a_final_message_is_either_continued_or_answered() -> None:
    with pytest.raises(ContractValueError, match=r"^chat_template\.continue_final_message and .*add_generation_prompt exclude"):
        ChatTemplateOptions(continue_final_message=True)
    assert ChatTemplateOptions(add_generation_prompt=False, continue_final_message=True).continue_final_message


def test_thinking_and_remote_code_and_pickles_are_off_by_default() -> None:
    assert not ChatTemplateOptions().enable_thinking
    assert not ModelLoadConfig("x").trust_remote_code
    assert not ModelLoadConfig("x").allow_pickle
    assert not VllmEngineOptions().trust_remote_code


@pytest.mark.parametrize("variant", ["VLM", "Vlm", "vlm"])
def test_b29_the_variant_is_read_in_any_case(variant: Any) -> None:
    assert ModelLoadConfig("x", variant=variant).variant == "vlm"


def test_b30_sampling_at_temperature_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^options\.do_sample is True but options\.temperature is 0; set a temperature above 0"):
        GenerationOptions(do_sample=True)


@pytest.mark.parametrize(
    "do_sample, temperature, samples",
    [(None, 0.0, False), (None, 0.7, True), (False, 0.7, False), (False, 0.0, False), (True, 0.7, True)],
)
def test_b31_sampling_follows_do_sample_then_the_temperature(do_sample: bool | None, temperature: float, samples: bool) -> None:
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


def test_a_negative_eos_id_in_a_list_is_refused_with_its_place() -> None:
    with pytest.raises(ContractValueError, match=r"^options\.eos_token_id\[1\] must be at least 0"):
        GenerationOptions(eos_token_id=(5, -1))


@pytest.mark.parametrize(
    "key", ["max_new_tokens", "temperature", "seed", "stop", "max_length", "max_tokens", "stop_token_ids", "stop_strings"]
)
def test_an_extra_never_overrides_a_named_option(key: str) -> None:
    with pytest.raises(ContractValueError, match=rf"^options\.extra_generation_kwargs\.{key} would override a named option"):
        GenerationOptions(extra_generation_kwargs={key: 1})


# --- options as plain data ---------------------------------------------------------------------------------------------


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


def test_unknown_keys_of_plain_data_go_to_the_extras() -> None:
    options = GenerationOptions.from_mapping({"top_k": 5, "extra_generation_kwargs": {"min_p": 0.1}})
    assert options.extra_generation_kwargs == {"top_k": 5, "min_p": 0.1}


def test_nested_plain_data_becomes_nested_options() -> None:
    options = GenerationOptions.from_mapping({"stop": {"stop": ["a"]}, "decode": {"strip_whitespace": False}, "eos_token_id": [0, 2]})
    assert options.stop == StopOptions(("a",))
    assert options.decode == DecodeOptions(strip_whitespace=False)
    assert options.eos_token_id == (0, 2)
    assert GenerationOptions.from_mapping({"stop": None}).stop == StopOptions()


def test_extras_cannot_be_changed_afterwards() -> None:
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


def test_equal_options_of_other_number_types_have_one_hash() -> None:
    first, second = GenerationOptions(temperature=1), GenerationOptions(temperature=1.0, extra_generation_kwargs={})
    assert first == second
    assert hash(first) == hash(second)


def test_options_with_other_extras_differ() -> None:
    assert GenerationOptions(extra_generation_kwargs={"top_k": 1}) != GenerationOptions(extra_generation_kwargs={"top_k": 2})


# --- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [TextGenerationRequest, VlmGenerationRequest])
@pytest.mark.parametrize(
    "messages, path",
    [
        ("hi", r"request\.messages must be a sequence of mappings, got 'hi'"),
        (None, r"request\.messages must be a sequence"),
        (USER, r"request\.messages must be a sequence"),
        ([USER, "hi"], r"request\.messages\[1\] must be a mapping, got 'hi'"),
        ([None], r"request\.messages\[0\] must be a mapping"),
    ],
    ids=["text", "none", "one message", "text inside", "none inside"],
)
def test_messages_must_be_a_sequence_of_mappings(cls: type, messages: Any, path: str) -> None:
    with pytest.raises(ContractTypeError, match=f"^{path}"):
        cls(messages)


@pytest.mark.parametrize("cls", [TextGenerationRequest, VlmGenerationRequest])
@pytest.mark.parametrize(
    "message",
    [{"role": "user"}, {"role": "user", "content": None}, {"role": "user", "text": "hi"}, {}],
    ids=["bare", "none", "typo", "empty"],
)
def test_a_message_without_content_is_refused(cls: type, message: dict[str, Any]) -> None:
    with pytest.raises(ContractValueError, match=r"^request\.messages\[1\]\.content is missing, .* got the keys "):
        cls([USER, message])


@pytest.mark.parametrize("cls", [TextGenerationRequest, VlmGenerationRequest])
def test_a_request_without_messages_can_be_made(cls: type) -> None:
    assert list(cls([]).messages) == []


def test_messages_are_kept_as_they_are() -> None:
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": []}]
    assert TextGenerationRequest(messages).messages is messages


@pytest.mark.parametrize(
    "values, path",
    [({"images": "photo.jpg"}, r"request\.images must be a sequence of image sources"), ({"verify": 1}, r"request\.verify must be a bool")],
    ids=["bare path", "verify"],
)
def test_image_fields_of_the_wrong_type_are_refused(values: dict[str, Any], path: str) -> None:
    with pytest.raises(ContractTypeError, match=f"^{path}"):
        VlmGenerationRequest([USER], **values)


# --- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt, completion, total", [(3, 4, 7), (None, 4, None), (3, None, None), (0, 0, 0)])
def test_b18_the_total_is_the_sum_or_unknown(prompt: int | None, completion: int | None, total: int | None) -> None:
    result = GenerationResult("", "", "stop", num_prompt_tokens=prompt, num_completion_tokens=completion)
    assert result.num_total_tokens == total


RESULT = GenerationResult(
    text="\ud800 a|b\n\x1b[31m",
    raw_text="=cmd()<|im_end|>",
    finish_reason="stop",
    stop_reason=7,
    num_prompt_tokens=3,
    num_completion_tokens=2,
    token_ids=(5, 7),
    logprobs=(-0.1, -2.5),
    logprobs_kind="raw",
    seed=2**40,
    backend="hf",
    fallback="hf: because",
    ignored_options=("top_k=1",),
    prompt_sha256="ab",
    prompt_text="<|im_start|>",
    images=({"width": 3, "height": 4, "sha256": "cd", "grid": [1, 2, 2]},),
)


@pytest.mark.parametrize("result", [RESULT, GenerationResult("", "", "length")], ids=["full", "bare"])
def test_a_result_comes_back_from_its_json(result: GenerationResult) -> None:
    line = json.dumps(result.to_json(), allow_nan=False)
    assert line.isascii()
    assert GenerationResult.from_json(json.loads(line)) == result


def test_keys_of_newer_versions_are_ignored_when_a_result_is_read() -> None:
    assert GenerationResult.from_json({**RESULT.to_json(), "mood": "good"}) == RESULT


def test_a_result_is_pickled_and_copied() -> None:
    assert pickle.loads(pickle.dumps(RESULT)) == RESULT
    assert copy.deepcopy(RESULT) == RESULT


def test_the_finish_reason_is_never_unknown() -> None:
    assert set(get_args(FinishReason)) == {"stop", "length", "tool", "scored"}


def test_failures_are_compared_by_kind_and_problem() -> None:
    assert GenerationFailure("error", "x", ValueError("a")) == GenerationFailure("error", "x")
    assert GenerationFailure("error", "x") != GenerationFailure("invalid", "x")


def test_b35_importing_the_contracts_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, evalharness.contracts; print([n for n in ('torch', 'transformers', 'vllm', 'PIL') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("error", [PromptTooLong("x"), ImageError("x"), RequestError("x"), None, ValueError("x")], ids=repr)
def test_a_failure_is_recorded_with_the_kind_of_error_that_it_comes_from(error: Exception | None) -> None:
    failure = GenerationFailure("invalid", "x", error)
    read = GenerationFailure.recorded(failure.kind, failure.problem, failure.cause)
    assert read == failure
    assert type(read.error) is (type(error) if isinstance(error, RequestError) else type(None))
    assert GenerationFailure.recorded("error", "x", "NoSuchError").cause is None
