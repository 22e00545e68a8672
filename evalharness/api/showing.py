"""How messages show values: long texts, long lists of names and hashes are cut, and the cut is visible."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["excerpt", "first_names", "short_hash"]


def excerpt(text: str, max_chars: int, *, count_rest: bool = False) -> str:
    """Return the text, or its first `max_chars` characters and "…", with the number of missing characters if `count_rest`."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}…" + (f" ({len(text) - max_chars:,} more characters)" if count_rest else "")


def first_names(names: Sequence[object], max_names: int) -> str:
    """Return the names, comma-separated; after `max_names` of them only ", …"."""
    return ", ".join(map(str, names[:max_names])) + (", …" if len(names) > max_names else "")


def short_hash(text: str) -> str:
    """Return the first 12 digits of a SHA-256 in hex; any other text as it is."""
    return text[:12] if re.fullmatch("[0-9a-f]{64}", text) else text
