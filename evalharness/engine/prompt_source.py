"""The prompts of a call as a backend pulls them: there may be more after there were none."""

from __future__ import annotations

from collections.abc import Callable

from evalharness.backends.base import Prompt

__all__ = ["PromptSource"]


class PromptSource:
    """An iterator that ends when there is no prompt at present, and gives those that came meanwhile when it is asked again.

    A backend that takes the first end for the last one misses nothing: the rest is asked in a call of its own.
    """

    def __init__(self, next_prompt: Callable[[], Prompt | None]) -> None:
        self._next_prompt = next_prompt

    def __iter__(self) -> PromptSource:
        """Return itself."""
        return self

    def __next__(self) -> Prompt:
        """Return the next prompt; `StopIteration` while there is none."""
        prompt = self._next_prompt()
        if prompt is None:
            raise StopIteration
        return prompt
