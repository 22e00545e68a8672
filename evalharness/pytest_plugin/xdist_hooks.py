"""What the controller does when the run is spread over workers; registered only where xdist is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from evalharness.errors import EvalHarnessError, RecordError
from evalharness.pytest_plugin.crashes import Crashes
from evalharness.pytest_plugin.finish import start_run
from evalharness.pytest_plugin.progress import Progress, announce
from evalharness.pytest_plugin.reporting import REPORTING, reporting_config
from evalharness.pytest_plugin.scheduler import DeferredScheduler
from evalharness.pytest_plugin.session import STATE
from evalharness.pytest_plugin.units import UnitKey, assign_units

CRASHES = pytest.StashKey[Crashes]()


def pytest_configure_node(node: Any) -> None:
    """Give each worker the resolved options and the engines, so that all of them run exactly the same."""
    state = node.config.stash[STATE]
    try:
        engines = [spec.to_json() for spec in state.engines]
    except EvalHarnessError:
        engines = None  # perhaps no evals are run at all; a worker that collects one reports the error
    node.workerinput["evalharness"] = {"run": state.run.to_json(), "engines": engines, "num_workers": state.num_workers}


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> DeferredScheduler | None:
    """Hand out work units where evals are collected; other ways of distribution stay as they are."""
    if config.getoption("dist") != "load":
        return None
    state = config.stash[STATE]

    def assign(nodeids: Sequence[str]) -> dict[str, UnitKey]:
        return assign_units(nodeids, [spec.id for spec in state.known_engines], state.num_workers)

    crashes = config.stash[CRASHES] = Crashes(config)
    return DeferredScheduler(config, log, state.num_workers, assign, judge=crashes)


def pytest_runtest_logreport(report: Any) -> None:
    """Note which test a worker runs: were it to die, whose fault it is depends on that."""
    config = reporting_config()
    if config is not None and CRASHES in config.stash and report.when == "setup" and report.passed:
        config.stash[CRASHES].test_runs(report.node.gateway.id, report.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any, sched: Any) -> None:
    """Say what a worker died of, and how often the test was tried."""
    config = report.node.config
    if CRASHES in config.stash:
        config.stash[CRASHES].explain(crashitem, report)


@pytest.hookimpl
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Begin the run when the first worker says which evals it has."""
    config = node.config
    state = config.stash[STATE]
    state.plan_nodeids(ids)
    if state.started_run or not state.eval_nodeids:
        return
    if config.getoption("dist") != "load":
        raise pytest.UsageError(
            f"--dist {config.getoption('dist')} cannot run evals: they are handed out in work units; leave --dist out, -n alone does it"
        )
    try:
        start_run(state)
    except RecordError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[REPORTING].progress = Progress(config, state)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        if reporter.isatty:
            reporter.rewrite("", erase=True)  # what xdist's status line left
        reporter.ensure_newline()
        reporter.write_line(announce(state, len(state.eval_nodeids)))
