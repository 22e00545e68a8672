"""Paths into JSON values: `items[0].name`, `items[*].name`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from evalharness.api.errors import ConfigError

MISSING = object()
"""The value of a path that leads nowhere."""

_STEP = re.compile(r"((?:\\.|[^\\.\[\]])+)|\[(\d{1,9}|\*)\]|(\.)")
Step = str | int | None
"""A key, a place in a list, or None for every place."""


def read_path(path: str, where: str = "") -> tuple[Step, ...]:
    """Return the steps of a path; `ConfigError`, which begins with `where`, if it is not a path."""
    place = f"{where}: {path!r}" if where else repr(path)
    advice = "write keys as in items[0].name, or items[*].name for all"
    steps: list[Step] = []
    position, after_dot = 0, True
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None or (match[1] is not None and not after_dot) or (match[3] and after_dot) or (match[2] and after_dot and steps):
            raise ConfigError(f"{place} is not a path (at character {position + 1}); {advice}")
        if match[1] is not None:
            steps.append(re.sub(r"\\(.)", r"\1", match[1]))
        elif match[2] is not None:
            steps.append(None if match[2] == "*" else int(match[2]))
        after_dot = match[3] is not None
        position = match.end()
    if not steps or after_dot:
        raise ConfigError(f"{place} is not a path; {advice}")
    return tuple(steps)


def find(value: Any, steps: Sequence[Step]) -> Any:
    """Return the value at a path, `MISSING` where it leads nowhere; for `[*]` the list of the values there."""
    for number, step in enumerate(steps):
        if step is None:
            if not isinstance(value, list):
                return MISSING
            values = [find(item, steps[number + 1 :]) for item in value]
            return [item for item in values if item is not MISSING]
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return MISSING
            value = value[step]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return MISSING
    return value
