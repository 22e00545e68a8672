"""What both real backends read from a checkpoint in the same way."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.backends.tokenizers import (
    detect_variant,
    eos_token_ids,
    load_tokenizer_and_processor,
    normalise_image_processor,
    normalise_tokenizer,
    resolve_dtype_name,
)
from evalharness.contracts import ModelLoadConfig, VlmPreprocessOptions
from evalharness.errors import CheckpointError, ConfigError, UnsupportedOption


def write(path: Path, name: str, values: Any) -> str:
    (path / name).write_text(values if isinstance(values, str) else json.dumps(values))
    return str(path)


@pytest.mark.parametrize(
    ("config", "variant"),
    [
        ({"model_type": "qwen3_vl"}, "vlm"),
        ({"model_type": "Qwen2_VL"}, "vlm"),
        ({"model_type": "gemma3", "vision_config": {}}, "vlm"),
        ({"model_type": "qwen3"}, "text"),
        ({}, "text"),
    ],
    ids=["vl", "upper case", "vision config", "text", "empty"],
)
def test_variant_is_read_from_the_config(tmp_path: Path, config: dict[str, Any], variant: str) -> None:
    assert detect_variant(ModelLoadConfig(write(tmp_path, "config.json", config))) == variant


def test_variant_that_was_asked_for_wins_in_any_case(tmp_path: Path) -> None:
    asked = ModelLoadConfig(write(tmp_path, "config.json", {"model_type": "qwen3"}), variant="VLM")  # type: ignore[arg-type]
    assert detect_variant(asked) == "vlm"


@pytest.mark.parametrize(("content", "problem"), [("{", "cannot be read"), ("[]", "must hold a JSON object"), (None, "has no config.json")])
def test_an_unreadable_config_is_a_checkpoint_error(tmp_path: Path, content: str | None, problem: str) -> None:
    if content is not None:
        write(tmp_path, "config.json", content)
    with pytest.raises(CheckpointError, match=problem):
        detect_variant(ModelLoadConfig(str(tmp_path)))


@pytest.mark.parametrize(
    ("requested", "on_cuda", "name"),
    [
        (None, False, "float32"),
        (None, True, "bfloat16"),
        ("BFLOAT16", False, "bfloat16"),
        ("torch.float16", True, "float16"),
        ("half", True, "float16"),
    ],
)
def test_dtype_names(requested: str | None, on_cuda: bool, name: str) -> None:
    assert resolve_dtype_name(requested, on_cuda=on_cuda) == name


@pytest.mark.parametrize(
    ("requested", "problem"), [("bogus", "is unknown"), ("auto", "is unknown"), ("bfloat61", "did you mean 'bfloat16'")]
)
def test_an_unknown_dtype_is_refused(requested: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        resolve_dtype_name(requested, on_cuda=False)


@pytest.mark.parametrize(("pad", "fallback", "result"), [(None, True, "<e>"), ("<p>", True, "<p>"), (None, False, None)])
def test_a_missing_pad_token_becomes_eos_where_allowed(pad: str | None, fallback: bool, result: str | None) -> None:
    tokenizer = SimpleNamespace(pad_token=pad, eos_token="<e>", padding_side="right", truncation_side="right")
    normalise_tokenizer(tokenizer, VlmPreprocessOptions(pad_token_fallback=fallback))
    assert (tokenizer.pad_token, tokenizer.padding_side, tokenizer.truncation_side) == (result, "left", "left")


def processor(**attributes: Any) -> Any:
    return SimpleNamespace(**({"size": {"shortest_edge": 65536, "longest_edge": 16777216}} | attributes))


def test_max_pixels_is_an_area_and_leaves_the_least_alone() -> None:
    image_processor = processor()
    normalise_image_processor(image_processor, VlmPreprocessOptions(max_pixels=786432))
    assert image_processor.size == {"shortest_edge": 65536, "longest_edge": 786432}
    assert not hasattr(image_processor, "max_pixels")


def test_older_attributes_are_kept_in_step() -> None:
    image_processor = processor(min_pixels=65536, max_pixels=16777216)
    normalise_image_processor(image_processor, VlmPreprocessOptions(max_pixels=786432))
    assert (image_processor.min_pixels, image_processor.max_pixels) == (65536, 786432)


def test_do_resize_alone_leaves_the_budget_alone() -> None:
    image_processor = processor(do_resize=True)
    normalise_image_processor(image_processor, VlmPreprocessOptions(do_resize=False))
    assert image_processor.do_resize is False
    assert image_processor.size == {"shortest_edge": 65536, "longest_edge": 16777216}


def test_a_budget_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="min_pixels 65536 exceeds max_pixels 1000"):
        normalise_image_processor(processor(), VlmPreprocessOptions(max_pixels=1000))


def test_a_budget_for_a_processor_without_one_is_refused() -> None:
    with pytest.raises(UnsupportedOption, match="need an image processor with a pixel budget"):
        normalise_image_processor(processor(size={"height": 224, "width": 224}), VlmPreprocessOptions(max_pixels=1000))


@pytest.mark.parametrize(
    ("generation_config", "config", "ids"),
    [
        ({"eos_token_id": [7, 5]}, {"eos_token_id": 9}, (5, 7)),
        ({"eos_token_id": 0}, {}, (5, 0)),
        ({}, {"eos_token_id": 9}, (5,)),
        (None, {"eos_token_id": 9}, (5, 9)),
        (None, {"text_config": {"eos_token_id": 8}}, (5, 8)),
    ],
    ids=["list", "zero", "none declared", "only config", "text config"],
)
def test_eos_ids_are_the_tokenizers_then_the_checkpoints(
    tmp_path: Path, generation_config: dict[str, Any] | None, config: dict[str, Any], ids: tuple[int, ...]
) -> None:
    write(tmp_path, "config.json", config)
    if generation_config is not None:
        write(tmp_path, "generation_config.json", generation_config)
    assert eos_token_ids(str(tmp_path), SimpleNamespace(eos_token_id=5)) == ids


def test_an_eos_id_that_is_none_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="declares eos_token_id 'x'"):
        eos_token_ids(write(tmp_path, "generation_config.json", {"eos_token_id": "x"}), SimpleNamespace(eos_token_id=5))


def test_a_vision_checkpoint_gives_a_processor_that_shares_its_tokenizer(tiny_vlm_checkpoint: Path) -> None:
    tokenizer, loaded = load_tokenizer_and_processor(ModelLoadConfig(str(tiny_vlm_checkpoint)), VlmPreprocessOptions(max_pixels=50_000))
    assert loaded is not None
    assert loaded.tokenizer is tokenizer
    assert tokenizer.padding_side == "left"
    assert dict(loaded.image_processor.size) == {"shortest_edge": 4096, "longest_edge": 50_000}


def test_a_vision_checkpoint_asked_as_text_gives_a_tokenizer_only(tiny_vlm_checkpoint: Path) -> None:
    _, loaded = load_tokenizer_and_processor(ModelLoadConfig(str(tiny_vlm_checkpoint), variant="text"), VlmPreprocessOptions())
    assert loaded is None


def test_a_checkpoint_without_tokenizer_is_a_checkpoint_error(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"model_type": "llama"})
    with pytest.raises(CheckpointError, match="the tokenizer of .* cannot be loaded"):
        load_tokenizer_and_processor(ModelLoadConfig(str(tmp_path)), VlmPreprocessOptions())
