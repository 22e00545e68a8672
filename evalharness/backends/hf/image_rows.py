"""Prompts with images: what the checkpoint's processor makes of them, as rows of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from evalharness.api.errors import ImageError, RequestError
from evalharness.backends.base import KeptText, Prompt
from evalharness.backends.hf.decoding import Row


def row_with_images(prompt: Prompt, processor: Any) -> Row:
    """Return the prompt's row; raises `ImageError` when images cannot be used."""
    assert prompt.load_images is not None
    images = prompt.load_images()
    image_token_id = processor.image_token_id
    if not images:
        return Row(prompt, prompt.token_ids)
    try:
        # The text is rendered already: a second beginning-of-sequence token would be another prompt.
        text = prompt.text if prompt.kept is None else prompt.kept.text
        encoded = processor(text=[text], images=images, return_tensors="pt", add_special_tokens=False)
    except ValueError as error:  # how processors refuse; anything else is a failure of code or machine
        raise ImageError(f"the image processor refuses the images: {error}") from error
    token_ids = tuple(encoded.pop("input_ids")[0].tolist())
    encoded.pop("attention_mask", None)
    grids = tuple((int(t), int(h), int(w)) for t, h, w in encoded.get("image_grid_thw", torch.empty(0, 3)).tolist())
    _check_expansion(grids, token_ids.count(image_token_id), processor.image_processor)
    per_token = {
        name: value
        for name, value in encoded.items()
        if value.shape[:2] == (1, len(token_ids)) and value.dim() == 2 and name != "image_grid_thw"
    }
    of_tokens = {name: tuple(value[0].tolist()) for name, value in per_token.items()}
    if prompt.kept is not None:
        token_ids, places = _spelled(token_ids, prompt.kept)
        of_tokens = {name: tuple(values[place] for place in places) for name, values in of_tokens.items()}
    return Row(
        prompt,
        token_ids,
        per_token=of_tokens,
        per_image={name: value for name, value in encoded.items() if name not in per_token},
        image_grids=grids,
    )


def _spelled(token_ids: Sequence[int], kept: KeptText) -> tuple[tuple[int, ...], list[int]]:
    """Return a prompt's ids with its marks spelled out, and the place of each among the given ones, whose other values it has."""
    ids, places, start = list[int](), list[int](), 0
    for marked, spelled in kept.pieces:
        ends = range(start + len(marked), len(token_ids) + 1)
        end = next((end for end in ends if tuple(token_ids[end - len(marked) : end]) == marked), None)
        if end is None:
            raise RequestError("special tokens in the data cannot be kept text: the image processor changes the text around them")
        found = end - len(marked)
        ids += [*token_ids[start:found], *spelled]
        places += [*range(start, found), *[found] * len(spelled)]
        start = end
    return (*ids, *token_ids[start:]), [*places, *range(start, len(token_ids))]


def _check_expansion(grids: tuple[tuple[int, int, int], ...], num_image_tokens: int, image_processor: Any) -> None:
    merge_size = getattr(image_processor, "merge_size", None)
    if not grids or merge_size is None:
        return
    expected = sum(math.prod(grid) for grid in grids) // merge_size**2
    if expected != num_image_tokens:
        raise ImageError(f"the images need {expected} image tokens, the prompt has {num_image_tokens} after expansion")


def largest_image_tokens(processor: Any) -> int:
    """Return how many tokens an image takes at most, 0 where the processor does not say; for sorting, not for limits."""
    image_processor = processor.image_processor
    size = dict(image_processor.size or {})
    if "longest_edge" not in size or not hasattr(image_processor, "merge_size"):
        return 0
    return int(size["longest_edge"] // (image_processor.patch_size * image_processor.merge_size) ** 2)
