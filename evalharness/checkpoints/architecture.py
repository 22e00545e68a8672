"""Whether one checkpoint's weights can take the place of another's in a model that is already running. Without torch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalharness.api.checks import excerpt
from evalharness.api.errors import CheckpointError
from evalharness.checkpoints.file_hashes import FileState, hash_files
from evalharness.checkpoints.gguf import gguf_file_of
from evalharness.checkpoints.identity import TEMPLATES, files_read
from evalharness.checkpoints.weights import base_shapes, find_weights, packed_types, read_json, same_tensor, tensors_of

# What a config says about how it was written, not about the model.
_HARMLESS = frozenset({"_name_or_path", "transformers_version"})
_DTYPE = frozenset({"dtype", "torch_dtype"})
# Read anew for each checkpoint by this harness, not by the engine.
_READ_ANEW = frozenset({"generation_config.json", "chat_template.jinja", "chat_template.json", "model.safetensors.index.json"})
_ABSENT = "absent"
_EMBEDDINGS = ("embed", "wte")  # in the names of embeddings, where config.json gives no size of the vocabulary


@dataclass(frozen=True)
class LoadedFolder:
    """What a checkpoint's folder held when it was loaded; a trainer may have written something else there since, or removed it.

    `packed`: {tensor: type} of those that are not plain floating-point numbers. `heads`: see `doubled_heads`.
    `problem` says why the folder cannot be told from others, None where it can; the other fields mean nothing then.
    """

    path: Path
    config: Mapping[str, Any]
    companions: Mapping[str, Any]
    stamps: tuple[tuple[str, FileState], ...]
    shapes: Mapping[str, tuple[int, ...]] | None
    packed: Mapping[str, str] = field(default_factory=dict)
    heads: frozenset[str] = frozenset()
    heads_are_equal: bool = True
    problem: str | None = None

    @classmethod
    def read(cls, path: Path) -> LoadedFolder:
        """Return what the folder holds now. Raises nothing: what cannot be read may still be loaded, but nothing put in its place."""
        try:
            stamps, config, companions = _stamps(path), _config(path), _companions(path)
        except (OSError, ValueError) as error:  # a CheckpointError is a ValueError
            return cls(path, {}, {}, (), None, problem=str(error))
        try:
            shapes = base_shapes(path)
            heads = doubled_heads(config, shapes)
            return cls(path, config, companions, stamps, shapes, packed_types(path), heads, are_equal(path, heads) if heads else True)
        except (OSError, CheckpointError):
            return cls(path, config, companions, stamps, None)

    def has_changed(self) -> bool:
        """Return whether the folder's weights are other files by now, or have been written to."""
        try:
            return self.problem is not None or _stamps(self.path) != self.stamps
        except (OSError, CheckpointError):
            return True

    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return {tensor: shape} of what was loaded; `CheckpointError` where that cannot be told."""
        return self.shapes if self.shapes is not None else base_shapes(self.path)


def _stamps(folder: Path) -> tuple[tuple[str, FileState], ...]:
    return tuple((name, FileState.at(folder / name)) for name in find_weights(folder, allow_pickle=True).files)


def loading_difference(running: LoadedFolder, other: Path) -> str | None:
    """Return why an engine that keeps its config, tokenizer and processor cannot load `other` in place of `running`; None where it can."""
    return (
        architecture_difference(running, other, dtype_matters=False)
        or companion_difference(running, other)
        or tensor_difference(running, other)
        or head_difference(running, other)
    )


def architecture_difference(running: LoadedFolder, other: Path, *, dtype_matters: bool) -> str | None:
    """Return why `other` is of another architecture than `running`, None where it is of the same.

    The same means: config.json equal in every field but those that say who wrote it, and the weights' own type unless the
    engine follows it (`dtype_matters`); unquantized; no code of its own.
    """
    if gguf_file_of(running.path) is not None or gguf_file_of(other) is not None:
        return "a GGUF file is always loaded anew"
    if running.problem is not None:
        return running.problem
    field = _difference(running.config, _config(other), _HARMLESS if dtype_matters else _HARMLESS | _DTYPE)
    if field is not None:
        return f"config.json differs in {field}"
    if "quantization_config" in running.config:
        return "its weights are quantized"
    return "it comes with its own code" if "auto_map" in running.config else None


def companion_difference(running: LoadedFolder, other: Path) -> str | None:
    """Return which file that an engine reads once, at its start, differs (tokenizer, processor), None where all are equal.

    Chat template and generation settings may differ: they are read anew.
    """
    ours, theirs = running.companions, _companions(other)
    return next((f"{name} differs" for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)), None)


def tensor_difference(running: LoadedFolder, other: Path) -> str | None:
    """Return which tensor only one of the two has, or has in another shape or packed otherwise; None where they pair one by one.

    What only the running model has would be kept without a word, by engines that load whatever they find.
    """
    try:
        ours, theirs = running.weight_shapes(), base_shapes(other)
        packed = packed_types(other)
    except CheckpointError as error:
        return str(error)
    for name in sorted({*ours, *theirs}):
        if name not in theirs:
            return f"it lacks {name}"
        if name not in ours:
            return f"it has {name}, which the loaded checkpoint does not have"
        if ours[name] != theirs[name]:
            return f"its {name} has another shape"
        if running.packed.get(name) != packed.get(name):
            return f"its {name} is of type {packed.get(name, 'float')}, the loaded checkpoint's of type {running.packed.get(name, 'float')}"
    return None


def head_difference(running: LoadedFolder, other: Path) -> str | None:
    """Return why an engine that has tied its head to the embedding, or not, as the numbers were, may not do so for `other`'s.

    `other` has the same config and tensors.
    """
    if not running.heads or (running.heads_are_equal and are_equal(other, running.heads)):
        return None
    return f"its files hold {' and '.join(sorted(running.heads))}, which config.json ties; whether they differ decides how an engine starts"


# Output heads that stand beside the embedding in the files although config.json ties the two. What is loaded then depends on the numbers:
# transformers and vLLM tie where both are equal, and keep both where they differ. An engine has decided that at its start.


def doubled_heads(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Return the names of embeddings and heads of one shape, if there are several and the config does not say that they are untied.

    Under any name: what counts is that matrices have a row for each token.
    """
    says = list(_values(config, "tie_word_embeddings"))
    if False in says and True not in says:
        return frozenset()
    vocab_sizes = set(_values(config, "vocab_size"))
    matrices = {name: shape for name, shape in shapes.items() if len(shape) == 2}
    of_words = {shape for name, shape in matrices.items() if shape[0] in vocab_sizes or any(word in name for word in _EMBEDDINGS)}
    groups = [[name for name in matrices if matrices[name] == shape] for shape in of_words]
    return frozenset(itertools.chain.from_iterable(group for group in groups if len(group) > 1))


def _values(config: Mapping[str, Any], key: str) -> Iterator[Any]:
    """Yield every value of a key, in configs inside the config, too."""
    if key in config:
        yield config[key]
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _values(value, key)


def are_equal(folder: Path, names: frozenset[str]) -> bool:
    """Return whether tensors of a checkpoint are the same, byte for byte."""
    heads = find_weights(folder, allow_pickle=False).heads
    first, *others = [(folder / file, head[name]) for file, head in heads.items() for name in tensors_of(head) if name in names]
    return all(same_tensor(first, other) for other in others)


def _config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    if config is None:
        raise CheckpointError(f"{folder} has no config.json")
    return config


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any], ignored: frozenset[str], prefix: str = "") -> str | None:
    for name in sorted({*ours, *theirs} - ignored):
        left, right = ours.get(name, _ABSENT), theirs.get(name, _ABSENT)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            inner = _difference(left, right, ignored, f"{prefix}{name}.")
            if inner is not None:
                return inner
        elif left != right:
            return f"{prefix}{name} ({_shown(left)}, {_shown(right)})"
    return None


def _shown(value: Any) -> str:
    return excerpt(json.dumps(value) if value != _ABSENT else _ABSENT, 40)


def _companions(folder: Path) -> dict[str, Any]:
    weights = find_weights(folder, allow_pickle=True).files
    names = [name for name in files_read(folder) if name not in {*weights, *_READ_ANEW, "config.json"} and not name.startswith(TEMPLATES)]
    hashes = hash_files(folder / name for name in names)
    companions: dict[str, Any] = {name: hashes[folder / name] for name in names}
    if "tokenizer_config.json" in companions:
        settings = read_json(folder / "tokenizer_config.json") or {}
        companions["tokenizer_config.json"] = {key: value for key, value in settings.items() if key != "chat_template"}
    return companions
