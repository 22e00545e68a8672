"""What a model computes and reads, from its config and the heads of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.checkpoints.model_shape import ModelShape, UnknownShape, shape_at, shape_of
from evalharness.checkpoints.weights import base_shapes
from tests.checkpoints.shapes import QWEN3_4B, attention, dense, mlp

CHECKPOINT = Path(__file__).parents[2] / "fixtures" / "checkpoints" / "final"


def test_qwen3_4b_by_hand() -> None:
    shape = shape_of(QWEN3_4B, dense(QWEN3_4B), "bfloat16")
    layer = 2560 * 4096 * 2 + 2560 * 1024 * 2 + 3 * 2560 * 9728 + 2 * 2560 + 2 * 128
    assert shape.num_layer_params == 36 * layer + 2560
    assert shape.num_head_params == 151936 * 2560
    assert round(shape.weight_bytes / 1e9, 2) == 8.04
    assert shape.kv_bytes_per_token == 144 * 1024
    assert shape.attention_width == 4096


def test_the_embedding_of_an_untied_model_is_not_read_in_a_step() -> None:
    tied, untied = (shape_of(config, dense(config), "bfloat16") for config in (QWEN3_4B, {**QWEN3_4B, "tie_word_embeddings": False}))
    assert untied == tied


def test_of_experts_a_token_takes_its_share() -> None:
    config: dict[str, Any] = {**QWEN3_4B, "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 1}
    tensors = dense({**config, "num_hidden_layers": 0}) | attention(config, "model.layers.0.")
    for expert in range(8):
        tensors |= mlp(config, f"model.layers.0.mlp.experts.{expert}.", 768)
    tensors |= mlp(config, "model.layers.0.mlp.shared_expert.", 1000)
    shape = shape_of(config, tensors, "bfloat16")
    one = 3 * 2560 * 768
    assert shape.num_expert_params == 8 * one
    assert shape.active_params == shape.num_layer_params + 2 * one
    assert shape.weight_bytes == 2 * (shape.num_layer_params + shape.num_head_params)
    assert shape.expert_bytes == 16 * one


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, (36, 0, 0)),
        ({"sliding_window": 4096, "use_sliding_window": False}, (36, 0, 0)),
        ({"sliding_window": 4096, "use_sliding_window": True}, (0, 36, 4096)),
        ({"sliding_window": 512, "layer_types": ["sliding_attention"] * 30 + ["full_attention"] * 6}, (6, 30, 512)),
    ],
)
def test_windows(changes: dict[str, Any], layers: tuple[int, int, int]) -> None:
    shape = shape_of({**QWEN3_4B, **changes}, dense(QWEN3_4B), "bfloat16")
    assert (shape.num_full_layers, shape.num_window_layers, shape.window) == layers


def test_fp8_weights_take_a_byte_each_and_keys_what_is_asked() -> None:
    plain, fp8 = (shape_of(QWEN3_4B, dense(QWEN3_4B, dtype), "bfloat16", kv_dtype="fp8") for dtype in ("BF16", "F8_E4M3"))
    assert (plain.dtype, fp8.dtype) == ("bfloat16", "fp8")
    assert plain.kv_bytes == 2048
    norms = 36 * (2 * 2560 + 2 * 128) + 2560
    assert plain.weight_bytes - fp8.weight_bytes == plain.num_layer_params - norms


@pytest.mark.parametrize(
    ("changes", "tensors", "why"),
    [
        ({"kv_lora_rank": 512}, {}, "kv_lora_rank"),
        ({"layer_types": ["linear_attention"] * 36}, {}, "linear_attention"),
        ({"is_encoder_decoder": True}, {}, "encoder"),
        ({"num_hidden_layers": None}, {}, "num_hidden_layers"),
        ({}, {"model.layers.0.mlp.gate_proj.qweight": ("I32", (10, 10))}, "packed"),
        ({}, {"model.layers.0.mlp.experts.0.up_proj.weight": ("BF16", (10, 10))}, "how many experts"),
    ],
)
def test_what_is_not_understood_is_refused(changes: dict[str, Any], tensors: dict[str, Any], why: str) -> None:
    with pytest.raises(UnknownShape, match=why):
        shape_of({**QWEN3_4B, **changes}, {**dense(QWEN3_4B), **tensors}, "bfloat16")


def test_every_weight_of_a_shipped_checkpoint_has_its_place() -> None:
    shape = shape_at(CHECKPOINT, "float32")
    sizes = {name: _product(dims) for name, dims in base_shapes(CHECKPOINT).items()}
    vision = sum(size for name, size in sizes.items() if "visual" in name)
    assert shape.num_vision_params + shape.num_merger_params == vision
    assert shape.num_merger_params
    assert shape.num_vision_layers == 6
    assert shape.merge == 4
    embedding = shape.num_head_params
    assert shape.num_layer_params + vision + embedding == sum(sizes.values())
    assert shape.weight_bytes == 4 * (shape.num_layer_params + embedding)


def _product(dims: tuple[int, ...]) -> int:
    size = 1
    for dim in dims:
        size *= dim
    return size


def test_a_folder_that_is_none_says_why(tmp_path: Path) -> None:
    with pytest.raises(UnknownShape):
        shape_at(tmp_path / "absent", "bfloat16")
    (tmp_path / "answers.jsonl").write_text("{}")  # what the fake backend is given
    with pytest.raises(UnknownShape, match="it is a file, no checkpoint's folder"):
        shape_at(tmp_path / "answers.jsonl", "bfloat16")


def test_a_record_is_read_back_or_refused() -> None:
    shape = shape_of(QWEN3_4B, dense(QWEN3_4B), "bfloat16")
    assert ModelShape.from_json({**shape.to_json(), "later": 1}) == shape
    for damage in ({"weight_bytes": -1}, {"weight_bytes": "x"}, {"dtype": 3}, {"kv_bytes": 1e300}):
        with pytest.raises(UnknownShape):
            ModelShape.from_json({**shape.to_json(), **damage})
    with pytest.raises(UnknownShape):
        ModelShape.from_json({"dtype": "bfloat16"})
