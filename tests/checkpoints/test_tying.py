"""Heads beside the embedding that config.json ties them to: what is loaded of them depends on their numbers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from evalharness.checkpoints.architecture import LoadedFolder, doubled_heads, head_difference, loading_difference, tensor_difference
from tests.checkpoints.test_info import GOOD, write

EMBED, HEAD = "model.language_model.embed_tokens.weight", "lm_head.weight"
CONFIG = {"model_type": "qwen3_vl", "tie_word_embeddings": True, "text_config": {"vocab_size": 8}}


def safetensors(tensors: dict[str, tuple[str, bytes]]) -> bytes:
    """Return a file of matrices of 8 rows; each is given by its type and one byte, repeated."""
    head: dict[str, Any] = {}
    data = b""
    for name, (kind, value) in tensors.items():
        block = value * 8 * 4 * {"F32": 4, "BF16": 2, "F8_E4M3": 1, "I8": 1}[kind]
        head[name] = {"dtype": kind, "shape": [8, 4], "data_offsets": [len(data), len(data) + len(block)]}
        data += block
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + data


def checkpoint(folder: Path, embed: bytes, head: bytes, name: str = HEAD, config: Any = CONFIG) -> Path:
    tensors = {EMBED: ("F32", embed), name: ("F32", head)}
    return write(folder, {**GOOD, "config.json": config, "model.safetensors": safetensors(tensors)})


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight", "output.weight", "transformer.output_layer.weight"]
)
@pytest.mark.parametrize(
    ("ours", "theirs", "may_swap"),
    [
        pytest.param(b"\1\1", b"\2\2", True, id="equal-in-both"),
        pytest.param(b"\1\1", b"\2\3", False, id="differs-in-the-second"),
        pytest.param(b"\1\3", b"\2\2", False, id="differs-in-the-first"),
        pytest.param(b"\1\3", b"\2\4", False, id="differs-in-both"),
    ],
)
def test_heads_that_are_tied_and_there_may_be_swapped_where_they_equal_the_embedding(
    tmp_path: Path, name: str, ours: bytes, theirs: bytes, may_swap: bool
) -> None:
    """vLLM went on with the head tied, as in the first checkpoint, where the second's differed: 133 133 133, not 680 362 133."""
    one, other = (checkpoint(tmp_path / str(n), bytes([e]), bytes([h]), name) for n, (e, h) in enumerate((ours, theirs)))
    problem = loading_difference(LoadedFolder.read(one), other)
    both = " and ".join(sorted((EMBED, name)))
    assert problem is None if may_swap else f"its files hold {both}, which config.json ties" in (problem or "")


@pytest.mark.parametrize(
    ("config", "is_doubled"),
    [
        pytest.param({"tie_word_embeddings": True, "vocab_size": 8}, True, id="tied"),
        pytest.param({"tie_word_embeddings": False, "vocab_size": 8}, False, id="untied"),
        pytest.param({"vocab_size": 8}, True, id="not-said"),
        pytest.param({"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}}, True, id="contradicts-itself"),
        pytest.param({"text_config": {"tie_word_embeddings": True}}, True, id="tied-inside"),
        pytest.param({"text_config": {"tie_word_embeddings": False}}, False, id="untied-inside"),
    ],
)
def test_only_an_explicit_no_unties(config: dict[str, Any], is_doubled: bool) -> None:
    shapes = {EMBED: (8, 4), HEAD: (8, 4), "layers.0.q_proj.weight": (4, 4), "norm.weight": (4,)}
    assert doubled_heads(config, shapes) == (frozenset({EMBED, HEAD}) if is_doubled else frozenset())


def test_an_embedding_alone_is_not_doubled() -> None:
    shapes = {EMBED: (8, 4), "visual.pos_embed.weight": (16, 4), "q.weight": (4, 4), "k.weight": (4, 4)}
    assert doubled_heads(CONFIG, shapes) == frozenset()
    assert doubled_heads({}, {"tok": (9, 4), "out": (9, 4)}) == frozenset(), "without a word of it in config or names"


def test_numbers_are_compared_as_they_are_in_the_files(tmp_path: Path) -> None:
    """What differs there may be equal once rounded to the engine's type, so nothing is said of it."""
    tensors = {EMBED: ("F32", b"\0"), HEAD: ("BF16", b"\0")}
    folders = [write(tmp_path / name, {**GOOD, "config.json": CONFIG, "model.safetensors": safetensors(tensors)}) for name in "ab"]
    assert head_difference(LoadedFolder.read(folders[0]), folders[1]) is not None


@pytest.mark.parametrize(("ours", "theirs", "may_swap"), [("F32", "BF16", True), ("BF16", "F8_E4M3", False), ("I8", "F8_E4M3", False)])
def test_packed_numbers_take_the_place_of_the_same_kind_only(tmp_path: Path, ours: str, theirs: str, may_swap: bool) -> None:
    one, other = (
        write(tmp_path / name, {**GOOD, "model.safetensors": safetensors({"q.weight": (kind, b"\0")})})
        for name, kind in (("a", ours), ("b", theirs))
    )
    problem = tensor_difference(LoadedFolder.read(one), other)
    assert problem is None if may_swap else "its q.weight is of type F8_E4M3, the loaded checkpoint's of type" in (problem or "")


def test_weights_beside_the_checkpoints_own_must_be_equal_too(tmp_path: Path) -> None:
    """Without an index vLLM loads every safetensors file of the folder."""
    one, other = (checkpoint(tmp_path / name, b"\1", b"\1") for name in "ab")
    for folder, value in ((one, b"\1"), (other, b"\2")):
        write(folder, {"more.safetensors": safetensors({"q.weight": ("F32", value)})})
    assert loading_difference(LoadedFolder.read(one), other) == "more.safetensors differs"
