"""Asserts that work grows linearly with the length of a text, not with its square, even on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

Sized = TypeVar("Sized", str, list[Any])

_SMALL_S = 0.5
_MOST = 10  # the whole against a quarter: linear work takes 4 times as long, quadratic 16
_TRIES = 3


def assert_linear(work: Callable[[Sized], object], whole: Sized) -> None:
    """Assert that work takes CPU time by the length of what it is given: a quarter of it against the whole.

    A false alarm needs a machine that slows one of the two down by more than twice, each of three times.
    """

    def seconds(given: Sized) -> float:
        started = time.process_time()
        work(given)
        return time.process_time() - started

    ratios = []
    for _ in range(_TRIES):
        whole_s = seconds(whole)
        if whole_s < _SMALL_S or (ratio := whole_s / seconds(whole[: len(whole) // 4])) < _MOST:
            return
        ratios.append(round(ratio, 1))
    raise AssertionError(f"four times as much took {ratios} times as long")
