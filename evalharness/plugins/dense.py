"""Plugins for dense JSON output: stop at its end, cap its objects, ban exact repeats. Each row is followed by itself.

A row that was ended early has finish_reason `stop` and the plugin's name as stop_reason. Knows nothing about torch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from evalharness.contract_checks import check_integer
from evalharness.errors import ContractValueError
from evalharness.plugins.json_scanner import JsonScanner, TokenTexts, token_texts
from evalharness.plugins.repeats import RepeatTrie, tokens_by_text

__all__ = ["BalancedJsonStop", "DuplicateObjectBan", "ObjectCap"]


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
class DuplicateObjectBan:
    """Keeps a row from writing an object that it has written before, character for character; hf only.

    An object is a `{…}` directly in the root, without its key; blanks between values do not count. All tokens that would
    close the last value of a repeat are banned, so the repeat cannot be finished, whichever way it is split into tokens.
    The model then says something else there (a longer number or text, or a shape that a parser drops); objects that
    differ in one character are left alone. It prevents repeats and does not repair a model that loops: cap the objects
    as well. Reads the whole vocabulary once (150,000 tokens: about two seconds).
    """

    roots: str = "{"
    name: ClassVar[str] = "duplicate-object-ban"
    bans_tokens: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_roots(self.roots)

    def ban(self, tokenizer: Any, vocab_size: int) -> _RepeatBan:
        """Return the ban of one row."""
        return _RepeatBan(JsonScanner(self.roots), tokenizer, vocab_size)


class _RepeatBan:
    def __init__(self, scanner: JsonScanner, tokenizer: Any, vocab_size: int) -> None:
        self._scanner = scanner
        self._texts = token_texts(tokenizer)
        self._vocab = (tokenizer, vocab_size)
        self._seen = RepeatTrie()
        self._object: list[str] = []  # the characters of the open object that count

    def push(self, token_id: int) -> None:
        for char in self._texts[token_id]:
            num_before, was_open = self._scanner.num_objects, self._scanner.in_object
            counted = self._scanner.push(char)
            if not counted or not (was_open or self._scanner.in_object):
                continue
            if not was_open:
                self._object = []
                self._seen.restart()
            self._object.append(counted)
            self._seen.follow(counted)
            if self._scanner.num_objects > num_before:
                self._seen.add("".join(self._object), tokens_by_text(*self._vocab).longest)

    def banned(self) -> Collection[int]:
        endings = self._seen.endings() if self._scanner.in_object else ()
        if not endings:
            return ()
        strings = self._scanner.strings
        table = tokens_by_text(*self._vocab)
        return {token_id for ending in endings for token_id in table.starting_with(ending, strings.in_string, strings.escaped)}
