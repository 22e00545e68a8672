"""Checkpoints are written by hand here: JSON files, and safetensors files whose heads are made byte by byte."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.api.errors import CheckpointError
from evalharness.checkpoints.discovery import find_models
from evalharness.checkpoints.info import inspect_checkpoint, name_checkpoints
from evalharness.checkpoints.weights import find_weights, read_json

CONFIG = {"model_type": "qwen3_vl", "architectures": ["Qwen3VL"], "vision_config": {}, "text_config": {"max_position_embeddings": 4096}}


def safetensors(*names: str, num_values: int = 8, dtype: str = "F32", fill: bytes = b"\1") -> bytes:
    """Return a safetensors file of tensors of 4-byte values."""
    size = 4 * num_values
    head = {name: {"dtype": dtype, "shape": [num_values], "data_offsets": [i * size, (i + 1) * size]} for i, name in enumerate(names)}
    text = json.dumps({"__metadata__": {"format": "pt"}, **head}).encode()
    return struct.pack("<Q", len(text)) + text + fill * (size * len(names))


def write(folder: Path, files: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


GOOD: dict[str, Any] = {
    "config.json": CONFIG,
    "tokenizer.json": {"model": {}},
    "tokenizer_config.json": {"chat_template": "{{ messages }}"},
    "model.safetensors": safetensors("a", "b"),
}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "ckpt", GOOD)


def test_what_a_checkpoint_holds_is_reported_with_its_shards_and_trusted_code(good: Path, tmp_path: Path) -> None:
    info = inspect_checkpoint(good)
    assert (info.path, info.variant, info.has_chat_template) == (good, "vlm", True)
    assert len(info.fingerprint) == 64
    files = {**GOOD, "config.json": {**CONFIG, "auto_map": {"AutoModel": "m.M"}}}
    assert inspect_checkpoint(write(tmp_path / "c", files), trust_remote_code=True).variant == "vlm"


@pytest.mark.parametrize(
    ("changes", "has"),
    [
        pytest.param({"tokenizer_config.json": {}}, False, id="none"),
        pytest.param({"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "x"}]}}, True, id="list"),
        pytest.param({"tokenizer_config.json": {}, "chat_template.jinja": "x"}, True, id="jinja-file"),
        pytest.param({"tokenizer_config.json": {}, "chat_template.json": {"chat_template": "x"}}, True, id="json-file"),
        pytest.param({"tokenizer_config.json": {}, "tekken.json": {}}, True, id="mistrals-own"),
        pytest.param({"tokenizer_config.json": {}, "chat_template.jinja": ""}, False, id="empty-jinja-file"),
    ],
)
def test_chat_template_is_found_wherever_it_may_be(tmp_path: Path, changes: dict[str, Any], has: bool) -> None:
    assert inspect_checkpoint(write(tmp_path / "c", {**GOOD, **changes})).has_chat_template is has


def test_shards_are_found_through_their_index(tmp_path: Path) -> None:
    files = {**GOOD, **SHARDED}
    del files["model.safetensors"]
    weights = find_weights(write(tmp_path / "c", files), allow_pickle=False)
    assert weights.files == ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


SHARDED: dict[str, Any] = {
    "model.safetensors.index.json": {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}},
    "model-00001-of-00002.safetensors": safetensors("a"),
    "model-00002-of-00002.safetensors": safetensors("b", dtype="BF16"),
}
WHOLE = safetensors("a", "b")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"config.json": None}, "has no config.json", id="no-config"),
        pytest.param({"config.json": '{"model_type": "qw'}, "config.json cannot be read: .* only in part", id="truncated-config"),
        pytest.param({"config.json": b"\xff\xfe\x00"}, "config.json cannot be read", id="config-not-utf8"),
        pytest.param({"config.json": "[]"}, "must hold a JSON object, got list", id="config-no-object"),
        pytest.param({"config.json": {}}, "names no model_type", id="no-model-type"),
        pytest.param({"config.json": None, "adapter_config.json": {}}, "is an adapter of peft_type None.*merge it", id="adapter"),
        pytest.param(
            {"config.json": None, "checkpoint-9/config.json": {}, "checkpoint-10/config.json": {}}, "such as checkpoint-9", id="parent"
        ),
        pytest.param({"model.safetensors": None}, "has no weights", id="no-weights"),
        pytest.param({"model.safetensors": None, "training_args.bin": b"x"}, "has no weights", id="training-arguments-are-no-weights"),
        pytest.param({"model.safetensors": None, "pytorch_model.bin": b"x"}, "pickled weights only .*--allow-pickle", id="bin"),
        pytest.param({"model.safetensors": None, "model.pt": b"x"}, "pickled weights only .*--allow-pickle", id="pt"),
        pytest.param(
            {"model.safetensors": None, "model-00001-of-00002.safetensors": WHOLE},
            "neither model.safetensors nor",
            id="shard-without-index",
        ),
        pytest.param({"model.safetensors": b""}, r"model.safetensors is empty \(0 bytes\)", id="zero-bytes"),
        pytest.param({"model.safetensors": b"\xff" * 64}, "not a safetensors file, or its head is damaged", id="garbage"),
        pytest.param({"model.safetensors": b"version https://git-lfs.github.com/spec/v1\n"}, "a Git LFS pointer", id="lfs-pointer"),
        pytest.param({"model.safetensors": WHOLE[:5]}, "not a safetensors file", id="five-bytes"),
        pytest.param({"model.safetensors": WHOLE[:-1]}, "copied or written only in part", id="truncated"),
        pytest.param({"model.safetensors": WHOLE[:8] + b"#" + WHOLE[9:]}, "the head of .* is damaged", id="head-damaged"),
        pytest.param(
            {**SHARDED, "model-00002-of-00002.safetensors": None}, "names 2 shards, but model-00002.* missing", id="shard-missing"
        ),
        pytest.param(
            {**SHARDED, "model-00002-of-00002.safetensors": safetensors("c")}, "lacks 'b', which the index says", id="foreign-shard"
        ),
        pytest.param({**SHARDED, "model.safetensors.index.json": "{"}, "index.json cannot be read", id="truncated-index"),
        pytest.param({**SHARDED, "model.safetensors.index.json": {"weight_map": {}}}, "names no weights", id="empty-index"),
        pytest.param(
            {**SHARDED, "model.safetensors.index.json": {"weight_map": {"a": "../a.safetensors"}}}, "must lie beside", id="outside"
        ),
        pytest.param({"config.json": {**CONFIG, "auto_map": {"AutoModel": "m.M"}}}, "AutoModel.*--trust-remote-code", id="remote-model"),
        pytest.param(
            {"tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["t.T", None]}}}, "--trust-remote-code", id="remote-tokenizer"
        ),
        pytest.param({"tokenizer.json": None}, "no tokenizer files", id="no-tokenizer"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    files = {name: content for name, content in {**GOOD, **changes}.items() if content is not None}
    with pytest.raises(CheckpointError, match=message):
        inspect_checkpoint(write(tmp_path / "c", files))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("chekpoint-10", "does not exist; did you mean 'checkpoint-10'", id="sibling"),
        pytest.param("zzz", "does not exist; the nearest folder that exists is", id="no-sibling-like-it"),
        pytest.param("nowhere/at/all", "does not exist; the nearest folder that exists is", id="no-parent"),
        pytest.param("file", "is a file; give the folder", id="file"),
        pytest.param("round", "does not exist; the nearest folder that exists is", id="link-to-itself"),
        pytest.param("empty", "is an empty folder", id="empty"),
    ],
)
def test_a_path_that_is_no_checkpoint_folder_is_refused(tmp_path: Path, name: str, message: str) -> None:
    write(tmp_path / "checkpoint-10", GOOD)
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(CheckpointError, match=message):
        inspect_checkpoint(tmp_path / name)


def test_pickled_weights_load_when_allowed_unless_they_are_empty(tmp_path: Path) -> None:
    files = {**GOOD, "pytorch_model.bin": b"x" * 10, "optimizer.pt": b"y", "config.json": {**CONFIG, "dtype": "bfloat16"}}
    del files["model.safetensors"]
    folder = write(tmp_path / "c", files)
    assert inspect_checkpoint(folder, allow_pickle=True).variant == "vlm"
    assert find_weights(folder, allow_pickle=True).files == ("pytorch_model.bin",)
    files = {**GOOD, "pytorch_model.bin": b""}
    del files["model.safetensors"]
    with pytest.raises(CheckpointError, match="is empty"):
        inspect_checkpoint(write(tmp_path / "c", files), allow_pickle=True)


def test_patterns_name_each_checkpoint_once_by_its_number(tmp_path: Path) -> None:
    for step in (1000, 200, 30):
        write(tmp_path / f"run/checkpoint-{step}", GOOD)
    write(tmp_path / "run", {"checkpoint-5.log": "no folder"})
    names = [path.name for path in find_models(["run/checkpoint-*"], tmp_path, wait_s=0, on_notice=print)]
    assert names == ["checkpoint-30", "checkpoint-200", "checkpoint-1000"]
    for name in ("a", "b", "c"):
        write(tmp_path / name, GOOD)
    assert [path.name for path in find_models(["b", "?", str(tmp_path / "b")], tmp_path, wait_s=0, on_notice=print)] == ["b", "a", "c"]
    folder = write(tmp_path / "run[1]", GOOD)
    assert find_models(["run[1]"], tmp_path, wait_s=0, on_notice=print) == [folder]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        pytest.param(
            "runs/nope-*", r"'runs/nope-\*' matches no folder; the nearest .*/runs \(it has checkpoint-2, checkpoint-10\)", id="glob"
        ),
        pytest.param("other/*/x", "matches no folder; the nearest folder that exists is", id="glob-under-nothing"),
        pytest.param("runs/checkpoint-3", "does not exist; did you mean 'checkpoint-", id="plain"),
    ],
)
def test_a_pattern_that_matches_nothing_says_what_is_near(tmp_path: Path, pattern: str, message: str) -> None:
    for name in ("runs/checkpoint-10", "runs/checkpoint-2"):
        write(tmp_path / name, GOOD)
    with pytest.raises(CheckpointError, match=message):
        find_models([pattern], tmp_path, wait_s=0, on_notice=print)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        pytest.param(["/m/a", "/m/b"], ["a", "b"], id="own-names"),
        pytest.param(["/r1/checkpoint-9", "/r2/checkpoint-9", "/x/z"], ["r1_checkpoint-9", "r2_checkpoint-9", "z"], id="clash"),
        pytest.param(["/p/r/c", "/q/r/c"], ["p_r_c", "q_r_c"], id="clash-of-parents"),
        pytest.param(["/m/a b:ü", "/m/[x]"], ["a_b__", "_x_"], id="unsafe-characters"),
        pytest.param(["/m/a b", "/m/a_b"], ["m_a_b", "m_a_b-2"], id="alike-once-made-safe"),
        pytest.param(["/"], ["root"], id="root"),
        pytest.param([], [], id="none"),
    ],
)
def test_names_are_short_unique_and_safe(paths: list[str], names: list[str]) -> None:
    assert name_checkpoints([Path(path) for path in paths]) == names


@given(
    st.lists(st.lists(st.text("a2_-. ü/", min_size=1, max_size=3), min_size=1, max_size=4).map(lambda parts: Path("/", *parts)), max_size=6)
)
def test_names_of_any_paths_are_unique_and_safe(paths: list[Path]) -> None:
    names = name_checkpoints(paths)
    assert len(set(names)) == len(names) == len(paths)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in names)


DEEP = b"[" * 100_000
_DEEP_HEAD = b'{"a":' + DEEP + b"}"


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": DEEP},
        {"config.json": b'{"text_config": {"a": ' + DEEP},
        {"model.safetensors.index.json": DEEP},
        {"model.safetensors": struct.pack("<Q", len(_DEEP_HEAD)) + _DEEP_HEAD},
    ],
    ids=["config", "inside", "index", "head"],
)
def test_json_that_is_nested_too_deeply_is_an_error_of_the_checkpoint(tmp_path: Path, files: dict[str, Any]) -> None:
    weights = {} if "model.safetensors.index.json" in files else {"model.safetensors": safetensors("a")}
    write(tmp_path, {"config.json": CONFIG, **weights, **files})
    with pytest.raises(CheckpointError, match=r"cannot be read|is damaged"):
        inspect_checkpoint(tmp_path)


def test_any_json_of_a_checkpoint_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_bytes(DEEP)
    with pytest.raises(CheckpointError, match=r"generation_config.json cannot be read"):
        read_json(tmp_path / "generation_config.json")
