"""Tiny checkpoints of one architecture, adapters of the first, and what they answer, for tests of weights that change."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalharness.api.options import GenerationOptions
from evalharness.api.requests import TokenGenerationRequest
from evalharness.engine.engine import Engine
from tests.adapters import write_adapter

MODULES = {"self_attn.q_proj": (64, 64), "self_attn.v_proj": (64, 64), "mlp.down_proj": (64, 128)}
VLM_MODULES = {"self_attn.q_proj": (256, 128), "self_attn.v_proj": (128, 128), "mlp.down_proj": (128, 256)}
GREEDY = GenerationOptions(max_new_tokens=12, temperature=0.0)


def make_adapter(folder: Path, seed: int, *, size: float = 0.3, layers: str = "model.layers", **settings: Any) -> Path:
    """Return `folder`, now an adapter of rank 2 of the tiny Llama of `hf_models`, or of the tiny Qwen3-VL by the name of its layers."""
    modules = MODULES if layers == "model.layers" else VLM_MODULES
    draw = random.Random(seed)
    tensors = {}
    for layer in range(2):
        for module, (num_out, num_in) in modules.items():
            name = f"{layers}.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = [[draw.gauss(0, size) for _ in range(num_in)] for _ in range(2)]
            tensors[f"{name}.lora_B.weight"] = [[draw.gauss(0, size) for _ in range(2)] for _ in range(num_out)]
    targets = [name.rpartition(".")[2] for name in modules]
    return write_adapter(folder, tensors, target_modules=targets, layers_to_transform=[0, 1], **settings)


def overwrite(folder: Path, other: Path) -> None:
    """Write another checkpoint's or adapter's files over those of a folder, each in place, as `save_pretrained` does."""
    for path in other.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())


def answers(engine: Engine, prompts: Sequence[Sequence[int]] | None = None) -> list[tuple[int, ...]]:
    """Return the greedy ids behind some prompts."""
    draw = random.Random(7)
    asked = prompts or [[draw.randrange(2, 258) for _ in range(length)] for length in (1, 5, 11, 30)]
    return [result.token_ids for result in engine.generate_token_batch([TokenGenerationRequest(ids) for ids in asked], GREEDY)]


def state_dict(folder: Path) -> dict[str, Any]:
    """Return a folder's tensors, in memory of their own."""
    from safetensors.torch import load_file

    name = "adapter_model.safetensors" if (folder / "adapter_model.safetensors").is_file() else "model.safetensors"
    return {name: tensor.clone() for name, tensor in load_file(folder / name).items()}


def copy(folder: Path, to: Path) -> Path:
    """Return `to`, now a copy of the folder."""
    shutil.copytree(folder, to)
    return to


def perturbed(folder: Path, to: Path, seed: int) -> Path:
    """Return `to`, now a checkpoint of the folder's architecture with every matrix changed, the vision tower's too."""
    import torch
    from safetensors.torch import save_file

    tensors = state_dict(copy(folder, to))
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(tensors.items()):
        if tensor.ndim > 1:
            tensors[name] = tensor + 0.7 * tensor.std() * torch.randn(tensor.shape, generator=generator)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


def training_loops() -> dict[str, Any]:
    """Return what the code of docs/training_loops.md defines."""
    text = (Path(__file__).parents[2] / "docs" / "training_loops.md").read_text(encoding="utf-8")
    code = "\n\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    values: dict[str, Any] = {"__name__": "training_loops"}
    exec(compile(code, "docs/training_loops.md", "exec"), values)
    return values
