"""Rows of prompts with given responses: what the evals of choices and of perplexity share.

As in `prompt_rows.py`, but a row may also have `text` in place of `prompt` or `messages`: a bare text that the response goes on with, past
any chat template, for base models. `ends` says whether the end-of-sequence token belongs to a response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evalharness.api.errors import ConfigError
from evalharness.api.requests import GenerationResult
from evalharness.api.scoring import Chat
from evalharness.tasks.prompt_rows import PromptCase, PromptRow, request_of

__all__ = ["ScoredCase", "known_logprobs", "prompt_of", "scored_fields"]


@dataclass(frozen=True, kw_only=True)
class ScoredCase(PromptCase):
    """A case whose responses are given; `text` is its prompt where it is no chat, None where it is one."""

    text: str | None = None
    ends: bool = False


def scored_fields(row: PromptRow, *, chat_ends: bool) -> dict[str, Any]:
    """Return the fields of a `ScoredCase` but for its reference; `ends` is `chat_ends` for chats and False for texts, unless it is said.

    `ConfigError` where the row could not be asked.
    """
    is_text = "text" in row.values
    ends = row.values.get("ends", False if is_text else chat_ends)
    if not isinstance(ends, bool):
        raise ConfigError(f"{row.where}: ends must be true or false, got {ends!r}")
    if not is_text:
        return {**row.asked(), "ends": ends}
    text = row.values["text"]
    if not isinstance(text, str):
        raise ConfigError(f"{row.where}: text must be a text, got {text!r}")
    beside = [key for key in ("prompt", "messages", "images") if key in row.values]
    if beside:
        raise ConfigError(f"{row.where} has text and {', '.join(beside)}; a bare text is the whole prompt")
    own = {"id": row.values["id"], "group": row.values.get("group"), "tags": row.values.get("tags", {})}
    return {**own, "messages": (), "text": text, "ends": ends}


def prompt_of(case: ScoredCase) -> Chat | str:
    """Return what a case's responses follow."""
    return request_of(case) if case.text is None else case.text


def known_logprobs(result: GenerationResult) -> Sequence[float]:
    """Return the log-probabilities of a scored response; without the first where nothing stands before it."""
    return [value for value in result.logprobs or () if value is not None]
