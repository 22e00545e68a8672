"""What becomes of a checkpoint directory, and of a bad one, in the hf backend; test_checkpoint_reading.py has what vllm shares."""

from __future__ import annotations

import json
import shutil

import pytest

from evalharness.api.errors import CheckpointError, ConfigError, MissingDependency
from tests.backends.hf_models import ids, load, make_vlm_checkpoint, mixed_prompts, run

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("torch_in_one_thread")]


@pytest.fixture(scope="module")
def vlm_checkpoint(tmp_path_factory):
    return make_vlm_checkpoint(tmp_path_factory.mktemp("hf") / "vlm")


@pytest.fixture
def copied(hf_text_checkpoint, tmp_path):
    return shutil.copytree(hf_text_checkpoint, tmp_path / "copy")


def edit_json(path, **changes):
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, **changes}))


def test_auto_takes_the_checkpoints_dtype(copied):
    edit_json(copied / "config.json", dtype="bfloat16")
    assert load(copied, torch_dtype="auto").describe()["dtype"] == "bfloat16"


def test_the_attention_that_was_asked_for_is_used_else_torchs_own(hf_text_checkpoint):
    assert load(hf_text_checkpoint).describe()["attn_implementation"] == "sdpa"
    assert load(hf_text_checkpoint, attn_implementation="eager").describe()["attn_implementation"] == "eager"


FACTS = {"torch_dtype": "bfloat16", "device": "cpu", "attn_implementation": "eager"}


def test_options_of_loading_show_in_the_engines_facts(hf_text_checkpoint):
    facts = load(hf_text_checkpoint, **FACTS).describe()
    assert (facts["dtype"], facts["device"], facts["attn_implementation"]) == tuple(FACTS.values())


REFUSED = {
    "attention": ({"attn_implementation": "bogus"}, ConfigError, "attn_implementation 'bogus' cannot be used"),
    "flash attention": (
        {"attn_implementation": "flash_attn", "torch_dtype": "bfloat16"},
        MissingDependency,
        "needs a package that is not installed: FlashAttention2",
    ),
    "device": ({"device": "bogus"}, ConfigError, "'bogus' is unknown"),
    "kind of a device": ({"device": "mps"}, ConfigError, "'mps' cannot be used here: .*; give 'cpu', 'cuda'"),
    "number of a device": ({"device": "cuda:99"}, ConfigError, "'cuda:99' is not there"),
}


@pytest.mark.parametrize("config, error, match", REFUSED.values(), ids=REFUSED)
def test_what_is_not_there_is_refused(hf_text_checkpoint, config, error, match):
    with pytest.raises(error, match=match):
        load(hf_text_checkpoint, **config)


def test_a_device_map_says_where_the_weights_go(hf_text_checkpoint):
    backend = load(hf_text_checkpoint, device_map={"": "cpu"}, device=None)
    assert backend.describe()["device"] == "cpu"
    assert backend.describe()["device_map"] == {"": "cpu"}
    assert ids(run(backend, mixed_prompts(3))) == ids(run(load(hf_text_checkpoint), mixed_prompts(3)))


@pytest.mark.parametrize("variant, supports_vlm", [(None, True), ("vlm", True), ("VLM", True), ("text", False)], ids=str)
def test_the_variant_is_found_out_or_obeyed(vlm_checkpoint, variant, supports_vlm):
    backend = load(vlm_checkpoint, variant=variant)
    assert backend.capabilities.supports_vlm is supports_vlm
    assert (backend.processor is not None) is supports_vlm


def test_a_text_checkpoint_is_no_vlm(hf_text_checkpoint):
    assert load(hf_text_checkpoint).capabilities.supports_vlm is False
    with pytest.raises(CheckpointError, match=r"has no image_processor; .* takes text only: .* set model\.variant to 'text'"):
        load(hf_text_checkpoint, variant="vlm")


def test_rows_are_padded_on_the_left_whatever_the_tokenizer_says(copied, hf_text_checkpoint):
    edit_json(copied / "tokenizer_config.json", padding_side="right")
    assert ids(run(load(copied), mixed_prompts(6))) == ids(run(load(hf_text_checkpoint), mixed_prompts(6)))


def test_a_config_that_transformers_does_not_know_is_refused(copied):
    edit_json(copied / "config.json", model_type="unheard_of")
    with pytest.raises(CheckpointError, match=r"the config of .*copy cannot be loaded: ValueError: .*unheard_of"):
        load(copied)


def test_pickled_weights_are_refused_unless_allowed(hf_text_checkpoint, tmp_path):
    import torch
    from safetensors.torch import load_file

    copy = shutil.copytree(hf_text_checkpoint, tmp_path / "copy")
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no weights in safetensors format; .* can run code.*allow them with --allow-pickle"):
        load(copy)
    assert ids(run(load(copy, allow_pickle=True), mixed_prompts(3))) == ids(run(load(hf_text_checkpoint), mixed_prompts(3)))


def test_missing_weights_are_refused_not_drawn_at_random(hf_text_checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(hf_text_checkpoint, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 1 weight that its config asks for, such as model.layers.1.mlp.up_proj.weight"):
        load(copy)


def test_a_checkpoint_with_its_own_code_is_refused_unless_trusted(copied):
    edit_json(copied / "config.json", model_type="own", auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"})
    (copied / "own.py").write_text("raise SystemExit('the code of the checkpoint ran')\n")
    with pytest.raises(CheckpointError, match=r"brings its own code, which is not run by default; .*--trust-remote-code"):
        load(copied)


def test_the_context_length_is_the_configs(hf_text_checkpoint, vlm_checkpoint):
    assert load(hf_text_checkpoint).max_model_len == 256
    assert load(vlm_checkpoint).max_model_len == 4096
