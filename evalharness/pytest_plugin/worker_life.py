"""What a worker does for its controller's sake: it gives signs of life, and ends itself when it is of no more use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from evalharness.pytest_plugin.heartbeat import Heartbeat, beat_every_s
from evalharness.pytest_plugin.takeover import read_crashes

if TYPE_CHECKING:
    from evalharness.pytest_plugin.session import EvalSession

__all__ = ["leave_if_engine_died", "start_heartbeat"]

EXIT_ENGINE_DIED = 70
_MAX_ENGINE_DEATHS = 4  # xdist replaces four workers for each that it was told to start


def start_heartbeat(state: EvalSession, path: Path) -> Heartbeat:
    """Begin to write this worker's signs of life for the controller."""

    def is_busy() -> bool | None:
        if state.is_opening_engine:
            return True  # weights may come slowly over a network, which neither computes nor reads a disk
        running = state.running
        # A process that waits for a GPU spins, whether the GPU works or not.
        return False if state.cards and running is not None and running[1].is_generating else None

    return Heartbeat(path, beat_every_s(state.run.hang_timeout), lambda: state.progress.num_signs, is_busy)


def leave_if_engine_died(state: EvalSession) -> None:
    """End this worker if its engine can generate nothing more: a new one then goes on with the unit, from the journal.

    Otherwise it would take unit after unit and make errors of them. An engine that breaks again and again stays, and does.
    """
    if state.running is None or not state.is_worker:
        return
    unit, runner = state.running
    if runner.engine_failure is None:
        return
    if sum(note.gave_up and note.engine == unit.engine for note in read_crashes(state.run_dir, state.session_number)) < _MAX_ENGINE_DEATHS:
        state.journal.write("last_words", {"problem": runner.engine_failure})
        os._exit(EXIT_ENGINE_DIED)
