"""What tells a checkpoint from every other: one hash of all that can change its answers, whatever its folder is called.

Made here and nowhere else; cache, resume, comparisons, watch and the check of a server's weights use it. All files count whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from evalharness.api.errors import CheckpointError
from evalharness.checkpoints.file_hashes import FileState, hash_files
from evalharness.checkpoints.gguf import gguf_file_of
from evalharness.checkpoints.weights import ADAPTER_WEIGHTS, find_weights, is_adapter, read_json

# Where transformers looks for code to import; model code comes with config.json.
REMOTE_CODE_FILES = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
TEMPLATES = "additional_chat_templates"
_TOKENIZERS = "*tokenizer*/*"  # processors with several keep the others in folders inside
# What transformers and vLLM read of a folder without code of its own: settings, templates, and the vocabularies of all their tokenizers.
# All safetensors, too: without an index, vLLM loads what it finds.
_READ = frozenset(
    {".json", ".jinja", ".model", ".txt", ".tiktoken", ".py", ".spm", ".bpe", ".codes", ".vocab", ".yaml", ".yml", ".safetensors"}
)
# A training run leaves these beside the checkpoint; they change nothing about what it answers. No code has such a name.
_LEFT_FILES = (
    ".*",
    "*.log",
    "*.md",
    "LICENSE",
    "LICENSE.txt",
    "README.txt",
    "all_results.json",
    "eval_results.json",
    "events.out.tfevents.*",
    "optimizer*.bin",
    "optimizer*.pt",
    "random_states_*.pkl",
    "requirements.txt",
    "rng_state*.pth",
    "scaler.pt",
    "scheduler.bin",
    "scheduler.pt",
    "train_results.json",
    "trainer_state.json",
    "training_args.bin",
    "zero_to_fp32.py",
)
_LEFT_FOLDERS = (".*", "__pycache__", "checkpoint-[0-9]*", "global_step[0-9]*", "optimizer_[0-9]*", "wandb")


def fingerprint_of(path: Path) -> str:
    """Return the fingerprint (SHA-256, hex) of a checkpoint's folder, an adapter's (without its base) or a GGUF file.

    Raises `CheckpointError` for one that cannot be read, or is written to meanwhile.
    """
    with _our_errors():
        return fingerprint_adapter(path) if is_adapter(path) else _of_files(_files_of(path))


def stamp_of(*paths: Path) -> str:
    """Return what the file system says of the same files, in one hash: while it stays the same, so does the fingerprint."""
    with _our_errors():
        files = {name: file for number, path in enumerate(paths) for name, file in _files_of(path, prefix=f"{number}:").items()}
        return _of({name: list(FileState.at(file)) for name, file in files.items()})


@contextmanager
def _our_errors() -> Iterator[None]:
    """Turn errors of files that went away meanwhile, or may not be read, into `CheckpointError`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{error.filename} cannot be read: {error.strerror}") from error


def _files_of(path: Path, prefix: str = "") -> dict[str, Path]:
    """Return {name: file} of all that is read of a checkpoint, or an adapter."""
    if (gguf_file := gguf_file_of(path)) is not None:
        return {f"{prefix}gguf": gguf_file}  # all in one, whatever it is called: nothing beside it is read
    names = ("adapter_config.json", ADAPTER_WEIGHTS) if is_adapter(path) else files_read(path)
    return {prefix + name: path / name for name in names}


def fingerprint_weights(folder: Path) -> str:
    """Return the fingerprint of a checkpoint's weights alone, for servers that have no more of it."""
    return _of_files({name: folder / name for name in find_weights(folder, allow_pickle=True).files})


def fingerprint_adapter(folder: Path) -> str:
    """Return the fingerprint of an adapter's settings and weights, wherever it and its base lie."""
    settings = read_json(folder / "adapter_config.json") or {}
    # Where the base lies says nothing of what it is.
    lasting = {key: value for key, value in settings.items() if key != "base_model_name_or_path"}
    weights = folder / ADAPTER_WEIGHTS
    return _of({"settings": json.dumps(lasting, sort_keys=True), "weights": hash_files([weights])[weights]})


def fingerprint_adapted(base: str, adapter: str) -> str:
    """Return the fingerprint of an adapter on its base, made of both of theirs."""
    return _of({"base": base, "adapter": adapter})


def files_read(folder: Path) -> tuple[str, ...]:
    """Return the names of a checkpoint's files that may change its answers, sorted; those in folders inside it with "/".

    These are its weights, settings, vocabularies and templates. A checkpoint with code of its own (auto_map) may read anything: of it
    every file counts but what a training run leaves beside it, in folders inside, too.
    """
    if any((read_json(folder / name) or {}).get("auto_map") for name in REMOTE_CODE_FILES):
        return tuple(sorted(_all_files(folder, "", frozenset())))
    files = [*folder.iterdir(), *(folder / TEMPLATES).glob("*.jinja"), *folder.glob(_TOKENIZERS)]
    names = [file.relative_to(folder).as_posix() for file in files if file.suffix in _READ and file.is_file()]
    weights = find_weights(folder, allow_pickle=True).files
    return tuple(sorted({*weights, *(name for name in names if not _is_left(name, _LEFT_FILES))}))


def _all_files(folder: Path, prefix: str, above: frozenset[str]) -> Iterator[str]:
    real = os.path.realpath(folder)
    if real in above:  # a link to a folder that it lies in
        return
    for entry in folder.iterdir():
        if entry.is_dir():
            if not _is_left(entry.name, _LEFT_FOLDERS):
                yield from _all_files(entry, f"{prefix}{entry.name}/", above | {real})
        elif entry.is_file() and not _is_left(entry.name, _LEFT_FILES):
            yield prefix + entry.name


def _is_left(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _of_files(files: Mapping[str, Path]) -> str:
    hashes = hash_files(files.values())
    return _of({name: hashes[file] for name, file in files.items()})


def _of(parts: Mapping[str, Any]) -> str:
    """Return one hash of named parts, as structure, so that joined texts cannot collide."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
