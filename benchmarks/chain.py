"""Makes checkpoints that do all of their shape's work, but of which each token decides the next by a wide margin.

So answers are known beforehand, differ by the last id of a prompt, and no rounding changes them: not other rows at once, drafts or a card.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

FIRST_PLAIN = 700
"""Ids below it may be special tokens."""
QUIET = 0.01
"""What is left of the layers' part in the stream: they do all their work, and decide nothing."""


class Chain:
    """The answers of the checkpoint: id after id, in large strides through the vocabulary."""

    def __init__(self, vocab_size: int) -> None:
        self._num = vocab_size - FIRST_PLAIN
        stride = int(self._num * 0.618)
        while math.gcd(stride, self._num) != 1:
            stride += 1
        self._stride = stride

    def after(self, token_id: int) -> int:
        """Return the id behind this one."""
        return FIRST_PLAIN + (token_id - FIRST_PLAIN + self._stride) % self._num

    def start(self, number: int, of: int) -> int:
        """Return the last id of a prompt."""
        return FIRST_PLAIN + self._stride * (number * self._num // of) % self._num

    def answer(self, last_id: int, num_tokens: int) -> list[int]:
        """Return the answer behind a prompt that ends with this id."""
        ids = [last_id]
        for _ in range(num_tokens):
            ids.append(self.after(ids[-1]))
        return ids[1:]


def prepare(folder: Path, kind: str) -> Path:
    """Return the checkpoint, made where it is missing."""
    out = folder / f"chain-{kind}"
    if (out / "done").exists():
        return out
    from benchmarks.random_checkpoints import make_random_checkpoint

    make_random_checkpoint(kind, out)
    import torch
    from safetensors.torch import load_file, save_file

    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    for path in sorted(out.glob("*.safetensors")):
        tensors = load_file(path)
        for name, tensor in list(tensors.items()):
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                tensor *= QUIET
            if name.endswith("embed_tokens.weight"):
                chain = Chain(config["vocab_size"])
                follows = torch.arange(len(tensor))
                follows[FIRST_PLAIN:] = torch.tensor([chain.after(token_id) for token_id in range(FIRST_PLAIN, len(tensor))])
                head = torch.zeros_like(tensor)
                head[follows[FIRST_PLAIN:]] = tensor[FIRST_PLAIN:]
                save_file({"lm_head.weight": head}, out / "head.safetensors", metadata={"format": "pt"})
        save_file(tensors, path, metadata={"format": "pt"})
    files = {name: path.name for path in sorted(out.glob("*.safetensors")) for name in load_file(path)}
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}), encoding="utf-8")
    (out / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}), encoding="utf-8")
    (out / "done").touch()
    return out
