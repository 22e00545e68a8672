"""Long given responses in windows of the context: each token is scored once, as lm-evaluation-harness rolls over documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from evalharness.api.errors import RequestError
from evalharness.backends.base import BackendOutput, Completion, Prompt

NUM_BEHIND = 2
"""Tokens of the context that a window leaves free: the one before it, and the one that vLLM generates behind it."""


class Window(NamedTuple):
    """Ids that are scored, and those before them."""

    before: tuple[int, ...]
    scored: tuple[int, ...]


def windows_of(prefix: tuple[int, ...], response: tuple[int, ...], size: int) -> list[Window]:
    """Return the windows of a response: `size` tokens are read at most, of which the last may be scored by all that come before.

    The first stands behind the prefix, one token; every other one behind the token before it, and the last, shorter one behind as many as
    there is room for.
    """
    windows = [Window(prefix, response[:size])]
    for start in range(size, len(response), size):
        end = min(start + size, len(response))
        windows.append(Window(response[end - size - 1 : start], response[start:end]))
    return windows


def window_prompts(prompt: Prompt, rolling: bool | int, max_model_len: int | None) -> tuple[Prompt, ...]:
    """Return the prompts of a rolling request that is too long for one, else none; their indices are for the caller to give."""
    size = rolling if not isinstance(rolling, bool) else None if max_model_len is None else max_model_len - NUM_BEHIND
    response = prompt.response_ids or ()
    if size is None or len(response) <= size:
        return ()
    if size < 1:
        raise RequestError(f"a context of {max_model_len} tokens has no room for a window")
    return tuple(
        replace(prompt, token_ids=before, num_tokens=len(before), response_ids=scored, given_as_ids=True)
        for before, scored in windows_of(prompt.token_ids, response, size)
    )


class Rolled:
    """The windows of one request while they are scored; a failure of one is the request's."""

    def __init__(self, position: int, indices: Sequence[int]) -> None:
        self._position = position
        self._outputs: dict[int, BackendOutput | None] = dict.fromkeys(indices)

    def take(self, index: int, output: BackendOutput) -> BackendOutput | None:
        """Take a window's output; return the request's, once all are there."""
        self._outputs[index] = output
        return _together(self._position, self._outputs) if None not in self._outputs.values() else None


def _together(position: int, outputs: Mapping[int, BackendOutput | None]) -> BackendOutput:
    done: list[Completion] = []
    for output in outputs.values():
        if not isinstance(output, Completion):
            assert output is not None
            return position, output[1]
        done.append(output)
    ids = tuple(token_id for each in done for token_id in each.token_ids)
    logprobs = tuple(value for each in done for value in each.logprobs or ())
    entropies = tuple(value for each in done for value in each.entropies or ())
    is_greedy = None if any(each.is_greedy is None for each in done) else all(each.is_greedy for each in done)
    return replace(done[0], index=position, token_ids=ids, logprobs=logprobs, entropies=entropies or None, is_greedy=is_greedy)
