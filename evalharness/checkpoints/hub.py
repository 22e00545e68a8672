"""Checkpoints by their names on Hugging Face's hub: found in the local cache, fetched only where that is allowed.

A name is `Qwen/Qwen3-VL-4B-Instruct` or `gpt2`, with `@REVISION` a branch, tag or commit of it (default: main).
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from evalharness.api.checks import excerpt, first_names, is_folder, read_regular
from evalharness.api.errors import CheckpointError, did_you_mean, nearest_folder
from evalharness.api.options import ModelLoadConfig

_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}\w)?"
# The hub's own rules: no "--", which the cache writes for "/", and no ".git".
_REPO = rf"(?![^@]*(?:--|\.git(?:@|$)))(?P<name>{_PART}(?:/{_PART})?)"
_NAME = re.compile(rf"{_REPO}(?:@(?=.{{1,100}}$)(?P<revision>\w[\w.-]*(?:/\w[\w.-]*)*))?", re.ASCII)
_DEFAULT = "main"
_SNAPSHOT = re.compile(r"models--(?P<name>.+)")
# What a load can read, its code too, which runs only where that is allowed; no pickles, and nothing for other libraries.
_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.gguf", "*.py", "LICENSE*", "LICENCE*", "README.md")


def is_hub_name(text: str, root: Path) -> bool:
    """Return whether a text means a name on the hub: it has the form of one, and there is no such path below `root`.

    A word alone does only with a revision, or where the cache has it (`gpt2`): it is more often a folder that is not there.
    """
    return _has_form(text) and not (root / text).exists() and ("/" in text or "@" in text or _cached(text).is_dir())


def _has_form(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and ".." not in text and not text.endswith(".gguf")


def _cache() -> Path:
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.abspath(os.path.expandvars(os.path.expanduser(named or Path(home, "hub")))))


def _cached(name: str) -> Path:
    return _cache() / f"models--{name.replace('/', '--')}"


def _snapshot(name: str, revision: str) -> Path | None:
    """Return the folder of a revision, whole or not; None where the cache lacks it.

    Not by huggingface_hub: it takes every file that was left out on purpose, such as a pickle, for one that is missing.
    """
    ref = _cached(name) / "refs" / revision
    try:
        commit = read_regular(ref).decode("utf-8").strip() if ref.is_file() else revision
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{ref} in the hub's cache cannot be read: {error}; fetch it again: `{_fetching(name, revision)}`") from error
    folder = _cached(name) / "snapshots" / commit
    return folder if "/" not in commit and commit and folder.is_dir() else None


def folder_of(name: str, *, root: Path = Path(), download: bool = False) -> Path:
    """Return the folder of a checkpoint in the local cache; with `download`, what is missing or has changed is fetched first.

    Pickles are never fetched. Raises `CheckpointError` where it is not in the cache, or cannot be fetched.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise CheckpointError(f"{excerpt(name, 100)!r} is not a name on the hub; give one such as Qwen/Qwen3-VL-4B-Instruct@main")
    repo, revision = found["name"], found["revision"] or _DEFAULT
    if download:
        return _fetched(repo, revision)
    folder = _snapshot(repo, revision)
    if folder is None:
        raise CheckpointError(
            f"{why_absent(root / name)}; {_cache_state(repo, revision)} Fetch it with `{_fetching(repo, revision)}`, "
            "or let a run do so with --download (in Python: download=True)"
        )
    return folder


def _fetched(name: str, revision: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise CheckpointError(f"fetching {name} from the hub needs huggingface_hub, which comes with every engine") from None
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(_FILES)))
    except Exception as error:  # of the network, the hub, its answers, the disk: of many libraries, none of them ours
        raise CheckpointError(
            f"{name}@{revision} cannot be fetched from the hub: {type(error).__name__}: {excerpt(' '.join(str(error).split()), 300)}"
        ) from error


def cached_folder(name: str, root: Path) -> Path | None:
    """Return the folder in the cache that a name means; None for a path below `root`, and where the cache does not have it."""
    try:
        return folder_of(name) if is_hub_name(name, root) else None
    except CheckpointError:
        return None


def cached_revisions(name: str, root: Path) -> Path | None:
    """Return the folder in which the cache has every revision of what a name means; None for a path below `root`."""
    found = _NAME.fullmatch(name)
    return _cached(found["name"]) / "snapshots" if found is not None and is_hub_name(name, root) else None


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


def hint_if_partial(folder: Path) -> str:
    """Return, for a folder in the cache that lacks files, how to get them; "" for any other folder."""
    facts = hub_facts(folder)
    if facts is None:
        return ""
    return f"; if the hub's cache has a part of it only, `{_fetching(str(facts['name']), str(facts['revision']))}` fetches the rest"


def _cache_state(name: str, revision: str) -> str:
    """Return the cache in words: where it is, and what it has instead."""
    cache = _cache()
    if not cache.is_dir():
        return f"if it is meant as a name on the hub: there is no cache of the hub yet ({cache})."
    if _cached(name).is_dir():
        refs, commits = _cached(name) / "refs", _cached(name) / "snapshots"
        known = sorted(str(file.relative_to(refs)) for file in refs.rglob("*") if file.is_file())
        known = [ref for ref in known if ref != revision] or sorted(folder.name for folder in commits.glob("*"))
        listed = did_you_mean(revision, known) or (f"; it has {first_names(known, 5)}." if known else ".")
        return f"the hub's cache {cache} has {name}, but not its revision {revision}{listed}"
    models = sorted(entry.name.removeprefix("models--").replace("--", "/") for entry in cache.glob("models--*"))
    listed = did_you_mean(name, models) or (f"; it has {first_names(models, 5)}." if models else ".")
    return f"if it is meant as a name on the hub: its cache {cache} does not have it{listed}"


def _fetching(name: str, revision: str) -> str:
    """Return the command that fetches a revision."""
    return f"hf download {name}" + (f" --revision {revision}" if revision != _DEFAULT else "")
