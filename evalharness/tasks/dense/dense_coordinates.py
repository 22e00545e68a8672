"""Where a model's coordinates live, and the one conversion to the grid on which everything is scored: 0..1000 on each axis.

norm1000      whole numbers on the grid itself (the trained format)
unit          0..1
pixels        pixels of the upright picture as it lies on disk
processed:14  pixels of the picture as the model saw it, resized to a whole number of patches of 14 pixels
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evalharness.api.errors import ConfigError

__all__ = ["GRID", "NORM1000", "Space", "patch_size", "space_of", "to_pixels"]

GRID = 1000
LEGAL = "norm1000, unit, pixels or processed:PATCH_SIZE (such as processed:14)"

_PROCESSED = re.compile(r"processed:([1-9][0-9]{0,3})")


@dataclass(frozen=True)
class Space:
    """The rectangle (0, 0) to (width, height) that a model's coordinates span."""

    width: float = GRID
    height: float = GRID

    @property
    def whole(self) -> bool:
        """Whether coordinates must be whole numbers in the strict form."""
        return self.width != 1

    def to_grid(self, values: Sequence[float]) -> tuple[list[int], bool]:
        """Return flat x, y, x, y… clamped and rounded to the grid, and whether any of them lay outside."""
        found, outside = [], False
        for place, value in enumerate(values):
            size = self.height if place % 2 else self.width
            inside = min(max(value, 0), size)
            outside = outside or inside != value
            # On the grid itself nothing is divided: 2.5 / 1000 * 1000 need not be 2.5.
            found.append(round(inside if size == GRID else inside / size * GRID))
        return found, outside


NORM1000 = Space()


def patch_size(coordinates: str) -> int | None:
    """Return the patch size of `processed:14`, None for the other spaces; `ConfigError` for a space that is not known."""
    match = _PROCESSED.fullmatch(coordinates) if isinstance(coordinates, str) else None
    if match:
        return int(match[1])
    if coordinates not in ("norm1000", "unit", "pixels"):
        raise ConfigError(f"coordinates must be {LEGAL}, got {coordinates!r}")
    return None


def space_of(coordinates: str, size: tuple[int, int], patches: tuple[int, int] | None = None) -> Space:
    """Return the space of a picture of `size` (width, height) in pixels that the model saw as `patches` (across, down).

    `ConfigError` where the patches are needed and not known.
    """
    patch = patch_size(coordinates)
    if patch is not None:
        if patches is None:
            raise ConfigError(
                f"coordinates {coordinates!r} need the patch grid of the picture, and the generation has none; "
                "ask with `verify=True` on a backend that tells it (hf, vllm), or declare another space"
            )
        return Space(patches[0] * patch, patches[1] * patch)
    if coordinates == "pixels":
        return Space(*size)
    return NORM1000 if coordinates == "norm1000" else Space(1, 1)


def to_pixels(points: Sequence[float], size: tuple[int, int]) -> list[int]:
    """Return flat points of the grid in pixels of a picture of `size` (width, height), clamped to it."""
    return [round(min(max(value, 0), GRID) / GRID * size[place % 2]) for place, value in enumerate(points)]
