"""Help for a wrong name: what may have been meant, and which folder of a wrong path does exist."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["did_you_mean", "nearest_folder"]


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return "; did you mean 'x'?" for the closest known word, or "" if none is close."""
    import difflib  # only for messages, so not when the plugin is imported

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""


def nearest_folder(path: Path) -> Path:
    """Return the deepest existing folder among the path's parents (the path itself if it is one)."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
