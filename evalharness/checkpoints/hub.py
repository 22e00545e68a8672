"""Checkpoints by their names on Hugging Face's hub: found in the local cache, fetched only where that is allowed.

A name is `Qwen/Qwen3-VL-4B-Instruct` or `gpt2`, with `@REVISION` a branch, tag or commit of it (default: main).
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from evalharness.api.checks import excerpt, first_names, is_folder
from evalharness.api.errors import CheckpointError, did_you_mean, nearest_folder
from evalharness.api.options import ModelLoadConfig

_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_NAME = re.compile(rf"(?P<name>{_PART}(?:/{_PART})?)(?:@(?P<revision>[\w.-][\w./-]{{0,99}}))?", re.ASCII)
_SNAPSHOT = re.compile(r"models--(?P<name>.+)")
# What a load can read; no pickles, and nothing for other libraries.
_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.gguf", "LICENSE*", "LICENCE*", "README.md")


def is_hub_name(text: str, root: Path) -> bool:
    """Return whether a text means a name on the hub: it has the form of one, and there is no such path below `root`.

    A word alone does only with a revision, or where the cache has it (`gpt2`): it is more often a folder that is not there.
    """
    return _has_form(text) and not (root / text).exists() and ("/" in text or "@" in text or _cached(text).is_dir())


def _has_form(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and ".." not in text and not text.endswith(".gguf")


def _cache() -> Path:
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()


def _cached(name: str) -> Path:
    return _cache() / f"models--{name.replace('/', '--')}"


def folder_of(name: str, *, root: Path = Path(), download: bool = False) -> Path:
    """Return the folder of a checkpoint in the local cache; with `download`, what is missing or has changed is fetched first.

    Pickles are never fetched. Raises `CheckpointError` where it is not in the cache, or cannot be fetched.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise CheckpointError(f"{excerpt(name, 100)!r} is not a name on the hub; give one such as Qwen/Qwen3-VL-4B-Instruct@main")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        raise CheckpointError(
            f"{why_absent(root / name)}; to look for it in the hub's cache takes huggingface_hub, which comes with each engine"
        ) from None
    where = {"repo_id": found["name"], "revision": found["revision"]}
    if not download:
        try:
            return Path(snapshot_download(**where, local_files_only=True))
        except LocalEntryNotFoundError:
            raise CheckpointError(f"{why_absent(root / name)}; {_cache_state(found['name'])} {_how_to_fetch(found)}") from None
    try:
        return Path(snapshot_download(**where, allow_patterns=list(_FILES)))
    except Exception as error:  # of the network, the hub, its answers, the disk: of many libraries, none of them ours
        raise CheckpointError(f"{name} cannot be fetched from the hub: {type(error).__name__}: {excerpt(str(error), 300)}") from error


def cached_folder(name: str, root: Path) -> Path | None:
    """Return the folder in the cache that a name means; None for a path below `root`, and where the cache does not have it."""
    try:
        return folder_of(name) if is_hub_name(name, root) else None
    except CheckpointError:
        return None


def hub_facts(folder: Path) -> dict[str, str | None] | None:
    """Return name, revision (a commit's hash) and the licence's file of a folder in the cache; None for any other folder."""
    parent, kind = _SNAPSHOT.fullmatch(folder.parent.parent.name), folder.parent.name
    if parent is None or kind != "snapshots":
        return None
    licences = sorted(file.name for file in folder.glob("LICEN[CS]E*"))
    return {"name": parent["name"].replace("--", "/"), "revision": folder.name, "license_file": licences[0] if licences else None}


def located(config: ModelLoadConfig, *, must_exist: bool = True) -> ModelLoadConfig:
    """Return the settings with folders in place of names on the hub; a name that is not there stays only where it need not exist."""

    def folder(text: str) -> str:
        if not _has_form(text) or Path(text).exists():
            return text
        try:
            return str(folder_of(text, download=config.download))
        except CheckpointError:
            if must_exist:
                raise
            return text

    adapter = None if config.adapter_path is None else folder(config.adapter_path)
    return replace(config, model_name_or_path=folder(config.model_name_or_path), adapter_path=adapter)


def why_absent(folder: Path) -> str:
    """Return that a folder does not exist, and what is near it."""
    siblings = [entry.name for entry in os.scandir(folder.parent) if is_folder(entry)] if folder.parent.is_dir() else []
    hint = did_you_mean(folder.name, siblings) or f"; the nearest folder that exists is {nearest_folder(folder)}"
    return f"checkpoint {folder} does not exist{hint}"


def _cache_state(name: str) -> str:
    """Return the cache in words: where it is, and what it has instead."""
    cache = _cache()
    if not cache.is_dir():
        return f"if it is meant as a name on the hub: there is no cache of the hub yet ({cache})."
    models = sorted(entry.name.removeprefix("models--").replace("--", "/") for entry in cache.glob("models--*"))
    if _cached(name).is_dir():
        return f"the hub's cache {cache} has {name}, but not this revision."
    listed = f"; it has {first_names(models, 5)}." if models else "."
    return f"if it is meant as a name on the hub: its cache {cache} does not have it{did_you_mean(name, models) or listed}"


def _how_to_fetch(found: re.Match[str]) -> str:
    revision = f" --revision {found['revision']}" if found["revision"] else ""
    return f"Fetch it with `hf download {found['name']}{revision}`, or allow that with --download"
