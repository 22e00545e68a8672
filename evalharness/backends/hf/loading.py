"""Loads a checkpoint directory into a model for transformers' generate; tokenizer and processor come from `checkpoint_reading`.

Only the end-of-sequence ids of the checkpoint's generation_config.json are read; transformers never sees the file, so it cannot change how
tokens are chosen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evalharness.api.errors import BackendError, CheckpointError, ConfigError
from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.api.wording import plural
from evalharness.backends.checkpoint_reading import (
    checkpoint_errors,
    checkpoint_source,
    declared_variant,
    first_line,
    load_tokenizer_and_processor,
    read_companions,
    resolve_dtype_name,
)
from evalharness.backends.hf._transformers import transformers
from evalharness.backends.hf.batching import is_out_of_memory
from evalharness.backends.hf.shared_model import SharedModel
from evalharness.checkpoints.hub import located
from evalharness.checkpoints.info import quantization_at


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint in memory, ready to generate; `device_map` and `quantization` are plain JSON."""

    model: Any
    tokenizer: Any
    processor: Any
    eos_token_ids: tuple[int, ...]
    device_map: Any = None
    quantization: Any = None


def resolve_device(device: str | None) -> torch.device:
    """Return the device to run on; None is the GPU where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"model.device {device!r} is unknown; give 'cpu', 'cuda' or 'cuda:0'") from error
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"model.device {device!r} is not there; this machine has {torch.cuda.device_count()} CUDA devices")
    try:
        torch.empty(1, device=resolved)
    except Exception as error:  # another one for each kind of device
        raise ConfigError(f"model.device {device!r} cannot be used here: {first_line(error)}; give 'cpu', 'cuda' or 'cuda:0'") from error
    return resolved


def load_checkpoint(config: ModelLoadConfig, preprocess: VlmPreprocessOptions) -> LoadedCheckpoint:
    """Return the loaded checkpoint.

    Raises `ConfigError` for a setting that is wrong, `CheckpointError` for a checkpoint that cannot be used,
    `MissingDependency` for a package that it needs, `BackendError` when memory is not enough.
    """
    device = None if config.device_map is not None else resolve_device(config.device)
    on_cuda = torch.cuda.is_available() if device is None else device.type == "cuda"
    dtype = resolve_dtype_name(config.torch_dtype, on_cuda=on_cuda, allow_auto=True)
    is_vision = "vlm" in (config.variant, declared_variant(config.model_name_or_path))
    with checkpoint_errors(config, "config"):
        model_config = transformers.AutoConfig.from_pretrained(
            **checkpoint_source(config.model_name_or_path), trust_remote_code=config.trust_remote_code
        )
    tokenizer, processor, eos_token_ids = read_companions(config, preprocess)
    model = _load_model(config, model_config, is_vision, dtype, device)
    device_map = getattr(model, "hf_device_map", config.device_map) if device is None else None
    device_map = json.loads(json.dumps(device_map, default=str))  # plain, for run.json
    return LoadedCheckpoint(model, tokenizer, processor, eos_token_ids, device_map, quantization_at(config.model_name_or_path))


def shared_checkpoint(shared: SharedModel, tokenizer: Any, processor: Any) -> LoadedCheckpoint:
    """Wrap a caller's model as if loaded, with its tokenizer or processor, by default those of the folder or hub name that it came from.

    `ConfigError` where there is neither.
    """
    tokenizer = tokenizer if tokenizer is not None else getattr(processor, "tokenizer", None)
    if tokenizer is None:
        name = str(getattr(shared.model.config, "_name_or_path", ""))
        source = located(ModelLoadConfig(name or "none"), must_exist=False)
        if not any(Path(source.model_name_or_path, file).is_file() for file in ("tokenizer.json", "tokenizer_config.json")):
            raise ConfigError(
                f"a shared model needs its tokenizer, or the processor that holds it: give tokenizer=… (the model says that it comes from "
                f"{name!r}, where there is none)"
            )
        tokenizer, processor = load_tokenizer_and_processor(source, VlmPreprocessOptions())
    return LoadedCheckpoint(shared.model, tokenizer, processor, shared.eos_token_ids(tokenizer))


def _load_model(config: ModelLoadConfig, model_config: Any, is_vision: bool, dtype: str, device: torch.device | None) -> Any:
    auto_class = transformers.AutoModelForImageTextToText if is_vision else transformers.AutoModelForCausalLM
    arguments: dict[str, Any] = {
        "config": model_config,
        "dtype": "auto" if dtype == "auto" else getattr(torch, dtype),
        # Read from a file, it would decide about every option that is not named in a call.
        "generation_config": transformers.GenerationConfig(),
        "trust_remote_code": config.trust_remote_code,
        "use_safetensors": None if config.allow_pickle else True,
        "output_loading_info": True,
    }
    if config.attn_implementation is not None:
        arguments["attn_implementation"] = {"flash_attn": "flash_attention_2"}.get(config.attn_implementation, config.attn_implementation)
    if config.device_map is not None:
        arguments["device_map"] = config.device_map
    with checkpoint_errors(config, "model"), _model_errors(config), _quiet_unless_terminal():
        model, info = auto_class.from_pretrained(**checkpoint_source(config.model_name_or_path), **arguments)
        if missing := sorted(info["missing_keys"]):
            raise CheckpointError(
                f"{config.model_name_or_path} lacks {plural(len(missing), 'weight')} that its config asks for, such as {missing[0]}; "
                "they would be random numbers. Is the checkpoint complete?"
            )
        if device is not None:
            model.to(device)
        _own_memory(model)
    model.generation_config = transformers.GenerationConfig()
    return model.eval()


def _own_memory(model: Any) -> None:
    """Copy weights mapped from the checkpoint's files: a trainer that writes the next checkpoint to the same place would end this process.

    On a CPU transformers leaves weights that need no conversion where safetensors has mapped them; a file that gets shorter under a
    mapping is a bus error, and one that is written to changes the weights.
    """
    copies: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and not tensor.untyped_storage().resizable():
            place = (tensor.data_ptr(), tuple(tensor.shape))
            if place not in copies:
                copies[place] = tensor.detach().clone()
            tensor.data = copies[place]


@contextmanager
def _model_errors(config: ModelLoadConfig) -> Iterator[None]:
    """Explain what only a model can lack: memory, an attention, weights in a safe format; other errors pass."""
    path = config.model_name_or_path
    try:
        yield
    except (CheckpointError, ImportError):
        raise
    except Exception as error:
        text = str(error)
        if is_out_of_memory(error):
            raise BackendError(f"not enough memory to load {path}: {first_line(error)}") from error
        if "attn_implementation" in text or "attention implementation" in text.lower():
            raise ConfigError(f"model.attn_implementation {config.attn_implementation!r} cannot be used: {first_line(error)}") from error
        if not config.allow_pickle and "safetensors" in text and isinstance(error, OSError):
            raise CheckpointError(
                f"{path} has no weights in safetensors format; pickled weights can run code when they are opened and are refused. "
                "Convert them, or allow them with --allow-pickle (model.allow_pickle)"
            ) from error
        raise


@contextmanager
def _quiet_unless_terminal() -> Iterator[None]:
    """Keep transformers' progress bars out of log files."""
    logging = transformers.utils.logging
    was_on = logging.is_progress_bar_enabled()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()
