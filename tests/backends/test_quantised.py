"""Quantised checkpoints: what is recorded of them, really run on transformers. Run: pytest tests/backends/test_quantised.py

vLLM runs one in tests/contract/test_engine_breadth.py.
"""

from __future__ import annotations

import builtins
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from evalharness import GenerationOptions, ModelLoadConfig
from evalharness.api.errors import MissingDependency
from evalharness.backends.checkpoint_reading import checkpoint_errors
from evalharness.checkpoints.architecture import LoadedFolder, architecture_difference
from evalharness.checkpoints.info import inspect_checkpoint, quantization_at, quantization_of
from evalharness.engine.backend_contract import TEXTS, ask, generate
from evalharness.engine.engine import Engine
from tests.backends.gguf_models import TEMPLATE
from tests.backends.hf_models import load, make_text_checkpoint
from tests.backends.word_model import quantise

pytestmark = pytest.mark.engine

DECLARED = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128}, "4-bit"),
    "gptq": ({"quant_method": "gptq", "bits": 8}, "8-bit"),
    "fp8": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, None),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, "4-bit"),
    "compressed-tensors": ({"quant_method": "compressed-tensors", "format": "int-quantized"}, "int-quantized"),
}


@pytest.mark.parametrize(("method", "declared", "form"), [(name, *values) for name, values in DECLARED.items()], ids=DECLARED)
def test_what_a_config_says_of_its_quantisation(method: str, declared: dict[str, Any], form: str | None) -> None:
    found = quantization_of({"model_type": "llama", "quantization_config": {**declared, "modules_to_not_convert": ["a"] * 100}})
    assert found == {"method": method, "format": form, "settings": declared}
    assert quantization_of({"text_config": {"quantization_config": declared}}) == found


def test_a_checkpoint_that_is_not_quantised_says_nothing() -> None:
    assert quantization_of({"model_type": "llama"}) is None
    assert quantization_at("/nowhere") is None


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint of 8-bit integers, and the same numbers as float32."""
    from safetensors.torch import load_file, save_file

    plain = make_text_checkpoint(tmp_path_factory.mktemp("quantised") / "plain")
    (plain / "chat_template.jinja").write_text(TEMPLATE)
    small = shutil.copytree(plain, plain.with_name("int8"))
    quantise(small)
    weights = load_file(small / "model.safetensors")
    scales = {name: weights.pop(name) for name in list(weights) if name.endswith("_scale")}
    whole = {name: tensor.float() * scales[f"{name}_scale"] if f"{name}_scale" in scales else tensor for name, tensor in weights.items()}
    save_file(whole, plain / "model.safetensors", metadata={"format": "pt"})
    return small, plain


def test_int8_of_compressed_tensors_runs_on_transformers(quantised: tuple[Path, Path]) -> None:
    pytest.importorskip("compressed_tensors", reason="vLLM brings it along")
    logits = []
    for path in quantised:
        backend = load(path)
        results = generate(Engine(backend), [ask(text[:60]) for text in TEXTS[:4]], GenerationOptions(max_new_tokens=12))
        assert [result.num_completion_tokens for result in results] == [len(result.token_ids) for result in results]
        facts = backend.describe()["quantization"]
        assert facts is None or (facts["method"], facts["format"]) == ("compressed-tensors", "int-quantized")
        with torch.inference_mode():
            logits.append(backend.model(input_ids=torch.arange(2, 42).reshape(2, 20)).logits)
        backend.close()
    difference = ((logits[0] - logits[1]).norm() / logits[1].norm()).item()
    assert 1e-4 < difference < 0.05, "activations are rounded to 8 bits too, weights are the same numbers"


def test_it_is_told_of_each_checkpoint_and_part_of_its_fingerprint(quantised: tuple[Path, Path]) -> None:
    small, plain = map(inspect_checkpoint, quantised)
    assert small.quantization is not None
    assert (small.quantization["method"], plain.quantization) == ("compressed-tensors", None)
    assert small.fingerprint != plain.fingerprint


def test_quantised_checkpoints_are_never_swapped(quantised: tuple[Path, Path], tmp_path: Path) -> None:
    small, plain = quantised
    assert (architecture_difference(LoadedFolder.read(small), plain, dtype_matters=False) or "").startswith(
        "config.json differs in quantization_config ("
    )
    assert architecture_difference(LoadedFolder.read(small), small, dtype_matters=False) == "its weights are quantized"
    other = shutil.copytree(small, tmp_path / "other")
    values = json.loads((other / "config.json").read_text())
    values["quantization_config"]["ignore"] = []
    (other / "config.json").write_text(json.dumps(values))
    assert (
        architecture_difference(LoadedFolder.read(small), other, dtype_matters=False)
        == 'config.json differs in quantization_config.ignore (["lm_head"], [])'
    )


@pytest.mark.parametrize(("method", "package"), [("awq", "gptqmodel"), ("bitsandbytes", "bitsandbytes"), ("torchao", "torchao")])
def test_a_missing_package_is_named_with_its_command(tmp_path: Path, method: str, package: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": {"quant_method": method}}))
    with (
        pytest.raises(MissingDependency, match=rf"; its weights are quantised \({method}\): pip install {package}$"),
        checkpoint_errors(ModelLoadConfig(str(tmp_path)), "model"),
    ):
        builtins.__import__("a_package_that_is_not_there")
