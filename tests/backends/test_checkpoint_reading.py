"""What both real backends read from a checkpoint, and what they say of one that cannot be read."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.api.errors import CheckpointError, ConfigError, MissingDependency, UnsupportedOption
from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.backends import checkpoint_reading
from evalharness.backends.checkpoint_reading import (
    apply_pixel_budget,
    checkpoint_errors,
    declared_variant,
    detect_variant,
    end_of_sequence_ids,
    load_tokenizer_and_processor,
    normalise_tokenizer,
    pixel_budget,
    resolve_dtype_name,
)


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
    path = write(tmp_path, "config.json", config)
    assert declared_variant(path) == detect_variant(ModelLoadConfig(path)) == variant


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
    ("requested", "problem"),
    [
        ("bogus", r"^vllm.dtype 'bogus' is unknown; known: bfloat16, float16, half, float32"),
        ("int8", "is unknown"),
        ("auto", "is unknown"),
        ("bfloat61", "is unknown; did you mean 'bfloat16'"),
    ],
)
def test_an_unknown_dtype_is_refused(requested: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        resolve_dtype_name(requested, on_cuda=False, option="vllm.dtype")


def test_auto_is_a_dtype_where_the_caller_can_honour_it() -> None:
    assert resolve_dtype_name("Auto", on_cuda=False, allow_auto=True) == "auto"
    with pytest.raises(ConfigError, match="known: auto, bfloat16"):
        resolve_dtype_name("bogus", on_cuda=False, allow_auto=True)


@pytest.mark.parametrize(("pad", "fallback", "result"), [(None, True, "<e>"), ("<p>", True, "<p>"), (None, False, None)])
def test_a_missing_pad_token_becomes_eos_where_allowed(pad: str | None, fallback: bool, result: str | None) -> None:
    tokenizer = SimpleNamespace(pad_token=pad, eos_token="<e>")
    normalise_tokenizer(tokenizer, VlmPreprocessOptions(pad_token_fallback=fallback))
    assert tokenizer.pad_token == result


def test_the_tokenizers_sides_are_those_of_the_options() -> None:
    tokenizer = SimpleNamespace(pad_token="<p>", eos_token="<e>", padding_side="right", truncation_side="left")
    normalise_tokenizer(tokenizer, VlmPreprocessOptions(truncation_side="right"))
    assert (tokenizer.padding_side, tokenizer.truncation_side) == ("left", "right")


def image_processor_of(path: Path, **options: Any) -> Any:
    _, loaded = load_tokenizer_and_processor(ModelLoadConfig(str(path)), VlmPreprocessOptions(**options))
    assert loaded is not None
    return loaded.image_processor


@pytest.mark.parametrize(
    ("options", "budget"),
    [
        ({}, (4096, 131072, True)),
        ({"max_pixels": 50_000}, (4096, 50_000, True)),
        ({"min_pixels": 8192}, (8192, 131072, True)),
        ({"min_pixels": 8192, "max_pixels": 50_000}, (8192, 50_000, True)),
        ({"do_resize": False}, (4096, 131072, False)),
    ],
    ids=["unset", "max alone", "min alone", "both", "do_resize alone"],
)
def test_a_pixel_limit_is_an_area_and_what_is_unset_stays(tiny_vlm_checkpoint: Path, options: dict[str, Any], budget: Any) -> None:
    image_processor = image_processor_of(tiny_vlm_checkpoint, **options)
    assert (image_processor.size["shortest_edge"], image_processor.size["longest_edge"], image_processor.do_resize) == budget
    assert tuple((pixel_budget(image_processor) or {}).values()) == budget


def test_a_budget_that_contradicts_itself_is_refused(tiny_vlm_checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="min_pixels 4096 exceeds max_pixels 1000; set both"):
        image_processor_of(tiny_vlm_checkpoint, max_pixels=1000)


def test_attributes_of_older_releases_are_kept_in_step() -> None:
    size = {"shortest_edge": 65536, "longest_edge": 16777216}
    image_processor = SimpleNamespace(size=size, merge_size=2, min_pixels=65536, max_pixels=16777216)
    apply_pixel_budget(image_processor, VlmPreprocessOptions(max_pixels=786432))
    assert (image_processor.min_pixels, image_processor.max_pixels) == (65536, 786432)
    assert image_processor.size == {"shortest_edge": 65536, "longest_edge": 786432}


def test_attributes_that_a_release_has_dropped_are_not_set(tiny_vlm_checkpoint: Path) -> None:
    image_processor = image_processor_of(tiny_vlm_checkpoint, min_pixels=8192, max_pixels=50_000)
    assert not {"min_pixels", "max_pixels"} & set(vars(image_processor))


@pytest.mark.parametrize("size", [{"height": 224, "width": 224}, {"longest_edge": 980}, None], ids=["fixed", "an edge's length", "none"])
def test_a_budget_for_a_processor_without_one_is_refused(size: dict[str, int] | None) -> None:
    image_processor = SimpleNamespace(size=size)
    assert pixel_budget(image_processor) is None
    with pytest.raises(UnsupportedOption, match="need an image processor with a budget of pixels"):
        apply_pixel_budget(image_processor, VlmPreprocessOptions(max_pixels=1000))


@pytest.mark.parametrize(
    ("generation_config", "config", "ids"),
    [
        ({"eos_token_id": 7}, {"eos_token_id": 9}, (7, 5)),
        ({"eos_token_id": [7, 0, 5, 7]}, {"eos_token_id": 9}, (7, 0, 5)),
        ({"eos_token_id": 0}, {}, (0, 5)),
        ({}, {"eos_token_id": 9}, (5,)),
        (None, {"eos_token_id": [9, 4]}, (9, 4, 5)),
        (None, {"eos_token_id": 9, "text_config": {"eos_token_id": 8}}, (9, 5)),
        (None, {"text_config": {"eos_token_id": 8}}, (8, 5)),
        (None, {}, (5,)),
    ],
    ids=["one", "list", "zero", "none declared", "only config", "config before text config", "text config", "tokenizer alone"],
)
def test_eos_ids_are_the_checkpoints_then_the_tokenizers_each_once(
    tmp_path: Path, generation_config: dict[str, Any] | None, config: dict[str, Any], ids: tuple[int, ...]
) -> None:
    write(tmp_path, "config.json", config)
    if generation_config is not None:
        write(tmp_path, "generation_config.json", generation_config)
    assert end_of_sequence_ids(str(tmp_path), SimpleNamespace(eos_token_id=5)) == ids


def test_a_tokenizer_without_eos_adds_none(tmp_path: Path) -> None:
    path = write(tmp_path, "generation_config.json", {"eos_token_id": 7})
    assert end_of_sequence_ids(path, SimpleNamespace(eos_token_id=None)) == (7,)


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("value", ["end", True, -1, [3, 2.5]], ids=str)
def test_an_eos_id_that_is_no_id_is_a_checkpoint_error(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=rf"eos_token_id in {name} of .* must be token ids of at least 0, got"):
        end_of_sequence_ids(write(tmp_path, name, {"eos_token_id": value}), SimpleNamespace(eos_token_id=5))


def test_a_vision_checkpoint_gives_a_processor_that_shares_its_tokenizer(tiny_vlm_checkpoint: Path) -> None:
    tokenizer, loaded = load_tokenizer_and_processor(ModelLoadConfig(str(tiny_vlm_checkpoint)), VlmPreprocessOptions(max_pixels=50_000))
    assert loaded is not None
    assert loaded.tokenizer is tokenizer
    assert tokenizer.padding_side == "left"
    assert dict(loaded.image_processor.size) == {"shortest_edge": 4096, "longest_edge": 50_000}


def test_a_vision_checkpoint_asked_as_text_gives_a_tokenizer_only(tiny_vlm_checkpoint: Path) -> None:
    _, loaded = load_tokenizer_and_processor(ModelLoadConfig(str(tiny_vlm_checkpoint), variant="text"), VlmPreprocessOptions())
    assert loaded is None


def test_a_vision_checkpoint_without_image_processor_is_refused_with_the_ways_out(tiny_vlm_checkpoint: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_vlm_checkpoint, tmp_path / "copy")
    (copy / "preprocessor_config.json").unlink()
    (copy / "video_preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"processor of .*copy .* takes text only: add that file, or set model\.variant to 'text'"):
        load_tokenizer_and_processor(ModelLoadConfig(str(copy)), VlmPreprocessOptions())


def test_a_damaged_image_processor_is_not_taken_for_an_absent_one(tiny_vlm_checkpoint: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_vlm_checkpoint, tmp_path / "copy")
    write(copy, "preprocessor_config.json", "{")
    with pytest.raises(CheckpointError, match=r"the processor of .*copy cannot be loaded") as raised:
        load_tokenizer_and_processor(ModelLoadConfig(str(copy)), VlmPreprocessOptions())
    assert "takes text only" not in str(raised.value)


@pytest.mark.engine
def test_a_checkpoint_without_tokenizer_is_a_checkpoint_error(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"model_type": "llama"})
    with pytest.raises(CheckpointError, match="the tokenizer of .* cannot be loaded: "):
        load_tokenizer_and_processor(ModelLoadConfig(str(tmp_path)), VlmPreprocessOptions())


@pytest.mark.engine
def test_a_tokenizer_with_its_own_code_is_refused_unless_trusted(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"model_type": "own"})
    write(tmp_path, "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}})
    write(tmp_path, "own.py", "raise SystemExit('the code of the checkpoint ran')\n")
    with pytest.raises(CheckpointError, match=r"brings its own code, which is not run by default; .*--trust-remote-code"):
        load_tokenizer_and_processor(ModelLoadConfig(str(tmp_path)), VlmPreprocessOptions())


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (ImportError("no module tiktoken\nlong story"), MissingDependency, "needs a package that is not installed: no module tiktoken$"),
        (KeyError("vocab"), CheckpointError, "the tokenizer of some/path cannot be loaded: KeyError: 'vocab'; is the checkpoint complete"),
        (ValueError(""), CheckpointError, "cannot be loaded: ValueError; is"),
        (ConfigError("ours"), ConfigError, "^ours$"),
    ],
    ids=["import", "any other", "without message", "ours"],
)
def test_whatever_transformers_raises_becomes_an_error_of_ours(raised: Exception, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message), checkpoint_errors(ModelLoadConfig("some/path"), "tokenizer"):
        raise raised


def test_the_backends_import_transformers_in_the_one_way_that_works_beside_a_cpu_torch() -> None:
    backends = Path(checkpoint_reading.__file__).parent
    direct = [
        path.name for path in backends.rglob("*.py") if re.search(r"^\s*(import|from) transformers\b", path.read_text(), re.MULTILINE)
    ]
    assert direct == ["_transformers.py"]
