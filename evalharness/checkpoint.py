"""What a checkpoint folder holds, found out from its JSON files and the heads of its weights: quick, and without torch.

A checkpoint that cannot be used is refused here, before an engine is started for it.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.checkpoint_weights import find_weights, fingerprint_checkpoint
from evalharness.contracts import Variant
from evalharness.errors import CheckpointError
from evalharness.suggestions import did_you_mean, nearest_folder

__all__ = ["CheckpointInfo", "expand_models", "inspect_checkpoint", "name_checkpoints"]

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
# Where transformers looks for code to import; model code comes with config.json.
REMOTE_CODE_FILES = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")


@dataclass(frozen=True)
class CheckpointInfo:
    """A usable checkpoint.

    `fingerprint` (SHA-256, hex) tells two checkpoints apart whatever their folders are called; `fingerprint_checkpoint`
    says what goes into it.
    """

    path: Path
    variant: Variant
    has_chat_template: bool
    fingerprint: str


def inspect_checkpoint(path: Path | str, *, trust_remote_code: bool = False, allow_pickle: bool = False) -> CheckpointInfo:
    """Return what the checkpoint holds. Raises `CheckpointError` when it is no checkpoint, is damaged or needs a permission."""
    folder = Path(path)
    _check_folder(folder)
    config = _read_config(folder)
    _check_remote_code(folder, trust_remote_code)
    weights = find_weights(folder, allow_pickle=allow_pickle)
    _check_tokenizer(folder)
    return CheckpointInfo(
        path=folder,
        variant="vlm" if "vl" in config["model_type"].lower() or config.get("vision_config") is not None else "text",
        has_chat_template=_has_chat_template(folder),
        fingerprint=fingerprint_checkpoint(folder, weights),
    )


def expand_models(patterns: Sequence[str], root: Path) -> list[Path]:
    """Return the folders that paths and glob patterns name, each once; what one pattern matches comes in natural order.

    Natural order takes numbers as numbers: checkpoint-200 before checkpoint-1000. Relative patterns are relative to `root`.
    Raises `CheckpointError` for a path that is no folder and for a pattern that matches none.
    """
    found: dict[Path, Path] = {}
    for pattern in patterns:
        full = root / pattern
        # A folder that is literally called "run[1]" is meant as such.
        if full.exists() or not glob.has_magic(pattern):
            _check_folder(full)
            matches = [full]
        else:
            matches = [Path(match) for match in glob.glob(str(full), recursive=True) if os.path.isdir(match)]
            if not matches:
                nearest = nearest_folder(_before_wildcards(full))
                raise CheckpointError(f"{pattern!r} matches no folder; the nearest folder that exists is {nearest}{_listing(nearest)}")
        for match in sorted(matches, key=_natural_key):
            found.setdefault(match.resolve(), match)
    return list(found.values())


def name_checkpoints(paths: Iterable[Path]) -> list[str]:
    """Return one short unique name per path, in order, of letters, digits, '.', '_' and '-' only.

    A name is the folder's own; where several would be called the same, parent folders are put before it.
    """
    parts = [[_safe(part) for part in Path(os.path.abspath(path)).parts[1:]] or ["root"] for path in paths]
    depths = [1] * len(parts)
    while True:
        names = ["_".join(own[-depth:]) for own, depth in zip(parts, depths, strict=True)]
        counts = Counter(names)
        growing = [i for i, name in enumerate(names) if counts[name] > 1 and depths[i] < len(parts[i])]
        if not growing:
            break
        for i in growing:
            depths[i] += 1
    unique: list[str] = []
    for name in names:
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        unique.append(name if name not in unique else next(other for other in numbered if other not in unique and other not in names))
    return unique


def _safe(part: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", part)


def _natural_key(path: Path) -> list[list[str | int]]:
    return [[int(piece) if piece.isdecimal() else piece for piece in re.split(r"([0-9]+)", part)] for part in path.parts]


def _before_wildcards(pattern: Path) -> Path:
    """Return the part of a pattern that is a plain path."""
    return next(parent for parent in pattern.parents if not glob.has_magic(str(parent)))


def _listing(folder: Path, most: int = 5) -> str:
    """Return " (it has a, b, c, …)" for the folders inside, "" without any."""
    visible = (entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    names = sorted(visible, key=lambda name: _natural_key(Path(name)))
    return f" (it has {', '.join(names[:most])}{', …' if len(names) > most else ''})" if names else ""


def _check_folder(folder: Path) -> None:
    """Raise `CheckpointError` unless the path is a folder with something in it that may be a checkpoint."""
    if not folder.exists():
        parent = folder.parent
        siblings = [entry.name for entry in os.scandir(parent) if entry.is_dir()] if parent.is_dir() else []
        hint = did_you_mean(folder.name, siblings) or f"; the nearest folder that exists is {nearest_folder(folder)}"
        raise CheckpointError(f"checkpoint {folder} does not exist{hint}")
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint {folder} is a file; give the folder that holds config.json and the weights")
    if not any(folder.iterdir()):
        raise CheckpointError(f"checkpoint {folder} is an empty folder; it must hold config.json, weights and tokenizer files")


def _read_config(folder: Path) -> dict[str, Any]:
    config = _read_json(folder / "config.json")
    if config is None:
        if (folder / "adapter_config.json").exists():
            raise CheckpointError(f"{folder} is an adapter without config.json; merge it into its base checkpoint and give that folder")
        inside = [entry.name for entry in folder.iterdir() if (entry / "config.json").is_file()]
        hint = f"; did you mean a folder inside it, such as {min(inside, key=lambda n: _natural_key(Path(n)))}?" if inside else ""
        raise CheckpointError(f"{folder} has no config.json, so it is no checkpoint{hint}")
    if not isinstance(config.get("model_type"), str) or not config["model_type"]:
        raise CheckpointError(f"{folder / 'config.json'} names no model_type; it must be a transformers config")
    return config


def _read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object of a file, None where there is no such file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; it may have been written only in part") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values


def _check_remote_code(folder: Path, trusted: bool) -> None:
    for name in REMOTE_CODE_FILES:
        code = (_read_json(folder / name) or {}).get("auto_map")
        if code and not trusted:
            classes = ", ".join(code) if isinstance(code, dict) else str(code)
            raise CheckpointError(
                f"{folder} needs Python code of its own (auto_map in {name}: {classes}), which is not run by default; "
                "look at that code and give --trust-remote-code if you trust it"
            )


def _check_tokenizer(folder: Path) -> None:
    has_own = "auto_map" in (_read_json(folder / "tokenizer_config.json") or {})
    if not has_own and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise CheckpointError(
            f"{folder} has no tokenizer files (looked for {', '.join(TOKENIZER_FILES)}); copy those of its base checkpoint into it"
        )


def _has_chat_template(folder: Path) -> bool:
    tokenizer = _read_json(folder / "tokenizer_config.json") or {}
    if "auto_map" in tokenizer or (folder / "tekken.json").is_file():
        return True  # made by the tokenizer's own code, or by Mistral's
    if any((folder / name).is_file() and (folder / name).stat().st_size for name in ("chat_template.jinja", "chat_template.json")):
        return True
    return any((_read_json(folder / name) or {}).get("chat_template") for name in ("tokenizer_config.json", "processor_config.json"))
