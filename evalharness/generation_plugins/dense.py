"""Plugins for dense JSON output: stop at its end, cap its objects, stop at or ban exact repeats. Each row is followed by itself.

A row that was ended early has finish_reason `stop` and the plugin's name as stop_reason. Knows nothing about torch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from evalharness.api.checks import check_integer
from evalharness.api.errors import ContractValueError

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


_LETTERS = "".join(sorted(set("truefalsenull")))


class RepeatTrie:
    """The objects of one row, and how far the open one agrees with them; each character costs one step.

    A node has the next node by character, and, by "", what would complete a repeat from there.
    """

    def __init__(self) -> None:
        self._root: dict[str, Any] = {}
        self._here: dict[str, Any] = {}

    def restart(self) -> None:
        """Stand at the beginning of an object."""
        self._here = self._root

    def follow(self, char: str) -> None:
        """Take the next character of the open object."""
        self._here = self._here.get(char, {})

    def endings(self) -> Sequence[str]:
        """Return what would complete a repeat from here, as far as a single token can."""
        return self._here.get("", ())

    def add(self, text: str, longest: int) -> None:
        """Remember a complete object; `longest` is how many characters one token can add."""
        sure = _where_a_repeat_is_sure(text)
        node = self._root
        for position in range(sure):
            if position >= sure - longest:
                endings = node.setdefault("", [])
                if text[position:sure] not in endings:
                    endings.append(text[position:sure])
            node = node.setdefault(text[position], {})


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
            pairs = sorted(("".join(map(StringState(in_string, escaped).push, text)), token_id) for text, token_id in self._texts)
            self._tables[state] = ([key for key, _ in pairs], [token_id for _, token_id in pairs])
        return self._tables[state]


@lru_cache(maxsize=2)
def tokens_by_text(tokenizer: Any, vocab_size: int) -> TokensByText:
    """Return the table of a tokenizer, shared by all rows."""
    return TokensByText(tokenizer, vocab_size)


def _check_roots(roots: str) -> None:
    if roots not in ("{", "[", "{[", "[{"):
        raise ContractValueError(f"roots must be '{{', '[' or '{{[', got {roots!r}")


@dataclass(frozen=True)
class BalancedJsonStop:
    """Ends a row with the token that closes its first JSON root. Strings are read as such, so their brackets are safe.

    `roots`: what opens it, "{" (default), "[" or "{["; anything before, such as a header line, is passed over. A root that
    never closes never stops.
    """

    roots: str = "{"
    name: ClassVar[str] = "balanced-json-stop"

    def __post_init__(self) -> None:
        _check_roots(self.roots)

    def watch(self, tokenizer: Any) -> _RowWatcher:
        """Return the watcher of one row."""
        scanner = JsonScanner(self.roots)

        def closes_root(char: str) -> bool:
            scanner.push(char)
            return scanner.num_roots > 0

        return _RowWatcher(tokenizer, closes_root)


class _RowWatcher:
    """Ends a row with the token that holds the character at which `ends_at` turns True."""

    def __init__(self, tokenizer: Any, ends_at: Callable[[str], bool]) -> None:
        self._texts = token_texts(tokenizer)
        self._ends_at = ends_at

    def push(self, token_id: int) -> bool:
        return any(map(self._ends_at, self._texts[token_id]))


@dataclass(frozen=True)
class ObjectCap:
    """Lets at most `num_objects` objects through: ends a row as soon as it goes on after that many complete ones.

    A row that closes its JSON after exactly that many is left alone. What began behind the last complete object is cut
    off `text` (`raw_text` keeps it); the JSON's own closing bracket is then missing, and is not made up. An object is a
    `{…}` directly in the root, see `JsonScanner`.
    """

    num_objects: int
    roots: str = "{"
    name: ClassVar[str] = "object-cap"

    def __post_init__(self) -> None:
        check_integer("num_objects", self.num_objects, minimum=1)
        _check_roots(self.roots)

    def watch(self, tokenizer: Any) -> _RowWatcher:
        """Return the watcher of one row."""
        return _RowWatcher(tokenizer, _Cap(self.num_objects, self.roots).push)

    def postprocess_text(self, text: str) -> str:
        """Return the text up to the last object that is allowed, or all of it where there are no more."""
        cap = _Cap(self.num_objects, self.roots)
        end = len(text)
        for position, char in enumerate(text, start=1):
            num_before = cap.scanner.num_objects
            if cap.push(char):
                return text[:end]
            if cap.scanner.num_objects > num_before:
                end = position
        return text


class _Cap:
    """Tells when a text goes on after its last allowed object."""

    def __init__(self, num_objects: int, roots: str) -> None:
        self.scanner = JsonScanner(roots)
        self._num_objects = num_objects

    def push(self, char: str) -> bool:
        is_full = self.scanner.num_objects >= self._num_objects
        counted = self.scanner.push(char)
        return is_full and counted not in ("", "}", "]")


@dataclass(frozen=True)
class DuplicateObjectStop:
    """Ends a row with the `num_repeats`-th object that repeats an earlier one character for character.

    An object is a `{…}` directly in the root, without its key; blanks between values do not count. The text keeps what was
    written; a parser counts the repeats.
    """

    num_repeats: int = 1
    roots: str = "{"
    name: ClassVar[str] = "duplicate-object-stop"

    def __post_init__(self) -> None:
        check_integer("num_repeats", self.num_repeats, minimum=1)
        _check_roots(self.roots)

    def watch(self, tokenizer: Any) -> _RowWatcher:
        """Return the watcher of one row."""
        objects, seen, num_left = _Objects(self.roots), set[str](), self.num_repeats

        def completes_last_repeat(char: str) -> bool:
            nonlocal num_left
            _, complete = objects.push(char)
            if complete is not None:
                num_left -= complete in seen
                seen.add(complete)
            return num_left <= 0

        return _RowWatcher(tokenizer, completes_last_repeat)


class _Objects:
    """The objects of a growing text: what counts of the open one, and each complete one."""

    def __init__(self, roots: str) -> None:
        self.scanner = JsonScanner(roots)
        self._open: list[str] = []

    def push(self, char: str) -> tuple[str, str | None]:
        """Take one character in; return what it adds to an object, "" if nothing, and the object that it completes."""
        num_before, was_open = self.scanner.num_objects, self.scanner.in_object
        counted = self.scanner.push(char)
        if not counted or not (was_open or self.scanner.in_object):
            return "", None
        if not was_open:
            self._open = []
        self._open.append(counted)
        return counted, "".join(self._open) if self.scanner.num_objects > num_before else None


@dataclass(frozen=True)
class DuplicateObjectBan:
    """Keeps a row from writing an object that it has written before, character for character; hf only.

    An object is a `{…}` directly in the root, without its key; blanks between values do not count. Where an object agrees
    with an earlier one up to the end of its last value, all tokens that would end it the same way are banned, whichever
    way it is split into tokens: a text must become longer, a number must get another last digit (so 1000 counts as a
    repeat of 100). The JSON stays well-formed. It prevents exact repeats and does not cure a model that loops, which then
    says nearly the same: cap the objects as well, or use `DuplicateObjectStop`. Reads the whole vocabulary once
    (150,000 tokens: one second), then takes some 4 µs per token and row.
    """

    roots: str = "{"
    name: ClassVar[str] = "duplicate-object-ban"

    def __post_init__(self) -> None:
        _check_roots(self.roots)

    def ban(self, tokenizer: Any, vocab_size: int) -> _RepeatBan:
        """Return the ban of one row."""
        return _RepeatBan(_Objects(self.roots), tokenizer, vocab_size)


class _RepeatBan:
    def __init__(self, objects: _Objects, tokenizer: Any, vocab_size: int) -> None:
        self._objects = objects
        self._texts = token_texts(tokenizer)
        self._vocab = (tokenizer, vocab_size)
        self._seen = RepeatTrie()

    def push(self, token_id: int) -> None:
        for char in self._texts[token_id]:
            counted, complete = self._objects.push(char)
            if complete is not None:
                self._seen.add(complete, tokens_by_text(*self._vocab).longest)
                self._seen.restart()
            elif counted:
                self._seen.follow(counted)

    def banned(self) -> Collection[int]:
        scanner = self._objects.scanner
        endings = self._seen.endings() if scanner.in_object else ()
        if not endings:
            return ()
        table = tokens_by_text(*self._vocab)
        strings = scanner.strings
        return {token_id for ending in endings for token_id in table.starting_with(ending, strings.in_string, strings.escaped)}
