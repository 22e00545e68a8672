"""Every byte that can change an answer changes the fingerprint, wherever in whichever file it stands; nothing else does."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import CheckpointError
from evalharness.checkpoints import identity
from evalharness.checkpoints.architecture import LoadedFolder, companion_difference
from evalharness.checkpoints.identity import fingerprint_of, fingerprint_weights, stamp_of
from evalharness.checkpoints.info import inspect_checkpoint
from tests.adapters import lora, write_adapter
from tests.checkpoints.test_info import CONFIG, GOOD, SHARDED, safetensors, write

LARGE = 20 * 1024 * 1024 // 4
OWN_CODE = {"config.json": {**CONFIG, "auto_map": {"AutoModel": "m.M"}}, "m.py": "M = 1"}
MORE: dict[str, Any] = {
    "additional_chat_templates/tools.jinja": "{{ tools }}",
    "chat_template.jinja": "{{ messages }}",
    "decoder_tokenizer/tokenizer.json": {"model": {}},
    "generation_config.json": {"temperature": 0.6},
    "preprocessor_config.json": {"size": 1},
    "source.spm": b"pieces",
    "vocab.bpe": "a b",
    "extra.safetensors": safetensors("x"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "ckpt", {**GOOD, **MORE})


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        [before] = file.read(1)
        file.seek(place)
        file.write(bytes([before ^ 0x80]))


def test_a_copy_under_another_name_has_the_same(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    left = ("trainer_state.json", "training_args.bin", "optimizer.pt", "rng_state_0.pth", "README.md", ".gitattributes", "train.log")
    write(copy, {**dict.fromkeys(left, "x"), "checkpoint-2/model.safetensors": "x", "pytorch_model.bin": b"not loaded"})
    assert fingerprint_of(copy) == fingerprint_of(folder)


@pytest.mark.parametrize("name", [name for name in {**GOOD, **MORE} if not name.endswith(".safetensors")])
def test_it_changes_with_each_file_that_is_read(folder: Path, name: str) -> None:
    before = fingerprint_of(folder)
    path = folder / name
    path.write_bytes(path.read_bytes() + b" ")
    changed = fingerprint_of(folder)
    path.unlink()
    if name not in ("config.json", "tokenizer.json"):
        assert len({before, changed, fingerprint_of(folder)}) == 3
    assert changed != before


@pytest.mark.parametrize("seed", range(3))
def test_it_changes_with_each_byte_of_a_large_file_of_weights(tmp_path: Path, seed: int) -> None:
    """By the head, 4 KiB of each tensor and the size, as it once was, two models of opposite embeddings were one."""
    ckpt = write(tmp_path / "c", {**GOOD, "model.safetensors": safetensors("a", "b", num_values=LARGE)})
    path = ckpt / "model.safetensors"
    before = fingerprint_of(ckpt), fingerprint_weights(ckpt)
    [length] = struct.unpack("<Q", path.read_bytes()[:8])
    place = random.Random(seed).randrange(8 + length, path.stat().st_size)
    flip(path, place)
    after = fingerprint_of(ckpt), fingerprint_weights(ckpt)
    assert before[0] != after[0]
    assert before[1] != after[1]
    flip(path, place)
    assert (fingerprint_of(ckpt), fingerprint_weights(ckpt)) == before


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "extra.safetensors"])
def test_it_changes_with_each_shard_and_with_what_vllm_finds_beside_them(tmp_path: Path, name: str) -> None:
    ckpt = write(tmp_path / "c", {**GOOD, **MORE, **SHARDED})
    before = fingerprint_of(ckpt)
    flip(ckpt / name, -1 + (ckpt / name).stat().st_size)
    assert fingerprint_of(ckpt) != before


def test_it_changes_with_each_byte_of_a_pickle_that_is_loaded(tmp_path: Path) -> None:
    files = {**GOOD, "pytorch_model.bin": bytes(4 * LARGE)}
    del files["model.safetensors"]
    ckpt = write(tmp_path / "c", files)
    before = fingerprint_of(ckpt)
    flip(ckpt / "pytorch_model.bin", 12_345_678)
    assert fingerprint_of(ckpt) != before


@pytest.mark.parametrize("name", ["m.py", "parts/deep/n.py", "parts/table.npz", "weights.bin"])
def test_code_of_its_own_may_read_anything(tmp_path: Path, name: str) -> None:
    ckpt = write(tmp_path / "c", {**GOOD, **OWN_CODE})
    write(ckpt, {name: b"x"})
    (ckpt / "parts").mkdir(exist_ok=True)
    (ckpt / "parts" / "round").symlink_to(ckpt, target_is_directory=True)
    before = fingerprint_of(ckpt)
    write(ckpt, {name: b"y", "__pycache__/m.pyc": b"x", "checkpoint-3/config.json": {}})
    assert fingerprint_of(ckpt) != before
    write(ckpt, {name: b"x"})
    assert fingerprint_of(ckpt) == before


def test_names_of_files_and_their_order_count(tmp_path: Path) -> None:
    one = write(tmp_path / "a", {**GOOD, "x.txt": "1", "y.txt": "2"})
    other = write(tmp_path / "b", {**GOOD, "x.txt": "2", "y.txt": "1"})
    assert fingerprint_of(one) != fingerprint_of(other)


def test_an_adapters_is_of_settings_and_weights_and_joined_with_its_bases(tmp_path: Path) -> None:
    base = write(tmp_path / "base", {**GOOD, "model.safetensors": _matrix("layers.0.q_proj.weight", 6, 4)})
    folder = write_adapter(tmp_path / "lora", lora("layers.0.q_proj", 6, 4), base=base)
    whole, own = inspect_checkpoint(folder).fingerprint, fingerprint_of(folder)
    flip(folder / "adapter_model.safetensors", -3 + (folder / "adapter_model.safetensors").stat().st_size)
    assert fingerprint_of(folder) != own
    changed = inspect_checkpoint(folder).fingerprint
    write(base, {"chat_template.jinja": "x"})
    assert len({whole, changed, inspect_checkpoint(folder).fingerprint}) == 3


def _matrix(name: str, num_rows: int, num_columns: int) -> bytes:
    text = f'{{"{name}": {{"dtype": "F32", "shape": [{num_rows}, {num_columns}], "data_offsets": [0, {4 * num_rows * num_columns}]}}}}'
    return struct.pack("<Q", len(text)) + text.encode() + bytes(4 * num_rows * num_columns)


def test_a_running_engine_notices_other_code_and_vocabularies(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    loaded = LoadedFolder.read(folder)
    write(other, {"additional_chat_templates/tools.jinja": "read anew"})
    assert companion_difference(loaded, other) is None
    write(other, {"source.spm": b"other"})
    assert companion_difference(loaded, other) == "source.spm differs"


@pytest.mark.parametrize("ask", [fingerprint_of, stamp_of])
def test_what_goes_away_meanwhile_is_our_error(folder: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Path], str]) -> None:
    monkeypatch.setattr(identity, "files_read", lambda _: ("config.json", "gone.json"))
    with pytest.raises(CheckpointError, match=r"gone.json cannot be read: No such file"):
        ask(folder)
    shutil.rmtree(folder)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        ask(folder)


def test_a_stamp_changes_with_whatever_is_written(folder: Path) -> None:
    os.utime(folder / "model.safetensors", (1, 1))  # the clock of files may stand still between two writes
    before = stamp_of(folder)
    assert stamp_of(folder) == before
    (folder / "README.md").write_text("x")
    assert stamp_of(folder) == before
    flip(folder / "model.safetensors", -1 + (folder / "model.safetensors").stat().st_size)
    assert stamp_of(folder) != before
