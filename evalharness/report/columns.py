"""Text laid out on a terminal: cut, padded and broken by the columns that it takes there, wide characters two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from evalharness.report.text import display_width

__all__ = ["fit", "fit_apart", "pad", "table_lines", "wrapped"]


def pad(text: str, width: int, *, right: bool) -> str:
    """Return the text in exactly `width` columns."""
    text = fit(text, width)
    space = " " * (width - display_width(text))
    return space + text if right else text + space


def fit(text: str, width: int) -> str:
    """Return the text cut to `width` columns, the cut shown as `~`."""
    if display_width(text) <= width:
        return text
    shown, used = [], 0
    for char in text:
        used += display_width(char)
        if used > width - 1:
            break
        shown.append(char)
    return "".join(shown) + "~"


def fit_apart(texts: Iterable[str], width: int) -> dict[str, str]:
    """Return each text as `fit` cuts it; where that makes different ones equal, they lose their middle instead, else get numbers."""
    shown = {text: fit(text, width) for text in texts}
    for cut in (_without_middle, _numbered):
        for alike in _alike(shown):
            shown.update((text, cut(text, width, number)) for number, text in enumerate(alike, 1))
    return shown


def _alike(shown: Mapping[str, str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for text, cut in shown.items():
        groups.setdefault(cut, []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def _without_middle(text: str, width: int, number: int) -> str:
    head = fit(text, (width + 1) // 2)
    return head + fit(text[::-1], width - display_width(head) + 1)[-2::-1]


def _numbered(text: str, width: int, number: int) -> str:
    return f"{fit(text, width - len(str(number)))}{number}"


def wrapped(text: str, columns: int) -> Iterator[str]:
    """Yield the text in lines, broken at spaces; a longer word is left to be cut."""
    indent = " " * (len(text) - len(text.lstrip(" ")))
    first, *words = text.split() or [""]
    line = indent + first
    for word in words:
        if display_width(line) + 1 + display_width(word) > columns:
            yield line
            line = f"{indent}  {word}"
        else:
            line = f"{line} {word}"
    yield line


def table_lines(lines: Sequence[Sequence[str]], num_text_columns: int) -> Iterator[str]:
    """Yield lines of cells as columns two apart; those after the first `num_text_columns` are set right."""
    widths = [max(display_width(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        cells = [pad(cell, width, right=column >= num_text_columns) for column, (cell, width) in enumerate(zip(line, widths, strict=True))]
        yield "  ".join(cells).rstrip()
