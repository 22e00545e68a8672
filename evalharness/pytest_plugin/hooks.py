"""Pytest's hooks, in the order in which a run meets them."""

from __future__ import annotations

import copy
import os
from collections.abc import Generator
from typing import Any

import pytest

from evalharness.config import RunConfig
from evalharness.errors import EvalHarnessError, RecordError
from evalharness.pytest_plugin.collection import as_collection_error, parametrize_eval
from evalharness.pytest_plugin.engines import EngineSpec
from evalharness.pytest_plugin.fixtures import WAITING, fill_after_setup, fill_before_setup
from evalharness.pytest_plugin.options import add_markers, asked_on_command_line, resolve_run_config
from evalharness.pytest_plugin.outcomes import Miss, is_assertion, note_report, shorten
from evalharness.pytest_plugin.progress import Progress, announce
from evalharness.pytest_plugin.session import STATE, EvalSession

_FIXTURES = ("engine", "case", "generation", "generations", "score")
_CONTROLLER_NAMES = ("main", "controller")


def pytest_configure(config: pytest.Config) -> None:
    """Resolve the options; a worker takes the controller's."""
    add_markers(config)
    given = getattr(config, "workerinput", {}).get("evalharness")
    if given is not None:
        engines = None if given["engines"] is None else [EngineSpec.from_json(values) for values in given["engines"]]
        state = EvalSession(RunConfig.from_json(given["run"]), config.rootpath, config.workerinput["workerid"], given["num_workers"], engines)  # type: ignore[attr-defined]
        _share_cores(given["num_workers"])
    else:
        num_workers = len(getattr(config.option, "tx", None) or [])
        state = EvalSession(resolve_run_config(config), config.rootpath, "controller" if num_workers else "main", num_workers)
    config.stash[STATE] = state
    config.stash[WAITING] = lambda: None
    config.stash[REPORTING] = Reporting()
    if state.worker == "controller":
        from evalharness.pytest_plugin import xdist_hooks

        config.pluginmanager.register(xdist_hooks, "evalharness-xdist")
    if given is None and asked_on_command_line(config):
        try:
            state.engines  # noqa: B018  # a wrong checkpoint or option is a usage error before anything is collected
        except EvalHarnessError as error:
            raise pytest.UsageError(str(error)) from error


def _share_cores(num_workers: int) -> None:
    # Set before torch is imported; without it every worker's torch would use all cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_workers)))


class Reporting:
    """What the reporting process collects from reports: misses, crashed tests, the live line, the finished run."""

    def __init__(self) -> None:
        self.misses: list[tuple[str, str, str]] = []
        self.crashes: dict[str, str] = {}
        self.progress: Progress | None = None
        self.run: dict[str, Any] | None = None
        self.problem: str | None = None
        self.summary = ""


REPORTING = pytest.StashKey[Reporting]()


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise tests over engines and cases; last, so that a test's own parameters stand before ours in its id."""
    if not any(name in metafunc.fixturenames for name in _FIXTURES):
        return
    state = metafunc.config.stash[STATE]
    marker = metafunc.definition.get_closest_marker("eval")
    if marker is None and "engine" not in metafunc.fixturenames:
        return  # somebody else's fixtures of the same name
    try:
        path = metafunc.definition.nodeid.partition("::")[0]
        module = state.module(marker, path) if marker is not None else None
        parametrize_eval(metafunc, [spec.id for spec in state.engines], module)
    except EvalHarnessError as error:
        raise as_collection_error(error) from error


@pytest.hookimpl(tryfirst=True)  # before pytest prints what it collected
def pytest_collection_finish(session: pytest.Session) -> None:
    """Plan the units, and begin the run unless tests are only listed."""
    state = session.config.stash[STATE]
    state.plan_units(session.items)
    if not state.eval_nodeids or session.config.option.collectonly:
        return
    try:
        if state.worker == "main":
            _start(session.config, state)
        elif session.config.getoption("dist", "no") not in ("load", "no"):
            raise pytest.UsageError("evals are handed out in work units: leave --dist at 'load', the default of -n")
        state.note_evals(session.items)
    except RecordError as error:
        raise pytest.UsageError(str(error)) from error


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
    fill_before_setup(item, record)
    yield
    fill_after_setup(item, record)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Turn a failed assertion in a gated test into a miss, before anything formats a traceback for it."""
    record = pyfuncitem.config.stash[STATE].current
    try:
        return (yield)
    except (AssertionError, pytest.fail.Exception) as error:
        if record is None or not record.gated or not is_assertion(error):
            raise
        record.miss = Miss(shorten(str(error) or type(error).__name__), _location(error, pyfuncitem))
        return True


def _location(error: BaseException, item: pytest.Function) -> str:
    line = item.function.__code__.co_firstlineno
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is item.function.__code__:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{item.nodeid.partition('::')[0]}:{line}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note each phase in the test's record; after the last one, write its row."""
    report = yield
    state = item.config.stash[STATE]
    record = state.current
    if record is None or record.nodeid != item.nodeid:
        return report
    note_report(record, report, call)
    _attach(record, report)
    if report.when == "teardown":
        try:
            state.test_ended(record, call.duration)
        except RecordError as error:
            pytest.exit(f"the run cannot go on: {error}", returncode=pytest.ExitCode.INTERNAL_ERROR)
        state.current = None
    return report


def _attach(record: Any, report: pytest.TestReport) -> None:
    """Put what the reporting process needs on the report, as plain types that xdist can carry."""
    if report.when == "teardown" or (report.when == "setup" and report.passed):
        return
    report.evalharness = {  # type: ignore[attr-defined]
        "outcome": record.outcome,
        "problem": record.problem,
        "location": record.miss.location if record.miss is not None else "",
        "num_tokens": record.num_tokens,
    }
    if record.outcome in ("miss", "invalid"):
        report.user_properties.append(("outcome", record.outcome))
        report.user_properties.append(("problem", record.problem or ""))
    if report.failed and report.longrepr is not None:
        text = str(report.longrepr)
        if any("\ud800" <= c <= "\udfff" for c in text):
            report.longrepr = shorten(text)  # xdist cannot carry lone surrogates


def pytest_report_teststatus(report: Any, config: pytest.Config) -> tuple[str, str, Any] | None:
    """Give misses and invalid samples a name and a letter of their own, and pytest's dots to the live line."""
    facts = getattr(report, "evalharness", None)
    if facts is None:
        return None
    if facts["outcome"] == "miss":
        return "miss", "m", ("MISS", {"yellow": True})
    if facts["outcome"] == "invalid":
        return "invalid", "i", ("INVALID", {"yellow": True})
    progress = config.stash[REPORTING].progress
    if facts["outcome"] == "pass" and progress is not None and progress.is_live:
        return "passed", "", "PASSED"
    return None


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Let the reporting process count; `--lf` and `--sw` treat misses and invalid samples as failures."""
    config = _reporting_config(report)
    if config is None:
        return
    reporting = config.stash[REPORTING]
    facts = getattr(report, "evalharness", None)
    if facts is None:
        if report.when == "???":  # xdist's report of a test whose worker died
            reporting.crashes[report.nodeid] = shorten(str(report.longrepr))
        return
    outcome = facts["outcome"]
    if outcome == "miss":
        reporting.misses.append((report.nodeid, facts["location"], facts["problem"]))
    if outcome in ("miss", "invalid") and not report.failed:
        failed = copy.copy(report)
        failed.outcome, failed.when = "failed", "call"
        for name in ("lfplugin", "stepwiseplugin"):
            plugin = config.pluginmanager.get_plugin(name)
            if plugin is not None and hasattr(plugin, "pytest_runtest_logreport"):
                plugin.pytest_runtest_logreport(report=failed)
    if reporting.progress is not None:
        reporting.progress.test_ended(facts["num_tokens"], outcome != "pass")


# pytest_runtest_logreport is the one hook that gets no config, so the reporting process's is kept here between
# configure and unconfigure; nested sessions (pytester in the same process) stack.
_CONFIGS: list[pytest.Config] = []


def _reporting_config(report: pytest.TestReport) -> pytest.Config | None:
    config = _CONFIGS[-1] if _CONFIGS else None
    return config if config is not None and config.stash[STATE].worker in _CONTROLLER_NAMES else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Note whose session this is."""
    _CONFIGS.append(session.config)


# The end


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write everything and judge the gates; after the fixtures are torn down."""
    config = session.config
    state = config.stash[STATE]
    state.close()
    if _CONFIGS and _CONFIGS[-1] is config:
        _CONFIGS.pop()
    if state.worker not in _CONTROLLER_NAMES or not state.started_run:
        return
    reporting = config.stash[REPORTING]
    if reporting.progress is not None:
        reporting.progress.clear()
    from evalharness.pytest_plugin.finish import finish_run

    try:
        run = finish_run(state, exit_code=int(exitstatus), interrupted=_interruption(session, exitstatus), crashes=reporting.crashes)
        reporting.summary = _write_reports(state)
    except RecordError as error:
        reporting.problem = str(error)
    except Exception as error:  # whatever breaks here, the journal holds every result and must be named
        reporting.problem = f"{type(error).__name__}: {error}; the results are safe in {state.run_dir / 'journal'}"
    if reporting.problem is not None:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        return
    reporting.run = run
    session.exitstatus = run["exit_code"]


def _write_reports(state: EvalSession) -> str:
    from evalharness.report.tables import load_tables  # pandas, only now
    from evalharness.report.writing import terminal_summary, write_reports

    tables = load_tables(state.run_dir)
    write_reports(tables)
    return terminal_summary(tables)


def _interruption(session: pytest.Session, exitstatus: int) -> str | None:
    if session.shouldfail or session.shouldstop:
        return str(session.shouldfail or session.shouldstop)
    if exitstatus == pytest.ExitCode.INTERRUPTED:
        return "interrupted by the user"
    return "internal error" if exitstatus == pytest.ExitCode.INTERNAL_ERROR else None


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the scores, the misses where `-rm` asks for them, and where the report lies."""
    reporting = config.stash[REPORTING]
    state = config.stash[STATE]
    if reporting.problem is not None:
        terminalreporter.write_sep("=", "evalharness", red=True)
        terminalreporter.write_line(f"no report: {reporting.problem}", red=True)
        return
    if reporting.run is None:
        return
    from evalharness.report.safe_text import terminal_text

    if "m" in terminalreporter.reportchars and reporting.misses:
        terminalreporter.write_sep("=", "misses")
        for nodeid, location, problem in reporting.misses:
            terminalreporter.write_line(f"MISS {nodeid} ({location})", yellow=True)
            for line in problem.splitlines():
                terminalreporter.write_line(f"E   {terminal_text(line)}")
    terminalreporter.write_sep("=", "evalharness")
    terminalreporter.write_line(reporting.summary)
    for problem in reporting.run["problems"]:
        terminalreporter.write_line(f"problem: {terminal_text(problem)}", red=True)
    terminalreporter.write_line(f"report: {state.run_dir / 'report.md'}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close what a session that broke off has left open."""
    if config in _CONFIGS:
        _CONFIGS.remove(config)
    state = config.stash.get(STATE, None)
    if state is not None:
        state.close()
