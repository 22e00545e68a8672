"""Quantised checkpoints: what their config says of it, and which package reads them. Knows neither torch nor an engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalharness.checkpoints.gguf import gguf_file_of, read_gguf

__all__ = ["package_hint", "quantization_at", "quantization_of"]

_PACKAGES = {
    "awq": "gptqmodel",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
    "fp8": "kernels",
    "gptq": "gptqmodel optimum",
    "hqq": "hqq",
    "quanto": "optimum-quanto",
    "torchao": "torchao",
}
"""What transformers needs to read each method, beside itself."""
_LONG = 40  # items; longer lists name every layer of a model


def quantization_of(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return `method`, `format` and `settings` of a model's config as plain JSON, None for one that is not quantised."""
    declared = config.get("quantization_config")
    if not isinstance(declared, Mapping) and isinstance(config.get("text_config"), Mapping):
        declared = config["text_config"].get("quantization_config")
    if not isinstance(declared, Mapping):
        return None
    settings = {name: value for name, value in declared.items() if not (isinstance(value, list) and len(value) > _LONG)}
    return {"method": str(declared.get("quant_method", "unknown")), "format": _format(declared), "settings": settings}


def _format(declared: Mapping[str, Any]) -> str | None:
    """Return in a word how weights are kept, as each method says it."""
    if declared.get("format") is not None:
        return str(declared["format"])
    for name, word in (("load_in_4bit", "4-bit"), ("load_in_8bit", "8-bit"), ("_load_in_4bit", "4-bit"), ("_load_in_8bit", "8-bit")):
        if declared.get(name) is True:
            return word
    bits = declared.get("bits", declared.get("w_bit", declared.get("weights")))
    return None if bits is None else f"{bits}-bit" if isinstance(bits, int) else str(bits)


def quantization_at(model_path: str) -> dict[str, Any] | None:
    """Return the same for a checkpoint's folder or GGUF file; what cannot be read is refused where it is loaded."""
    file = gguf_file_of(model_path)
    if file is not None:
        return read_gguf(file).quantization()
    try:
        config = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return quantization_of(config) if isinstance(config, Mapping) else None


def package_hint(model_path: str) -> str:
    """Return "; pip install …" for a quantised checkpoint whose packages are known, "" for others."""
    found = quantization_at(model_path)
    package = _PACKAGES.get(found["method"]) if found is not None else None
    return f"; its weights are quantised ({found['method']}): pip install {package}" if found is not None and package is not None else ""
