"""Pytest's hooks, in the order in which a run meets them; all of them here, over 300 lines, so that the order can be read."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.outcomes import Failed

from evalharness.config import RunConfig
from evalharness.errors import EvalHarnessError, RecordError
from evalharness.pytest_plugin.card_slots import card_problem, plan_cards, return_mask, take_cards, taken_cards
from evalharness.pytest_plugin.collection import as_collection_error, refuse_idle_gates, takes
from evalharness.pytest_plugin.engines import EngineSpec
from evalharness.pytest_plugin.fixtures import WAITING, end_without_verdict, fill_after_setup, fill_before_setup, stop_for
from evalharness.pytest_plugin.options import add_markers, asked_on_command_line, resolve_run_config, runs_nothing
from evalharness.pytest_plugin.outcomes import Miss, is_assertion, shorten
from evalharness.pytest_plugin.progress import Progress, announce
from evalharness.pytest_plugin.reporting import CONTROLLER_NAMES, REPORTING, Reporting, forget_config, reporting_config
from evalharness.pytest_plugin.resuming import Resumption, asks_to_resume, resume_run
from evalharness.pytest_plugin.rootdir import refuse_misplaced_rootdir
from evalharness.pytest_plugin.session import NEW_SESSION, STATE, EvalSession
from evalharness.pytest_plugin.unit_plan import is_eval_test
from evalharness.pytest_plugin.worker_life import start_heartbeat
from evalharness.redaction import remember_options
from evalharness.run_lock import RunLock

_FIXTURES = ("engine", "case", "generation", "generations", "steps", "score", "details")


def pytest_configure(config: pytest.Config) -> None:
    """Resolve the options; a worker takes the controller's."""
    gc.unfreeze()  # what a session before this one in the same process kept, see pytest_collection_finish
    add_markers(config)
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
    config.stash[REPORTING] = Reporting()
    if state.worker == "controller":
        from evalharness.pytest_plugin import xdist_hooks

        config.pluginmanager.register(xdist_hooks, "evalharness-xdist")
    if given is None and new_session is None and asked_on_command_line(config):
        refuse_misplaced_rootdir(config)
        try:
            state.engines  # noqa: B018  # a wrong checkpoint or option is a usage error before anything is collected
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
    state = session.config.stash[STATE]
    if runs_nothing(session.config):
        return
    try:
        state.plan_units(session.items)
        if state.resumed is not None and state.worker == "main":
            state.resumed.check_collected(state.eval_nodeids)
        if not state.eval_nodeids:
            return
        state.card_problem = card_problem(state.cards, state.worker)
        if state.worker == "main":
            _start(session.config, state)
            state.note_evals(session.items)
        elif state.is_worker and _given(session.config)["heartbeat"] is not None:
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


# One test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Open the test's record, and have its generation ready when setup ends."""
    state = item.config.stash[STATE]
    state.current = record = state.record_for(item)
    if record is None:
        return (yield)
    assert isinstance(item, pytest.Function)
    try:
        state.note_evals(item.session.items)  # a worker's first test: before, the controller may still refuse the run
    except RecordError as error:
        stop_for(item.session, error)
        raise Failed(str(error), pytrace=False) from None
    fill_before_setup(item, record)
    yield
    fill_after_setup(item, record)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Turn a failed assertion in a gated test into a miss, before anything formats a traceback for it."""
    record = pyfuncitem.config.stash[STATE].current
    try:
        result = yield
    except (AssertionError, pytest.fail.Exception) as error:
        if record is None or not record.gated or not record.can_be_judged or not is_assertion(error):
            raise
        record.miss = Miss(shorten(str(error) or type(error).__name__), _location(error, pyfuncitem))
        return True
    except pytest.skip.Exception:
        if record is not None:
            end_without_verdict(record)  # nor may one be skipped over
        raise
    if record is not None:
        end_without_verdict(record)  # a test that caught the failure of its generation must not pass for that
    return result


def _location(error: BaseException, item: pytest.Function) -> str:
    line = item.function.__code__.co_firstlineno
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is item.function.__code__:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{item.nodeid.partition('::')[0]}:{line}"


# The end


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write everything and judge the gates; after the fixtures are torn down."""
    config = session.config
    state = config.stash[STATE]
    state.close()
    if state.worker not in CONTROLLER_NAMES or not state.started_run:
        return
    reporting = config.stash[REPORTING]
    if reporting.progress is not None:
        reporting.progress.clear()
    from evalharness.pytest_plugin.ci_files import add_to_junit_file
    from evalharness.pytest_plugin.finish import finish_run

    try:
        run, rows = finish_run(
            config,
            exit_code=int(exitstatus),
            interrupted=_interruption(session, exitstatus),
            crashes={**reporting.put_back, **reporting.crashes},
        )
        reporting.summary = _write_reports(config, state, run, rows)
        add_to_junit_file(config, run)
        reporting.summary += _renewed_index(state.run_dir.parent)
    except RecordError as error:
        reporting.problem = str(error)
    except Exception as error:  # whatever breaks here, the journal holds every result and must be named
        reporting.problem = f"{type(error).__name__}: {error}; the results are safe in {state.run_dir / 'journal'}"
    if reporting.problem is not None:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        return
    reporting.run = run
    session.exitstatus = run["exit_code"]


def _write_reports(config: pytest.Config, state: EvalSession, run: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Write the reports and return the closing lines; what could not be made is noted in `run`, as in run.json."""
    from evalharness.pytest_plugin.ci_files import write_github_summary
    from evalharness.report.tables import load_tables  # pandas, only now
    from evalharness.report.writing import terminal_summary, write_reports

    tables = load_tables(state.run_dir, _drained(rows))
    write_reports(tables)
    run.update({name: tables.run[name] for name in ("problems", "exit_code")})
    write_github_summary(tables)
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    return terminal_summary(tables, None if reporter is None else reporter._tw.fullwidth)


def _renewed_index(report_dir: Path) -> str:
    """Renew the index of all runs and return "", or the line that says why it could not be: that is no problem of this run."""
    from evalharness.report.index_page import INDEX, write_index

    try:
        write_index(report_dir)
    except Exception as error:  # whatever another run's folder holds, this run has its reports
        return f"\n{INDEX} of all runs could not be renewed: {type(error).__name__}: {shorten(str(error))}"
    return ""


def _drained(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows in their order and let each go: the tables that are made of them need memory too."""
    rows.reverse()
    while rows:
        yield rows.pop()


def pytest_keyboard_interrupt(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Note why the session breaks off: Ctrl-C, `pytest.exit`, or pytest's own reason."""
    config = reporting_config()
    if config is not None:
        config.stash[REPORTING].interrupted = shorten(str(excinfo.value)) or "interrupted by the user"


def _interruption(session: pytest.Session, exitstatus: int) -> str | None:
    if session.shouldfail or session.shouldstop:
        return str(session.shouldfail or session.shouldstop)
    return session.config.stash[REPORTING].interrupted or ("internal error" if exitstatus == pytest.ExitCode.INTERNAL_ERROR else None)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the scores, the misses where `-rm` asks for them, and where the report lies."""
    reporting = config.stash[REPORTING]
    state = config.stash[STATE]
    if reporting.problem is None and reporting.run is None:
        return
    from evalharness.report.safe_text import terminal_text

    if reporting.problem is not None:
        terminalreporter.write_sep("=", "evalharness", red=True)
        terminalreporter.write_line(f"no report: {terminal_text(reporting.problem, 2000)}", red=True)
        return
    if "m" in terminalreporter.reportchars and reporting.misses:
        terminalreporter.write_sep("=", "misses")
        for nodeid, location, problem in reporting.misses:
            terminalreporter.write_line(f"MISS {nodeid} ({location})", yellow=True)
            for line in problem.splitlines():
                terminalreporter.write_line(f"E   {terminal_text(line)}")
    terminalreporter.write_sep("=", "evalharness")
    for line in reporting.summary.splitlines():  # one by one: a terminal that lacks a character gets that line escaped
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"report: {state.run_dir / 'report.md'}")
    if (page := state.run_dir / "report.html").exists():
        terminalreporter.write_line(f"page: {page}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close what a session that broke off has left open."""
    forget_config(config)
    return_mask(config)
    state = config.stash.get(STATE, None)
    if state is not None:
        state.close()
        if state.lock is not None:
            state.lock.close()
