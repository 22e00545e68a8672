"""Which rows run together: by plan, by length, by free memory, and by what padding costs."""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch

from evalharness.backends.base import Prompt, SamplingPlan

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


def groups_of_equal_plan(prompts: Iterable[Prompt]) -> list[list[Prompt]]:
    """Return the prompts that may share a batch: equal plans apart from the seed, with or without images, scored or generated.

    Plans are compared, not hashed: their extras may hold lists.
    """
    groups: list[tuple[tuple[SamplingPlan, bool, bool], list[Prompt]]] = []
    for prompt in prompts:
        key = (replace(prompt.plan, seed=None), prompt.has_images, prompt.response_ids is not None)
        for known, members in groups:
            if known == key:
                members.append(prompt)
                break
        else:
            groups.append((key, [prompt]))
    return [members for _, members in groups]


def take_batch(rows: list[Item], length: Callable[[Item], int], fits: Callable[[int, int], bool], max_padding: int) -> list[Item]:
    """Remove from the end of `rows`, which are sorted by length, the longest ones that run well together; always at least one.

    `fits(num_rows, width)` says whether so many rows, padded to that width, may run at once; `max_padding` is how many
    positions of padding, over all rows, are cheaper than one more batch.
    """
    width = length(rows[-1])
    num_rows, padding = 1, 0
    while num_rows < len(rows) and fits(num_rows + 1, width):
        padding += width - length(rows[-num_rows - 1])
        if padding > max_padding:
            break
        num_rows += 1
    batch = rows[-num_rows:]
    del rows[-num_rows:]
    return batch


_USABLE_SHARE = {"cpu": 0.5, "cuda": 0.85}  # a CPU machine is shared with other processes; torch fragments a GPU's memory
# Padding bounds most batches long before this.
_ROW_CAP = {"cpu": 32, "cuda": 256}

# Measured on one CPU core (135 million float32 weights, 32 prompts of 20 to 400 tokens, 12 new ones, CPU seconds): 8 moves
# 32.2, 27 moves 27.2, 80 moves 27.6; raw batches of 16 34.7, of 8 28.4.
_CACHE_MOVES = {"cpu": 27, "cuda": 12}  # a cache of fixed size is not copied in every step; an estimate
_LOGIT_COPIES = 3  # the model's own, in float32, and while they become log-probabilities
# What starting a step costs, in bytes that could be moved meanwhile: a few ms at 20 GB/s, some ten ms at 3 TB/s. Estimates.
_STEP_BYTES = {"cpu": 64 * 1024**2, "cuda": 32 * 1024**3}


@dataclass(frozen=True)
class BatchCost:
    """Bytes that a batch takes at its peak."""

    cache_bytes: int
    """Keys and values of one position in all layers."""
    prefill_bytes: int
    """Intermediate values of one prompt position in one layer."""
    row_bytes: int
    """Scores over the vocabulary and their copies while a token is picked."""
    mask_bytes: int = 5
    """One cell of the attention mask, as bool and as float."""

    @classmethod
    def of(cls, text_config: Any, dtype: torch.dtype) -> BatchCost:
        """Return the cost for a text model's config; what it lacks is taken from its usual relation to the rest."""
        width = dtype.itemsize
        hidden = int(text_config.hidden_size)
        num_heads = int(getattr(text_config, "num_attention_heads", None) or 1)
        num_key_heads = int(getattr(text_config, "num_key_value_heads", None) or num_heads)
        head_dim = int(getattr(text_config, "head_dim", None) or hidden // num_heads)
        intermediate = int(getattr(text_config, "intermediate_size", None) or 4 * hidden)
        return cls(
            cache_bytes=2 * int(text_config.num_hidden_layers) * num_key_heads * head_dim * width,
            prefill_bytes=(8 * hidden + 3 * intermediate) * width,
            row_bytes=40 * int(text_config.vocab_size),
        )

    def bytes_for(self, num_rows: int, prompt_width: int, max_new_tokens: int) -> int:
        """Return the bytes of a batch padded to `prompt_width` that generates `max_new_tokens`."""
        cache = (prompt_width + max_new_tokens) * self.cache_bytes
        prefill = prompt_width * self.prefill_bytes + prompt_width**2 * self.mask_bytes
        return num_rows * (cache + prefill + self.row_bytes)


def max_padding(device: torch.device, weight_bytes: int, cost: BatchCost) -> int:
    """Return how many padded positions cost as much time per step as one step more of another batch.

    A step has a fixed cost and reads all weights once, whatever the number of rows; each position's keys and values it
    moves many times (appended by copying, expanded for grouped heads, read).
    """
    return int((_STEP_BYTES.get(device.type, 0) + weight_bytes) / (_CACHE_MOVES.get(device.type, 27) * max(cost.cache_bytes, 1)))


def available_bytes(device: torch.device) -> int:
    """Return how many bytes a batch may take on the device now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int((free + reusable) * _USABLE_SHARE["cuda"])
    return int(_available_ram_bytes() * _USABLE_SHARE["cpu"])


def _available_ram_bytes() -> int:
    """Return what the kernel can still give, the container's limit included."""
    amounts = [psutil.virtual_memory().available]
    for limit_path, used_path in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        try:
            limit = int((Path("/sys/fs/cgroup") / limit_path).read_text())
            used = int((Path("/sys/fs/cgroup") / used_path).read_text())
        except (OSError, ValueError):  # no such file in this version of cgroups, or "max": no limit
            continue
        amounts.append(max(limit - used, 0))
    return min(amounts)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory, of the machine or of the GPU, was not enough."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    signs = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory", "out of memory", "STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def is_broken_device(error: BaseException) -> bool:
    """Whether the error leaves the GPU unusable for this process, so that nothing else can be answered either."""
    is_cuda_error = isinstance(error, RuntimeError) and ("CUDA error" in str(error) or "device-side assert" in str(error))
    return is_cuda_error or isinstance(error, getattr(torch, "AcceleratorError", ()))


def release_memory() -> None:
    """Give unused memory back: Python's garbage, torch's GPU cache, and glibc's free heap (it keeps it otherwise)."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # absent in musl
        if trim is not None:
            trim(0)


class BatchSizes:
    """Takes batches that fit, and remembers where one did not.

    `row_cap`: rows that a batch never exceeds. `known_limit`: bytes that it never exceeds, None until memory was not enough.
    `num_halvings`: how often that was.
    """

    def __init__(self, model: Any, vocab_size: int) -> None:
        self.row_cap = _ROW_CAP.get(model.device.type, _ROW_CAP["cuda"])
        self.known_limit: int | None = None
        self.num_halvings = 0
        self._vocab_size = vocab_size
        self._cost = BatchCost.of(model.config.get_text_config(), model.dtype)
        weight_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        self._max_padding = max_padding(model.device, weight_bytes, self._cost)

    def take(
        self,
        items: list[Item],
        length: Callable[[Item], int],
        prompts: Sequence[Prompt],
        device: torch.device,
        *,
        num_logits: int | None = None,
    ) -> list[Item]:
        """Remove from the end of `items`, sorted by length, the longest that run well together on the device; always at least one.

        `prompts` are what they are of, or all of a group of equal plans. `num_logits`: how many positions of an item have logits, if known.
        """
        budget = available_bytes(device)
        if self.known_limit is not None:
            budget = min(budget, self.known_limit)
        needed = self._bytes_of(prompts, num_logits)
        return take_batch(
            items, length, lambda num_rows, width: num_rows <= self.row_cap and needed(num_rows, width) <= budget, self._max_padding
        )

    def note_halving(self, prompts: Sequence[Prompt], width: int, problem: str) -> None:
        """Remember that a batch of these, so wide, did not fit; from here on none is larger than half of it."""
        self.num_halvings += 1
        self.known_limit = self._bytes_of(prompts)(len(prompts) // 2, width)
        logger.warning("out of memory with %d rows of %d tokens; going on with half (%s)", len(prompts), width, problem)

    def _bytes_of(self, prompts: Sequence[Prompt], num_logits: int | None = None) -> Callable[[int, int], int]:
        """Return what a batch of so many of these, so wide, takes: with the tokens that they may generate, or the logits of given ones."""
        if prompts[0].response_ids is None:
            num_new = prompts[0].plan.max_new_tokens
            return lambda num_rows, width: self._cost.bytes_for(num_rows, width, num_new)
        logit_bytes = self._vocab_size * 4 * _LOGIT_COPIES
        if num_logits is not None:
            return lambda num_rows, width: self._cost.bytes_for(num_rows, width, 0) + num_rows * num_logits * logit_bytes
        # Every row of a batch has logits from where the first response begins to the end.
        earliest = min(prompt.num_tokens or len(prompt.token_ids) for prompt in prompts)
        return lambda num_rows, width: self._cost.bytes_for(num_rows, width, 0) + num_rows * max(width - earliest, 1) * logit_bytes
