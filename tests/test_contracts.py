"""What the contracts refuse, with the dotted path in the message, and what they accept."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from evalharness.contracts import (
    ChatTemplateOptions,
    DecodeOptions,
    GenerationOptions,
    GenerationResult,
    ModelLoadConfig,
    StopOptions,
    TextGenerationRequest,
    VllmEngineOptions,
    VlmGenerationRequest,
    VlmPreprocessOptions,
)
from evalharness.errors import ContractTypeError, ContractValueError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: StopOptions("END"), "^stop.stop must be a sequence of strings, got 'END'", id="stop-bare-string"),
        pytest.param(lambda: StopOptions(("a", 3)), r"^stop.stop\[1\] must be a str, got 3", id="stop-no-string"),
        pytest.param(lambda: StopOptions((), (True,)), r"^stop.stop_token_ids\[0\] must be an int, got True", id="stop-id-bool"),
        pytest.param(lambda: StopOptions.from_mapping({"stop": "END"}), "^stop.stop must be a sequence", id="stop-mapping-bare-string"),
        pytest.param(lambda: DecodeOptions(strip_whitespace=1), "^decode.strip_whitespace must be a bool, got 1", id="decode-int"),
        pytest.param(lambda: ChatTemplateOptions(enable_thinking="no"), "^chat_template.enable_thinking must be a bool", id="thinking"),
        pytest.param(lambda: VlmPreprocessOptions(max_pixels=1e6), "^preprocess.max_pixels must be an int", id="pixels-float"),
        pytest.param(lambda: ModelLoadConfig(None), "^model.model_name_or_path must be a str, got None", id="model-none"),
        pytest.param(lambda: VllmEngineOptions(gpu_memory_utilization="0.5"), "^vllm.gpu_memory_utilization must be a number", id="gpu"),
        pytest.param(lambda: GenerationOptions(max_new_tokens=True), "^options.max_new_tokens must be an int, got True", id="tokens-bool"),
        pytest.param(lambda: GenerationOptions(max_new_tokens=8.0), "^options.max_new_tokens must be an int", id="tokens-float"),
        pytest.param(lambda: GenerationOptions(temperature="hot"), "^options.temperature must be a number", id="temperature-text"),
        pytest.param(lambda: GenerationOptions(stop=("END",)), "^options.stop must be a StopOptions", id="stop-tuple"),
        pytest.param(lambda: GenerationOptions(eos_token_id="2"), "^options.eos_token_id must be a sequence of ints", id="eos-text"),
        pytest.param(lambda: GenerationOptions(eos_token_id=(1, None)), r"^options.eos_token_id\[1\] must be an int", id="eos-none-inside"),
        pytest.param(lambda: GenerationOptions.from_mapping({"max_new_tokens": "many"}), "^options.max_new_tokens must be a", id="cast"),
        pytest.param(lambda: TextGenerationRequest("Hi"), "^request.messages must be a sequence of mappings, got 'Hi'", id="messages-text"),
        pytest.param(lambda: TextGenerationRequest([{}, "Hi"]), r"^request.messages\[1\] must be a mapping, got 'Hi'", id="message-text"),
        pytest.param(lambda: VlmGenerationRequest([], images="a.png"), "^request.images must be a sequence", id="images-path"),
    ],
)
def test_a_wrong_type_is_refused_naming_the_field(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ContractTypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: StopOptions(("",)), r"^stop.stop\[0\] is empty", id="stop-empty"),
        pytest.param(lambda: StopOptions((), (3, -1)), r"^stop.stop_token_ids\[1\] must be at least 0, got -1", id="stop-id-negative"),
        pytest.param(lambda: StopOptions.from_mapping({"stops": []}), "^stop.stops is unknown; known: stop, stop_token_ids", id="stop-key"),
        pytest.param(lambda: ChatTemplateOptions(continue_final_message=True), "exclude each other", id="continue-and-prompt"),
        pytest.param(lambda: VlmPreprocessOptions(max_pixels=0), "^preprocess.max_pixels must be at least 1", id="pixels-0"),
        pytest.param(
            lambda: VlmPreprocessOptions(max_pixels=1, min_pixels=2), "must not exceed preprocess.max_pixels", id="pixels-swapped"
        ),
        pytest.param(lambda: VlmPreprocessOptions(padding_side="middle"), "must be 'left' or 'right', got 'middle'", id="side"),
        pytest.param(lambda: ModelLoadConfig(" "), "^model.model_name_or_path is empty", id="model-blank"),
        pytest.param(lambda: ModelLoadConfig("m", variant="audio"), "^model.variant must be 'vlm', 'text' or None", id="variant"),
        pytest.param(lambda: VllmEngineOptions(tensor_parallel_size=0), "^vllm.tensor_parallel_size must be at least 1", id="tp-0"),
        pytest.param(lambda: VllmEngineOptions(gpu_memory_utilization=0), "must be greater than 0.0", id="gpu-0"),
        pytest.param(lambda: VllmEngineOptions(gpu_memory_utilization=90), "must be at most 1.0, got 90", id="gpu-in-percent"),
        pytest.param(lambda: GenerationOptions(max_new_tokens=0), "^options.max_new_tokens must be at least 1, got 0", id="tokens-0"),
        pytest.param(lambda: GenerationOptions(temperature=-0.1), "^options.temperature must be at least 0.0", id="temperature-negative"),
        pytest.param(lambda: GenerationOptions(temperature=float("nan")), "^options.temperature must be finite", id="temperature-nan"),
        pytest.param(lambda: GenerationOptions(top_p=0), "^options.top_p must be greater than 0.0", id="top-p-0"),
        pytest.param(lambda: GenerationOptions(top_p=1.5), "^options.top_p must be at most 1.0", id="top-p-over-1"),
        pytest.param(lambda: GenerationOptions(repetition_penalty=0), "^options.repetition_penalty must be greater", id="penalty-0"),
        pytest.param(lambda: GenerationOptions(do_sample=True), "do_sample is True but options.temperature is 0", id="sample-cold"),
        pytest.param(lambda: GenerationOptions(seed=-1), "^options.seed must be at least 0", id="seed"),
        pytest.param(lambda: GenerationOptions(eos_token_id=-1), "^options.eos_token_id must be at least 0", id="eos-negative"),
        pytest.param(
            lambda: GenerationOptions(extra_generation_kwargs={"max_new_tokens": 4}), "would override a named option", id="extra-overrides"
        ),
        pytest.param(
            lambda: GenerationOptions.from_mapping({"max_new_tokens": 1.5}), "must be a whole number, got 1.5", id="cast-fraction"
        ),
        pytest.param(lambda: GenerationOptions.from_mapping({"decode": {"strip": True}}), "^decode.strip is unknown", id="decode-key"),
    ],
)
def test_a_value_out_of_range_is_refused_naming_the_field(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ContractValueError, match=message):
        make()


def test_empty_messages_are_accepted_by_the_contract() -> None:
    assert TextGenerationRequest([]).messages == []


def test_variant_is_read_in_any_case() -> None:
    assert ModelLoadConfig("m", variant="VLM").variant == "vlm"  # type: ignore[arg-type]


def test_eos_token_0_is_kept() -> None:
    assert GenerationOptions(eos_token_id=0).eos_token_id == 0


@pytest.mark.parametrize(
    ("options", "samples"),
    [
        pytest.param({}, False, id="default"),
        pytest.param({"temperature": 0.7}, True, id="temperature"),
        pytest.param({"temperature": 0.7, "do_sample": False}, False, id="temperature-but-greedy"),
        pytest.param({"temperature": 0.7, "do_sample": True}, True, id="asked-for"),
    ],
)
def test_sampling_follows_temperature_unless_said_otherwise(options: dict[str, Any], samples: bool) -> None:
    assert GenerationOptions(**options).samples is samples


def test_plain_data_is_cast_and_unknown_keys_become_extras() -> None:
    options = GenerationOptions.from_mapping(
        {"max_new_tokens": "8", "temperature": 1, "seed": "3", "top_k": 5, "stop": {"stop": ["a", ""]}}
    )
    assert (options.max_new_tokens, options.temperature, options.seed) == (8, 1.0, 3)
    assert options.stop == StopOptions(("a",))
    assert dict(options.extra_generation_kwargs) == {"top_k": 5}


@pytest.mark.parametrize(
    "given", [pytest.param(None, id="none"), pytest.param({}, id="empty"), pytest.param({"stop": [""]}, id="empty-string")]
)
def test_no_stops_come_from_nothing(given: dict[str, Any] | None) -> None:
    assert StopOptions.from_mapping(given) == StopOptions()


def test_options_can_be_copied_and_pickled_and_not_changed() -> None:
    options = GenerationOptions(extra_generation_kwargs={"top_k": 5})
    assert copy.deepcopy(options) == options == pickle.loads(pickle.dumps(options))
    with pytest.raises(TypeError, match="does not support item assignment"):
        options.extra_generation_kwargs["top_k"] = 6  # type: ignore[index]
    with pytest.raises(AttributeError, match="cannot assign to field"):
        options.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("prompt", "completion", "total"),
    [pytest.param(3, 4, 7, id="both"), pytest.param(None, 4, None, id="no-prompt"), pytest.param(3, None, None, id="no-completion")],
)
def test_total_tokens_are_known_when_both_counts_are(prompt: int | None, completion: int | None, total: int | None) -> None:
    assert GenerationResult("", "", "stop", num_prompt_tokens=prompt, num_completion_tokens=completion).num_total_tokens == total
