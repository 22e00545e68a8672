"""Finds where a row ends: at its first stop id, or at the token that completes a stop string."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from evalharness.api.errors import ConfigError
from evalharness.api.hooks import GenerationPlugin, RowWatchers
from evalharness.backends.base import SamplingPlan, StoppedBy

_MAX_WINDOW = 32  # tokens; a run of broken characters must not make every step decode the whole run
_MAX_OPEN_CHARACTERS = 3  # a character takes at most 4 bytes, and a tokenizer may show each missing one as a character


def check_stop_ids(plan: SamplingPlan, *, vocab_size: int, eos_token_ids: Collection[int], tokenizer: Any) -> None:
    """Raise `ConfigError` for a stop token id beyond the vocabulary (rows of the model's embedding), which would never stop.

    The checkpoint's own end-of-sequence ids are exempt, as nobody set them, and so are ids of stop strings that are also looked for in the
    text.
    """
    for token_id in plan.stop_token_ids:
        if token_id < vocab_size or token_id in eos_token_ids:
            continue
        if plan.stop_strings and tokenizer.decode([token_id], skip_special_tokens=False) in plan.stop_strings:
            continue
        raise ConfigError(
            f"stop token id {token_id} would never stop: the model's vocabulary ends at {vocab_size - 1}; "
            "give ids of this checkpoint in options.stop and options.eos_token_id, or a stop string"
        )


def trim_at_stop_id(token_ids: Sequence[int], stop_token_ids: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """Return the ids up to and including the first stop id, and whether there was one; drops padding behind it."""
    stops = set(stop_token_ids)
    for position, token_id in enumerate(token_ids):
        if token_id in stops:
            return tuple(token_ids[: position + 1]), True
    return tuple(token_ids), False


class StopStringWatcher:
    """Tells, token by token, when a stop string is complete in one row's text.

    Decodes only the newest tokens. A character that is still incomplete (byte-level tokens) shows as U+FFFD until its
    last byte is there; what stands before it counts already.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._strings = tuple(strings)
        self._skip = skip_special_tokens
        self._keep = max((len(s) for s in self._strings), default=1) - 1
        self._tail = ""  # the last `_keep` characters that cannot change any more
        self._window: list[int] = []  # the newest tokens, and before them those that give them their spacing
        self._num_context = 0  # so many tokens of the window are only there for the spacing
        self._num_seen = 0  # so many characters of the window's text are in the tail already

    def push(self, token_id: int) -> bool:
        """Return True once a stop string is complete in the text of the ids pushed so far."""
        self._window.append(token_id)
        text = self._text(self._window)
        new = text[self._num_seen :]
        is_complete = any(string in self._tail + new for string in self._strings)
        num_open = len(new) - len(new.rstrip("\ufffd"))
        is_long = len(self._window) > _MAX_WINDOW
        if is_long:
            num_open = min(num_open, _MAX_OPEN_CHARACTERS)
        settled = new[: len(new) - num_open]
        self._num_seen = len(text) - num_open
        if settled:
            self._tail = (self._tail + settled)[-self._keep :] if self._keep else ""
        if is_long or (settled and not num_open):
            self._shorten(num_open)
        return is_complete

    def _shorten(self, num_open: int) -> None:
        first = max(self._num_context if not num_open else 0, len(self._window) - _MAX_WINDOW // 2)
        self._window = self._window[first:]
        self._num_context = len(self._window)
        self._num_seen = max(0, len(self._text(self._window)) - num_open)

    def _text(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=self._skip, clean_up_tokenization_spaces=False))


class RowEnd:
    """Tells, token by token, where one row ends and why, as every backend has it. `plugins`: those that watch may end it."""

    def __init__(self, plan: SamplingPlan, tokenizer: Any, plugins: Iterable[GenerationPlugin] = ()) -> None:
        self._plan = plan
        self._num_tokens = 0
        self._strings = StopStringWatcher(tokenizer, plan.stop_strings, plan.skip_special_tokens) if plan.stop_strings else None
        self._watchers = RowWatchers(plugins, tokenizer, plan.stop_token_ids)

    def push(self, token_id: int) -> tuple[StoppedBy, str | None] | None:
        """Return what ends the row with this token, `Completion.stopped_by` and `stop_name`; None if the row goes on."""
        self._num_tokens += 1
        by_string = self._strings is not None and self._strings.push(token_id)
        by_plugin = self._watchers.push(token_id)
        if token_id in self._plan.stop_token_ids:
            return "id", None
        if by_string:
            return "string", None
        if by_plugin is not None:
            return "plugin", by_plugin
        return ("length", None) if self._num_tokens == self._plan.max_new_tokens else None
