"""Pytest's hooks, in the order in which a run meets them; all of them here, over 300 lines, so that the order can be read."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import EvalHarnessError
from evalharness.api.redaction import remember_options
from evalharness.config import RunConfig
from evalharness.pytest_plugin.distributed.gpus import card_problem, plan_cards, return_mask, take_cards, taken_cards
from evalharness.pytest_plugin.distributed.worker import start_heartbeat, stop_when_told, tell_lookalikes, units_ahead
from evalharness.pytest_plugin.eval_module import as_collection_error, refuse_idle_gates, refuse_misspelt_markers, takes
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec
from evalharness.pytest_plugin.execution.unit_plan import is_eval_test
from evalharness.pytest_plugin.fixtures import WAITING
from evalharness.pytest_plugin.options import add_markers, asked_on_command_line, resolve_run_config, runs_nothing
from evalharness.pytest_plugin.progress import Progress, announce
from evalharness.pytest_plugin.replay.resume import Resumption, asks_to_resume, resume_run
from evalharness.pytest_plugin.reporting import CONTROLLER_NAMES, REPORTING, Reporting
from evalharness.pytest_plugin.rootdir import refuse_misplaced_rootdir
from evalharness.pytest_plugin.running_tests import RunningTests
from evalharness.pytest_plugin.session import NEW_SESSION, STATE, EvalSession
from evalharness.pytest_plugin.unloaded_cases import report_unloaded
from evalharness.runs.lock import RunLock

_FIXTURES = ("engine", "case", "generation", "generations", "steps", "score", "details")


def pytest_configure(config: pytest.Config) -> None:
    """Resolve the options; a worker takes the controller's."""
    gc.unfreeze()  # what a session before this one in the same process kept, see pytest_collection_finish
    add_markers(config)
    if config.getoption("help", False):
        return  # who asks for help may do so because of an option that is wrong
    given = _given(config)
    remember_options([*config.invocation_params.args, *(getattr(config, "workerinput", {}).get("mainargv", ())), *config.getini("addopts")])
    new_session = config.stash.get(NEW_SESSION, None)
    if new_session is not None:
        state = new_session(config.rootpath)
    elif given is not None:
        engines = None if given["engines"] is None else [EngineSpec.from_json(values) for values in given["engines"]]
        worker: str = config.workerinput["workerid"]  # type: ignore[attr-defined]
        run = RunConfig.from_json(given["run"])
        resumed = Resumption.read(Path(run.report_dir) / run.run_id, given["session"]) if given["session"] else None
        state = EvalSession(run, config.rootpath, worker, given["num_workers"], engines, resumed)
    else:
        num_workers = _num_workers(config)
        run, resumed, lock = _options(config)
        state = EvalSession(run, config.rootpath, "controller" if num_workers else "main", num_workers, resumed=resumed)
        state.lock = lock
        plan_cards(config, state.run, num_workers)
        if not num_workers:
            take_cards(config)
    config.stash[STATE] = state
    state.cards = taken_cards(config, given) if state.worker != "controller" else None
    config.stash[WAITING] = lambda: None
    config.stash[REPORTING] = reporting = Reporting(config)
    if state.worker in CONTROLLER_NAMES:
        config.pluginmanager.register(reporting, "evalharness-reporting")
    if state.worker == "controller":
        from evalharness.pytest_plugin.distributed import controller as xdist_hooks

        config.pluginmanager.register(xdist_hooks, "evalharness-xdist")
    if given is None and new_session is None and asked_on_command_line(config):
        refuse_misplaced_rootdir(config)
        try:
            state.engines  # noqa: B018  # a wrong checkpoint or option is a usage error before anything is collected
            if not runs_nothing(config):
                state.opening.check_cache()
        except EvalHarnessError as error:
            raise pytest.UsageError(str(error)) from error


def _options(config: pytest.Config) -> tuple[RunConfig, Resumption | None, RunLock | None]:
    """Return the options of the run, and what it has where it is resumed."""
    run = resolve_run_config(config)
    try:
        return resume_run(run, only_look=runs_nothing(config)) if asks_to_resume(run) else (run, None, None)
    except EvalHarnessError as error:
        raise pytest.UsageError(str(error)) from error


def _given(config: pytest.Config) -> Any:
    """Return what the controller gave this worker, None in other processes."""
    return getattr(config, "workerinput", {}).get("evalharness")


def _num_workers(config: pytest.Config) -> int:
    """Return how many processes xdist will start, 0 where tests run in this one."""
    if config.getoption("dist", "no") == "no" or runs_nothing(config):
        return 0
    from xdist.workermanage import parse_tx_spec_config

    return len(parse_tx_spec_config(config))


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise tests over engines and cases; last, so that a test's own parameters stand before ours in its id."""
    if not any(name in metafunc.fixturenames for name in _FIXTURES) and not metafunc.definition.own_markers:
        return
    state = metafunc.config.stash[STATE]
    marker = metafunc.definition.get_closest_marker("eval")
    try:
        if any(takes(metafunc, name) for name in _FIXTURES):
            refuse_misspelt_markers(metafunc)
        if not takes(metafunc, "engine"):
            refuse_idle_gates(metafunc)
            if marker is None or not takes(metafunc, "case"):
                return  # somebody else's fixtures of the same names
        state.parametrize(metafunc, marker)
    except EvalHarnessError as error:
        raise as_collection_error(error) from error


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the evals' tests that a resumed run does not have."""
    resumed = config.stash[STATE].resumed
    if resumed is None:
        return
    others = [item for item in items if is_eval_test(item) and not resumed.is_wanted(item.nodeid)]
    if others:
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Plan the units, and begin the run unless tests are only listed."""
    report_unloaded(session)
    state = session.config.stash[STATE]
    if runs_nothing(session.config):
        return
    try:
        state.plan_units(session.items)
        if state.is_worker:
            tell_lookalikes(session.config, state.plan.lookalikes(session.items, [spec.id for spec in state.known_engines]))
        if state.resumed is not None and state.worker == "main":
            state.resumed.check_collected(state.eval_nodeids)
        if not state.eval_nodeids:
            return
        session.config.pluginmanager.register(RunningTests(state), "evalharness-tests")
        state.opening.card_problem = card_problem(state.cards, state.worker)
        if state.worker == "main":
            state.opening.check_cache()
            _start(session.config, state)
            state.note_evals(session.items)
        elif state.is_worker:
            state.running.units_ahead = units_ahead(session, state.plan)
            stop_when_told(session)
            if _given(session.config)["heartbeat"] is not None:
                state.heartbeat = start_heartbeat(state, Path(_given(session.config)["heartbeat"]))
    except EvalHarnessError as error:
        raise pytest.UsageError(str(error)) from error
    # Tests and cases live as long as the session. Looking at all of them in every round of the garbage collector takes
    # several percent of the time of a large run with a quick engine.
    gc.freeze()


def _start(config: pytest.Config, state: EvalSession) -> None:
    from evalharness.pytest_plugin.finish import start_run

    start_run(state)
    progress = Progress(config, state)
    config.stash[REPORTING].progress = progress
    config.stash[WAITING] = progress.show


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Say what will run."""
    state = config.stash[STATE]
    return announce(state, len(state.eval_nodeids)) if state.eval_nodeids else None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close what a session that broke off has left open."""
    return_mask(config)
    state = config.stash.get(STATE, None)
    if state is not None:
        state.close()
        if state.lock is not None:
            state.lock.close()
