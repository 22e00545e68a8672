"""Plugins for dense JSON output: stop at its end, cap its objects, stop at or ban exact repeats. Each row is followed by itself.

A row that was ended early has finish_reason `stop` and the plugin's name as stop_reason. Knows nothing about torch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from evalharness.api.checks import check_integer
from evalharness.api.errors import ContractValueError
from evalharness.generation_plugins.json_scanner import JsonScanner, TokenTexts, token_texts
from evalharness.generation_plugins.repeats import RepeatTrie, tokens_by_text

__all__ = ["BalancedJsonStop", "DuplicateObjectBan", "DuplicateObjectStop", "ObjectCap"]


def _check_roots(roots: str) -> None:
    if roots not in ("{", "[", "{[", "[{"):
        raise ContractValueError(f"plugin roots must be '{{', '[' or '{{[', got {roots!r}")


@dataclass(frozen=True)
class BalancedJsonStop:
    """Ends a row with the token that closes its first JSON root. Strings are read as such, so their brackets are safe.

    `roots`: what opens it, "{" (default), "[" or "{["; anything before, such as a header line, is passed over. A root that
    never closes never stops.
    """

    roots: str = "{"
    name: ClassVar[str] = "balanced-json-stop"
    watches_tokens: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_roots(self.roots)

    def watch(self, tokenizer: Any) -> _RootWatcher:
        """Return the watcher of one row."""
        return _RootWatcher(JsonScanner(self.roots), token_texts(tokenizer))


class _RootWatcher:
    def __init__(self, scanner: JsonScanner, texts: TokenTexts) -> None:
        self._scanner = scanner
        self._texts = texts

    def push(self, token_id: int) -> bool:
        for char in self._texts[token_id]:
            self._scanner.push(char)
        return self._scanner.num_roots > 0


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
    watches_tokens: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer("plugin num_objects", self.num_objects, minimum=1)
        _check_roots(self.roots)

    def watch(self, tokenizer: Any) -> _CapWatcher:
        """Return the watcher of one row."""
        return _CapWatcher(_Cap(self.num_objects, self.roots), token_texts(tokenizer))

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


class _CapWatcher:
    def __init__(self, cap: _Cap, texts: TokenTexts) -> None:
        self._cap = cap
        self._texts = texts

    def push(self, token_id: int) -> bool:
        return any(self._cap.push(char) for char in self._texts[token_id])


@dataclass(frozen=True)
class DuplicateObjectStop:
    """Ends a row with the `num_repeats`-th object that repeats an earlier one character for character.

    An object is a `{…}` directly in the root, without its key; blanks between values do not count. The text keeps what was
    written; a parser counts the repeats.
    """

    num_repeats: int = 1
    roots: str = "{"
    name: ClassVar[str] = "duplicate-object-stop"
    watches_tokens: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer("plugin num_repeats", self.num_repeats, minimum=1)
        _check_roots(self.roots)

    def watch(self, tokenizer: Any) -> _RepeatWatcher:
        """Return the watcher of one row."""
        return _RepeatWatcher(_Objects(self.roots), token_texts(tokenizer), self.num_repeats)


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


class _RepeatWatcher:
    def __init__(self, objects: _Objects, texts: TokenTexts, num_repeats: int) -> None:
        self._objects = objects
        self._texts = texts
        self._num_left = num_repeats
        self._seen: set[str] = set()

    def push(self, token_id: int) -> bool:
        for char in self._texts[token_id]:
            _, complete = self._objects.push(char)
            if complete is not None:
                self._num_left -= complete in self._seen
                self._seen.add(complete)
        return self._num_left <= 0


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
    bans_tokens: ClassVar[bool] = True

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
