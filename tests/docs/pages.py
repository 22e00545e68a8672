"""The pages of the documentation, cut into their code blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks/README.md", ROOT / "fixtures/README.md"])
}
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: the page, its place among the page's blocks of this language, and its language."""

    page: str
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}-{self.language}-{self.number}"


def without_blocks(page: str) -> str:
    """Return a page's text without its fenced blocks."""
    return _FENCE.sub("", PAGES[page])


def blocks(*languages: str) -> list[Block]:
    """Return all blocks of some languages."""
    found = []
    for page, text in PAGES.items():
        seen: dict[str, int] = {}
        for language, code in _FENCE.findall(text):
            seen[language] = number = seen.get(language, -1) + 1
            if not languages or language in languages:
                found.append(Block(page, number, language, code))
    return found
