"""Makes checkpoints of random weights in the shapes of real ones, with a tokenizer of our own, to measure speeds on.

`small` and `small-vl` are tiny and run anywhere; `4b`, `1b` and `vl-4b` have the shapes of Qwen3-4B, Qwen3-0.6B and
Qwen3-VL-4B and need a GPU. Every id of the vocabulary decodes to text, as in real checkpoints.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["SHAPES", "make_random_checkpoint"]

_TEXT = {"head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151936, "max_position_embeddings": 4096, "tie_word_embeddings": True}
_4B = {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32, **_TEXT}
_1B = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, **_TEXT}
_SMALL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
SHAPES: dict[str, dict[str, Any]] = {"small": _SMALL, "1b": _1B, "4b": _4B, "small-vl": _SMALL, "vl-4b": _4B}
_VISION_4B = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "out_hidden_size": 2560,
    "deepstack_visual_indexes": [5, 11, 17],
    "num_position_embeddings": 2304,
}
_VISION_SMALL = {
    "depth": 3,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "out_hidden_size": 128,
    "deepstack_visual_indexes": [0, 1],
    "num_position_embeddings": 256,
}
_PATCHES = {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}
_COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json")
MAX_PIXELS = 1024 * 1024


def make_random_checkpoint(shape: str, out: Path, seed: int = 0) -> Path:
    """Return `out`, now a checkpoint of this shape in bfloat16; made on the GPU where there is one."""
    from evalharness.backends.torchvision_cpu import register_missing_operators

    register_missing_operators()
    import torch
    from tokenizers import Tokenizer
    from transformers import Qwen3ForCausalLM, Qwen3VLForConditionalGeneration

    from fixtures.make_tiny_checkpoint import make_tiny_checkpoint

    out.mkdir(parents=True, exist_ok=True)
    is_vl = shape.endswith("vl") or shape.startswith("vl")
    with tempfile.TemporaryDirectory() as folder:
        tiny = make_tiny_checkpoint(Path(folder))
        for name in (*_COMPANIONS, *(_PROCESSORS if is_vl else ())):
            shutil.copy(tiny / name, out / name)
    _widen_vocabulary(out / "tokenizer.json", SHAPES[shape]["vocab_size"])
    config = _config(shape, Tokenizer.from_file(str(out / "tokenizer.json")), is_vl)
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = (Qwen3VLForConditionalGeneration if is_vl else Qwen3ForCausalLM)(config)
        model.save_pretrained(out)
    finally:
        torch.set_default_dtype(torch.float32)
    if is_vl:
        for name in _PROCESSORS:
            _set_pixel_budget(out / name)
    del model
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return out


def _widen_vocabulary(path: Path, size: int) -> None:
    """Fill the tokenizer's vocabulary up with words that no text is split into."""
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    taken = {*vocabulary.values(), *(token["id"] for token in tokenizer["added_tokens"])}
    for number in range(size):
        if number not in taken:
            vocabulary[f"\u0120word{number}"] = number  # Ġ, a space in byte-level vocabularies
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def _set_pixel_budget(path: Path) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    values["size"]["longest_edge"] = MAX_PIXELS
    path.write_text(json.dumps(values), encoding="utf-8")


def _config(shape: str, tokenizer: Any, is_vl: bool) -> Any:
    from transformers import Qwen3Config, Qwen3VLConfig

    token = tokenizer.token_to_id
    text = {**SHAPES[shape], "bos_token_id": token("<|endoftext|>"), "eos_token_id": token("<|im_end|>")}
    if not is_vl:
        return Qwen3Config(**text, rope_theta=1_000_000.0)
    half = text["head_dim"] // 2
    height = half * 5 // 16
    text["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 5_000_000.0,
        "mrope_section": [half - 2 * height, height, height],
        "mrope_interleaved": True,
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config={**(_VISION_SMALL if shape == "small-vl" else _VISION_4B), **_PATCHES},
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )
