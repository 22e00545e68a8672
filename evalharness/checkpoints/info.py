"""Facts about a checkpoint folder, from its JSON files and the heads of its weights: quick, and without torch.

A checkpoint that cannot be used is refused here, before an engine is started for it.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from evalharness.api.errors import CheckpointError
from evalharness.api.options import Variant
from evalharness.checkpoints.adapter import Adapter, find_base, read_adapter, replaces_nothing
from evalharness.checkpoints.gguf import gguf_file_of, read_gguf
from evalharness.checkpoints.hub import hint_if_partial, hub_facts, why_absent
from evalharness.checkpoints.identity import REMOTE_CODE_FILES, fingerprint_adapted, fingerprint_of, stamp_of
from evalharness.checkpoints.weights import base_shapes, find_weights, is_adapter, read_json

_PACKAGES = {
    "awq": "gptqmodel",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
    "fp8": "kernels",
    "gptq": "gptqmodel optimum",
    "hqq": "hqq",
    "quanto": "optimum-quanto",
    "torchao": "torchao",
}
"""The packages that transformers needs for each method of quantisation."""
_LONG = 40  # items; longer lists name every layer of a model


def quantization_of(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return `method`, `format` and `settings` of a model's config as plain JSON, None for one that is not quantised."""
    declared = config.get("quantization_config")
    if not isinstance(declared, Mapping) and isinstance(config.get("text_config"), Mapping):
        declared = config["text_config"].get("quantization_config")
    if not isinstance(declared, Mapping):
        return None
    settings = {name: value for name, value in declared.items() if not (isinstance(value, list) and len(value) > _LONG)}
    return {"method": str(declared.get("quant_method", "unknown")), "format": _format(declared), "settings": settings}


def _format(declared: Mapping[str, Any]) -> str | None:
    """Return in a word how weights are kept, as each method says it."""
    if declared.get("format") is not None:
        return str(declared["format"])
    for name, word in (("load_in_4bit", "4-bit"), ("load_in_8bit", "8-bit"), ("_load_in_4bit", "4-bit"), ("_load_in_8bit", "8-bit")):
        if declared.get(name) is True:
            return word
    bits = declared.get("bits", declared.get("w_bit", declared.get("weights")))
    return None if bits is None else f"{bits}-bit" if isinstance(bits, int) else str(bits)


def quantization_at(model_path: str) -> dict[str, Any] | None:
    """Return the same for a checkpoint's folder or GGUF file; what cannot be read is refused where it is loaded."""
    if (file := gguf_file_of(model_path)) is not None:
        return read_gguf(file).quantization()
    try:
        return quantization_of(read_json(Path(model_path) / "config.json") or {})
    except CheckpointError:
        return None


def package_hint(model_path: str) -> str:
    """Return "; pip install …" for a quantised checkpoint whose packages are known, "" for others."""
    method = (quantization_at(model_path) or {}).get("method")
    return f"; its weights are quantised ({method}): pip install {_PACKAGES[method]}" if method in _PACKAGES else ""


TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tekken.json")


@dataclass(frozen=True)
class CheckpointInfo:
    """A usable checkpoint. Of an adapter, `variant` and template are the base's.

    `quantization`: facts for run.json where weights are kept in fewer bits.
    """

    path: Path
    variant: Variant
    has_chat_template: bool
    base: CheckpointInfo | None = None
    adapter: Adapter | None = None
    quantization: Mapping[str, Any] | None = None

    @cached_property
    def fingerprint(self) -> str:
        """What tells it from every other checkpoint (identity.py); of an adapter made of its own and its base's. All files are read."""
        if self.base is None or self.adapter is None:
            return fingerprint_of(self.path)
        return fingerprint_adapted(self.base.fingerprint, self.adapter.fingerprint)

    def stamp(self) -> str:
        """Return what the file system says of all its files, see `stamp_of`."""
        return stamp_of(self.path, *([self.base.path] if self.base is not None else []))


def inspect_checkpoint(
    path: Path | str,
    *,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    base_model: Path | None = None,
    root: Path | None = None,
    download: bool = False,
) -> CheckpointInfo:
    """Return what the checkpoint holds. Raises `CheckpointError` when it is not a checkpoint, is damaged or needs a permission.

    A folder with adapter_config.json alone is a LoRA adapter: its base is `base_model`, or looked for, also below `root`
    (default: the current folder) or by its name on the hub (`download`: fetched where the cache lacks it), and both must fit. A GGUF file,
    or a folder with one and no config.json, is a checkpoint too.
    """
    folder = Path(path)
    check_folder(folder)
    if (gguf_file := gguf_file_of(folder)) is not None:
        gguf = read_gguf(gguf_file)
        return CheckpointInfo(folder, "text", gguf.has_chat_template, quantization=gguf.quantization())
    if is_adapter(folder):
        base_path = find_base(folder, base_model, root or Path.cwd(), download=download)
        base = inspect_checkpoint(base_path, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
        adapter = read_adapter(folder, base_shapes(base_path))
        if adapter.replaced and replaces_nothing(adapter, base_path):
            adapter = replace(
                adapter, notices=(*adapter.notices, f"adapter {folder} changes nothing: all of its weights are its base's own")
            )
        _check_same_tokenizer(folder, base_path)
        return replace(base, path=folder, base=base, adapter=adapter)
    try:
        config = _read_config(folder)
        _check_remote_code(folder, trust_remote_code)
        find_weights(folder, allow_pickle=allow_pickle)
        _check_tokenizer(folder)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{hint_if_partial(folder)}") from error
    return CheckpointInfo(
        path=folder, variant=variant_of(config), has_chat_template=_has_chat_template(folder), quantization=quantization_of(config)
    )


def variant_of(config: Mapping[str, Any]) -> Variant:
    """Return "vlm" for the config of a vision model, else "text"."""
    return "vlm" if "vl" in str(config.get("model_type", "")).lower() or config.get("vision_config") is not None else "text"


def _check_same_tokenizer(folder: Path, base: Path) -> None:
    """Raise where an adapter brings a tokenizer or a chat template that its base has not: the base's are used."""
    for what, read in (("tokenizer", _tokens), ("chat template", _template)):
        adapters = read(folder)
        if adapters is not None and adapters != read(base):
            raise CheckpointError(
                f"adapter {folder} has another {what} than its base {base}, and the base's is used; "
                "merge it into its base, together with its tokenizer files, and give that folder"
            )


def _tokens(folder: Path) -> Any:
    tokenizer = read_json(folder / "tokenizer.json")
    return (tokenizer.get("model"), tokenizer.get("added_tokens")) if tokenizer else None


def _template(folder: Path) -> Any:
    file = folder / "chat_template.jinja"
    return file.read_text("utf-8") if file.is_file() else (read_json(folder / "tokenizer_config.json") or {}).get("chat_template")


def name_checkpoints(paths: Iterable[Path]) -> list[str]:
    """Return one short unique name per path, in order, of letters, digits, '.', '_' and '-' only.

    A name is the folder's own, or that on the hub; where several would be called the same, parent folders are put before it.
    """
    parts = [[_safe(part) for part in _parts_of(Path(os.path.abspath(path)))] or ["root"] for path in paths]
    depths = [1] * len(parts)
    while True:
        names = ["_".join(folders[-depth:]) for folders, depth in zip(parts, depths, strict=True)]
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


def _parts_of(path: Path) -> Sequence[str]:
    """Return the parts of a path; of a folder in the hub's cache, which is called by a hash, those of its name come last."""
    facts = hub_facts(path)
    return path.parts[1:] if facts is None else (*path.parts[1:-1], path.name[:8], *str(facts["name"]).split("/"))


def _safe(part: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", part)


def natural_key(path: Path) -> list[list[tuple[int, str]]]:
    """Return a key that sorts paths by the numbers in them: checkpoint-200 before checkpoint-1000; 1 and 01 stay apart."""
    # Every second piece is a number; digits of other scripts are text, which no number could be compared with.
    pieces = [re.split(r"([0-9]+)", part) for part in path.parts]
    return [[(int(piece) if place % 2 else 0, piece) for place, piece in enumerate(part)] for part in pieces]


def check_folder(folder: Path) -> None:
    """Raise `CheckpointError` unless the path is a folder with something in it that may be a checkpoint, or a GGUF file."""
    if not folder.exists():
        raise CheckpointError(why_absent(folder))
    if gguf_file_of(folder) is not None:
        return
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint {folder} is a file; give the folder that holds config.json and the weights, or a .gguf file")
    if not any(folder.iterdir()):
        raise CheckpointError(f"checkpoint {folder} is an empty folder; it must hold config.json, weights and tokenizer files")


def _read_config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    if config is None:
        inside = [entry.name for entry in folder.iterdir() if (entry / "config.json").is_file()]
        hint = f"; did you mean a folder inside it, such as {min(inside, key=lambda n: natural_key(Path(n)))}?" if inside else ""
        raise CheckpointError(f"{folder} has no config.json, so it is not a checkpoint{hint}")
    if not isinstance(config.get("model_type"), str) or not config["model_type"]:
        raise CheckpointError(f"{folder / 'config.json'} names no model_type; it must be a transformers config")
    return config


def _check_remote_code(folder: Path, trusted: bool) -> None:
    for name in REMOTE_CODE_FILES:
        code = (read_json(folder / name) or {}).get("auto_map")
        if code and not trusted:
            classes = ", ".join(code) if isinstance(code, dict) else str(code)
            raise CheckpointError(
                f"{folder} needs its own Python code (auto_map in {name}: {classes}), which is not run by default; "
                "look at that code and give --trust-remote-code if you trust it"
            )


def _check_tokenizer(folder: Path) -> None:
    has_own = "auto_map" in (read_json(folder / "tokenizer_config.json") or {})
    if not has_own and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise CheckpointError(
            f"{folder} has no tokenizer files (looked for {', '.join(TOKENIZER_FILES)}); copy those of its base checkpoint into it"
        )


def _has_chat_template(folder: Path) -> bool:
    tokenizer = read_json(folder / "tokenizer_config.json") or {}
    if "auto_map" in tokenizer or (folder / "tekken.json").is_file():
        return True  # made by the tokenizer's own code, or by Mistral's
    if any((folder / name).is_file() and (folder / name).stat().st_size for name in ("chat_template.jinja", "chat_template.json")):
        return True
    return any((read_json(folder / name) or {}).get("chat_template") for name in ("tokenizer_config.json", "processor_config.json"))
