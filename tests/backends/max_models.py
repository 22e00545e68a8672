"""A text checkpoint for MAX with the tokenizer, chat template and traps of the tiny Qwen3-VL, and what transformers makes of it.

A Llama: MAX 26.7 ends the process where it starts a Qwen3 on a CPU.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

from evalharness.backends.torchvision_cpu import register_missing_operators
from tests.backends.hf_models import draw_wide, make_llama
from tests.backends.vllm_models import Reference

IS_INSTALLED = importlib.util.find_spec("max") is not None
WHY_NOT = "MAX is not installed: it needs an environment of its own, see docs/max.md"

_FILES = ("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_VOCAB_SIZE = 652
_END_IDS = (642, 640)


def make_text_checkpoint(source: Path, out: Path, *, seed: int = 5, **changes: Any) -> Path:
    """Return `out`, now a tiny Llama beside the tokenizer of `source`, its weights drawn wide, so that greedy choices are clear."""
    out.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {"vocab_size": _VOCAB_SIZE, "max_position_embeddings": 4096, "eos_token_id": _END_IDS[0]}
    model = make_llama(**{**config, "bos_token_id": None, "pad_token_id": None, **changes})
    draw_wide(model, seed, _END_IDS[0])
    model.save_pretrained(str(out))
    for name in _FILES:  # after the weights, whose own generation_config has no traps
        shutil.copyfile(source / name, out / name)
    return out


class TextReference(Reference):
    """Plain transformers on that checkpoint: one request at a time, float32."""

    def __init__(self, path: Path) -> None:
        register_missing_operators()
        import torch
        from transformers import AutoTokenizer, LlamaForCausalLM

        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def inputs(self, text: str, images: Any = ()) -> Any:
        """Return the tokenizer's tensors for one prompt."""
        return self._tokenizer([text], return_tensors="pt", add_special_tokens=False, return_token_type_ids=False)
