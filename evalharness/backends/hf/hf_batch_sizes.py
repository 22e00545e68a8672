"""How many rows of a loaded model run at once: by the memory that is free now, by what was too much before, by what padding costs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from evalharness.backends.base import Prompt
from evalharness.backends.hf.batching import take_batch
from evalharness.backends.hf.hf_memory import BatchCost, available_bytes, logit_bytes, max_padding, row_cap

__all__ = ["BatchSizes"]

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


class BatchSizes:
    """Takes batches that fit, and remembers where one did not.

    `row_cap`: rows that a batch never exceeds. `known_limit`: bytes that it never exceeds, None until memory was not enough.
    `num_halvings`: how often that was.
    """

    def __init__(self, model: Any, vocab_size: int) -> None:
        self.row_cap = row_cap(model.device)
        self.known_limit: int | None = None
        self.num_halvings = 0
        self._vocab_size = vocab_size
        self._cost = BatchCost.of(model.config.get_text_config(), model.dtype)
        weight_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        self._max_padding = max_padding(model.device, weight_bytes, self._cost)

    def take(self, items: list[Item], length: Callable[[Item], int], prompts: Sequence[Prompt], device: torch.device) -> list[Item]:
        """Remove from the end of `items`, sorted by length, the longest that run well together on the device; always at least one.

        `prompts` are what they are of, or all of a group of equal plans.
        """
        budget = available_bytes(device)
        if self.known_limit is not None:
            budget = min(budget, self.known_limit)
        needed = self._bytes_of(prompts)
        return take_batch(
            items, length, lambda num_rows, width: num_rows <= self.row_cap and needed(num_rows, width) <= budget, self._max_padding
        )

    def note_halving(self, prompts: Sequence[Prompt], width: int, problem: str) -> None:
        """Remember that a batch of these, so wide, did not fit; from here on none is larger than half of it."""
        self.num_halvings += 1
        self.known_limit = self._bytes_of(prompts)(len(prompts) // 2, width)
        logger.warning("out of memory with %d rows of %d tokens; going on with half (%s)", len(prompts), width, problem)

    def _bytes_of(self, prompts: Sequence[Prompt]) -> Callable[[int, int], int]:
        """Return what a batch of so many of these, so wide, takes: with the tokens that they may generate, or the logits of given ones."""
        if prompts[0].response_ids is None:
            num_new = prompts[0].plan.max_new_tokens
            return lambda num_rows, width: self._cost.bytes_for(num_rows, width, num_new)
        earliest = min(prompt.num_tokens or len(prompt.token_ids) for prompt in prompts)
        return lambda num_rows, width: self._cost.bytes_for(num_rows, width, 0) + num_rows * logit_bytes(width - earliest, self._vocab_size)
