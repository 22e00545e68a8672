"""Names and shapes of the tensors of well-known models, as their safetensors files have them; no weight is made."""

from __future__ import annotations

from typing import Any

Tensors = dict[str, tuple[str, tuple[int, ...]]]

QWEN3_4B: dict[str, Any] = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": None,
}


def attention(config: dict[str, Any], prefix: str, dtype: str = "BF16") -> Tensors:
    """Return a layer's attention and norms."""
    width, size = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes = {"q_proj": (queries, width), "k_proj": (keys, width), "v_proj": (keys, width), "o_proj": (width, queries)}
    norms = {"self_attn.q_norm": (size,), "self_attn.k_norm": (size,), "input_layernorm": (width,), "post_attention_layernorm": (width,)}
    return {
        **{f"{prefix}self_attn.{name}.weight": (dtype, shape) for name, shape in shapes.items()},
        **{f"{prefix}{name}.weight": ("BF16", shape) for name, shape in norms.items()},
    }


def mlp(config: dict[str, Any], prefix: str, size: int, dtype: str = "BF16") -> Tensors:
    """Return a gated feed-forward layer of this size."""
    width = config["hidden_size"]
    shapes = {"gate_proj": (size, width), "up_proj": (size, width), "down_proj": (width, size)}
    return {f"{prefix}{name}.weight": (dtype, shape) for name, shape in shapes.items()}


def dense(config: dict[str, Any], dtype: str = "BF16", prefix: str = "model.") -> Tensors:
    """Return all tensors of a dense model; a head of its own where the config says so."""
    width = config["hidden_size"]
    tensors: Tensors = {f"{prefix}embed_tokens.weight": ("BF16", (config["vocab_size"], width)), f"{prefix}norm.weight": ("BF16", (width,))}
    for layer in range(config["num_hidden_layers"]):
        place = f"{prefix}layers.{layer}."
        tensors |= attention(config, place, dtype) | mlp(config, f"{place}mlp.", config["intermediate_size"], dtype)
    if not config.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = ("BF16", (config["vocab_size"], width))
    return tensors
