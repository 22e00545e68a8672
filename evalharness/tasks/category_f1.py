"""What the F1 of single categories say together: their mean, and the worst, which an average over all answers hides."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

__all__ = ["MIN_SUPPORT", "macro_and_min"]

MIN_SUPPORT = 10
"""As often a category must be true for its F1 to count for the worst: that of a rare one swings by chance."""

Category = TypeVar("Category", bound=Hashable)


def macro_and_min(f1s: Mapping[Category, float], num_true: Mapping[Category, int]) -> dict[str, float]:
    """Return `category_macro_f1`, the mean over all categories that are ever true, and `category_min_f1`; {} if none is.

    `category_min_f1` is the lowest of those that are true at least `MIN_SUPPORT` times, in a run too small for that of the most
    frequent ones. One name in two domains is two categories.
    """
    known = {category: f1 for category, f1 in f1s.items() if num_true[category]}
    if not known:
        return {}
    enough = min(MIN_SUPPORT, max(num_true[category] for category in known))
    return {
        "category_macro_f1": sum(known.values()) / len(known),
        "category_min_f1": min(f1 for category, f1 in known.items() if num_true[category] >= enough),
    }
