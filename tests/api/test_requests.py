"""Requests and results, and what holds for all contracts: types, ranges, paths in messages. Run: pytest tests/api/test_requests.py"""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import fields
from typing import Any, get_args

import pytest

from evalharness.api.errors import ContractTypeError, ContractValueError, ImageError, PromptTooLong, RequestError
from evalharness.api.options import (
    ChatTemplateOptions,
    DecodeOptions,
    GenerationOptions,
    ModelLoadConfig,
    VllmEngineOptions,
    VlmPreprocessOptions,
)
from evalharness.api.requests import FinishReason, GenerationFailure, GenerationResult, TextGenerationRequest, VlmGenerationRequest

USER = {"role": "user", "content": "hi"}

# By the annotation of a field: values of another kind, which must be refused with the field's path.
WRONG_TYPES: dict[str, list[Any]] = {
    "bool": [1, 0, "yes", [], 0.0],
    "bool | None": [1, "no", []],
    "int": [True, 1.0, "1", None, [1]],
    "int | None": [False, 1.5, "1", [1]],
    "int | tuple[int, ...] | None": [False, 1.5, "1"],
    "float": [True, "0.5", None, [0.5]],
    "float | None": [True, "0.5", [0.5]],
    "str": [None, 1, b"x", ["x"]],
    "str | None": [1, b"x", ["x"], True],
    "Variant | None": [1, b"x", ["x"], True],
    "LogprobsKind": [None, 1, b"x", ["x"]],
}
CONTRACTS: dict[str, tuple[type, dict[str, Any]]] = {
    "decode": (DecodeOptions, {}),
    "chat_template": (ChatTemplateOptions, {}),
    "preprocess": (VlmPreprocessOptions, {}),
    "model": (ModelLoadConfig, {"model_name_or_path": "somewhere"}),
    "vllm": (VllmEngineOptions, {}),
    "options": (GenerationOptions, {}),
}
WRONG = [
    pytest.param(path, field.name, value, id=f"{path}.{field.name}={value!r}")
    for path, (cls, _) in CONTRACTS.items()
    for field in fields(cls)
    for value in WRONG_TYPES.get(str(field.type), ())
]


@pytest.mark.parametrize("path, name, value", WRONG)
def test_a_value_of_the_wrong_type_is_refused_with_its_path(path: str, name: str, value: Any) -> None:
    cls, needed = CONTRACTS[path]
    with pytest.raises(ContractTypeError, match=rf"^{path}\.{name} must be .*got "):
        cls(**{**needed, name: value})


def test_every_other_annotation_is_one_of_contracts_or_mappings() -> None:
    others = {str(field.type) for cls, _ in CONTRACTS.values() for field in fields(cls)} - set(WRONG_TYPES)
    assert others == {
        "Mapping[str, Any]", "DecodeOptions", "StopOptions", "StructuredOutput | None",
        "object | None", "tuple[str, str]", "tuple[tuple[str, Any], ...]"
    }  # fmt: skip


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
    cls, needed = CONTRACTS[path]
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
    cls, needed = CONTRACTS[path]
    assert getattr(cls(**{**needed, name: value}), name) == value


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


def test_a_part_of_a_message_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ContractTypeError, match=r"^request\.messages\[0\]\.content\[1\] must be a mapping .*, got 'b' \(str\)$"):
        TextGenerationRequest([{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}])


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
def test_messages_are_kept_as_they_are_and_may_be_none(cls: type) -> None:
    assert list(cls([]).messages) == []
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


@pytest.mark.parametrize("prompt, completion, total", [(3, 4, 7), (None, 4, None), (3, None, None), (0, 0, 0)])
def test_the_total_is_the_sum_or_unknown(prompt: int | None, completion: int | None, total: int | None) -> None:
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


def test_a_result_is_pickled_copied_and_read_with_keys_of_newer_versions() -> None:
    assert GenerationResult.from_json({**RESULT.to_json(), "mood": "good"}) == RESULT
    assert pickle.loads(pickle.dumps(RESULT)) == RESULT
    assert copy.deepcopy(RESULT) == RESULT
    assert set(get_args(FinishReason)) == {"stop", "length", "tool", "scored"}
    assert GenerationFailure("error", "x", ValueError("a")) == GenerationFailure("error", "x")
    assert GenerationFailure("error", "x") != GenerationFailure("invalid", "x")


@pytest.mark.parametrize("error", [PromptTooLong("x"), ImageError("x"), RequestError("x"), None, ValueError("x")], ids=repr)
def test_a_failure_is_recorded_with_the_kind_of_error_that_it_comes_from(error: Exception | None) -> None:
    failure = GenerationFailure("invalid", "x", error)
    read = GenerationFailure.recorded(failure.kind, failure.problem, failure.cause)
    assert read == failure
    assert type(read.error) is (type(error) if isinstance(error, RequestError) else type(None))
    assert GenerationFailure.recorded("error", "x", "NoSuchError").cause is None
