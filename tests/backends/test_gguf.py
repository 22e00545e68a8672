"""GGUF files on the hf backend, and quantised checkpoints. Run: pytest tests/backends/test_gguf.py"""

from __future__ import annotations

import importlib.util
import json
import struct
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf", reason="the extra gguf is not installed")

import torch

from evalharness import GenerationOptions, ModelLoadConfig, build_engine
from evalharness.api.errors import CheckpointError, MissingDependency
from evalharness.backends.checkpoint_reading import checkpoint_source
from evalharness.checkpoints.architecture import LoadedFolder, architecture_difference
from evalharness.checkpoints.discovery import find_models
from evalharness.checkpoints.gguf import gguf_file_of, read_gguf
from evalharness.checkpoints.info import inspect_checkpoint
from evalharness.config import resolve
from evalharness.engine.backend_contract import TEXTS, ask, generate
from evalharness.pytest_plugin.execution.engine_specs import engine_specs
from tests.backends.gguf_models import make_pair, write_gguf
from tests.backends.hf_models import load

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same weights as safetensors and as GGUF."""
    return make_pair(tmp_path_factory.mktemp("gguf"))


def test_a_gguf_in_float32_gives_the_logits_of_its_safetensors(pair: tuple[Path, Path]) -> None:
    ids = torch.arange(2, 42).reshape(2, 20)
    logits = []
    for path in pair:
        backend = load(path)
        with torch.inference_mode():
            logits.append(backend.model(input_ids=ids).logits)
        backend.close()
    assert (logits[0] - logits[1]).abs().max().item() == 0.0


def test_a_gguf_answers_as_its_safetensors(pair: tuple[Path, Path]) -> None:
    said = []
    for path in pair:
        with build_engine("hf", ModelLoadConfig(str(path), torch_dtype="float32", device="cpu")) as engine:
            results = generate(engine, [ask(text[:60]) for text in TEXTS[:6]], GenerationOptions(max_new_tokens=12))
            facts = engine.describe()
        said.append([(result.token_ids, result.text, result.finish_reason) for result in results])
        assert (facts["max_model_len"], facts["eos_token_ids"]) == (256, [0])
    assert said[0] == said[1]
    assert facts["quantization"] == {"method": "gguf", "format": "F32", "num_tensors": {"F32": 21}}


def test_what_a_gguf_says_of_itself(pair: tuple[Path, Path]) -> None:
    found = read_gguf(pair[1])
    assert (found.architecture, found.end_ids, found.has_chat_template) == ("llama", (0,), True)
    info = inspect_checkpoint(pair[1])
    assert (info.variant, info.has_chat_template) == ("text", True)


def test_a_gguf_is_named_by_its_file_its_folder_or_a_pattern(pair: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    file = folder / "a.gguf"
    file.write_bytes(pair[1].read_bytes())
    for pattern in (str(file), "model/*.gguf"):
        assert find_models([pattern], tmp_path, wait_s=0, on_notice=print) == [file]
    assert find_models(["model"], tmp_path, wait_s=0, on_notice=print) == [folder]
    assert gguf_file_of(folder) == file
    assert inspect_checkpoint(folder).fingerprint == inspect_checkpoint(pair[1]).fingerprint
    (folder / "b.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"holds 2 GGUF files \(a\.gguf, b\.gguf\); give the path of one"):
        inspect_checkpoint(folder)


def test_a_run_records_it_and_refuses_it_on_vllm_before_anything_is_loaded(pair: tuple[Path, Path]) -> None:
    def specs(backend: str) -> Any:
        return engine_specs(resolve({"backend": backend, "model": [str(pair[1])]}, {}, pair[1].parent), pair[1].parent)

    (spec,) = specs("hf")
    assert (spec.id, spec.quantization["method"]) == ("hf:tiny.gguf", "gguf")
    with pytest.raises(CheckpointError, match=r"tiny\.gguf is a GGUF file, which vLLM does not read; use --backend hf"):
        specs("hf,vllm")


def test_without_the_package_the_command_that_installs_it_is_named(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "gguf" else found(name, *more))
    with pytest.raises(MissingDependency, match=r"pip install .*\[gguf\]"):
        checkpoint_source(str(pair[1]))


def test_a_gguf_is_never_swapped_in(pair: tuple[Path, Path]) -> None:
    assert architecture_difference(LoadedFolder.read(pair[0]), pair[1], dtype_matters=False) == "a GGUF file is always loaded anew"


def changed(content: bytes, what: str) -> bytes:
    """Return the file's bytes, damaged in one way."""

    def with_first(name: bytes, value: bytes) -> bytes:
        (num_values,) = struct.unpack("<Q", content[16:24])
        return content[:16] + struct.pack("<QQ", num_values + 1, len(name)) + name + value + content[24:]

    return {
        "empty": b"",
        "other": b"PK\x03\x04" + content[4:],
        "pointer": b"version https://git-lfs",
        "old": content[:4] + struct.pack("<I", 1) + content[8:],
        "big-endian": content[:4] + struct.pack(">I", 3) + content[8:],
        "half": content[: len(content) // 2],
        "head": content[:500],
        "length": content[:24] + b"\xff" * 8 + content[32:],
        "text": content[:24] + struct.pack("<Q", 2**32) + content[32:],
        "deep": with_first(b"x", struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000 + struct.pack("<IQ", 4, 0)),
        "parts": with_first(b"split.count", struct.pack("<IQ", 8, 1) + b"a"),
        "none": content[:8] + struct.pack("<QQ", 0, 0),
    }[what]


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("empty", r"is empty \(0 bytes\); copy it again"),
        ("other", "is not a GGUF file; copy it again"),
        ("pointer", "is a Git LFS pointer, not the file itself"),
        ("old", "is of GGUF version 1; versions 2 and 3 are read"),
        ("big-endian", "is of GGUF version 50331648"),
        ("half", "its header says more; it was copied or written only in part"),
        ("head", r"the head of .* is damaged"),
        ("length", r"the head of .* is damaged \(ValueError: a length of"),
        ("text", r"is damaged \(ValueError: it ends within a text\)"),
        ("deep", r"is damaged \(ValueError: lists nested more than 8 deep\)"),
        ("parts", "is one part of several"),
        ("none", "holds no weights"),
    ],
)
def test_a_damaged_gguf_is_refused(pair: tuple[Path, Path], tmp_path: Path, what: str, problem: str) -> None:
    file = tmp_path / "damaged.gguf"
    file.write_bytes(changed(pair[1].read_bytes(), what))
    with pytest.raises(CheckpointError, match=problem):
        inspect_checkpoint(file)


def test_a_part_of_a_model_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    file = write_gguf(pair[0], tmp_path / "part.gguf", split__count=3)
    with pytest.raises(CheckpointError, match="is one part of several; join them with llama.cpp's llama-gguf-split --merge"):
        inspect_checkpoint(file)


def test_an_adapter_cannot_be_put_on_it(pair: tuple[Path, Path], tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"]}))
    with pytest.raises(CheckpointError, match=r"tiny\.gguf holds no config\.json; give the folder of the checkpoint"):
        inspect_checkpoint(adapter, base_model=pair[1])
