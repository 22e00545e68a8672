"""Reads a checkpoint for the hf and vllm backends, by the same rules: variant, dtype, tokenizer, processor, pixel budget, EOS ids.

transformers is imported only when a tokenizer is loaded: vLLM's settings need none of it. Without it, as in an install that only asks
servers, `BareTokenizer` reads the checkpoint.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from evalharness.api.errors import CheckpointError, ConfigError, EvalHarnessError, MissingDependency, UnsupportedOption, did_you_mean
from evalharness.api.installing import install_command
from evalharness.api.options import ModelLoadConfig, Variant, VlmPreprocessOptions
from evalharness.checkpoints.gguf import gguf_file_of, read_gguf
from evalharness.checkpoints.hub import hint_if_partial, why_absent
from evalharness.checkpoints.info import package_hint, variant_of
from evalharness.checkpoints.weights import read_json

DTYPES = ("bfloat16", "float16", "half", "float32", "float", "float64", "double")
SAME_DTYPE = {"half": "float16", "float": "float32", "double": "float64"}
DEFAULT_MIN_PIXELS = 56 * 56  # what Qwen-VL's own processor takes where a checkpoint says nothing


def declared_variant(model_path: str) -> Variant:
    """Return "vlm" where the checkpoint's config.json names a vision model, else "text"; `CheckpointError` if it cannot be read."""
    if gguf_file_of(model_path) is not None:
        return "text"
    values = read_json(Path(model_path) / "config.json")
    if values is None:
        if not Path(model_path).exists():
            raise CheckpointError(why_absent(Path(model_path)))
        hint = hint_if_partial(Path(model_path))
        raise CheckpointError(f"{model_path} has no config.json; give the path of a checkpoint directory{hint}")
    return variant_of(values)


def declared_vocab_size(model_path: str, tokenizer: Any) -> int:
    """Return how many token ids the checkpoint's model takes: what its config.json says, at least those of the tokenizer."""
    values = read_json(Path(model_path) / "config.json") or {}
    text = values.get("text_config")
    declared = (text if isinstance(text, Mapping) else values).get("vocab_size")
    return max(len(tokenizer), declared if isinstance(declared, int) else 0)


def detect_variant(config: ModelLoadConfig) -> Variant:
    """Return the variant that was asked for, else what the checkpoint declares."""
    return config.variant or declared_variant(config.model_name_or_path)


def resolve_dtype_name(requested: str | None, *, on_cuda: bool, option: str = "model.torch_dtype", allow_auto: bool = False) -> str:
    """Return the name of a torch dtype: the requested one, in any case, else bfloat16 on CUDA and float32 elsewhere.

    With `allow_auto` also "auto", the checkpoint's own. `ConfigError`, naming `option`, for everything else.
    """
    if requested is None:
        return "bfloat16" if on_cuda else "float32"
    known = ("auto", *DTYPES) if allow_auto else DTYPES
    name = requested.lower().removeprefix("torch.")
    if name not in known:
        raise ConfigError(f"{option} {requested!r} is unknown{did_you_mean(name, known) or ';'} known: {', '.join(known)}")
    return SAME_DTYPE.get(name, name)


def load_tokenizer_and_processor(config: ModelLoadConfig, preprocess: VlmPreprocessOptions) -> tuple[Any, Any | None]:
    """Return the normalised tokenizer and, for a vision checkpoint, the processor that holds it (else None).

    `CheckpointError` when they cannot be loaded, `MissingDependency` for a package that they need, `ConfigError` for a
    pixel budget that cannot be put in force. Without transformers a `BareTokenizer` is both.
    """
    if importlib.util.find_spec("transformers") is None:
        return _bare_tokenizer_and_processor(config, preprocess)
    if detect_variant(config) == "text":
        tokenizer = _load_part(config, "tokenizer")
        normalise_tokenizer(tokenizer, preprocess)
        return tokenizer, None
    processor = _load_processor(config)
    normalise_tokenizer(processor.tokenizer, preprocess)
    apply_pixel_budget(processor.image_processor, preprocess)
    return processor.tokenizer, processor


def read_companions(config: ModelLoadConfig, preprocess: VlmPreprocessOptions) -> tuple[Any, Any | None, tuple[int, ...]]:
    """Return what belongs to a checkpoint beside its model: tokenizer, processor (None for text), EOS ids."""
    tokenizer, processor = load_tokenizer_and_processor(config, preprocess)
    return tokenizer, processor, end_of_sequence_ids(config.model_name_or_path, tokenizer)


def _bare_tokenizer_and_processor(config: ModelLoadConfig, preprocess: VlmPreprocessOptions) -> tuple[Any, Any | None]:
    from evalharness.backends.bare_tokenizer import BareTokenizer  # only where it is needed: it imports tokenizers

    if (gguf_file := gguf_file_of(config.model_name_or_path)) is not None:
        raise MissingDependency(f"the tokenizer of {gguf_file} is read with transformers and gguf; {install_command('gguf')}")
    with checkpoint_errors(config, "tokenizer"):
        tokenizer = BareTokenizer(Path(config.model_name_or_path))
    normalise_tokenizer(tokenizer, preprocess)
    return tokenizer, tokenizer if detect_variant(config) == "vlm" else None


def _load_processor(config: ModelLoadConfig) -> Any:
    path = config.model_name_or_path
    way_out = "without preprocessor_config.json it takes text only: add that file, or set model.variant to 'text'"
    try:
        processor = _load_part(config, "processor")
    except CheckpointError as error:
        if (Path(path) / "preprocessor_config.json").is_file():
            raise
        raise CheckpointError(f"{error}; {way_out}") from error
    # AutoProcessor falls back to the bare tokenizer where a checkpoint has no processor files.
    for part in ("image_processor", "tokenizer"):
        if getattr(processor, part, None) is None:
            raise CheckpointError(f"the processor of {path} has no {part}; {way_out}")
    return processor


def _load_part(config: ModelLoadConfig, part: Literal["tokenizer", "processor"]) -> Any:
    try:
        # Not transformers itself: beside a CPU torch it must be imported in a certain way.
        from evalharness.backends.hf._transformers import transformers
    except ImportError as error:
        raise MissingDependency(f"transformers cannot be imported ({error}); {install_command('hf')}") from error
    auto_class = transformers.AutoTokenizer if part == "tokenizer" else transformers.AutoProcessor
    with checkpoint_errors(config, part):
        return auto_class.from_pretrained(**checkpoint_source(config.model_name_or_path), trust_remote_code=config.trust_remote_code)


def checkpoint_source(model_path: str) -> dict[str, Any]:
    """Return transformers' arguments that say where a checkpoint is; `MissingDependency` for a GGUF file without the package gguf."""
    file = gguf_file_of(model_path)
    if file is None:
        return {"pretrained_model_name_or_path": model_path}
    if importlib.util.find_spec("gguf") is None:
        raise MissingDependency(f"{file} is read with the package gguf, which is not installed; {install_command('gguf')}")
    return {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}


@contextmanager
def checkpoint_errors(config: ModelLoadConfig, part: str) -> Iterator[None]:
    """Turn whatever transformers raises while it loads `part` of a checkpoint into our errors, with the way out."""
    path = config.model_name_or_path
    try:
        yield
    except EvalHarnessError:
        raise
    except ImportError as error:
        raise MissingDependency(
            f"the {part} of {path} needs a package that is not installed: {first_line(error)}{package_hint(path)}"
        ) from error
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise CheckpointError(
                f"{path} brings its own code, which is not run by default; "
                "read it, then allow it with --trust-remote-code (model.trust_remote_code)"
            ) from error
        problem = type(error).__name__ + (f": {first_line(error)}" if str(error).strip() else "")
        hint = f"is the checkpoint complete?{hint_if_partial(Path(path))}"
        raise CheckpointError(f"the {part} of {path} cannot be loaded: {problem}; {hint}") from error


def first_line(error: BaseException) -> str:
    """Return the first line with text of the error's message, else its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def normalise_tokenizer(tokenizer: Any, preprocess: VlmPreprocessOptions) -> None:
    """Set the padding and truncation side; a missing pad token becomes the EOS token where the options allow it.

    The sides are for callers who use the tokenizer themselves: the backends neither pad nor truncate with it.
    """
    tokenizer.padding_side = preprocess.padding_side
    tokenizer.truncation_side = preprocess.truncation_side
    if preprocess.pad_token_fallback and tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token


def apply_pixel_budget(image_processor: Any, preprocess: VlmPreprocessOptions) -> None:
    """Put the pixel budget (areas, in pixels) in force; what the options leave unset stays as the checkpoint has it.

    `UnsupportedOption` where the image processor has no pixel budget, `ConfigError` where the two limits contradict.
    """
    if preprocess.do_resize is not None:
        image_processor.do_resize = preprocess.do_resize
    if preprocess.min_pixels is None and preprocess.max_pixels is None:
        return
    if not getattr(image_processor, "do_resize", True):
        raise UnsupportedOption(
            "preprocess.min_pixels/max_pixels change nothing: this checkpoint does not resize images; set do_resize=True"
        )
    size = dict(getattr(image_processor, "size", None) or {})
    if not _has_pixel_budget(image_processor):
        raise UnsupportedOption(
            f"preprocess.min_pixels/max_pixels need an image processor with a budget of pixels; "
            f"{type(image_processor).__name__} has size {size}; leave them unset"
        )
    least = _first_set(preprocess.min_pixels, getattr(image_processor, "min_pixels", None), size.get("shortest_edge"), DEFAULT_MIN_PIXELS)
    most = _first_set(preprocess.max_pixels, getattr(image_processor, "max_pixels", None), size["longest_edge"])
    if least > most:
        raise ConfigError(f"the pixel budget contradicts itself: min_pixels {least} exceeds max_pixels {most}; set both")
    # `size` is what resizing obeys, as a type of its own or a dict by release.
    image_processor.size = type(image_processor.size)(**{"shortest_edge": least, "longest_edge": most})
    # Older releases read these too; newer ones have dropped them and warn per call where they are set.
    for name, value in (("min_pixels", least), ("max_pixels", most)):
        if getattr(image_processor, name, None) is not None:
            setattr(image_processor, name, value)


def pixel_budget(image_processor: Any) -> dict[str, Any] | None:
    """Return the budget in force, areas in pixels, as plain JSON; None for an image processor without one."""
    if not _has_pixel_budget(image_processor):
        return None
    size = dict(image_processor.size)
    return {
        "min_pixels": size.get("shortest_edge"),
        "max_pixels": size["longest_edge"],
        "do_resize": bool(getattr(image_processor, "do_resize", True)),
    }


def _has_pixel_budget(image_processor: Any) -> bool:
    # Elsewhere the edges of `size` are lengths. Only processors that merge patches take areas for them.
    return hasattr(image_processor, "merge_size") and "longest_edge" in dict(getattr(image_processor, "size", None) or {})


def end_of_sequence_ids(model_path: str, tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that end a sequence: those of generation_config.json, then the tokenizer's, each once; 0 is one like any.

    Older checkpoints have no generation_config.json; then config.json says it, or its text_config. A GGUF file says it itself.
    """
    gguf_file = gguf_file_of(model_path)
    if gguf_file is not None:
        declared_ids = (*read_gguf(gguf_file).end_ids, tokenizer.eos_token_id)
        return tuple(dict.fromkeys(token_id for token_id in declared_ids if token_id is not None))
    origin = "generation_config.json"
    values = read_json(Path(model_path) / origin)
    if values is None:
        origin = "config.json"
        values = read_json(Path(model_path) / origin) or {}
        if values.get("eos_token_id") is None and isinstance(values.get("text_config"), Mapping):
            values = values["text_config"]
    declared = values.get("eos_token_id")
    ids = [*declared] if isinstance(declared, list) else [declared]
    for token_id in ids:
        if token_id is not None and (isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0):
            raise CheckpointError(f"eos_token_id in {origin} of {model_path} must be token ids of at least 0, got {token_id!r}; correct it")
    return tuple(dict.fromkeys(token_id for token_id in (*ids, tokenizer.eos_token_id) if token_id is not None))


def _first_set(*values: int | None) -> int:
    return next(value for value in values if value is not None)
