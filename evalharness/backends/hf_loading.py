"""A checkpoint directory becomes model, tokenizer and processor, by rules that are all written here.

The checkpoint's generation_config.json is read for one thing, its end-of-sequence ids; transformers never sees it, so it
cannot change how tokens are chosen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from evalharness.backends.hf_memory import is_out_of_memory
from evalharness.backends.hf_transformers import transformers
from evalharness.contracts import ModelLoadConfig, VlmPreprocessOptions
from evalharness.errors import BackendError, CheckpointError, ConfigError, MissingDependency

__all__ = [
    "LoadedCheckpoint",
    "detect_variant",
    "end_of_sequence_ids",
    "load_checkpoint",
    "resolve_attention",
    "resolve_device",
    "resolve_dtype",
]

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
    "float32": torch.float32,
    "float": torch.float32,
    "float64": torch.float64,
    "double": torch.float64,
}


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint in memory, ready to generate."""

    model: Any
    tokenizer: Any
    processor: Any
    variant: Literal["text", "vlm"]
    eos_token_ids: tuple[int, ...]
    max_model_len: int | None
    settings: Mapping[str, Any]
    """Plain JSON facts: what was asked for and what is in force."""


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
    return resolved


def resolve_dtype(name: str | None, device_type: str) -> torch.dtype | Literal["auto"]:
    """Return the dtype of that name; None is bfloat16 on CUDA and float32 elsewhere, "auto" the checkpoint's own."""
    if name is None:
        return torch.bfloat16 if device_type == "cuda" else torch.float32
    if name.lower() == "auto":
        return "auto"
    if name.lower() not in _DTYPES:
        raise ConfigError(f"model.torch_dtype {name!r} is unknown; known: auto, {', '.join(_DTYPES)}")
    return _DTYPES[name.lower()]


def resolve_attention(name: str | None) -> str | None:
    """Return transformers' name of an attention implementation; None leaves the model's default."""
    return "flash_attention_2" if name == "flash_attn" else name


def detect_variant(config: Any) -> Literal["text", "vlm"]:
    """Return "vlm" for a config of a vision-language model, else "text"."""
    is_vlm = "vl" in str(getattr(config, "model_type", "")).lower() or getattr(config, "vision_config", None) is not None
    return "vlm" if is_vlm else "text"


def load_checkpoint(config: ModelLoadConfig, preprocess: VlmPreprocessOptions) -> LoadedCheckpoint:
    """Return the loaded checkpoint.

    Raises `ConfigError` for a setting that is wrong, `CheckpointError` for a checkpoint that cannot be used,
    `MissingDependency` for a package that it needs, `BackendError` when memory is not enough.
    """
    device = None if config.device_map is not None else resolve_device(config.device)
    device_type = device.type if device is not None else ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = resolve_dtype(config.torch_dtype, device_type)
    model_config = _load_config(config)
    found = detect_variant(model_config)
    variant = config.variant or found
    if variant == "vlm" and found == "text":
        raise CheckpointError(
            f"{config.model_name_or_path} has no vision part, but model.variant is 'vlm'; leave variant unset or use 'text'"
        )
    model = _load_model(config, model_config, found, dtype, device)
    processor = _load_processor(config) if variant == "vlm" else None
    tokenizer = processor.tokenizer if processor is not None else _load_part(config, "AutoTokenizer")
    _prepare_tokenizer(tokenizer, preprocess)
    pixel_budget = _apply_pixel_budget(processor, preprocess) if processor is not None else None
    text_config = model_config.get_text_config()
    return LoadedCheckpoint(
        model=model,
        tokenizer=tokenizer,
        processor=processor,
        variant=variant,
        eos_token_ids=end_of_sequence_ids(config.model_name_or_path, model_config, tokenizer),
        max_model_len=getattr(text_config, "max_position_embeddings", None),
        settings={
            "variant": variant,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(model.device),
            "device_map": None if device is not None else _plain(getattr(model, "hf_device_map", config.device_map)),
            "attn_implementation": getattr(model.config, "_attn_implementation", None),
            "pixel_budget": pixel_budget,
        },
    )


def _plain(value: object) -> Any:
    return json.loads(json.dumps(value, default=str))


def _load_config(config: ModelLoadConfig) -> Any:
    with _checkpoint_errors(config):
        return transformers.AutoConfig.from_pretrained(config.model_name_or_path, trust_remote_code=config.trust_remote_code)


def _load_model(config: ModelLoadConfig, model_config: Any, found: str, dtype: Any, device: torch.device | None) -> Any:
    auto_class = transformers.AutoModelForImageTextToText if found == "vlm" else transformers.AutoModelForCausalLM
    arguments: dict[str, Any] = {
        "config": model_config,
        "dtype": dtype,
        # Read from a file, it would decide about every option that is not named in a call.
        "generation_config": transformers.GenerationConfig(),
        "trust_remote_code": config.trust_remote_code,
        "use_safetensors": None if config.allow_pickle else True,
        "output_loading_info": True,
    }
    if config.attn_implementation is not None:
        arguments["attn_implementation"] = resolve_attention(config.attn_implementation)
    if config.device_map is not None:
        arguments["device_map"] = config.device_map
    with _checkpoint_errors(config), _quiet_unless_terminal():
        model, info = auto_class.from_pretrained(config.model_name_or_path, **arguments)
        if missing := sorted(info["missing_keys"]):
            raise CheckpointError(
                f"{config.model_name_or_path} lacks {len(missing)} weights that its config asks for, such as {missing[0]}; "
                "they would be random numbers. Is the checkpoint complete?"
            )
        if device is not None:
            model.to(device)
    model.generation_config = transformers.GenerationConfig()
    return model.eval()


def _load_part(config: ModelLoadConfig, auto_class: Literal["AutoTokenizer", "AutoProcessor"]) -> Any:
    with _checkpoint_errors(config):
        return getattr(transformers, auto_class).from_pretrained(config.model_name_or_path, trust_remote_code=config.trust_remote_code)


def _load_processor(config: ModelLoadConfig) -> Any:
    try:
        processor = _load_part(config, "AutoProcessor")
        if getattr(processor, "image_processor", None) is None:
            raise CheckpointError(f"{config.model_name_or_path} has no settings for an image processor")
    except CheckpointError as error:
        raise CheckpointError(f"{error}. Without preprocessor_config.json it takes text only: set model.variant to 'text'") from error
    return processor


@contextmanager
def _checkpoint_errors(config: ModelLoadConfig) -> Iterator[None]:
    """Turn what transformers raises for a bad checkpoint into our errors, with the way out."""
    path = config.model_name_or_path
    try:
        yield
    except (CheckpointError, ConfigError):
        raise
    except ImportError as error:
        raise MissingDependency(f"{path} needs a package that is not installed: {_first_line(error)}") from error
    except Exception as error:
        text = str(error)
        if is_out_of_memory(error):
            raise BackendError(f"not enough memory to load {path}: {_first_line(error)}") from error
        if "trust_remote_code" in text:
            raise CheckpointError(
                f"{path} brings its own code, which is not run by default; read it, then allow it with --trust-remote-code"
            ) from error
        if "attn_implementation" in text or "attention implementation" in text.lower():
            raise ConfigError(f"model.attn_implementation {config.attn_implementation!r} cannot be used: {_first_line(error)}") from error
        if not config.allow_pickle and "safetensors" in text and isinstance(error, OSError):
            raise CheckpointError(
                f"{path} has no weights in safetensors format; pickled weights can run code when they are opened and are refused. "
                "Convert them, or allow them with model.allow_pickle"
            ) from error
        raise CheckpointError(f"{path} cannot be loaded: {type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


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


def end_of_sequence_ids(path: str, model_config: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that end a sequence: those of generation_config.json, then the tokenizer's, each once.

    Older checkpoints have no generation_config.json; the model's config then says what transformers would use.
    """
    config_path = Path(path) / "generation_config.json"
    named: Any = None
    origin = "config.json"
    if config_path.is_file():
        origin = config_path.name
        try:
            content = json.loads(config_path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{config_path} cannot be read: {error}") from error
        named = content.get("eos_token_id") if isinstance(content, dict) else None
    else:
        named = getattr(model_config.get_text_config(), "eos_token_id", None)
    ids = list(named) if isinstance(named, (list, tuple)) else [named]
    ids = [token_id for token_id in [*ids, getattr(tokenizer, "eos_token_id", None)] if token_id is not None]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise CheckpointError(f"eos_token_id in {origin} of {path} must be token ids of at least 0, got {token_id!r}")
    return tuple(dict.fromkeys(ids))


def _prepare_tokenizer(tokenizer: Any, preprocess: VlmPreprocessOptions) -> None:
    # Prompts are padded in hf_decoding, on the left in any case; this is for callers who use the tokenizer themselves.
    tokenizer.padding_side = preprocess.padding_side
    tokenizer.truncation_side = preprocess.truncation_side
    if tokenizer.pad_token is None and preprocess.pad_token_fallback and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token


def _apply_pixel_budget(processor: Any, preprocess: VlmPreprocessOptions) -> dict[str, Any] | None:
    """Set the budget on the processor and return what is in force; areas in pixels."""
    image_processor = processor.image_processor
    if preprocess.do_resize is not None:
        image_processor.do_resize = preprocess.do_resize
    size = dict(image_processor.size or {})
    has_budget = hasattr(image_processor, "merge_size") and "longest_edge" in size
    if not has_budget:
        if preprocess.max_pixels is not None or preprocess.min_pixels is not None:
            raise ConfigError(
                f"{type(image_processor).__name__} has a fixed size, not a budget of pixels; leave max_pixels and min_pixels unset"
            )
        return None
    if preprocess.max_pixels is not None or preprocess.min_pixels is not None:
        minimum = preprocess.min_pixels or getattr(image_processor, "min_pixels", None) or size.get("shortest_edge") or 56 * 56
        maximum = preprocess.max_pixels or getattr(image_processor, "max_pixels", None) or size["longest_edge"]
        if minimum > maximum:
            raise ConfigError(f"the pixel budget is contradictory: min_pixels {minimum} exceeds max_pixels {maximum}; set both")
        # `size` is what resizing obeys; its edges hold areas.
        image_processor.size = type(image_processor.size)(**{"shortest_edge": minimum, "longest_edge": maximum})
        for name, value in (("min_pixels", minimum), ("max_pixels", maximum)):
            # Older processors read these too; where they are not used, setting them brings a FutureWarning per call.
            if getattr(image_processor, name, None) is not None:
                setattr(image_processor, name, value)
        size = dict(image_processor.size)
    return {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"], "do_resize": bool(image_processor.do_resize)}
