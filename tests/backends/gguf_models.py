"""A tiny random Llama as safetensors and as GGUF, with the package that llama.cpp's converter uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.backends.hf_models import make_text_checkpoint

TEMPLATE = "{%- for message in messages -%}{{ message.content }}{%- endfor -%}"


def make_pair(folder: Path) -> tuple[Path, Path]:
    """Return the checkpoint's folder and its GGUF file, float32 both."""
    checkpoint = make_text_checkpoint(folder / "safetensors")
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    return checkpoint, write_gguf(checkpoint, folder / "tiny.gguf")


def write_gguf(checkpoint: Path, out: Path, **values: Any) -> Path:
    """Return `out`, now the weights and tokenizer of a Llama checkpoint; `values` are metadata besides, by names with `__` for a dot."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((checkpoint / "config.json").read_text())
    vocabulary = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    writer = gguf.GGUFWriter(str(out), "llama")
    writer.add_name("tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    rare = [tokens[2 + 94 + place] for place in (0, 1)]  # a merge that no text here asks for: a tokenizer without any is no GGUF's
    tokens += ["".join(rare), *[f"[unused{number}]" for number in range(config["vocab_size"] - len(tokens) - 1)]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))  # control, then normal
    writer.add_token_merges([" ".join(rare)])
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(1)
    writer.add_chat_template(TEMPLATE)
    for name, value in values.items():
        writer.add_uint32(name.replace("__", "."), value)
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        writer.add_tensor(_name(name), _permuted(name, tensor, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def _name(name: str) -> str:
    module = name.removesuffix(".weight")
    if module in _WHOLE:
        return f"{_WHOLE[module]}.weight"
    _, _, layer, rest = module.split(".", 3)
    return f"blk.{layer}.{_LAYER[rest]}.weight"


def _permuted(name: str, tensor: Any, config: dict[str, Any]) -> Any:
    """Return the matrix as llama.cpp keeps it: the two halves of each head's rotation lie beside each other."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    rows, columns = tensor.shape
    return tensor.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
