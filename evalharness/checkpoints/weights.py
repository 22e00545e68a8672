"""The weight files of a checkpoint: their names, whether they are complete, and what is in them.

Reads the heads of safetensors files (8 bytes of length, then JSON), never a whole large file.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalharness.api.checks import read_regular
from evalharness.api.errors import CheckpointError
from evalharness.api.wording import plural

MAX_HEAD_BYTES = 100_000_000  # the format's own limit
_BLOCK_BYTES = 1 << 20
ADAPTER_WEIGHTS = "adapter_model.safetensors"
PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
# Pickles that lie beside weights and are none.
NO_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt", "optimizer.bin", "scheduler.bin", "scaler.pt", "adapter_model.bin")


@dataclass(frozen=True)
class Weights:
    """The weight files, sorted by name; `heads` has the JSON of each safetensors file's head, {} for pickles."""

    files: tuple[str, ...]
    heads: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def is_adapter(folder: Path) -> bool:
    """Return whether the folder holds an adapter without a model."""
    return (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file()


def find_weights(folder: Path, *, allow_pickle: bool) -> Weights:
    """Return the checkpoint's weight files, safetensors before pickles.

    Raises `CheckpointError` if there are none, or some are missing or damaged.
    """
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    if "model.safetensors.index.json" in names:
        return _check_safetensors(folder, _read_index(folder, "model.safetensors.index.json"))
    if "model.safetensors" in names:
        return _check_safetensors(folder, {"model.safetensors": ()})
    safetensors = [name for name in names if name.endswith(".safetensors") and not name.startswith("adapter_")]
    pickles = [name for name in names if name.endswith(PICKLED_SUFFIXES) and name not in NO_WEIGHTS and not name.startswith("rng_state")]
    if safetensors:
        raise CheckpointError(
            f"{folder} has {safetensors[0]} but neither model.safetensors nor model.safetensors.index.json; "
            "copy the index that was saved with it, or save the checkpoint again with save_pretrained"
        )
    if not pickles:
        raise CheckpointError(f"{folder} has no weights; it must hold model.safetensors, or shards and their index")
    if not allow_pickle:
        raise CheckpointError(
            f"{folder} has pickled weights only ({', '.join(pickles[:3])}), and loading a pickle can run any code; "
            "save it again as safetensors, or give --allow-pickle if you trust where it is from"
        )
    index = "pytorch_model.bin.index.json"
    files = sorted(_read_index(folder, index)) if index in names else pickles
    for name in files:
        if not (folder / name).stat().st_size:
            raise CheckpointError(f"{folder / name} is empty (0 bytes); copy it again")
    return Weights(tuple(files))


def _read_index(folder: Path, name: str) -> dict[str, tuple[str, ...]]:
    """Return {shard: names of its tensors}. Raises `CheckpointError` for a broken index and for missing shards."""
    path = folder / name
    try:
        weight_map = json.loads(read_regular(path).decode("utf-8"))["weight_map"]
        shards: dict[str, list[str]] = {}
        for tensor, shard in weight_map.items():
            shards.setdefault(shard, []).append(tensor)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({type(error).__name__}: {error}); copy it again") from error
    if not shards:
        raise CheckpointError(f"{path} names no weights; copy it again")
    outside = [shard for shard in shards if not isinstance(shard, str) or Path(shard).name != shard]
    if outside:
        raise CheckpointError(f"{path} names {outside[0]!r}; shards must lie beside their index")
    missing = sorted(shard for shard in shards if not (folder / shard).is_file())
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise CheckpointError(
            f"{path} names {plural(len(shards), 'shard')}, but {', '.join(missing[:3])}{more} are missing; copy them again"
        )
    return {shard: tuple(shards[shard]) for shard in sorted(shards)}


def _check_safetensors(folder: Path, shards: Mapping[str, tuple[str, ...]]) -> Weights:
    heads = {}
    for name, expected in shards.items():
        head = read_head(folder / name)
        absent = [tensor for tensor in expected if tensor not in head]
        if absent:
            raise CheckpointError(
                f"{folder / name} lacks {absent[0]!r}, which the index says is in it; index and shards do not belong together"
            )
        heads[name] = head
    return Weights(tuple(shards), heads)


def read_head(path: Path) -> dict[str, Any]:
    """Return the JSON of a safetensors file's head, having compared the file's size with it."""
    size = path.stat().st_size
    if size == 0:
        raise CheckpointError(f"{path} is empty (0 bytes); copy it again")
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(MAX_HEAD_BYTES, size - 8):
            what = "a Git LFS pointer, not the file itself" if start == b"version " else "not a safetensors file, or its head is damaged"
            raise CheckpointError(f"{path} is {what}; copy it again")
        try:
            head = json.loads(file.read(length))
            end = max((tensor["data_offsets"][1] for tensor in tensors_of(head).values()), default=0)
            shapes_ok = all(isinstance(t["dtype"], str) and all(isinstance(n, int) for n in t["shape"]) for t in tensors_of(head).values())
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"the head of {path} is damaged ({type(error).__name__}); copy it again") from error
    if not shapes_ok:
        raise CheckpointError(f"the head of {path} is damaged (types or shapes); copy it again")
    if end != size - 8 - length:
        raise CheckpointError(f"{path} has {size} bytes, but its header says {8 + length + end}; it was copied or written only in part")
    return head


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object of a file, None where there is no such file; `CheckpointError` for anything else."""
    try:
        values = json.loads(read_regular(path).decode("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; it may have been written only in part") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values


def tensors_of(head: Mapping[str, Any]) -> dict[str, Any]:
    """Return {name: type, shape and place} of a head's tensors."""
    return {name: tensor for name, tensor in head.items() if name != "__metadata__"}


def tensor_blocks(path: Path, tensor: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the bytes of a tensor, which the head of its file describes, in blocks of at most 1 MiB."""
    with path.open("rb") as file:
        start = 8 + struct.unpack("<Q", file.read(8))[0]
        begin, end = tensor["data_offsets"]
        file.seek(start + begin)
        for place in range(begin, end, _BLOCK_BYTES):
            yield file.read(min(_BLOCK_BYTES, end - place))


def same_tensor(one: tuple[Path, Mapping[str, Any]], other: tuple[Path, Mapping[str, Any]]) -> bool:
    """Return whether two tensors, each in its file, are of one type and equal, byte for byte."""
    if one[1]["dtype"] != other[1]["dtype"]:
        return False
    return all(ours == theirs for ours, theirs in itertools.zip_longest(tensor_blocks(*one), tensor_blocks(*other)))


def base_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return {tensor: shape} of a checkpoint. Raises `CheckpointError` for one whose weights are pickled: their heads say nothing."""
    weights = find_weights(folder, allow_pickle=True)
    if not weights.heads:
        raise CheckpointError(
            f"{folder} has pickled weights only, so it cannot be checked whether an adapter fits it; save it as safetensors"
        )
    return {name: tuple(tensor["shape"]) for head in weights.heads.values() for name, tensor in tensors_of(head).items()}


def packed_types(folder: Path) -> dict[str, str]:
    """Return {tensor: type} of a checkpoint's tensors that are not plain floating-point numbers; those are converted by any load."""
    heads = find_weights(folder, allow_pickle=True).heads
    types = {name: str(tensor["dtype"]) for head in heads.values() for name, tensor in tensors_of(head).items()}
    return {name: kind for name, kind in types.items() if kind not in ("BF16", "F16", "F32", "F64")}
