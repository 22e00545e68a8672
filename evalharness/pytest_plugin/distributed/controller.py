"""The controller's hooks when a run is spread over workers; registered only with xdist."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from evalharness.api.errors import EvalHarnessError, RecordError
from evalharness.hardware.devices import MASK
from evalharness.pytest_plugin.distributed._xdist_internals import process_id, stop_reason
from evalharness.pytest_plugin.distributed.crashes import Crashes
from evalharness.pytest_plugin.distributed.gpus import give_cards_to_workers, refuse_unplanned
from evalharness.pytest_plugin.distributed.heartbeat import Watch, WatchedWorker
from evalharness.pytest_plugin.distributed.scheduler import DeferredScheduler, UnitScheduler
from evalharness.pytest_plugin.distributed.worker import AMBIGUOUS
from evalharness.pytest_plugin.execution.units import UnitKey
from evalharness.pytest_plugin.finish import start_run
from evalharness.pytest_plugin.reporting import REPORTING, Progress, announce
from evalharness.pytest_plugin.session import STATE
from evalharness.runs.workers import CaseSeconds

CRASHES = pytest.StashKey[Crashes]()
SCHEDULER = pytest.StashKey[DeferredScheduler]()
WATCH = pytest.StashKey[Watch]()
SIGNS = pytest.StashKey[TemporaryDirectory[str]]()
"""The folder of workers' signs of life: on this machine, whatever file system has the reports."""


def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Give each worker its GPUs."""
    give_cards_to_workers(config, specs)


def pytest_configure_node(node: Any) -> None:
    """Give each worker the resolved options and the engines, so that all workers run the same."""
    config = node.config
    state = config.stash[STATE]
    try:
        engines = [spec.to_json() for spec in state.registry.engines]
    except EvalHarnessError:
        engines = None  # perhaps no evals are run at all; a worker that collects one reports the error
    watched = node.gateway.spec.popen and state.context.run.hang_timeout
    node.workerinput["evalharness"] = {
        "run": state.context.run.to_json(),
        "engines": engines,
        "num_workers": state.context.num_workers,
        "session": state.context.session_number,
        "cards": _cards_of(node),
        "heartbeat": str(_signs_of(node)) if watched else None,
    }


def _cards_of(node: Any) -> list[str] | None:
    mask = node.gateway.spec.env.get(MASK)
    return None if mask is None else [name for name in mask.split(",") if name]


def _signs_of(node: Any) -> Path:
    stash = node.config.stash
    if SIGNS not in stash:
        stash[SIGNS] = TemporaryDirectory(prefix="evalharness-signs-")
    return Path(stash[SIGNS].name) / node.gateway.id


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> DeferredScheduler | None:
    """Distribute work units if evals are collected; other ways of distribution stay as they are."""
    if config.getoption("dist") != "load":
        return None
    state = config.stash[STATE]

    known = functools.cache(lambda: CaseSeconds(Path(state.context.run.report_dir)))  # only where there are evals

    def estimate(unit: UnitKey, nodeids: Sequence[str]) -> float:
        cases = {state.registry.eval_node(nodeid).case_id for nodeid in nodeids}
        return len(cases) * known().expected(unit.engine, Path(unit.path).stem.removeprefix("test_"))

    crashes = config.stash[CRASHES] = Crashes(config)
    assign = state.registry.assign_units
    units = functools.partial(UnitScheduler, state.context.num_workers, assign, estimate, crashes)
    scheduler = config.stash[SCHEDULER] = DeferredScheduler(config, log, assign, units)
    if state.context.run.hang_timeout:
        config.stash[WATCH] = Watch(state.context.run.hang_timeout, crashes.killed.__setitem__)
    return scheduler


def pytest_testnodeready(node: Any) -> None:
    """Watch a worker; replacements are watched too."""
    stash = node.config.stash
    if WATCH in stash and SIGNS in stash and node.gateway.spec.popen:
        scheduler = stash[SCHEDULER]
        worker = WatchedWorker(
            pid=process_id(node),
            path=_signs_of(node),
            is_busy=lambda: scheduler.has_work(node) or node.shutting_down or not scheduler.has_collected(node),
            is_ready=lambda: scheduler.has_collected(node),
        )
        stash[WATCH].add(node.gateway.id, worker)


def pytest_testnodedown(node: Any, error: object) -> None:
    """Note that a worker ended; a death after its work was done is still a problem of the run."""
    stash = node.config.stash
    _stop_all_if_one_did(node.config)
    if WATCH in stash:
        stash[WATCH].remove(node.gateway.id)
    died = error is not None and not hasattr(node, "workeroutput")
    if died and CRASHES in stash and stash[STATE].has_started_run and not stash[SCHEDULER].has_work(node):
        stash[CRASHES].died_without_work(node.gateway.id)


def _stop_all_if_one_did(config: pytest.Config) -> None:
    """End all workers if -x, --maxfail, Ctrl-C or `pytest.exit` in one of them ends the run; xdist has no hook for that."""
    reason = stop_reason(config)
    if reason is not None and SCHEDULER in config.stash:
        config.stash[SCHEDULER].stop(reason)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop watching."""
    if WATCH in config.stash:
        config.stash[WATCH].stop()
    if SIGNS in config.stash:
        config.stash[SIGNS].cleanup()


class _TestsOfWorkers:
    """Notes which tests have begun, and stops all workers when a failure ends the run; its hooks get no config."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if CRASHES in self._config.stash:
            self._config.stash[CRASHES].test_begins(nodeid)

    def pytest_runtest_logfinish(self) -> None:
        _stop_all_if_one_did(self._config)


def pytest_configure(config: pytest.Config) -> None:
    """Listen to the tests of all workers."""
    config.pluginmanager.register(_TestsOfWorkers(config), "evalharness-tests-of-workers")


def pytest_runtest_logreport(report: Any) -> None:
    """Note which test a worker runs: if the worker dies, this decides what is suspected."""
    if report.when == "setup" and report.passed and CRASHES in report.node.config.stash:
        report.node.config.stash[CRASHES].test_runs(report.node.gateway.id, report.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any, sched: Any) -> None:
    """Add to the report how the worker died and how often the test was tried."""
    config = report.node.config
    if CRASHES in config.stash:
        config.stash[CRASHES].explain(crashitem, report)


@pytest.hookimpl(tryfirst=True)
def pytest_report_from_serializable(config: pytest.Config, data: dict[str, Any]) -> None:
    """Take the ambiguous node ids that a worker sends before its collection."""
    if AMBIGUOUS in data:
        config.stash[STATE].registry.ambiguous_node_ids.update(data.pop(AMBIGUOUS))


@pytest.hookimpl
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Begin the run when the first worker has collected."""
    config = node.config
    state = config.stash[STATE]
    plan = state.execution.plan
    plan.units = state.registry.assign_units(ids)
    if state.context.resumed is not None:
        try:
            state.context.resumed.check_collected(ids)
        except EvalHarnessError as error:
            raise pytest.UsageError(str(error)) from error
    if state.has_started_run or not plan.units:
        return
    if config.getoption("dist") != "load":
        raise pytest.UsageError(
            f"--dist {config.getoption('dist')} cannot run evals: they are handed out in work units; leave --dist out, -n alone does it"
        )
    refuse_unplanned(config, state.context.run, state.context.num_workers)
    try:
        start_run(state)
    except RecordError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[REPORTING].progress = Progress(config, state.execution)
    if WATCH in config.stash:
        config.stash[WATCH].start()
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        if reporter.isatty:
            reporter.rewrite("", erase=True)  # what xdist's status line left
        reporter.ensure_newline()
        reporter.write_line(announce(state))
