"""Facts that are remembered from run to run in files of the user's cache folder; nothing may depend on one being there."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from evalharness.api.checks import open_regular

_MAX_BYTES = 8 * 1024 * 1024


def remembered_path(name: str) -> Path | None:
    """Return the file of this name in the user's cache folder, None for a user without a home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
    except RuntimeError:
        return None
    return folder / "evalharness" / f"{name}.json"


def remembered(name: str) -> dict[str, Any]:
    """Return the entries of a file; {} where there is none, or none that this user alone can have written."""
    path = remembered_path(name)
    if path is None:
        return {}
    try:
        with open_regular(path) as file:
            found = os.fstat(file.fileno())
            is_own = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)
            if not is_own or found.st_size > _MAX_BYTES:
                return {}
            entries = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def remember(name: str, new: Mapping[str, Any], most: int) -> None:
    """Add entries to those of a file, the newest `most` of them; nothing where the folder cannot be written.

    Of two processes that write at once one wins; what the other knew it finds out once more.
    """
    path = remembered_path(name)
    if path is None:
        return
    entries = {key: entry for key, entry in remembered(name).items() if key not in new} | dict(new)
    kept = dict(list(entries.items())[-most:])
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=f".{name}-", dir=path.parent)
        try:
            with open(handle, "w", encoding="ascii") as file:
                json.dump(kept, file)
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise
