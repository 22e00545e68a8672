"""Prompts on their way to the engine core: pictures of the next ones are processed in threads while earlier ones run.

One thread makes about forty pictures of half a megapixel ready in a second, and a GPU waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

from evalharness.api.errors import PromptTooLong
from evalharness.backends.base import Prompt
from evalharness.backends.vllm.vllm_scoring import check_response_length

__all__ = ["PromptsAhead", "check_length", "pixel_bytes"]

Rendered = TypeVar("Rendered")


class PromptsAhead(Generic[Rendered]):
    """The prompts of a source, in order, each with what gives its rendering; `threads` render those with pictures ahead.

    Without threads nothing is pulled before the prompt before it was taken, and nothing rendered before it is asked for.
    """

    def __init__(
        self, source: Iterator[Prompt], render: Callable[[Prompt], Rendered], threads: ThreadPoolExecutor | None, num_ahead: int
    ) -> None:
        self._source = source
        self._render = render
        self._threads = threads
        self._num_ahead = num_ahead if threads is not None else 1
        self._waiting: deque[tuple[Prompt, Callable[[], Rendered]]] = deque()
        self._futures: deque[Future[Rendered]] = deque()
        self._pull()

    @property
    def next(self) -> Prompt | None:
        """The prompt that `take` gives, None while the source has none; it is asked again each time."""
        if not self._waiting:
            self._pull()
        return self._waiting[0][0] if self._waiting else None

    def take(self) -> tuple[Prompt, Callable[[], Rendered]]:
        """Return the next prompt, and what returns its rendering or raises what rendering raised; the one after it is pulled."""
        taken = self._waiting.popleft()
        self._pull()
        return taken

    def close(self) -> None:
        """Render no more; what threads are at comes to its end unseen."""
        for future in self._futures:
            future.cancel()

    def _pull(self) -> None:
        while len(self._waiting) < self._num_ahead:
            prompt = next(self._source, None)
            if prompt is None:
                return
            if self._threads is None or not prompt.has_images:
                self._waiting.append((prompt, partial(self._render, prompt)))
                continue
            future = self._threads.submit(self._render, prompt)
            self._waiting.append((prompt, future.result))
            self._futures.append(future)
            while self._futures and self._futures[0].done():
                self._futures.popleft()


def check_length(prompt: Prompt, num_tokens: int, max_model_len: int | None) -> None:
    """Raise `PromptTooLong` where a rendered prompt of so many tokens, a given response among them, leaves no room for what it is to do."""
    if prompt.response_ids is not None:
        prompt.plan.check_prompt_tokens(num_tokens - len(prompt.response_ids))
        check_response_length(num_tokens, len(prompt.response_ids), max_model_len)
        return
    prompt.plan.check_prompt_tokens(num_tokens)
    if max_model_len is not None and num_tokens + prompt.plan.max_new_tokens > max_model_len:
        raise PromptTooLong(
            f"{num_tokens} prompt tokens + {prompt.plan.max_new_tokens} new tokens exceed the context of {max_model_len}; "
            "shorten the prompt, lower max_new_tokens or raise max_model_len"
        )


def pixel_bytes(engine_input: Any) -> int:
    """Return how many bytes of pixels go to the engine core with a rendered prompt."""
    items = (item for kind in engine_input.get("mm_kwargs", {}).values() for item in kind if item is not None)
    return sum(getattr(element.data, "nbytes", 0) for item in items for element in item.values())
