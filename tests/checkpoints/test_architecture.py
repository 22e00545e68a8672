from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from evalharness.checkpoints.architecture import LoadedFolder, architecture_difference, companion_difference, tensor_difference
from tests.checkpoints.test_info import CONFIG, GOOD, safetensors, write

CHECKPOINTS = Path(__file__).parents[2] / "fixtures" / "checkpoints"


def pair(tmp_path: Path, **files: Any) -> tuple[Path, Path]:
    return write(tmp_path / "a", GOOD), write(
        tmp_path / "b", {**GOOD, **{name.replace("__", "."): content for name, content in files.items()}}
    )


def difference(tmp_path: Path, config: dict[str, Any], *, dtype_matters: bool = False) -> str | None:
    running, other = pair(tmp_path, config__json={**CONFIG, **config})
    return architecture_difference(LoadedFolder.read(running), other, dtype_matters=dtype_matters)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"transformers_version": "5"},
        {"_name_or_path": "x"},
        {"dtype": "float16"},
        {"text_config": {"max_position_embeddings": 4096, "dtype": "float16"}},
    ],
)
def test_what_only_says_who_wrote_a_config_makes_no_difference(tmp_path: Path, config: dict[str, Any]) -> None:
    assert difference(tmp_path, config) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param({"model_type": "llama"}, 'differs in model_type ("qwen3_vl", "llama")', id="type"),
        pytest.param(
            {"text_config": {"max_position_embeddings": 8}}, "differs in text_config.max_position_embeddings (4096, 8)", id="inner"
        ),
        pytest.param({"rope_theta": 1.0}, "differs in rope_theta (absent, 1.0)", id="new-field"),
    ],
)
def test_any_other_field_makes_another_architecture(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    assert difference(tmp_path, config) == f"config.json {message}"


def test_the_weights_own_type_matters_where_the_engine_follows_it(tmp_path: Path) -> None:
    assert difference(tmp_path, {"dtype": "float16"}, dtype_matters=True) == 'config.json differs in dtype (absent, "float16")'


@pytest.mark.parametrize(("key", "message"), [("quantization_config", "quantized"), ("auto_map", "its own code")])
def test_what_no_swap_was_proven_for_starts_anew(tmp_path: Path, key: str, message: str) -> None:
    folders = [write(tmp_path / name, {**GOOD, "config.json": {**CONFIG, key: {"x": 1}}}) for name in "ab"]
    assert message in (architecture_difference(LoadedFolder.read(folders[0]), folders[1], dtype_matters=False) or "")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param({}, None, id="equal"),
        pytest.param({"tokenizer__json": {"model": {"x": 1}}}, "tokenizer.json differs", id="tokenizer"),
        pytest.param({"preprocessor_config__json": {}}, "preprocessor_config.json differs", id="new-file"),
        pytest.param({"generation_config__json": {}, "trainer_state__json": {}, "chat_template__jinja": "x"}, None, id="read-anew"),
        pytest.param({"tokenizer_config__json": {"chat_template": "other"}}, None, id="template-in-the-tokenizer"),
        pytest.param({"tokenizer_config__json": {"x": 1, "chat_template": "o"}}, "tokenizer_config.json differs", id="tokenizer-settings"),
    ],
)
def test_files_that_an_engine_reads_once_must_be_equal(tmp_path: Path, files: dict[str, Any], message: str | None) -> None:
    running, other = pair(tmp_path, **files)
    assert companion_difference(LoadedFolder.read(running), other) == message


def test_the_trained_checkpoints_are_of_one_architecture_and_a_random_one_of_another(tiny_vlm_checkpoint: Path) -> None:
    final = LoadedFolder.read(CHECKPOINTS / "final")
    for name in ("early", "middle", "regressed", "endless"):
        assert architecture_difference(final, CHECKPOINTS / name, dtype_matters=True) is None
        assert companion_difference(final, CHECKPOINTS / name) is None
        assert tensor_difference(final, CHECKPOINTS / name) is None
    assert "config.json differs" in (architecture_difference(final, tiny_vlm_checkpoint, dtype_matters=False) or "")
    assert final.config["model_type"] == "qwen3_vl"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        pytest.param(safetensors("a"), "it lacks b", id="lacks"),
        pytest.param(safetensors("a", "b", "c"), "it has c, which the loaded checkpoint does not have", id="more"),
        pytest.param(safetensors("a", "b", num_values=4), "its a has another shape", id="shape"),
        pytest.param(safetensors("b", "a", fill=b"\2"), None, id="other values"),
    ],
)
def test_tensors_must_pair_one_by_one(tmp_path: Path, weights: bytes, message: str | None) -> None:
    running, other = pair(tmp_path, model__safetensors=weights)
    assert tensor_difference(LoadedFolder.read(running), other) == message


def test_a_loaded_folder_notices_that_its_weights_were_rewritten_or_removed(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", GOOD)
    loaded = LoadedFolder.read(folder)
    (folder / "trainer_state.json").write_text("{}")
    assert not loaded.has_changed()
    (folder / "model.safetensors").unlink()
    assert loaded.has_changed()
    write(folder, {"model.safetensors": GOOD["model.safetensors"]})
    assert loaded.has_changed()


def test_a_loaded_folder_is_known_when_it_changed_or_is_gone_or_could_not_be_read(tmp_path: Path) -> None:
    running, other = pair(tmp_path)
    loaded = LoadedFolder.read(running)
    shutil.rmtree(running)
    assert architecture_difference(loaded, other, dtype_matters=True) is companion_difference(loaded, other) is None
    assert loaded.weight_shapes() == {"a": (8,), "b": (8,)}
    other = write(tmp_path / "b", GOOD)
    assert "No such file" in (architecture_difference(LoadedFolder.read(tmp_path / "a"), other, dtype_matters=False) or "")
