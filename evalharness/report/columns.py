"""Texts cut and filled to columns of a terminal, where a character may take two or none."""

from __future__ import annotations

from rich.cells import cell_len


def pad(text: str, width: int, *, right: bool) -> str:
    """Return the text in exactly `width` columns."""
    text = fit(text, width)
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def fit(text: str, width: int) -> str:
    """Return the text cut to `width` columns, the cut shown as `~`."""
    if cell_len(text) <= width:
        return text
    shown = ""
    for char in text:
        if cell_len(shown + char) > width - 1:  # what follows a character may widen it
            break
        shown += char
    return shown + "~"
