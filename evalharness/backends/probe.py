"""`python -m evalharness.backends.probe BACKEND CHECKPOINT…` imports everything that a backend needs and prints the outcome as JSON.

For `evalharness doctor`, in a process of its own: an import may take a minute, crash, or initialise CUDA. Loads no weights. A backend's
class may have a static method `probe()`, which returns facts and a function from a checkpoint's folder to the reason why it cannot be used,
or None.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evalharness.api.errors import MissingDependency
from evalharness.api.installing import missing_package
from evalharness.backends import load_backend_class
from evalharness.backends.checkpoint_reading import first_line
from evalharness.checkpoints.gguf import gguf_file_of, read_gguf

MARK = "evalharness-probe:"
"""Stands before the JSON: libraries print to stdout, too."""


def main(arguments: list[str]) -> None:
    """Print facts of a backend, and for each checkpoint why it cannot be taken, null where it can."""
    name, *paths = arguments
    backend_class = load_backend_class(name)
    try:
        facts, why_not = _PROBES.get(name, getattr(backend_class, "probe", _probe_other))()
    except ModuleNotFoundError as error:
        raise MissingDependency(missing_package(f"backend {name!r}", error, name)) from error
    print(MARK + json.dumps({"facts": facts, "checkpoints": {path: _refusal(why_not, path) for path in paths}}))


def _refusal(why_not: Callable[[Path], str | None], path: str) -> str | None:
    try:
        return why_not(Path(path))
    except Exception as error:  # a library's opinion of a checkpoint, whatever its form
        return f"{type(error).__name__}: {first_line(error)}"


def _torch_facts() -> dict[str, Any]:
    import torch

    from evalharness.backends.torchvision_cpu import register_missing_operators

    patched = register_missing_operators()
    num_cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "num_cards": num_cards}
    try:
        import torchvision
    except (ImportError, OSError, RuntimeError) as error:
        facts["torchvision_problem"] = f"{type(error).__name__}: {first_line(error)}"
    else:
        facts["torchvision"] = torchvision.__version__
        facts["torchvision_patched"] = patched
    return facts


def _probe_hf() -> tuple[dict[str, Any], Callable[[Path], str | None]]:
    facts = _torch_facts()
    from evalharness.backends.hf._transformers import transformers

    for name in ("AutoModelForCausalLM", "AutoModelForImageTextToText"):
        getattr(transformers, name)  # the import that fails on a broken machine

    def why_not(path: Path) -> str | None:
        gguf_file = gguf_file_of(path)
        if gguf_file is not None:
            return _gguf_refusal(gguf_file)
        config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
        _check_quantization(config)
        missing = [name for name in config.architectures or () if not hasattr(transformers, name)]
        return f"transformers {transformers.__version__} has no {missing[0]}; install a newer one" if missing else None

    return {**facts, "transformers": transformers.__version__}, why_not


def _check_quantization(config: Any) -> None:
    """Raise what transformers would raise for quantised weights whose packages, or whose GPU, are not here."""
    from evalharness.backends.hf._transformers import transformers

    quantizer = transformers.quantizers.AutoHfQuantizer
    declared = getattr(config, "quantization_config", None) or getattr(config.get_text_config(), "quantization_config", None)
    if declared is not None and quantizer.supports_quant_method(declared):
        quantizer.from_config(declared, pre_quantized=True).validate_environment(device_map=None, weights_only=True)


def _gguf_refusal(path: Path) -> str | None:
    if missing := [name for name in ("gguf", "accelerate") if find_spec(name) is None]:
        return f"GGUF files need {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
    from evalharness.backends.hf._transformers import gguf_architectures, transformers

    architecture = read_gguf(path).architecture
    if architecture.replace("_", "").replace("-", "") in gguf_architectures():
        return None
    return f"transformers {transformers.__version__} reads no GGUF files of {architecture}; convert the checkpoint to safetensors"


def _probe_vllm() -> tuple[dict[str, Any], Callable[[Path], str | None]]:
    facts = _torch_facts()
    import vllm
    from vllm.model_executor.models import ModelRegistry
    from vllm.platforms import current_platform

    known = set(ModelRegistry.get_supported_archs())

    def why_not(path: Path) -> str | None:
        if gguf_file_of(path) is not None:
            return f"vLLM {vllm.__version__} reads no GGUF files; use --backend hf"
        names = json.loads((path / "config.json").read_bytes()).get("architectures") or ["an architecture that it does not name"]
        return None if known.intersection(names) else f"vLLM {vllm.__version__} does not run {', '.join(names)}; use --backend hf"

    return {**facts, "vllm": vllm.__version__, "platform": current_platform.device_type}, why_not


def _probe_other() -> tuple[dict[str, Any], Callable[[Path], str | None]]:
    return {}, lambda path: "it runs no checkpoint folders"


_PROBES: Mapping[str, Callable[[], tuple[dict[str, Any], Callable[[Path], str | None]]]] = {"hf": _probe_hf, "vllm": _probe_vllm}

if __name__ == "__main__":
    main(sys.argv[1:])
