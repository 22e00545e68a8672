"""LoRA adapters for tests, written by hand: settings, and a safetensors file made of plain numbers."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none"}


def write_tensors(path: Path, tensors: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Write matrices as a float32 safetensors file."""
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, rows in tensors.items():
        values = [value for row in rows for value in row]
        block = struct.pack(f"<{len(values)}f", *values)
        head[name] = {"dtype": "F32", "shape": [len(rows), len(rows[0])], "data_offsets": [len(data), len(data) + len(block)]}
        data += block
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def matrix(num_rows: int, num_columns: int, seed: int = 1) -> list[list[float]]:
    """Return small numbers, none of them zero."""
    return [[((seed + 7 * row + 3 * column) % 11 - 5.5) / 20 for column in range(num_columns)] for row in range(num_rows)]


def write_adapter(folder: Path, tensors: Mapping[str, Sequence[Sequence[float]]], base: str | Path = "base", **settings: Any) -> Path:
    """Return `folder`, now an adapter of these tensors (names without `base_model.model.`)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**SETTINGS, "base_model_name_or_path": str(base), **settings}))
    write_tensors(folder / "adapter_model.safetensors", {f"base_model.model.{name}": rows for name, rows in tensors.items()})
    return folder


def lora(module: str, num_out: int, num_in: int, rank: int = 2, seed: int = 1) -> dict[str, list[list[float]]]:
    """Return A and B of a module."""
    return {f"{module}.lora_A.weight": matrix(rank, num_in, seed), f"{module}.lora_B.weight": matrix(num_out, rank, seed + 1)}
