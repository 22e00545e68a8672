"""How many threads numeric libraries use in this process and those that it starts: OMP_NUM_THREADS, where the user has not set it."""

from __future__ import annotations

import os

VARIABLE = "OMP_NUM_THREADS"
_ours: set[str] = set()


def are_users_choice() -> bool:
    """Return whether the user has said how many threads there are to be."""
    return VARIABLE in os.environ and os.environ[VARIABLE] not in _ours


def set_default_threads(number: int) -> None:
    """Set how many threads libraries use that are imported from here on, unless it is set."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = str(number)
        _ours.add(str(number))
