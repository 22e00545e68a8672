"""Whether one checkpoint's weights can take the place of another's in a model that is already running. Without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalharness.checkpoint_weights import FINGERPRINTED_SUFFIXES, NOT_FINGERPRINTED
from evalharness.errors import CheckpointError

__all__ = ["architecture_difference", "companion_difference"]

# What a config says about how it was written, not about the model.
_HARMLESS = frozenset({"_name_or_path", "transformers_version"})
_DTYPE = frozenset({"dtype", "torch_dtype"})
# Read anew for each checkpoint by this harness, not by the engine.
_READ_ANEW = frozenset({"generation_config.json", "chat_template.jinja", "chat_template.json", "model.safetensors.index.json"})
_ABSENT = "absent"


def architecture_difference(running: Path, other: Path, *, dtype_matters: bool) -> str | None:
    """Return why `other` is of another architecture than `running`, None where it is of the same.

    The same means: config.json equal in every field but those that say who wrote it, and the weights' own type unless the
    engine follows it (`dtype_matters`); unquantized; no code of its own.
    """
    ours, theirs = (_config(folder) for folder in (running, other))
    ignored = _HARMLESS if dtype_matters else _HARMLESS | _DTYPE
    field = _difference(ours, theirs, ignored)
    if field is not None:
        return f"config.json differs in {field}"
    for key, why in (("quantization_config", "its weights are quantized"), ("auto_map", "it brings code of its own")):
        if key in ours:
            return why
    return None


def companion_difference(running: Path, other: Path) -> str | None:
    """Return which file that an engine reads once, at its start, differs (tokenizer, processor), None where all are equal.

    Chat template and generation settings may differ: they are read anew.
    """
    ours, theirs = (_companions(folder) for folder in (running, other))
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            return f"{name} differs"
    return None


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any], ignored: frozenset[str], prefix: str = "") -> str | None:
    for name in sorted({*ours, *theirs} - ignored):
        left, right = ours.get(name, _ABSENT), theirs.get(name, _ABSENT)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            inner = _difference(left, right, ignored, f"{prefix}{name}.")
            if inner is not None:
                return inner
        elif left != right:
            return f"{prefix}{name} ({_short(left)}, {_short(right)})"
    return None


def _short(value: Any) -> str:
    text = json.dumps(value) if value != _ABSENT else _ABSENT
    return text if len(text) <= 40 else text[:39] + "…"


def _companions(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in folder.iterdir():
        name = entry.name
        if not entry.is_file() or entry.suffix not in FINGERPRINTED_SUFFIXES or name in {*NOT_FINGERPRINTED, *_READ_ANEW, "config.json"}:
            continue
        content = entry.read_bytes()
        if name == "tokenizer_config.json":
            values = json.loads(content)
            values.pop("chat_template", None)
            found[name] = values
        else:
            found[name] = content
    return found
