"""What would complete a repeat: a trie of the objects seen, and the tokens of a vocabulary by the text they begin with."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from evalharness.generation_plugins.json_scanner import StringState, token_texts

__all__ = ["RepeatTrie", "TokensByText", "tokens_by_text"]

_LETTERS = "".join(sorted(set("truefalsenull")))


class _Node:
    __slots__ = ("children", "endings")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.endings: list[str] = []  # what would complete a repeat from here


class RepeatTrie:
    """The objects of one row, and how far the open one agrees with them; each character costs one step."""

    def __init__(self) -> None:
        self._root = _Node()
        self._here: _Node | None = None

    def restart(self) -> None:
        """Stand at the beginning of an object."""
        self._here = self._root

    def follow(self, char: str) -> None:
        """Take the next character of the open object."""
        self._here = self._here.children.get(char) if self._here is not None else None

    def endings(self) -> Sequence[str]:
        """Return what would complete a repeat from here, as far as a single token can."""
        return self._here.endings if self._here is not None else ()

    def add(self, text: str, longest: int) -> None:
        """Remember a complete object; `longest` is how many characters one token can add."""
        sure = _where_a_repeat_is_sure(text)
        node = self._root
        for position in range(sure):
            if position >= sure - longest:
                ending = text[position:sure]
                if ending not in node.endings:
                    node.endings.append(ending)
            node = node.children.setdefault(text[position], _Node())


def _where_a_repeat_is_sure(text: str) -> int:
    """Return how many characters of an object make a repeat of it; 0 for one without a value, which may repeat.

    The JSON must still be able to go on well-formed from the character before: a text ends with its quote and may become
    longer, a number ends with its last digit, a word such as `null` is known by its first letter, an empty list or object
    by its closing bracket.
    """
    value = text.rstrip("}]")
    if value == "{":
        return 0
    if value[-1] in "[{":
        return len(value) + 1
    return len(value.rstrip(_LETTERS)) + 1 if value[-1] in _LETTERS else len(value)


class TokensByText:
    """The tokens of a vocabulary, sorted by what counts of their text; `longest` is the longest of these texts."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        texts = token_texts(tokenizer)
        self._texts = [(texts[token_id], token_id) for token_id in range(vocab_size)]
        self._tables: dict[tuple[bool, bool], tuple[list[str], list[int]]] = {}
        self.longest = max((len(text) for text, _ in self._texts), default=0)

    def starting_with(self, start: str, in_string: bool, escaped: bool) -> list[int]:
        """Return the tokens that continue a text, which is inside of a string or not, with `start`."""
        keys, ids = self._table(in_string, escaped)
        return ids[bisect_left(keys, start) : bisect_left(keys, start + "\U0010ffff")]

    def _table(self, in_string: bool, escaped: bool) -> tuple[list[str], list[int]]:
        state = (in_string, escaped)
        if state not in self._tables:
            pairs = sorted((_counted(text, StringState(in_string, escaped)), token_id) for text, token_id in self._texts)
            self._tables[state] = ([key for key, _ in pairs], [token_id for _, token_id in pairs])
        return self._tables[state]


def _counted(text: str, strings: StringState) -> str:
    return "".join(map(strings.push, text))


@lru_cache(maxsize=2)
def tokens_by_text(tokenizer: Any, vocab_size: int) -> TokensByText:
    """Return the table of a tokenizer, shared by all rows."""
    return TokensByText(tokenizer, vocab_size)
