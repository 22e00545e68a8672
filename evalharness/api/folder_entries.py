"""What lies in a folder, links that lead nowhere or round in circles included: `os.DirEntry.is_dir` raises for the latter."""

from __future__ import annotations

import os

__all__ = ["is_folder"]


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether the entry is a folder or a link to one; False for what cannot be followed."""
    try:
        return entry.is_dir()
    except OSError:
        return False
