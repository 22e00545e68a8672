"""The one place that says where a text ends and why.

Backends end generation on the ids and strings resolved here; `finish` then turns the ids into texts and names the
reason. `text` stops before the first stop id and before the earliest stop string; `raw_text` is never cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evalharness.backends.base import Completion
from evalharness.contracts import DecodeOptions, FinishReason, StopOptions

__all__ = ["Ending", "StopPlan", "StopStringWatcher", "finish", "resolve_stops", "trim_at_stop_id"]

# A character takes at most 4 bytes; a byte-level tokenizer may spend a token on each, plus special tokens in between.
_MAX_PENDING_TOKENS = 16


@dataclass(frozen=True)
class StopPlan:
    """Resolved stops: `token_ids` end generation at once, `strings` cut the text, `watched` need a look at the text.

    `eos_token_ids` are those of `token_ids` that mean end-of-sequence; `id_strings` maps an id to the stop string that
    it spells.
    """

    token_ids: tuple[int, ...]
    strings: tuple[str, ...]
    watched: tuple[str, ...]
    eos_token_ids: frozenset[int]
    id_strings: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Ending:
    """Texts and reason of one completion; `token_ids` run up to and including the stop id."""

    text: str
    raw_text: str
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: tuple[int, ...]


def resolve_stops(stop: StopOptions, eos_token_ids: Sequence[int], tokenizer: Any) -> StopPlan:
    """Return what ends a text: end-of-sequence ids, then explicit ids, then ids of single-token stop strings, each once."""
    specials = set(getattr(tokenizer, "all_special_tokens", ()))
    id_strings: list[tuple[int, str]] = []
    watched: list[str] = []
    for string in stop.stop:
        token_id = _single_token_id(string, tokenizer)
        if token_id is not None:
            id_strings.append((token_id, string))
        # Decoding skips special tokens, so only their id can show them; any other string may also come in pieces.
        if token_id is None or string not in specials:
            watched.append(string)
    ids = [*eos_token_ids, *stop.stop_token_ids, *(token_id for token_id, _ in id_strings)]
    return StopPlan(tuple(dict.fromkeys(ids)), stop.stop, tuple(watched), frozenset(eos_token_ids), tuple(id_strings))


def _single_token_id(string: str, tokenizer: Any) -> int | None:
    try:
        ids = tokenizer.encode(string, add_special_tokens=False)
    except (ValueError, KeyError, UnicodeError):
        return None  # not encodable: the string list still finds it in the text
    return int(ids[0]) if len(ids) == 1 else None


def trim_at_stop_id(token_ids: Sequence[int], stop_token_ids: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """Return the ids up to and including the first stop id, and whether there was one; drops padding behind it."""
    stops = set(stop_token_ids)
    for position, token_id in enumerate(token_ids):
        if token_id in stops:
            return tuple(token_ids[: position + 1]), True
    return tuple(token_ids), False


def finish(completion: Completion, stops: StopPlan, tokenizer: Any, decode: DecodeOptions) -> Ending:
    """Return texts, finish reason and exact ids of a completion."""
    token_ids, ended_by_id = trim_at_stop_id(completion.token_ids, stops.token_ids)
    body = token_ids[:-1] if ended_by_id else token_ids
    text = _decode(tokenizer, body, decode, skip_special_tokens=decode.skip_special_tokens)
    raw_text = _decode(tokenizer, token_ids, decode, skip_special_tokens=False)
    position, string = _earliest(text, stops.strings)
    if string is not None:
        text = text[:position]
    if decode.strip_whitespace:
        text, raw_text = text.strip(), raw_text.strip()
    reason, stop_reason = _reason(completion, stops, token_ids[-1] if ended_by_id else None, string)
    return Ending(text, raw_text, reason, stop_reason, token_ids)


def _reason(completion: Completion, stops: StopPlan, stop_id: int | None, string: str | None) -> tuple[FinishReason, str | int | None]:
    if string is not None:
        return "stop", string
    if stop_id is not None:
        spelled = dict(stops.id_strings).get(stop_id)
        return "stop", spelled if spelled is not None else (None if stop_id in stops.eos_token_ids else stop_id)
    if completion.stopped_by == "plugin":
        return "stop", "plugin"
    # A backend that saw a stop string which the final text does not show has still ended the text there.
    return ("stop", None) if completion.stopped_by == "string" else ("length", None)


def _decode(tokenizer: Any, token_ids: Sequence[int], decode: DecodeOptions, *, skip_special_tokens: bool) -> str:
    text = tokenizer.decode(
        list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=decode.clean_up_tokenization_spaces
    )
    return str(text)


def _earliest(text: str, strings: Sequence[str]) -> tuple[int, str | None]:
    found = [(position, string) for string in strings if (position := text.find(string)) >= 0]
    return min(found, key=lambda item: item[0]) if found else (-1, None)


class StopStringWatcher:
    """Tells, token by token, when a stop string is complete in one row's text.

    Decodes only the newest tokens; characters that are still incomplete (byte-level tokens) wait for their rest.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._strings = tuple(strings)
        self._skip = skip_special_tokens
        self._keep = max((len(s) for s in self._strings), default=1) - 1
        self._context: list[int] = []  # tokens whose text is already in the tail; they give the next ones their spacing
        self._pending: list[int] = []
        self._tail = ""

    def push(self, token_id: int) -> bool:
        """Return True once a stop string is complete in the text of the ids pushed so far."""
        self._pending.append(token_id)
        before = self._text(self._context)
        after = self._text(self._context + self._pending)
        if after.endswith("�") and len(self._pending) < _MAX_PENDING_TOKENS:
            return False
        self._tail += after[len(before) :]
        self._context, self._pending = self._pending, []
        found = any(string in self._tail for string in self._strings)
        self._tail = self._tail[-self._keep :] if self._keep else ""
        return found

    def _text(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=self._skip, clean_up_tokenization_spaces=False))
