"""What becomes of a checkpoint directory, and of a bad one. Run: pytest tests/backends/test_hf_loading.py"""

from __future__ import annotations

import json
import shutil

import pytest

from evalharness.contracts import ModelLoadConfig, VlmPreprocessOptions
from evalharness.errors import CheckpointError, ConfigError, MissingDependency
from tests.backends.hf_models import (
    END_ID,
    ids,
    load,
    make_text_checkpoint,
    make_vlm_checkpoint,
    mixed_prompts,
    one_thread,
    run,
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def text_checkpoint(tmp_path_factory):
    return make_text_checkpoint(tmp_path_factory.mktemp("hf") / "text")


@pytest.fixture(scope="module")
def vlm_checkpoint(tmp_path_factory):
    return make_vlm_checkpoint(tmp_path_factory.mktemp("hf") / "vlm")


@pytest.fixture
def copied(text_checkpoint, tmp_path):
    return shutil.copytree(text_checkpoint, tmp_path / "copy")


def edit_json(path, **changes):
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, **changes}))


def test_an_unknown_dtype_lists_the_legal_ones(text_checkpoint):
    with pytest.raises(ConfigError, match=r"torch_dtype 'bogus' is unknown; known: auto, bfloat16, float16, half, float32"):
        load(text_checkpoint, torch_dtype="bogus")


DTYPES = {
    "None on a CPU": (None, "float32"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "upper case": ("Float32", "float32"),
    "auto": ("auto", "float32"),
}


@pytest.mark.parametrize("name, expected", DTYPES.values(), ids=DTYPES.keys())
def test_dtype_names_are_resolved(text_checkpoint, name, expected):
    assert load(text_checkpoint, torch_dtype=name).describe()["dtype"] == expected


def test_auto_takes_the_checkpoints_dtype(copied):
    edit_json(copied / "config.json", dtype="bfloat16")
    assert load(copied, torch_dtype="auto").describe()["dtype"] == "bfloat16"


def test_none_means_bfloat16_on_a_gpu():
    import torch

    from evalharness.backends.hf_loading import resolve_dtype

    assert resolve_dtype(None, "cuda") is torch.bfloat16
    assert resolve_dtype(None, "cpu") is torch.float32


def test_flash_attn_is_another_name_of_flash_attention_2():
    from evalharness.backends.hf_loading import resolve_attention

    assert [resolve_attention(name) for name in ("flash_attn", "flash_attention_2", "eager", None)] == [
        "flash_attention_2",
        "flash_attention_2",
        "eager",
        None,
    ]


def test_the_attention_that_was_asked_for_is_used(text_checkpoint):
    assert load(text_checkpoint, attn_implementation="eager").describe()["attn_implementation"] == "eager"


def test_an_unknown_attention_is_refused(text_checkpoint):
    with pytest.raises(ConfigError, match="attn_implementation 'bogus' cannot be used"):
        load(text_checkpoint, attn_implementation="bogus")


def test_flash_attention_that_is_not_installed_says_so(text_checkpoint):
    with pytest.raises(MissingDependency, match="needs a package that is not installed: FlashAttention2"):
        load(text_checkpoint, attn_implementation="flash_attn", torch_dtype="bfloat16")


@pytest.mark.parametrize("device, match", [("bogus", "'bogus' is unknown"), ("cuda:99", "'cuda:99' is not there")], ids=["name", "index"])
def test_a_device_that_is_not_there_is_refused(text_checkpoint, device, match):
    with pytest.raises(ConfigError, match=match):
        load(text_checkpoint, device=device)


def test_a_device_map_wins_over_the_device(text_checkpoint):
    backend = load(text_checkpoint, device_map={"": "cpu"}, device="bogus")
    assert backend.describe()["device"] == "cpu"
    assert backend.describe()["device_map"] == {"": "cpu"}
    assert ids(run(backend, mixed_prompts(3))) == ids(run(load(text_checkpoint), mixed_prompts(3)))


@pytest.mark.parametrize("variant, supports_vlm", [(None, True), ("vlm", True), ("VLM", True), ("text", False)], ids=str)
def test_the_variant_is_found_out_or_obeyed(vlm_checkpoint, variant, supports_vlm):
    backend = load(vlm_checkpoint, variant=variant)
    assert backend.supports_vlm is supports_vlm
    assert (backend.processor is not None) is supports_vlm


def test_a_text_checkpoint_is_no_vlm(text_checkpoint):
    assert load(text_checkpoint).supports_vlm is False
    with pytest.raises(CheckpointError, match=r"has no vision part, but model\.variant is 'vlm'"):
        load(text_checkpoint, variant="vlm")


def test_a_vlm_without_image_processor_is_refused_and_loads_as_text(vlm_checkpoint, tmp_path):
    copy = shutil.copytree(vlm_checkpoint, tmp_path / "copy")
    (copy / "preprocessor_config.json").unlink()
    (copy / "video_preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"it takes text only: set model\.variant to 'text'"):
        load(copy)
    assert load(copy, variant="text").supports_vlm is False


def test_without_a_pad_token_the_end_token_pads(tmp_path):
    tokenizer = load(make_text_checkpoint(tmp_path / "m", with_pad=False)).tokenizer
    assert tokenizer.pad_token == tokenizer.eos_token == "<end>"


def test_an_existing_pad_token_stays(text_checkpoint):
    assert load(text_checkpoint).tokenizer.pad_token == "<pad>"


def test_rows_are_padded_on_the_left_whatever_the_tokenizer_says(copied, text_checkpoint):
    edit_json(copied / "tokenizer_config.json", padding_side="right")
    assert ids(run(load(copied), mixed_prompts(6))) == ids(run(load(text_checkpoint), mixed_prompts(6)))


EOS = {
    "one id": ({"eos_token_id": 5}, (5, END_ID)),
    "a list": ({"eos_token_id": [7, 0, 7]}, (7, 0)),
    "zero": ({"eos_token_id": 0}, (0,)),
    "none": ({}, (END_ID,)),
}


@pytest.mark.parametrize("generation_config, expected", EOS.values(), ids=EOS.keys())
def test_end_of_sequence_ids_are_the_generation_configs_then_the_tokenizers(copied, generation_config, expected):
    (copied / "generation_config.json").write_text(json.dumps(generation_config))
    assert load(copied).eos_token_ids == expected


def test_without_generation_config_the_config_names_the_end(copied):
    (copied / "generation_config.json").unlink()
    edit_json(copied / "config.json", eos_token_id=[9, 4])
    assert load(copied).eos_token_ids == (9, 4, END_ID)


@pytest.mark.parametrize("value", ["end", True, -1, [3, 2.5]], ids=str)
def test_an_end_of_sequence_id_that_is_no_id_is_refused(copied, value):
    (copied / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(CheckpointError, match=r"eos_token_id in generation_config\.json .* must be token ids of at least 0"):
        load(copied)


def test_a_generation_config_that_is_no_json_is_refused(copied):
    (copied / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config.json cannot be read"):
        load(copied)


def test_a_path_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load(tmp_path / "absent")


def test_a_directory_without_config_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load(tmp_path)


def test_pickled_weights_are_refused_unless_allowed(text_checkpoint, tmp_path):
    import torch
    from safetensors.torch import load_file

    copy = shutil.copytree(text_checkpoint, tmp_path / "copy")
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no weights in safetensors format; pickled weights can run code.*allow them with"):
        load(copy)
    assert ids(run(load(copy, allow_pickle=True), mixed_prompts(3))) == ids(run(load(text_checkpoint), mixed_prompts(3)))


def test_missing_weights_are_refused_not_drawn_at_random(text_checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(text_checkpoint, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 1 weights that its config asks for, such as model.layers.1.mlp.up_proj.weight"):
        load(copy)


def test_a_checkpoint_with_its_own_code_is_refused_unless_trusted(copied):
    edit_json(copied / "config.json", model_type="own", auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"})
    (copied / "own.py").write_text("raise SystemExit('the code of the checkpoint ran')\n")
    with pytest.raises(CheckpointError, match=r"brings its own code, which is not run by default; .*--trust-remote-code"):
        load(copied)


def test_the_context_length_is_the_configs(text_checkpoint, vlm_checkpoint):
    assert load(text_checkpoint).max_model_len == 256
    assert load(vlm_checkpoint).max_model_len == 4096


def test_the_description_is_plain_json(text_checkpoint, vlm_checkpoint):
    for path in (text_checkpoint, vlm_checkpoint):
        description = load(path).describe()
        assert json.loads(json.dumps(description)) == description
        assert description["device"] == "cpu"


def processor_of(path, **options):
    from evalharness.backends.hf import HfBackend

    return HfBackend(ModelLoadConfig(str(path), device="cpu"), VlmPreprocessOptions(**options)).processor.image_processor


def test_max_pixels_is_an_area_and_leaves_the_minimum(vlm_checkpoint, tmp_path):
    copy = shutil.copytree(vlm_checkpoint, tmp_path / "copy")
    edit_json(copy / "preprocessor_config.json", size={"shortest_edge": 65536, "longest_edge": 16777216})
    processor = processor_of(copy, max_pixels=786432)
    assert (processor.size["shortest_edge"], processor.size["longest_edge"]) == (65536, 786432)


def test_min_pixels_leaves_the_maximum(vlm_checkpoint):
    processor = processor_of(vlm_checkpoint, min_pixels=8192)
    assert (processor.size["shortest_edge"], processor.size["longest_edge"]) == (8192, 131072)


def test_do_resize_alone_leaves_the_budget(vlm_checkpoint):
    processor = processor_of(vlm_checkpoint, do_resize=False)
    assert processor.do_resize is False
    assert (processor.size["shortest_edge"], processor.size["longest_edge"]) == (4096, 131072)


def test_a_contradictory_budget_is_refused(vlm_checkpoint):
    with pytest.raises(ConfigError, match="min_pixels 4096 exceeds max_pixels 1000; set both"):
        processor_of(vlm_checkpoint, max_pixels=1000)


def test_the_tokenizers_sides_are_those_of_the_options(text_checkpoint):
    from evalharness.backends.hf import HfBackend

    tokenizer = HfBackend(ModelLoadConfig(str(text_checkpoint), device="cpu"), VlmPreprocessOptions(truncation_side="right")).tokenizer
    assert (tokenizer.padding_side, tokenizer.truncation_side) == ("left", "right")
