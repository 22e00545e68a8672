"""Loads a checkpoint's folder into MAX's model in this process; MAX is not imported before that.

MAX compiles a model for its shape and caches the result, so the first start of an architecture takes minutes on a CPU and later ones
seconds. Features that its `AutoModel` leaves off stay off: overlapped steps, prefix caching, prompts in parts.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.errors import BackendError, CheckpointError, ConfigError, MissingDependency
from evalharness.api.installing import install_arguments
from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.backends.checkpoint_reading import declared_variant, first_line, read_companions, resolve_dtype_name
from evalharness.backends.torchvision_cpu import register_missing_operators
from evalharness.checkpoints.weights import read_json

MAX_BATCH_SIZE = {"cpu": 16, "gpu": 128}
"""Rows that MAX works on at once; on a CPU more are no faster, and MAX plans memory for as many full contexts."""
_PREFILL_TOKENS = 8192  # of a batch, MAX's own default


def installing_max() -> str:
    """Return how to get MAX, which needs an environment of its own."""
    return f"in an environment of its own (docs/max.md): pip install {install_arguments('max')}"


@dataclass
class LoadedModel:
    """A checkpoint in MAX. `model` is MAX's `AutoModel`; `device` is its name for it, `dtype` that of the weights in memory."""

    model: Any
    tokenizer: Any
    eos_token_ids: tuple[int, ...]
    device: str
    dtype: str
    max_prefill_tokens: int


def load_model(config: ModelLoadConfig, preprocess: VlmPreprocessOptions, max_model_len: int | None) -> LoadedModel:
    """Return the checkpoint, loaded and compiled.

    `MissingDependency` without MAX, `ConfigError` for options that it cannot honour, `CheckpointError` for a checkpoint that it
    does not take, `BackendError` where the machine is too small for it.
    """
    _require_installed()
    if config.adapter_path is not None:
        raise ConfigError("backend 'max' loads no adapters; use --backend hf or vllm, or merge the adapter into its base")
    auto_model = _auto_model()
    device = _device(config.device)
    dtype = resolve_dtype_name(config.torch_dtype, on_cuda=device != "cpu")
    problem = why_not_in_max(Path(config.model_name_or_path), device)
    if problem is not None:
        raise CheckpointError(f"{config.model_name_or_path} cannot run on backend 'max': {problem}")
    tokenizer, _, eos_token_ids = read_companions(config, preprocess)
    context = _checked_context(config.model_name_or_path, max_model_len)
    prefill = max(_PREFILL_TOKENS, context or 0)
    try:
        model = auto_model(
            config.model_name_or_path,
            max_batch_size=MAX_BATCH_SIZE["cpu" if device == "cpu" else "gpu"],
            devices=device,
            quantization_encoding=dtype,
            max_length=context,
            max_batch_input_tokens=prefill,
            enable_penalties=True,
            enable_min_tokens=True,
            trust_remote_code=config.trust_remote_code,
        )
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise CheckpointError(f"MAX does not take {config.model_name_or_path}: {first_line(error)}") from error
    except Exception as error:  # of its compiler, or of memory
        raise BackendError(f"MAX could not start on {config.model_name_or_path}: {first_line(error)}") from error
    return LoadedModel(model, tokenizer, eos_token_ids, device, dtype, prefill)


def _require_installed() -> None:
    if importlib.util.find_spec("max") is None:
        raise MissingDependency(f"backend 'max' needs Modular's MAX, which is not installed here; {installing_max()}")


def _auto_model() -> Any:
    register_missing_operators()  # MAX imports transformers' model classes
    if importlib.util.find_spec("pyarrow") is not None:
        importlib.import_module("pyarrow")  # first: loaded after a model of MAX, it ends the process when pandas uses it (26.7)
    try:
        from max.pipelines import AutoModel
    except ImportError as error:
        version = importlib.metadata.version("max")
        raise MissingDependency(f"MAX {version} cannot be used in this process ({first_line(error)}); {installing_max()}") from error
    return AutoModel


def _device(wanted: str | None) -> str:
    """Return MAX's name of the device that was asked for: "cpu", "gpu:0"…; the first GPU where none was and there is one."""
    from max.driver import accelerator_count

    if wanted is None:
        return "gpu:0" if accelerator_count() else "cpu"
    if wanted == "cpu":
        return wanted
    cuda = re.fullmatch(r"cuda(?::(\d+))?", wanted)
    number = int(cuda.group(1) or 0) if cuda else None
    if number is None or number >= accelerator_count():
        raise ConfigError(f"device {wanted!r} is not there for MAX, which sees {accelerator_count()} GPUs; give cpu, or leave it out")
    return f"gpu:{number}"


def max_facts() -> dict[str, Any]:
    """Return what there is of MAX here, for `evalharness doctor`; `MissingDependency` where it cannot be used."""
    _require_installed()
    _auto_model()
    return {"max": importlib.metadata.version("max"), "device": _device(None)}


def why_not_in_max(path: Path, device: str | None = None) -> str | None:
    """Return why MAX does not take the checkpoint in that folder on that device (MAX's name; None: the one it would take), or None."""
    from max.pipelines.lib import PIPELINE_REGISTRY
    from max.pipelines.lib.interfaces.pipeline_model import AlwaysSignalBuffersMixin

    version = importlib.metadata.version("max")
    if declared_variant(str(path)) == "vlm":
        return "it takes images, and MAX in this process runs text models only; use --backend hf or vllm"
    names = (read_json(path / "config.json") or {}).get("architectures") or ["an architecture that it does not name"]
    known = [entry for name in names if (entry := PIPELINE_REGISTRY.retrieve_architecture(name)) is not None]
    if not known:
        return f"MAX {version} does not run {', '.join(names)}; use --backend hf or vllm"
    if (device or _device(None)) == "cpu" and any(issubclass(entry.pipeline_model, AlwaysSignalBuffersMixin) for entry in known):
        # Buffers for several GPUs, made on a CPU, too: a segmentation fault.
        return f"MAX {version} would end this process where it starts {', '.join(names)} on a CPU; use --backend hf or vllm, or a GPU"
    return None


def _checked_context(path: str, wanted: int | None) -> int | None:
    """Return how long prompt and generation may be together, in tokens: what was asked for, else what the checkpoint says."""
    declared = (read_json(Path(path) / "config.json") or {}).get("max_position_embeddings")
    declared = declared if isinstance(declared, int) else None
    if wanted is not None and declared is not None and wanted > declared:
        raise ConfigError(f"max_model_len {wanted} is more than the checkpoint's context of {declared} tokens; lower it or leave it out")
    return wanted or declared
