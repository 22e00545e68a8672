"""Special tokens in the texts of a chat (`<|im_end|>` in a row): found, and kept text where that is asked.

A rendered chat is tokenised as training and servers do it, so that what its data writes like a special token is one, and may end a turn.
To keep it text, the chat is rendered once more with marks of letters and digits in place of such tokens. What the tokenizer still reads as
special then is the template's own; what lies between is tokenised with the marks spelled out. With the marks as they are, the pieces must
have the ids of the whole.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from evalharness.api.errors import RequestError
from evalharness.backends.base import KeptText
from evalharness.engine.template_probe import remembered
from evalharness.engine.text_ids import continuation_ids, special_ids, text_ids, text_of_ids

_Ids: TypeAlias = "tuple[int, ...]"
_MARK_CHARS = 12


class _Special(NamedTuple):
    """How a tokenizer's special tokens are written: `written` finds them, `ids` has their ids.

    `take_behind` and `take_before` are those that take up the spaces behind or before them.
    """

    written: re.Pattern[str]
    ids: Mapping[str, int]
    take_behind: frozenset[str]
    take_before: frozenset[str]


def _special(tokenizer: Any) -> _Special | None:
    def find() -> _Special | None:
        ids = {text: token_id for token_id in sorted(special_ids(tokenizer)) if (text := text_of_ids([token_id], tokenizer))}
        if not ids:
            return None
        added = getattr(tokenizer, "added_tokens_decoder", {})
        take = (frozenset(text for text, place in ids.items() if getattr(added.get(place), side, False)) for side in ("rstrip", "lstrip"))
        return _Special(re.compile(f"({_any_of(ids)})"), ids, *take)

    return remembered(tokenizer, "how special tokens are written", find)


def _any_of(texts: Iterable[str]) -> str:
    """Return a pattern for the longest of the texts that stands at a place, in time that does not grow with their number."""
    texts = sorted(texts)
    common = os.path.commonprefix(texts)  # noqa: RUF071 - of letters
    by_letter: dict[str, list[str]] = {}
    for rest in (text[len(common) :] for text in texts if text != common):
        by_letter.setdefault(rest[0], []).append(rest)
    rests = f"(?:{'|'.join(map(_any_of, by_letter.values()))})" if by_letter else ""
    return re.escape(common) + (f"{rests}?" if rests and common in texts else rests)


def special_tokens_in(values: Any, tokenizer: Any) -> tuple[str, ...]:
    """Return the special tokens that the texts in values (messages, tools) hold, each once; also one in two parts of a content."""
    special = _special(tokenizer)
    if special is None:
        return ()
    return tuple(dict.fromkeys(found for text in _texts(values) for found in special.written.findall(text)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, Mapping)):  # that of JSON first: abstract classes are slow to ask
        yield from value
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, (list, tuple, Sequence)) and not isinstance(value, bytes):
        for part in value:
            yield from _texts(part)
        if len(parts := [part["text"] for part in value if isinstance(part, Mapping) and isinstance(part.get("text"), str)]) > 1:
            yield "".join(parts)  # as templates join them


class KeptTexts:
    """Keeps special tokens in data text; `prompt`: how the chat is rendered with them, `data`: all texts in which they may be.

    `ids` raises `RequestError` where a tokenizer cannot do it.
    """

    def __init__(self, data: Any, prompt: str, tokenizer: Any) -> None:
        special = _special(tokenizer)
        assert special is not None, "only texts with special tokens are to be kept"
        self._special, self._tokenizer = special, tokenizer
        own = hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK_CHARS]  # no text holds its own hash
        found = special_tokens_in(data, tokenizer)
        self._marks = {token: f"zq{own}n{place}qz" for place, token in enumerate(found)}
        self._tokens = {mark: token for token, mark in self._marks.items()}
        self._marked = re.compile("|".join(self._tokens))
        self.prompt = ""
        """With marks; filled in by `check`."""
        self._known: tuple[str, list[tuple[_Ids, _Ids]]] = ("", [])

    def marked(self, value: Any) -> Any:
        """Return a text, or messages or tools, with marks in place of special tokens."""
        if isinstance(value, str):
            return self._special.written.sub(lambda found: self._marks[found[0]], value)
        if isinstance(value, Mapping):
            return {self.marked(name): self.marked(part) for name, part in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self.marked(part) for part in value]
        return value

    def check(self, marked: str, prompt: str, data: Any) -> None:
        """Raise `RequestError` unless a chat rendered with marks is the prompt, and no special token is left in the `data` with marks."""
        if self.spelled(marked) != prompt or special_tokens_in(data, self._tokenizer):
            raise RequestError(
                f"the data holds {self._named()} where the chat template reads it too, or in two parts of a message, so that it cannot be "
                "kept text; take it out of the data, or say special_tokens=True"
            )
        self.prompt = marked

    def spelled(self, text: str) -> str:
        """Return a text with special tokens in place of marks."""
        return self._marked.sub(lambda found: self._tokens[found[0]], text)

    def ids(self, marked: str, what: str = "prompt") -> _Ids:
        """Return the ids of a text with marks: special tokens in it are the template's, those that marks stand for are text."""
        return tuple(token_id for _, spelled in self._pieces(marked, what) for token_id in spelled)

    def for_backend(self) -> KeptText:
        """Return the prompt with marks, for a backend that tokenises it together with images."""
        return KeptText(self.prompt, tuple(piece for piece in self._pieces(self.prompt, "prompt") if piece[0] != piece[1]))

    def _pieces(self, marked: str, what: str) -> list[tuple[_Ids, _Ids]]:
        """Return the ids of the template's special tokens, and of what lies between with marks and spelled out."""
        if self._known[0] == marked:
            return self._known[1]
        whole = text_ids(marked, self._tokenizer, what)
        for is_continued in (False, True):
            pieces = list(self._split(marked, what, is_continued))
            if tuple(token_id for ids, _ in pieces for token_id in ids) == whole:
                self._known = (marked, pieces)
                return pieces
        raise RequestError(
            f"the {what} holds {self._named()} in its data, which cannot be kept text: this tokenizer reads what stands between special "
            "tokens otherwise than alone; take it out of the data, or say special_tokens=True"
        )

    def _named(self) -> str:
        return " and ".join(map(repr, self._marks))

    def _split(self, marked: str, what: str, is_continued: bool) -> Iterator[tuple[_Ids, _Ids]]:
        """Yield each piece's ids as in `_pieces`; `is_continued`: a piece continues that before it."""
        pieces = self._special.written.split(marked)
        for place, piece in enumerate(pieces):
            if place % 2:
                yield ((self._special.ids[piece],),) * 2
                continue
            if place and pieces[place - 1] in self._special.take_behind:
                piece = piece.lstrip()
            if place < len(pieces) - 1 and pieces[place + 1] in self._special.take_before:
                piece = piece.rstrip()
            if not piece:
                continue
            ids_of = continuation_ids if place and is_continued else partial(text_ids, what=what)
            ids, spelled = (ids_of(text, self._tokenizer, special_tokens=False) for text in (piece, self.spelled(piece)))
            yield ids, spelled
