"""Where a growing text stands in its JSON: strings, roots, objects. One character at a time, so linear; nothing is decoded twice."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

__all__ = ["JsonScanner", "StringState", "TokenTexts", "token_texts"]

_FIRST_PRIVATE = 0xF0000  # plane 15: no text has these
_BROKEN = "\ufffd"


class StringState:
    """Whether a JSON text is inside a string; `push` gives the character, or "" for blanks between the values."""

    __slots__ = ("escaped", "in_string")

    def __init__(self, in_string: bool = False, escaped: bool = False) -> None:
        self.in_string = in_string
        self.escaped = escaped

    def push(self, char: str) -> str:
        """Take one character in and return what counts of it."""
        if self.in_string:
            if self.escaped:
                self.escaped = False
            elif char == "\\":
                self.escaped = True
            elif char == '"':
                self.in_string = False
            return char
        if char == '"':
            self.in_string = True
        return "" if char in " \t\r\n" else char


class JsonScanner:
    """Follows the JSON roots of a text and the objects directly inside of them; what stands between roots is passed over.

    `roots` says what opens a root: "{", "[" or both. A root ends where the brackets of its own kind are balanced, those in
    strings not counted. An *object* is a `{…}` directly in a root; `num_objects` are complete. Wrong brackets of the other
    kind do not matter.
    """

    def __init__(self, roots: str = "{") -> None:
        self.num_objects = 0
        self.num_roots = 0
        self.strings = StringState()
        self._roots = roots
        self._root = ""
        self._depths = {"{": 0, "[": 0}

    @property
    def in_root(self) -> bool:
        """Whether a root is open."""
        return bool(self._root)

    @property
    def in_object(self) -> bool:
        """Whether an object of the root is open."""
        return self.in_root and self._depths["{"] > self._outside

    @property
    def _outside(self) -> int:
        return 1 if self._root == "{" else 0

    def push(self, char: str) -> str:
        """Take one character in; return it, or "" where it does not count: between roots, or blank between values."""
        if not self._root:
            if char in self._roots:
                self._root = char
                self.strings = StringState()
                self._depths = {"{": 0, "[": 0, char: 1}
                return char
            return ""
        was_text = self.strings.in_string
        counted = self.strings.push(char)
        if not was_text and char in "{[":
            self._depths[char] += 1
        elif not was_text and char in "}]":
            self._close("{" if char == "}" else "[")
        return counted

    def _close(self, kind: str) -> None:
        self._depths[kind] -= 1
        if kind == self._root and self._depths[kind] == 0:
            self._root = ""
            self.num_roots += 1
        elif kind == "{" and self._depths["{"] == self._outside:
            self.num_objects += 1


class TokenTexts:
    """The text of each token by itself, decoded once.

    JSON's signs are ASCII, and no token holds a part of one, so texts of single tokens show them all. Where a token ends
    within a character of several bytes, the broken part stands as a character of its own for that token: different bytes
    never look alike.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}
        self._num_broken = 0
        # Some tokenizers drop the blank before a text's first word.
        self._anchor = [int(token_id) for token_id in tokenizer.encode(":", add_special_tokens=False)]
        self._anchor_text = self._decode(self._anchor)

    def __getitem__(self, token_id: int) -> str:
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self._text(token_id)
        return text

    def _text(self, token_id: int) -> str:
        text = self._decode([*self._anchor, token_id])
        text = text[len(self._anchor_text) :] if text.startswith(self._anchor_text) else self._decode([token_id])
        if _BROKEN in text:
            text = text.replace(_BROKEN, chr(_FIRST_PRIVATE + self._num_broken))
            self._num_broken += 1
        return text

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


@lru_cache(maxsize=2)
def token_texts(tokenizer: Any) -> TokenTexts:
    """Return the token texts of a tokenizer, shared by all rows; those of the last two tokenizers are kept."""
    return TokenTexts(tokenizer)
