"""Given responses behind one prompt: vLLM keeps the prompt's keys and values, and the requests after the first read them.

By itself vLLM computes a request for log-probabilities of its prompt from the start: what is read has none. A response needs only
those of its own tokens. So a request may read as long as these are computed in it. `num_cached_tokens` tells that when it is done, and
one that has read more is asked again without reading. Of a request that vLLM preempts and begins again, it tells only how much was
read at first; so nothing is read unless there are blocks for all requests at once: then none is preempted.
"""

from __future__ import annotations

import inspect
from typing import Any

from evalharness.backends.base import Prompt

_USABLE_SHARE = 0.9
"""Of the blocks; vLLM itself needs a few."""
_FULL = "full_attention"


class PrefixReading:
    """Decides which scoring requests of an engine may read, and counts what runs. `engine_config` is vLLM's own."""

    def __init__(self, engine_config: Any, *, has_drafts: bool) -> None:
        cache, model = engine_config.cache_config, engine_config.model_config
        self._block_size = int(cache.block_size or 0)
        self._num_blocks = int(_USABLE_SHARE * (cache.num_gpu_blocks or 0))
        self.is_possible = bool(
            cache.enable_prefix_caching and self._num_blocks and not has_drafts and _knows_skipping() and _is_plain(model)
        )
        self._running: dict[str, int] = {}
        self._num_needed = 0
        self._readers: set[str] = set()

    def has_room(self, prompt: Prompt) -> bool:
        """Return whether a prompt can be added without taking blocks that a reading request counts on."""
        return not self._readers or (prompt.load_images is None and self._num_needed + self._needed(prompt) <= self._num_blocks)

    def may_read(self, prompt: Prompt) -> bool:
        """Return whether a prompt's request may read what others have computed."""
        is_text = prompt.response_ids is not None and prompt.load_images is None
        return self.is_possible and is_text and self._num_needed + self._needed(prompt) <= self._num_blocks

    def begin(self, request_id: str, prompt: Prompt, *, reads: bool) -> None:
        """Count a request that was added; one with images is taken to fill the rest."""
        if not self.is_possible:
            return
        self._running[request_id] = self._num_blocks if prompt.load_images is not None else self._needed(prompt)
        self._num_needed += self._running[request_id]
        if reads:
            self._readers.add(request_id)

    def end(self, request_id: str) -> bool:
        """Forget a request; return whether it was one that may read."""
        self._num_needed -= self._running.pop(request_id, 0)
        was_reader = request_id in self._readers
        self._readers.discard(request_id)
        return was_reader

    def _needed(self, prompt: Prompt) -> int:
        num_behind = prompt.plan.max_new_tokens if prompt.response_ids is None else len(prompt.response_ids) + 1
        return -(-(len(prompt.token_ids) + num_behind) // self._block_size)


def has_read_too_much(prompt: Prompt, num_cached_tokens: int | None) -> bool:
    """Return whether a reading request has not computed, as far as is known, what judges its response: from the prompt's last token on."""
    return num_cached_tokens is None or num_cached_tokens > len(prompt.token_ids) - 1


def _knows_skipping() -> bool:
    from vllm import SamplingParams

    return "skip_reading_prefix_cache" in inspect.signature(SamplingParams).parameters


def _is_plain(model_config: Any) -> bool:
    """Return whether every layer keeps keys and values of all tokens: then a token takes as much of a block as is counted here."""
    text = getattr(model_config, "hf_text_config", None)
    layers = getattr(text, "layer_types", None) or (_FULL,)
    is_windowed = model_config.get_sliding_window() is not None and getattr(text, "layer_types", None) is None
    return not model_config.is_hybrid and not is_windowed and all(layer == _FULL for layer in layers)
