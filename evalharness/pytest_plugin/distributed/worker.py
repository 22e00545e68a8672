"""A worker's side of a distributed run: its next units, its signs of life, and its end on command or with its engine."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from evalharness.pytest_plugin.distributed._xdist_internals import on_command, queued_tests, send_event
from evalharness.pytest_plugin.distributed.heartbeat import Heartbeat, beat_every_s
from evalharness.pytest_plugin.execution.takeover import read_crashes
from evalharness.pytest_plugin.progress.counts import snapshot
from evalharness.pytest_plugin.progress.showing import Ticker, sending

if TYPE_CHECKING:
    from evalharness.pytest_plugin.execution.execution import Execution, RunningUnits
    from evalharness.pytest_plugin.execution.units import UnitKey, UnitPlan
    from evalharness.pytest_plugin.run_context import RunContext

AMBIGUOUS = "evalharness_ambiguous_node_ids"
PROGRESS = "evalharness_progress"
SIGNS = "evalharness_signs"
ORDER = "evalharness_order"
"""With --until-certain: the evals of a worker, with their cases in the order of drawing."""
LEAVE_OUT = "evalharness_leave_out"
"""The command that has a worker ask no more cases of an eval on an engine; its `engine` and `path` name it."""
STOP = "evalharness_stop"
"""The command that ends a worker; its `reason` is why."""

EXIT_ENGINE_DIED = 70
_MAX_ENGINE_DEATHS = 4  # xdist replaces four workers for each that it was told to start


def units_ahead(session: pytest.Session, plan: UnitPlan) -> Callable[[], Sequence[UnitKey]]:
    """Return a function that gives the units of this worker's queued tests, in order, up to the first test without an eval.

    Some units at the front may have run already.
    """
    queued_positions = queued_tests(session.config)
    known: list[UnitKey] = []

    def look() -> list[UnitKey]:
        nonlocal known
        positions = queued_positions()
        if positions is not None:
            units = (plan.units.get(session.items[position].nodeid) for position in positions)
            evals = itertools.takewhile(lambda unit: unit is not None, units)
            known = [unit for unit in dict.fromkeys(evals) if unit is not None]
        return known

    return look


def install_stop_command(session: pytest.Session) -> None:
    """Have this worker end after its current test when the controller sends `STOP`.

    When -x or --maxfail ends a run, xdist lets workers finish their queued tests: here a unit or more.
    """

    def stop(arguments: Mapping[str, Any]) -> None:
        session.shouldstop = arguments["reason"]

    on_command(session.config, STOP, stop)


def report_ambiguous_node_ids(config: pytest.Config, nodeids: Sequence[str]) -> None:
    """Send the controller, before the collection, ids that read like those of evals but are not: it knows only ids."""
    if nodeids:
        send_event(config, AMBIGUOUS, {"nodeids": list(nodeids)})


def start_heartbeat(config: pytest.Config, execution: Execution) -> Heartbeat:
    """Start telling the controller this worker's signs of life."""
    context, engines, units = execution.context, execution.engines, execution.units

    def is_busy() -> bool | None:
        if engines.opening is not None:
            return True  # weights may come slowly over a network, which neither computes nor reads a disk
        # A process that waits for a GPU spins, whether the GPU works or not.
        return False if context.cards and units.is_generating else None

    def tell(results: int, busy: int) -> None:
        send_event(config, SIGNS, {"results": results, "busy": busy})

    return Heartbeat(tell, beat_every_s(context.run.hang_timeout), lambda: execution.progress.num_signs, is_busy)


def start_sending(config: pytest.Config, execution: Execution) -> Ticker:
    """Start telling the controller how far this worker is."""
    execution.asked  # noqa: B018  # now: the plan changes while tests run
    return sending(lambda: snapshot(execution), lambda taken: send_event(config, PROGRESS, taken))


def exit_worker_if_engine_failed(context: RunContext, units: RunningUnits) -> None:
    """End this worker if its engine can generate nothing more; a new worker continues the unit from the journal.

    Otherwise it would turn unit after unit into errors. After several such ends of one engine the worker stays, and its tests are errors.
    """
    failure = units.engine_failure()
    if failure is None or not context.is_worker:
        return
    engine_id, problem = failure
    notes = read_crashes(context.run_dir, context.session_number)
    gave_up = {note["worker"] for note in notes if note["gave_up"] and note["engine"] == engine_id}
    if len(gave_up) < _MAX_ENGINE_DEATHS:
        context.journal.write("worker_exit", {"problem": problem})
        os._exit(EXIT_ENGINE_DIED)
