"""Facts about GGUF files, read from their heads without torch and without the weights.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The package gguf is not used, as it makes numpy arrays of every word
of the vocabulary: 7 s for 49,152 of them, and a run looks at its checkpoints before it starts.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from evalharness.api.errors import CheckpointError

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_MAX_LENGTH = 2**32  # of a text or a list; what is longer is damage
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _ARRAY = 8, 9
_MAX_DEPTH = 8  # of lists in lists; no converter writes any
_KEPT_ARRAY = 64  # items; longer lists are vocabularies and merges
_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K"} | {
    14: "Q6_K",
    15: "Q8_K",
    30: "BF16",
}


@dataclass(frozen=True)
class GgufFile:
    """What a GGUF file says of itself. `values`: its metadata but long lists. `types`: {type of numbers: how many tensors have it}."""

    path: Path
    values: Mapping[str, Any]
    types: Mapping[str, int]
    head_bytes: int

    @property
    def architecture(self) -> str:
        """The model's family, in llama.cpp's words."""
        return str(self.values.get("general.architecture", ""))

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids that end a text or a turn."""
        token_ids = (self.values.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
        return tuple(dict.fromkeys(token_id for token_id in token_ids if type(token_id) is int))

    @property
    def has_chat_template(self) -> bool:
        """Whether chats can be rendered."""
        return bool(self.values.get("tokenizer.chat_template"))

    def quantization(self) -> dict[str, Any]:
        """Return the facts for run.json."""
        most = max(self.types, key=lambda name: self.types[name], default="none")
        return {"method": "gguf", "format": most, "num_tensors": dict(self.types)}


def gguf_file_of(path: Path | str) -> Path | None:
    """Return the GGUF file that a path names: itself, or the only one in a folder without config.json; None for other checkpoints.

    `CheckpointError` for a folder with several.
    """
    path = Path(path)
    if path.suffix == SUFFIX and not path.is_dir():
        return path
    if not path.is_dir() or (path / "config.json").is_file() or (path / "adapter_config.json").is_file():
        return None
    files = sorted(path.glob(f"*{SUFFIX}"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:5])
        raise CheckpointError(f"{path} holds {len(files)} GGUF files ({names}); give the path of one of them")
    return files[0] if files else None


def refuse_gguf(path: Path | str, backend: str) -> None:
    """Raise `CheckpointError` for a GGUF file on vLLM, which has none in its list of quantisations any more, and says something else."""
    if backend == "vllm" and (file := gguf_file_of(path)) is not None:
        raise CheckpointError(f"{file} is a GGUF file, which vLLM does not read; use --backend hf, or give the checkpoint as safetensors")


def read_gguf(path: Path) -> GgufFile:
    """Return what the file's head says. `CheckpointError` for a file that is not a GGUF, is damaged, or is only a part of a model."""
    try:
        with path.open("rb") as file:
            gguf = _read(path, file)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (struct.error, UnicodeDecodeError, ValueError, KeyError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"the head of {path} is damaged ({type(error).__name__}: {error}); copy the file again") from error
    num_parts = gguf.values.get("split.count", 1)
    if not isinstance(num_parts, int) or num_parts > 1:
        raise CheckpointError(f"{path} is one part of several; join them with llama.cpp's llama-gguf-split --merge")
    if gguf.architecture == "clip":
        raise CheckpointError(f"{path} holds the eyes of a vision model alone, without the model; GGUF checkpoints take text only here")
    if "tokenizer.ggml.model" not in gguf.values:
        raise CheckpointError(f"{path} has no tokenizer in it; convert the checkpoint again, with its vocabulary")
    return gguf


def _read(path: Path, file: BinaryIO) -> GgufFile:
    size = path.stat().st_size
    magic = file.read(4)
    if magic != _MAGIC:
        what = "a Git LFS pointer, not the file itself" if magic == b"vers" else "not a GGUF file" if size else "empty (0 bytes)"
        raise CheckpointError(f"{path} is {what}; copy it again")
    (version,) = struct.unpack("<I", file.read(4))
    if version not in (2, 3):
        raise CheckpointError(f"{path} is of GGUF version {version}; versions 2 and 3 are read here (little-endian)")
    num_tensors, num_values = struct.unpack("<QQ", file.read(16))
    values = {}
    for _ in range(_checked(num_values)):
        name = _text(file)
        value = _value(file, _number(file, 4))
        if value is not None:
            values[name] = value
    types: Counter[str] = Counter()
    last_offset = 0
    for _ in range(_checked(num_tensors)):
        _text(file)
        file.seek(8 * _checked(_number(file, 4)), 1)  # its shape
        kind = _number(file, 4)
        types[_TYPES.get(kind, f"type {kind}")] += 1
        last_offset = max(last_offset, _number(file, 10))
    head_bytes = file.tell()
    if not types:
        raise CheckpointError(f"{path} holds no weights; copy the model's file, not that of its vocabulary")
    if head_bytes + last_offset >= size:
        raise CheckpointError(f"{path} has {size} bytes, but its header says more; it was copied or written only in part")
    return GgufFile(path, values, dict(types.most_common()), head_bytes)


def _number(file: BinaryIO, kind: int) -> Any:
    form = _NUMBERS[kind]
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def _text(file: BinaryIO) -> str:
    length = _checked(_number(file, 10))
    if length > os.fstat(file.fileno()).st_size - file.tell():  # before it is read: memory would be taken for all of it
        raise ValueError("it ends within a text")
    return file.read(length).decode("utf-8", "replace")


def _value(file: BinaryIO, kind: int, depth: int = 0) -> Any:
    """Return a value, None for a list that is too long to be kept."""
    if kind == _TEXT:
        return _text(file)
    if kind != _ARRAY:
        return _number(file, kind)
    inner, length = _number(file, 4), _checked(_number(file, 10))
    if length <= _KEPT_ARRAY or inner == _ARRAY:
        if depth >= _MAX_DEPTH:
            raise ValueError(f"lists nested more than {_MAX_DEPTH} deep")
        return [_value(file, inner, depth + 1) for _ in range(length)]
    if inner == _TEXT:
        for _ in range(length):
            file.seek(_checked(_number(file, 10)), 1)
    else:
        file.seek(length * struct.calcsize(_NUMBERS[inner]), 1)
    return None


def _checked(length: int) -> int:
    if length > _MAX_LENGTH:
        raise ValueError(f"a length of {length}")
    return length
