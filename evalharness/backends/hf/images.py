"""One image prompt becomes one row: pictures opened, resized to patches, placeholders expanded.

Done prompt by prompt, so that a bad picture fails its own prompt only, and late, so that few pictures are open at once.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from evalharness.api.errors import ImageError
from evalharness.backends.base import Prompt
from evalharness.backends.hf.decoding import Row

__all__ = ["largest_image_tokens", "row_with_images"]


def row_with_images(prompt: Prompt, processor: Any) -> Row:
    """Return the prompt's row; raises `ImageError` when pictures cannot be used or do not match the placeholders."""
    assert prompt.load_images is not None
    images = prompt.load_images()
    image_token_id = processor.image_token_id
    num_placeholders = prompt.token_ids.count(image_token_id)
    if num_placeholders != len(images):
        raise ImageError(f"the prompt has {num_placeholders} image placeholders but {len(images)} images; there must be one image for each")
    if not images:
        return Row(prompt, prompt.token_ids)
    try:
        # The text is rendered already: a second beginning-of-sequence token would be another prompt.
        encoded = processor(text=[prompt.text], images=images, return_tensors="pt", add_special_tokens=False)
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
    return Row(
        prompt,
        token_ids,
        per_token={name: tuple(value[0].tolist()) for name, value in per_token.items()},
        per_image={name: value for name, value in encoded.items() if name not in per_token},
        image_grids=grids,
    )


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
