"""Photos within a pixel budget of the eval's own, for checkpoints whose domains were trained on pictures of different sizes."""

from __future__ import annotations

from io import BytesIO
from math import sqrt
from pathlib import Path

from evalharness.api.images import MadeImage, image_size, load_image

__all__ = ["SIZE_STEP", "photo_within"]

SIZE_STEP = 32
"""Edges of a shrunken photo are multiples of this, so that the processors of Qwen-VL have nothing left to resize."""


def photo_within(path: Path, max_pixels: int | None) -> str | bytes:
    """Return the photo's path if its area is at most `max_pixels`, or that is None; otherwise a shrunken copy as PNG bytes.

    The copy is upright RGB and lies in memory until its request has been answered. Raises `ImageError`, or `BackendError`
    where the machine fails.
    """
    if max_pixels is None:
        return str(path)
    width, height = image_size(path)
    if width * height <= max_pixels:
        return str(path)
    from PIL.Image import Resampling

    scale = sqrt(max_pixels / (width * height))
    size = tuple(max(SIZE_STEP, int(edge * scale) // SIZE_STEP * SIZE_STEP) for edge in (width, height))
    with BytesIO() as file:
        load_image(path).resize((size[0], size[1]), Resampling.BICUBIC).save(file, "PNG")
        return MadeImage(file.getvalue(), path)
