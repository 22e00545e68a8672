"""What the hf and the vllm backend read from a checkpoint in the same way: variant, dtype, tokenizer, processor, EOS ids."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalharness.contracts import ModelLoadConfig, Variant, VlmPreprocessOptions
from evalharness.errors import CheckpointError, ConfigError, MissingDependency, UnsupportedOption

__all__ = [
    "detect_variant",
    "eos_token_ids",
    "load_tokenizer_and_processor",
    "normalise_image_processor",
    "normalise_tokenizer",
    "resolve_dtype_name",
]

DTYPES = ("bfloat16", "float16", "float32", "float64", "half", "float", "double")
DEFAULT_MIN_PIXELS = 56 * 56  # what Qwen-VL's own processor takes where a checkpoint says nothing


def detect_variant(config: ModelLoadConfig) -> Variant:
    """Return the variant that was asked for, else "vlm" where config.json names a vision model, else "text".

    `CheckpointError` when config.json cannot be read.
    """
    if config.variant is not None:
        return config.variant
    values = _read_json(config.model_name_or_path, "config.json")
    if values is None:
        raise CheckpointError(f"{config.model_name_or_path} has no config.json; give a checkpoint directory or set the variant")
    is_vision = "vl" in str(values.get("model_type", "")).lower() or values.get("vision_config") is not None
    return "vlm" if is_vision else "text"


def resolve_dtype_name(requested: str | None, *, on_cuda: bool) -> str:
    """Return the name of a torch dtype: the requested one, else bfloat16 on CUDA and float32 on CPU.

    `ConfigError` for anything that is no floating-point dtype of torch ("auto" is none).
    """
    if requested is None:
        return "bfloat16" if on_cuda else "float32"
    name = requested.lower().removeprefix("torch.")
    if name not in DTYPES:
        close = difflib.get_close_matches(name, DTYPES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"dtype {requested!r} is unknown{hint} Known: {', '.join(DTYPES)}")
    return {"half": "float16", "float": "float32", "double": "float64"}.get(name, name)


def load_tokenizer_and_processor(config: ModelLoadConfig, preprocess: VlmPreprocessOptions) -> tuple[Any, Any | None]:
    """Return the normalised tokenizer and, for a vision checkpoint, the processor that holds it (else None).

    `CheckpointError` when they cannot be loaded; `MissingDependency` without transformers.
    """
    from evalharness.backends.torchvision_cpu import register_missing_operators

    try:
        register_missing_operators()
        from transformers import AutoProcessor, AutoTokenizer
    except ImportError as error:
        raise MissingDependency(f"transformers cannot be imported ({error}); pip install transformers") from error
    is_vision = detect_variant(config) == "vlm"
    loader = AutoProcessor if is_vision else AutoTokenizer
    try:
        loaded = loader.from_pretrained(config.model_name_or_path, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError) as error:
        what = "processor" if is_vision else "tokenizer"
        raise CheckpointError(f"the {what} of {config.model_name_or_path} cannot be loaded: {error}") from error
    if not is_vision:
        normalise_tokenizer(loaded, preprocess)
        return loaded, None
    # AutoProcessor falls back to the bare tokenizer where a checkpoint has no processor files.
    if getattr(loaded, "image_processor", None) is None or getattr(loaded, "tokenizer", None) is None:
        raise CheckpointError(
            f"{config.model_name_or_path} is a vision model without image processor; "
            "add its preprocessor_config.json, or set the variant to 'text'"
        )
    normalise_tokenizer(loaded.tokenizer, preprocess)
    normalise_image_processor(loaded.image_processor, preprocess)
    return loaded.tokenizer, loaded


def normalise_tokenizer(tokenizer: Any, preprocess: VlmPreprocessOptions) -> None:
    """Set the padding and truncation side; a missing pad token becomes the EOS token where the options allow it."""
    tokenizer.padding_side = preprocess.padding_side
    tokenizer.truncation_side = preprocess.truncation_side
    if preprocess.pad_token_fallback and tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token


def normalise_image_processor(image_processor: Any, preprocess: VlmPreprocessOptions) -> None:
    """Put the pixel budget (areas, in pixels) in force; what the options leave unset stays as the checkpoint has it.

    `UnsupportedOption` where the image processor has no pixel budget, `ConfigError` where the two limits contradict.
    """
    if preprocess.do_resize is not None:
        image_processor.do_resize = preprocess.do_resize
    if preprocess.min_pixels is None and preprocess.max_pixels is None:
        return
    size = dict(getattr(image_processor, "size", None) or {})
    if "longest_edge" not in size and getattr(image_processor, "max_pixels", None) is None:
        raise UnsupportedOption(
            f"preprocess.max_pixels/min_pixels need an image processor with a pixel budget; "
            f"{type(image_processor).__name__} has size {size}; leave them unset"
        )
    least = _first_set(preprocess.min_pixels, getattr(image_processor, "min_pixels", None), size.get("shortest_edge"), DEFAULT_MIN_PIXELS)
    most = _first_set(preprocess.max_pixels, getattr(image_processor, "max_pixels", None), size.get("longest_edge"))
    if least > most:
        raise ConfigError(f"the pixel budget contradicts itself: min_pixels {least} exceeds max_pixels {most}; set both")
    image_processor.size = {"shortest_edge": least, "longest_edge": most}
    # Older releases of transformers read these; newer ones have dropped them and warn where they are set.
    for name, value in (("min_pixels", least), ("max_pixels", most)):
        if getattr(image_processor, name, None) is not None:
            setattr(image_processor, name, value)


def eos_token_ids(model_path: str, tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that end a sequence: the tokenizer's first, then those of generation_config.json (else config.json)."""
    declared = _read_json(model_path, "generation_config.json")
    if declared is None:
        declared = _read_json(model_path, "config.json") or {}
        if declared.get("eos_token_id") is None and isinstance(declared.get("text_config"), Mapping):
            declared = declared["text_config"]
    more = declared.get("eos_token_id")
    ids = [tokenizer.eos_token_id, *(more if isinstance(more, list) else [more])]
    for token_id in ids:
        if token_id is not None and (isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0):
            raise CheckpointError(f"{model_path} declares eos_token_id {more!r}; it must be a token id or a list of them")
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))


def _first_set(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _read_json(model_path: str, name: str) -> Mapping[str, Any] | None:
    """Return the JSON object in a checkpoint's file, None where there is no such file."""
    path = Path(model_path) / name
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values
