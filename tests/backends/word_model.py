"""A tiny Llama that says what it is told: which word follows which is written into its weights, so answers are known beforehand.

Its tokens are bytes and a few whole words. Attention and MLPs add nothing; the embedding of a token is a direction of its
own, and the output head maps it to the token that comes next. A prompt's last character says which chain begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.backends.hf_models import make_llama

END_ID = 0
SENTENCE = ("The", " quick", " brown", " fox", " jumps")
_SPECIAL = ("<end>", "<pad>")
_THINKING = ("<think>", "</think>")
_WORDS = (*SENTENCE, " hmm", " well", " yes", " no")
_FIRST_BYTE = 2

ONLY_THREE, SAYS_SENTENCE, THINKS, BEGINS_AGAIN = "#", "$", "&", "'"
"""The last characters of prompts: token 3 for ever; the sentence and the end; a thought that never ends by itself, and one that begins
after a word."""

_CHAINS: Mapping[str, Sequence[str]] = {
    SAYS_SENTENCE: (*SENTENCE, "<end>"),
    THINKS: ("<think>", " hmm", " well", " hmm"),
    BEGINS_AGAIN: (" no", "<think>"),
    "(": ("</think>", " yes", "<end>"),
}
_HIDDEN = 64


def _vocabulary() -> list[str]:
    from tokenizers import pre_tokenizers

    words = [word.replace(" ", "Ġ") for word in _WORDS]
    return [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *_pieces(words), *_THINKING]


def _pieces(words: Sequence[str]) -> list[str]:
    """Return the parts that lead to each word, a character more at a time, as merges need them."""
    return list(dict.fromkeys(word[:end] for word in words for end in range(2, len(word) + 1)))


def token_id(text: str) -> int:
    """Return the id of a token."""
    return _vocabulary().index(text.replace(" ", "Ġ"))


def _write_tokenizer(path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = _vocabulary()
    pieces = _pieces([word.replace(" ", "Ġ") for word in _WORDS])
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: position for position, token in enumerate(vocabulary)}, merges=[(piece[:-1], piece[-1]) for piece in pieces]
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in _THINKING])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")
    fast.chat_template = "{%- for message in messages -%}{{ message.content }}{%- endfor -%}"
    fast.save_pretrained(str(path))


def _next_tokens() -> dict[int, int]:
    """Return {token: the one that follows it}; a token has one follower, whatever stands before it."""
    follows = {token_id(ONLY_THREE): 3, 3: 3}
    for start, chain in _CHAINS.items():
        for token, after in zip((start, *chain), chain, strict=False):
            follows.setdefault(token_id(token), token_id(after))
    return follows


def make_word_checkpoint(path: Path, *, int8: bool = False) -> Path:
    """Return `path`, now the checkpoint; `int8`: its matrices as 8-bit integers in the form of compressed-tensors."""
    vocabulary = _vocabulary()
    sizes = {"vocab_size": len(vocabulary), "hidden_size": _HIDDEN, "num_hidden_layers": 1}
    model = make_llama(**sizes, eos_token_id=END_ID, pad_token_id=1, tie_word_embeddings=False)
    import torch

    path.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 8)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
        model.model.embed_tokens.weight.zero_()
        model.lm_head.weight.zero_()
        for direction, (token, after) in enumerate(_next_tokens().items()):
            model.model.embed_tokens.weight[token, direction] = 1.0
            model.lm_head.weight[after, direction] = 2.0
    model.save_pretrained(str(path))
    if int8:
        quantise(path)
    _write_tokenizer(path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": END_ID}))
    return path


def quantise(path: Path) -> None:
    """Write a checkpoint's linear layers anew as int8 with one scale per output row, as llm-compressor does for W8A8."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(path / "model.safetensors")
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        whole = weights.pop(name).float()
        scale = whole.abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / 127
        weights[name] = (whole / scale).round().clamp(-128, 127).to(torch.int8)
        weights[f"{name}_scale"] = scale
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((path / "config.json").read_text())
    common = {"num_bits": 8, "type": "int", "symmetric": True, "group_size": None}
    group: dict[str, Any] = {
        "targets": ["Linear"],
        "weights": {**common, "strategy": "channel", "dynamic": False},
        "input_activations": {**common, "strategy": "token", "dynamic": True},
    }
    values["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
    (path / "config.json").write_text(json.dumps(values))
