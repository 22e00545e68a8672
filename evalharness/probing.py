"""Asks `backends/probe.py`, in a process of its own, whether a backend works here and which checkpoints it takes. Loads no weights."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evalharness.checkpoint import CheckpointInfo

__all__ = ["Probed", "probe_backend", "weights_folder"]

_TIMEOUT_S = 300
_MARK = "evalharness-probe:"
"""`MARK` of backends/probe.py, which is not imported here: it belongs to another process."""


@dataclass(frozen=True)
class Probed:
    """What came of importing a backend, in seconds. `problem` says why it cannot be used; then there are neither facts nor refusals.

    `refusals`: by folder of weights why it cannot be taken, None where it can.
    """

    took_s: float
    problem: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    refusals: Mapping[str, str | None] = field(default_factory=dict)


def weights_folder(info: CheckpointInfo) -> str:
    """Return the folder that a backend would load: of an adapter its base's."""
    return str(info.path if info.base is None else info.base.path)


def probe_backend(name: str, infos: Iterable[CheckpointInfo]) -> Probed:
    """Return what a backend's probe found: some seconds, as libraries are really imported."""
    command = [sys.executable, "-m", "evalharness.backends.probe", name, *dict.fromkeys(map(weights_folder, infos))]
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return Probed(_TIMEOUT_S, f"its import took longer than {_TIMEOUT_S} s")
    took_s = time.monotonic() - started
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith(_MARK):
            found = json.loads(line.removeprefix(_MARK))
            return Probed(took_s, None, found["facts"], found["checkpoints"])
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return Probed(took_s, lines[-1].rpartition("MissingDependency: ")[2] if lines else f"its import ended with exit code {done.returncode}")
