"""The one place that decides where a text ends and why.

Backends end generation on the ids and strings resolved here; `finish` then turns the ids into texts and names the reason. `text` stops
before the first stop id and before the earliest stop string; `raw_text` shows every token up to and including the one that ended it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from evalharness.api.errors import ConfigError
from evalharness.api.options import DecodeOptions, StopOptions
from evalharness.api.requests import FinishReason
from evalharness.backends.base import Completion
from evalharness.backends.stops import trim_at_stop_id


@dataclass(frozen=True)
class StopPlan:
    """Resolved stops: `token_ids` end generation at once, `strings` cut the text, `watched` need a look at the text.

    `eos_token_ids` are those of `token_ids` that mean end-of-sequence; `id_strings` maps an id to the stop string that
    it spells. `include_in_text`: the string that ends a text stays at its end.
    """

    token_ids: tuple[int, ...]
    strings: tuple[str, ...]
    watched: tuple[str, ...]
    eos_token_ids: frozenset[int]
    id_strings: tuple[tuple[int, str], ...]
    include_in_text: bool = False


class Ending(NamedTuple):
    """Texts and reason of one completion; `token_ids` run up to and including the one that ended it."""

    text: str
    raw_text: str
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: tuple[int, ...]


def resolve_stops(stop: StopOptions, eos_token_ids: Sequence[int], tokenizer: Any, *, skip_special_tokens: bool = True) -> StopPlan:
    """Return the stops of a text: end-of-sequence ids, then explicit ids, then ids of single-token stop strings, each once.

    Raises `ConfigError` for a string that could never be found, because decoding skips a part of it.
    """
    id_strings: list[tuple[int, str]] = []
    watched: list[str] = []
    for string in stop.stop:
        ids = _encode(string, tokenizer)
        skipped = [token_id for token_id in ids if skip_special_tokens and _is_skipped(token_id, tokenizer)]
        if len(ids) > 1 and skipped:
            raise ConfigError(
                f"stop string {string!r} can never be found: it holds the special token {tokenizer.decode(skipped[:1])!r}, which decoding "
                "skips; stop at that token alone, or set decode.skip_special_tokens to False"
            )
        is_token = len(ids) == 1 and _spells(ids, string, tokenizer)
        if is_token:
            id_strings.append((ids[0], string))
        # A special token shows by its id only; any other string may also come in pieces.
        if not (is_token and skipped):
            watched.append(string)
    every = [*eos_token_ids, *stop.stop_token_ids, *(token_id for token_id, _ in id_strings)]
    return StopPlan(
        tuple(dict.fromkeys(every)), stop.stop, tuple(watched), frozenset(eos_token_ids), tuple(id_strings), stop.include_in_text
    )


def _encode(string: str, tokenizer: Any) -> list[int]:
    try:
        return [int(token_id) for token_id in tokenizer.encode(string, add_special_tokens=False)]
    except (ValueError, KeyError, TypeError, UnicodeError):  # lone surrogates: TypeError in fast tokenizers
        return []  # not encodable: the string list still finds it in the text


def _spells(token_ids: Sequence[int], string: str, tokenizer: Any) -> bool:
    """Return whether the ids spell the string exactly, without unknown tokens or normalisation."""
    text = tokenizer.decode(list(token_ids), skip_special_tokens=False)
    # Some tokenizers' words carry the space before them.
    return bool(text == string or (string.strip() and text.strip() == string.strip()))


def _is_skipped(token_id: int, tokenizer: Any) -> bool:
    return not tokenizer.decode([token_id], skip_special_tokens=True) and bool(tokenizer.decode([token_id], skip_special_tokens=False))


def finish(completion: Completion, stops: StopPlan, tokenizer: Any, decode: DecodeOptions) -> Ending:
    """Return texts, finish reason and exact ids of a completion; a given response is returned unchanged."""
    if completion.stopped_by == "given":
        return _as_given(completion, tokenizer, decode)
    token_ids, ended_by_id = trim_at_stop_id(completion.token_ids, stops.token_ids)
    body = token_ids[:-1] if ended_by_id else token_ids
    text = _decode(tokenizer, body, decode, skip_special_tokens=decode.skip_special_tokens)
    position, string = _earliest(text, stops.strings)
    if string is not None:
        text = text[:position]
        token_ids = body[: _num_tokens_with(string, body, tokenizer, decode)]
    raw_text = _decode(tokenizer, token_ids, decode, skip_special_tokens=False)
    reason, stop_reason = _reason(completion, stops, token_ids[-1] if ended_by_id and string is None else None, string)
    if stops.include_in_text and isinstance(stop_reason, str) and stop_reason in stops.strings:
        text += stop_reason
    if decode.strip_whitespace:
        text, raw_text = text.strip(), raw_text.strip()
    return Ending(text, raw_text, reason, stop_reason, token_ids)


def _as_given(completion: Completion, tokenizer: Any, decode: DecodeOptions) -> Ending:
    text = _decode(tokenizer, completion.token_ids, decode, skip_special_tokens=decode.skip_special_tokens)
    raw_text = _decode(tokenizer, completion.token_ids, decode, skip_special_tokens=False)
    return Ending(text, raw_text, "scored", None, completion.token_ids)


def _reason(completion: Completion, stops: StopPlan, stop_id: int | None, string: str | None) -> tuple[FinishReason, str | int | None]:
    if string is not None:
        return "stop", string
    if stop_id is not None:
        spelled = dict(stops.id_strings).get(stop_id)
        return "stop", spelled if spelled is not None else (None if stop_id in stops.eos_token_ids else stop_id)
    if completion.stopped_by == "plugin":
        return "stop", completion.stop_name or "plugin"
    # A backend that saw a stop string which the final text does not show has still ended the text there.
    return ("stop", None) if completion.stopped_by == "string" else ("length", None)


def _decode(tokenizer: Any, token_ids: Sequence[int], decode: DecodeOptions, *, skip_special_tokens: bool) -> str:
    text = tokenizer.decode(
        list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=decode.clean_up_tokenization_spaces
    )
    return str(text)


def _num_tokens_with(string: str, token_ids: Sequence[int], tokenizer: Any, decode: DecodeOptions) -> int:
    """Return how many of the ids it takes to spell the string.

    vLLM sees a stop string late if the token that completes it begins another character; counts must not show that.
    """
    too_few, enough = 0, len(token_ids)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if string in _decode(tokenizer, token_ids[:middle], decode, skip_special_tokens=decode.skip_special_tokens):
            enough = middle
        else:
            too_few = middle
    return enough


def _earliest(text: str, strings: Sequence[str]) -> tuple[int, str | None]:
    places = [(position, string) for string in strings if (position := text.find(string)) >= 0]
    return min(places, key=lambda place: place[0]) if places else (-1, None)
