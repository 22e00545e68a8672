"""The checkpoints that paths and patterns name: training runs opened up, in the order of their steps, unfinished ones left out.

A trainer writes a checkpoint file by file, so an unfinished folder looks damaged; the difference is that an unfinished one still changes.
"""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from evalharness.api.checks import first_names, is_folder
from evalharness.api.errors import CheckpointError, nearest_folder
from evalharness.checkpoints.gguf import gguf_file_of, read_gguf
from evalharness.checkpoints.hub import folder_of, is_hub_name
from evalharness.checkpoints.info import TOKENIZER_FILES, check_folder, natural_key
from evalharness.checkpoints.weights import ADAPTER_WEIGHTS, PICKLED_SUFFIXES, find_weights, is_adapter, read_head, read_json

RECENT_S = 300.0
"""A folder in which nothing was changed for so long is not being written any more: what it lacks will not come."""
_PICKLE_RECENT_S = 10.0  # a pickle does not say how long it will be
_POLL_S = 1.0
_TEMPORARY = re.compile(r"(tmp|temp)[-_.].*|\..*|.*[-_.](tmp|temp|part|partial|incomplete|writing)", re.IGNORECASE)
_NUMBERED = re.compile(r"checkpoint-[0-9]+")


def find_models(
    patterns: Sequence[str], root: Path, *, wait_s: float, on_notice: Callable[[str], None], download: bool = False
) -> list[Path]:
    """Return the folders and GGUF files that paths, glob patterns and names on the hub mean, each once, without unfinished ones.

    What one pattern matches comes in natural order: checkpoint-200 before checkpoint-1000. A training run's folder that is not a
    checkpoint itself stands for its checkpoint-N folders. Relative patterns are relative to `root`. What is still being written, or
    does not exist yet, is waited for, up to `wait_s` seconds together; what a pattern or a training run brought is then skipped, with
    a notice, and what was named itself is returned all the same. One folder by several names counts once, with a notice. Raises
    `CheckpointError` for a path that is no folder, for a pattern that matches none, and where nothing is left.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            folders, doubles = _expand(patterns, root, download)
        except CheckpointError:
            if time.monotonic() >= deadline:
                raise
        else:
            unfinished = {path: why for path in folders if (why := why_unfinished(path)) is not None}
            if not unfinished or time.monotonic() >= deadline:
                break
        time.sleep(max(0.0, min(_POLL_S, deadline - time.monotonic())))
    for path, first in doubles.items():
        on_notice(f"checkpoint {path} is the same folder as {first}, by a link or another spelling; it is evaluated once, as {first.name}")
    skipped = {path: why for path, why in unfinished.items() if not folders[path]}
    for path, why in skipped.items():
        on_notice(f"checkpoint {path} is still being written ({why}) and is skipped; wait for it with --wait SECONDS")
    if skipped and len(skipped) == len(folders):
        raise CheckpointError(
            f"all checkpoints found are still being written, such as {next(iter(skipped))}; wait for them with --wait SECONDS"
        )
    return [path for path in folders if path not in skipped]


def _expand(patterns: Sequence[str], root: Path, download: bool) -> tuple[dict[Path, bool], dict[Path, Path]]:
    """Return {folder: whether it was named itself}, and {folder left out: the same one by the name that came first}."""
    folders: dict[Path, tuple[Path, bool]] = {}
    doubles: dict[Path, Path] = {}
    for pattern in patterns:
        # What has the form of a name on the hub was not made absolute: the folder may have come since.
        full = next((place / pattern for place in (root, Path.cwd()) if (place / pattern).exists()), root / pattern)
        # A folder that is literally called "run[1]" is meant as such.
        named = full.exists() or not glob.has_magic(pattern)
        if not full.exists() and is_hub_name(pattern, root):
            matches = [folder_of(pattern, root=root, download=download)]
        elif named:
            check_folder(full)
            matches = checkpoints_in(full) or [full]
            named = matches == [full]
        else:
            every = (Path(match) for match in glob.glob(str(full), recursive=True))
            matches = [match for match in every if match.is_dir() or gguf_file_of(match) is not None]
            if not matches:
                nearest = nearest_folder(next(parent for parent in full.parents if not glob.has_magic(str(parent))))
                raise CheckpointError(f"{pattern!r} matches no folder; the nearest folder that exists is {nearest}{_listing(nearest)}")
            matches = [folder for match in matches for folder in checkpoints_in(match) or [match]]
        for match in sorted(matches, key=natural_key):
            first, _ = folders.setdefault(match.resolve(), (match, named))
            if first != match:
                doubles[match] = first
    return dict(folders.values()), doubles


def checkpoints_in(run: Path) -> list[Path]:
    """Return the checkpoint-N folders of a training run that is not a checkpoint itself, by step; [] for anything else."""
    if not run.is_dir() or (run / "config.json").exists() or (run / "adapter_config.json").exists():
        return []
    return sorted((entry for entry in run.iterdir() if _NUMBERED.fullmatch(entry.name) and entry.is_dir()), key=natural_key)


def is_numbered(folder: Path) -> bool:
    """Return whether the folder is called as trainers call a checkpoint, checkpoint-200."""
    return _NUMBERED.fullmatch(folder.name) is not None


def _listing(folder: Path) -> str:
    """Return " (it has a, b, c, …)" for the folders inside, "" without any."""
    visible = (entry.name for entry in os.scandir(folder) if is_folder(entry) and not entry.name.startswith("."))
    names = sorted(visible, key=lambda name: natural_key(Path(name)))
    return f" (it has {first_names(names, 5)})" if names else ""


def why_unfinished(folder: Path) -> str | None:
    """Return what shows that the checkpoint is still being written, None where it is complete or will not change any more."""
    if _TEMPORARY.fullmatch(folder.name):
        return "its name is a temporary one"
    try:
        missing = _what_is_missing(folder)
        if missing is None:
            return None
        changes = [path.stat().st_mtime for path in (folder, *(folder.iterdir() if folder.is_dir() else ()))]
        return None if time.time() - max(changes) > RECENT_S else missing
    except FileNotFoundError as error:  # a trainer that keeps the latest few deletes the others
        return f"{error.filename} has just gone"


def _what_is_missing(folder: Path) -> str | None:
    try:
        gguf_file = gguf_file_of(folder)
        if gguf_file is not None:
            read_gguf(gguf_file)
        elif is_adapter(folder):
            read_head(folder / ADAPTER_WEIGHTS)
        elif not (folder / "config.json").is_file():
            return "it has no config.json yet"
        else:
            weights = find_weights(folder, allow_pickle=True)
            if not any((folder / name).is_file() for name in TOKENIZER_FILES):
                return "it has no tokenizer files yet"
            for name in weights.files:
                if name.endswith(PICKLED_SUFFIXES) and time.time() - (folder / name).stat().st_mtime < _PICKLE_RECENT_S:
                    return f"{name} has just been changed"
    except FileNotFoundError as error:
        return f"it has no {Path(str(error.filename)).name} yet"
    except CheckpointError as error:
        return str(error)
    if _NUMBERED.fullmatch(folder.name) and not (folder / "trainer_state.json").is_file():
        beside = (entry for entry in folder.parent.iterdir() if _NUMBERED.fullmatch(entry.name))
        if any((entry / "trainer_state.json").is_file() for entry in beside):
            return "it has no trainer_state.json yet, which is written last and which the checkpoints beside it have"
    return None


def training_facts(folder: Path) -> dict[str, Any] | None:
    """Return step, epoch and time (ISO 8601, UTC: when the file was written) of trainer_state.json; None without a readable one."""
    path = folder / "trainer_state.json"
    try:
        state = read_json(path) or {}
        written = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    except (OSError, CheckpointError):
        return None
    facts = {"step": "global_step", "epoch": "epoch", "max_steps": "max_steps"}
    numbers = {name: value if isinstance(value := state.get(key), int | float) else None for name, key in facts.items()}
    return {**numbers, "saved_at": written.isoformat(timespec="seconds")}
