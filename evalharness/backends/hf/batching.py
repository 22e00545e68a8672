"""Which rows run together: by plan, by length, by memory. Knows nothing about torch; what a batch costs is passed in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from evalharness.backends.base import Prompt, SamplingPlan

__all__ = ["groups_of_equal_plan", "take_batch", "windows"]

Row = TypeVar("Row")


def windows(prompts: Iterable[Prompt], size: int) -> Iterator[list[Prompt]]:
    """Yield lists of up to `size` prompts, each pulled only when the one before is worked off."""
    iterator = iter(prompts)
    while window := list(itertools.islice(iterator, size)):
        yield window


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


def take_batch(rows: list[Row], length: Callable[[Row], int], fits: Callable[[int, int], bool], max_padding: int) -> list[Row]:
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
