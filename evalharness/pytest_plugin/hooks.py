"""Pytest's hooks, in the order in which pytest calls them."""

from __future__ import annotations

import atexit
import gc
import sys
import traceback
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.judge import check_baseline, find_baseline
from evalharness.analysis.reasons import normalised
from evalharness.api.checks import any_text
from evalharness.api.errors import EvalHarnessError, RecordError
from evalharness.api.garbage import collector
from evalharness.api.options import GenerationOptions
from evalharness.api.redaction import redactor, remember_options, remember_values
from evalharness.api.requests import Outcome
from evalharness.checkpoints.file_hashes import told_of_reading
from evalharness.config import RunConfig
from evalharness.pytest_plugin._pytest_internals import change_crash_message, check_expressions
from evalharness.pytest_plugin.distributed._xdist_internals import num_workers_of, on_command, send_event
from evalharness.pytest_plugin.distributed.gpus import card_problem, plan_cards, return_mask, take_cards, will_collect_evals
from evalharness.pytest_plugin.distributed.home import TAKE, Home
from evalharness.pytest_plugin.distributed.worker import (
    LEAVE_OUT,
    ORDER,
    install_stop_command,
    report_ambiguous_node_ids,
    start_heartbeat,
    start_sending,
    units_ahead,
)
from evalharness.pytest_plugin.eval_module import as_collection_error, refuse_idle_gates, refuse_misspelt_markers, report_unloaded, takes
from evalharness.pytest_plugin.execution.drafts import resolve_drafts
from evalharness.pytest_plugin.execution.early_end import EarlyEnds
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec
from evalharness.pytest_plugin.execution.execution import Execution
from evalharness.pytest_plugin.execution.repeats import put_repeats_last, repeat_tests
from evalharness.pytest_plugin.execution.units import is_eval_test
from evalharness.pytest_plugin.execution.until_certain import DECIDED, Ended, UntilCertain, shown_evals
from evalharness.pytest_plugin.failures import hide_own_frames, message_of, shorten
from evalharness.pytest_plugin.fixtures import FixturePrefill, end_without_verdict, results_of, stop_for
from evalharness.pytest_plugin.gate_names import FirstScores, any_comparing_gate
from evalharness.pytest_plugin.options import add_markers, asked_on_command_line, refuse_misplaced_rootdir, resolve_run_config, runs_nothing
from evalharness.pytest_plugin.outcomes import ItemRecord, Miss, is_assertion, note_report
from evalharness.pytest_plugin.plain_tests import PlainTest, asks_outside_of_units, takes_engine
from evalharness.pytest_plugin.progress.showing import progress_of
from evalharness.pytest_plugin.registry import EvalRegistry
from evalharness.pytest_plugin.replay.resume import Resumption, asks_to_resume, resume_run
from evalharness.pytest_plugin.reporting import CONTROLLER_NAMES, REPORTING, Reporting, announce, cannot_begin, make_safe
from evalharness.pytest_plugin.run_context import RunContext
from evalharness.pytest_plugin.session import NEW_SESSION, STATE, EvalSession
from evalharness.runs.files import RunLock
from evalharness.runs.journal import readable
from evalharness.runs.measured import DraftFacts
from evalharness.runs.run_file import is_latest


class RunningTests:
    """The hooks around each test: they fill the record of one that an engine answers, which becomes its row."""

    def __init__(self, session: pytest.Session, state: EvalSession) -> None:
        self._session = session
        self._state = state
        self._prefill = FixturePrefill()
        self._first_scores = FirstScores()
        # Recorded answers cost nothing.
        self._early_ends = EarlyEnds(is_on=not state.context.run.keep_going and NEW_SESSION not in session.config.stash)
        session.config.pluginmanager.register(self._early_ends, "evalharness-early-ends")
        state.execution.engines.on_outcome = self._take
        if state.registry.certain.is_on and state.context.is_worker:
            on_command(session.config, LEAVE_OUT, lambda values: self._early_ends.end(values["engine"], values["path"], DECIDED))

    def _take(self, spec: EngineSpec, options: GenerationOptions, outcome: Outcome, seconds: float) -> None:
        """Record what a test without a case asked for; it fails if that is impossible."""
        plain, execution = self._state.plain, self._state.execution
        if plain is not None and asks_outside_of_units():
            try:
                plain.take(spec, options, outcome, seconds, self._state.context.journal, execution.progress)
            except RecordError as error:
                raise stop_for(self._session, error) from None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Open the test's record, and wait for its generations at the end of setup."""
        state, execution = self._state, self._state.execution
        unit = execution.plan.units.get(item.nodeid)
        state.current = record = None if unit is None else state.registry.record_for(item, unit)
        if record is None:
            # A test of recorded answers has no engine to ask.
            state.plain = PlainTest.of(item, state.registry) if item.config.stash.get(NEW_SESSION, None) is None else None
            return (yield)
        assert isinstance(item, pytest.Function)
        if self._early_ends.leaves_out(record):
            if self._state.registry.certain.is_on and unit is not None:
                execution.units.leave(unit.engine, unit.path)
            return (yield)
        try:
            execution.note_evals(item.session.items)  # a worker's first test: before, the controller may still refuse the run
        except RecordError as error:
            raise stop_for(item.session, error) from None
        self._prefill.prefill(item, record)
        yield
        if self._prefill.awaited(item):
            engine: Any = item.funcargs["engine"]
            try:
                outcomes = execution.wait_for_outcomes(record, engine)
            except RecordError as error:
                raise stop_for(item.session, error) from None
            self._prefill.fill_generations(item, results_of(record, outcomes), lambda: execution.steps(record, engine))

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """Turn a failed assertion in a gated test into a miss, before anything formats a traceback for it."""
        record = self._state.current
        try:
            result = yield
        except (AssertionError, pytest.fail.Exception) as error:
            if record is None or not record.gated or not record.can_be_judged or not is_assertion(error):
                raise
            if isinstance(error, pytest.xfail.Exception) or pyfuncitem.get_closest_marker("xfail") is not None:
                raise  # pytest decides whether this was expected
            record.miss = Miss(message_of(error), _location(error, pyfuncitem))
            return True
        except pytest.skip.Exception:
            if record is not None:
                end_without_verdict(record)  # a failed generation may not be hidden by a skip
            raise
        if record is not None:
            end_without_verdict(record)  # a test that caught the failure of its generation must not pass
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        """Note that the test's own report is next: those made until then are of its subtests."""
        try:
            return (yield)
        finally:
            if self._state.current is not None:
                self._state.current.has_returned = True
            if self._state.plain is not None:
                self._state.plain.record.has_returned = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Make safe what pytest adds to a subtest's report: what it printed, and its description."""
        if self._state.current is not None and hasattr(report, "context"):
            make_safe(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note each phase, and each subtest, in the test's record; after the last one, write its row."""
        state = self._state
        raised = call.excinfo.value if call.excinfo is not None else None
        if call.excinfo is not None and state.current is not None and not item.config.getoption("fulltrace"):
            hide_own_frames(call.excinfo)
        report = yield
        state.execution.progress.num_signs += 1
        if state.plain is not None and state.plain.record.nodeid == item.nodeid:
            self._note_plain(state.plain, report, call, raised)
            return report
        record = state.current
        if record is None or record.nodeid != item.nodeid:
            return report
        is_subtest = report.when == "call" and not record.has_returned
        if note_report(record, report, call, raised) == "miss" and report.failed:
            _let_pass(item, record, report, call)
        if record.original is not None:
            self._end_of_repeat(item, record, report, call)
            return report
        if report.failed and raised is not None:
            _note_reason(report, raised, record.case.id, record.case.group)
        make_safe(report)
        if is_subtest:
            return report
        if report.when == "teardown":
            try:
                state.execution.test_ended(record, call.duration)
                self._early_ends.note(record)
                if self._state.registry.certain.is_on:
                    self._note_ended(record, report)
            except RecordError as error:
                stop_for(item.session, error)
            state.current = None
        elif report.when == "call" or not report.passed:
            _attach(item, record, report, self._first_scores.notice(item, record, state.registry.marker_of(item)))
        return report

    def _note_ended(self, record: ItemRecord, report: Any) -> None:
        """Note for --until-certain how a test ended, here or in the worker's controller."""
        if record.started_at is None:
            return  # left out
        ended = Ended.of(record, record.nodeid.partition("::")[0])
        if self._state.context.is_worker:
            report.evalharness_ended = list(ended)
        elif self._state.registry.certain.note(ended):
            self._early_ends.end(ended.engine, ended.path, DECIDED)

    def _end_of_repeat(self, item: pytest.Item, record: ItemRecord, report: pytest.TestReport, call: pytest.CallInfo[Any]) -> None:
        """Let a repeat (--noise) pass whatever came of it: its row tells, and it decides nothing by itself."""
        if report.when == "setup" and not report.passed:  # the test itself must not run then
            report.outcome, report.longrepr = "skipped", (item.nodeid.partition("::")[0], 0, "a repeat without an answer")
        else:
            report.outcome, report.longrepr = "passed", None
        report.evalharness_repeat = True  # type: ignore[attr-defined]
        make_safe(report)
        if report.when == "teardown":
            try:
                self._state.execution.test_ended(record, call.duration)
            except RecordError as error:
                stop_for(item.session, error)
            self._state.current = None

    def _note_plain(self, plain: PlainTest, report: pytest.TestReport, call: pytest.CallInfo[Any], raised: BaseException | None) -> None:
        note_report(plain.record, report, call, raised)
        if report.failed and raised is not None and plain.asks:
            _note_reason(report, raised)
        if report.when != "teardown":
            return
        self._state.plain = None
        if plain.asks:
            report.evalharness_row = True  # type: ignore[attr-defined]
            try:
                self._state.start()
                plain.write(self._state.context, call.duration, is_alone=not self._state.execution.plan.units)
            except RecordError as error:
                stop_for(self._session, error)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Spare pytest's second look for garbage the reports of all tests: its first one has just been."""
        gc.freeze()
        if "torch" in sys.modules:  # libraries that it loads take what is frozen at exit for leaks, and print thirty lines
            atexit.register(gc.unfreeze)


def _note_reason(report: Any, raised: BaseException, *own: object) -> None:
    """Note the reason of a failure, and the case's ids in it, as plain types that xdist can carry."""
    message = message_of(raised)
    change_crash_message(report.longrepr, message)
    report.evalharness_reason = [message, *(shorten(any_text(name)) for name in own if name)]


def _let_pass(item: pytest.Item, record: ItemRecord, report: pytest.TestReport, call: pytest.CallInfo[Any]) -> None:
    """Change the report of a failed assertion that no test function let through: a subtest's, or one that a plugin collected."""
    report.outcome, report.longrepr = "passed", None
    assert call.excinfo is not None
    assert isinstance(item, pytest.Function)
    record.miss = record.miss or Miss(record.problem or "", _location(call.excinfo.value, item))


def _attach(item: pytest.Item, record: ItemRecord, report: pytest.TestReport, notice: str) -> None:
    """Attach what the reporting process needs to the report, as plain types that xdist can carry."""
    report.evalharness = {  # type: ignore[attr-defined]
        "outcome": record.outcome,
        "problem": record.problem,
        "location": record.miss.location if record.miss is not None else "",
        "notice": notice,
    }
    if record.outcome not in ("pass", "skip"):
        # Of the item, not of this report: the JUnit file takes those of the teardown.
        item.user_properties += [("outcome", record.outcome), ("problem", record.problem or "")]
        if item.config.getoption("xmlpath", None):
            problem = redactor().text(record.problem or "")  # before digits are taken out of a secret in it
            item.user_properties.append(("reason", normalised(problem, (record.case.id, record.case.group))))


def _location(error: BaseException, item: pytest.Function) -> str:
    code = item.function.__code__
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code is code]
    return f"{item.nodeid.partition('::')[0]}:{[code.co_firstlineno, *lines][-1]}"


_FIXTURES = ("engine", "case", "generation", "generations", "steps", "score", "details")


def pytest_configure(config: pytest.Config) -> None:
    """Resolve the options; a worker takes its controller's."""
    gc.unfreeze()  # what a session before this one in the same process kept, see pytest_collection_finish
    add_markers(config)
    if config.getoption("help", False):
        return  # --help must work beside a wrong option
    given = _given(config)
    remember_options([*config.invocation_params.args, *(getattr(config, "workerinput", {}).get("mainargv", ())), *config.getini("addopts")])
    new_session = config.stash.get(NEW_SESSION, None)
    if new_session is not None:
        state = new_session(config.rootpath)
    elif given is not None:
        engines = None if given["engines"] is None else [EngineSpec.from_json(values) for values in given["engines"]]
        worker: str = config.workerinput["workerid"]  # type: ignore[attr-defined]
        run = RunConfig.from_json(given["run"])
        run_dir = Path(run.report_dir) / run.run_id
        home = Home(config, run_dir, given["recorded"]) if "recorded" in given else None
        recorded_in = run_dir if home is None else home.recorded_in
        resumed = Resumption.read(recorded_in, given["session"]) if given["session"] else None
        cards = None if given["cards"] is None else tuple(given["cards"])
        context = RunContext(run, config.rootpath, worker, given["num_workers"], resumed, cards, home)
        state = _session(context, engines, given["edges"])
    else:
        in_workers = config.getoption("dist", "no") != "no" and not runs_nothing(config)
        num_workers = num_workers_of(config) if in_workers else 0
        if num_workers:
            check_expressions(config)
        run, resumed, lock = _options(config)
        run, drafts = _drafts(config, run, is_resumed=resumed is not None)
        plan_cards(config, run, num_workers)
        worker, cards = ("controller", None) if num_workers else ("main", take_cards(config))
        state = _session(RunContext(run, config.rootpath, worker, num_workers, resumed, cards))
        state.lock = lock
        state.drafts = drafts
    remember_values(state.context.run.engine_option)
    config.stash[STATE] = state
    config.stash[REPORTING] = reporting = Reporting(config, state)
    if state.context.worker in CONTROLLER_NAMES:
        config.pluginmanager.register(reporting, "evalharness-reporting")
        config.pluginmanager.register(reporting.equal, "evalharness-equal-failures")
        config.pluginmanager.register(reporting.signals, "evalharness-end-signals")
    if state.context.worker == "controller":
        from evalharness.pytest_plugin.distributed.controller import Controller  # xdist is imported with it

        config.pluginmanager.register(Controller(config), "evalharness-xdist")
    if given is None and new_session is None and asked_on_command_line(config):
        refuse_misplaced_rootdir(config)
        listening = told_of_reading.set(lambda text: print(f"evalharness: {text}", file=sys.stderr, flush=True))
        try:
            state.registry.engines  # noqa: B018  # a wrong checkpoint or option is a usage error before anything is collected
            if not runs_nothing(config):
                state.execution.engines.check_cache()
                _check_baseline(state.context)
                if state.registry.certain.is_on:
                    state.registry.certain.check_baseline()
        except EvalHarnessError as error:
            raise pytest.UsageError(redactor().text(str(error))) from error
        except OSError as error:
            raise cannot_begin(error) from error
        finally:
            told_of_reading.reset(listening)


def _check_baseline(context: RunContext) -> None:
    """Raise for a baseline of the command line that does not exist; `latest` may, and gates on it fail then, as in a first night."""
    run = context.run
    if run.baseline is not None and run.origin("baseline") == "command line" and not is_latest(run.baseline) and context.resumed is None:
        check_baseline(find_baseline(run.baseline, root=context.root, base=Path.cwd(), report_dir=Path(run.report_dir)))


def _session(
    context: RunContext, engines: Sequence[EngineSpec] | None = None, edges: Mapping[str, Sequence[str]] | None = None
) -> EvalSession:
    registry = EvalRegistry(context, engines, UntilCertain(context, edges))
    return EvalSession(context, registry, Execution(context, registry))


def _options(config: pytest.Config) -> tuple[RunConfig, Resumption | None, RunLock | None]:
    """Return the options of the run and, if it is resumed, its recorded state and its lock."""
    run = resolve_run_config(config)
    try:
        return resume_run(run, config.rootpath, only_look=runs_nothing(config)) if asks_to_resume(run) else (run, None, None)
    except EvalHarnessError as error:
        raise pytest.UsageError(redactor().text(str(error))) from error


def _drafts(config: pytest.Config, run: RunConfig, *, is_resumed: bool) -> tuple[RunConfig, DraftFacts | None]:
    """Return the run with where its drafts come from, the same for all workers, and what run.json says of it."""
    try:
        return (run, None) if runs_nothing(config) else resolve_drafts(run, is_resumed=is_resumed)
    except EvalHarnessError as error:
        raise pytest.UsageError(redactor().text(str(error))) from error


def _given(config: pytest.Config) -> Any:
    """Return the controller's settings for this worker, None in other processes."""
    return getattr(config, "workerinput", {}).get("evalharness")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Take all of a Ray cluster where -n does not say how much of it; before xdist reads -n."""
    says_nothing = getattr(config.option, "numprocesses", 0) is None and not (config.option.help or runs_nothing(config))
    is_worker = hasattr(config, "workerinput")
    if says_nothing and not is_worker and resolve_run_config(config).executor == "ray" and will_collect_evals(config):
        config.option.numprocesses = "auto"
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """Make tests without rounds of the garbage collector: each would look at all tests and cases so far, which stay."""
    with collector(on=False):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, None, None]:
    """Parametrise tests over engines and cases; after all others, so that a test's own parameters stand before ours in its id."""
    yield
    if not any(name in metafunc.fixturenames for name in _FIXTURES) and not metafunc.definition.own_markers:
        return
    state = metafunc.config.stash[STATE]
    marker = metafunc.definition.get_closest_marker("eval")
    try:
        if any(takes(metafunc, name) for name in _FIXTURES):
            refuse_misspelt_markers(metafunc)
        if not (takes(metafunc, "engine") and takes(metafunc, "case")):
            refuse_idle_gates(metafunc)
        if not takes(metafunc, "engine") and (marker is None or not takes(metafunc, "case")):
            return  # another plugin's fixtures of the same names
        state.registry.parametrize(metafunc, marker)
    except EvalHarnessError as error:
        raise as_collection_error(error) from error


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Leave out the tests of evals that a resumed or recorded run does not have, and repeat a sample of the others (--noise)."""
    if config.stash[STATE].registry.modules:
        gc.freeze()  # see pytest_collection_finish; sessions without evals are left as they are
        for item in items:
            if "\\" in item.name:
                item.extra_keyword_matches.add(readable(item.name))  # -k takes letters as well as pytest's escapes of them
    yield  # raises for an expression of -k or -m that pytest refuses, after which it still ends the collection
    registry = config.stash[STATE].registry
    config.stash[STATE].is_collected = True
    wanted = [item for item in items if registry.is_wanted(item)]
    if len(wanted) < len(items):
        kept = set(wanted)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = wanted
    if config.stash[STATE].context.run.noise:
        repeats = [item for item in repeat_tests(items, registry.draw_repeats, registry.engine_ids) if registry.is_wanted(item)]
        for item in repeats:
            item.ihook.pytest_itemcollected(item=item)
        config.hook.pytest_collectreport(report=pytest.CollectReport("", "passed", None, [*repeats]))  # pytest counts what is collected
        items += repeats
        put_repeats_last(items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Plan the units, and begin the run unless tests are only listed."""
    config, state = session.config, session.config.stash[STATE]
    report_unloaded(session, state.registry.engine_ids)
    if runs_nothing(config) or not (state.is_collected or not session.items):
        return
    context, registry, execution = state.context, state.registry, state.execution
    plan = execution.plan
    registry.certain.put_in_order(session.items, registry.modules)  # last: --ff puts what failed first after all others
    try:
        plan.add_items(session.items, registry.assign_units(item.nodeid for item in session.items if is_eval_test(item)))
        if context.is_worker:
            report_ambiguous_node_ids(config, plan.ambiguous_node_ids(session.items, registry.engine_ids))
        if context.resumed is not None and context.worker == "main":
            context.resumed.check_collected(plan.units)
        if context.worker != "controller":
            config.pluginmanager.register(RunningTests(session, state), "evalharness-tests")
        execution.engines.card_problem = card_problem(context.cards, context.worker)
        if context.worker == "main":
            state.start = partial(_start, config, state)
        plan.plain = [item.nodeid for item in session.items if takes_engine(item) and item.nodeid not in plan.units]
        if not plan.units and not plan.plain:
            return
        if registry.certain.is_on and plan.units:
            evals = shown_evals(registry.eval_lines(session.items, plan.units), registry.modules)
            if context.is_worker:
                send_event(config, ORDER, {"evals": evals})
            elif context.worker == "main":
                registry.certain.expect(evals, plan.units, refuses=NEW_SESSION not in config.stash)
        if context.worker == "main":
            execution.engines.check_cache()
            state.has_idle_baseline = context.run.baseline is not None and not any_comparing_gate(session.items)
            state.start()
            execution.note_evals(session.items)
        elif context.is_worker:
            execution.units.units_ahead = units_ahead(session, plan)
            install_stop_command(session)
            if context.home is not None:
                home = context.home
                on_command(config, TAKE, lambda arguments: home.put(arguments["files"]))
            if _given(config)["has_heartbeat"]:
                state.heartbeat = start_heartbeat(config, execution)
            state.sender = start_sending(config, execution)
    except EvalHarnessError as error:
        raise pytest.UsageError(redactor().text(str(error))) from error
    except OSError as error:
        raise cannot_begin(error) from error
    # Tests and cases live as long as the session. Looking at all of them in every round of the garbage collector takes
    # several percent of the time of a large run with a quick engine.
    gc.freeze()


def _start(config: pytest.Config, state: EvalSession) -> None:
    """Begin the run; does nothing if it has begun."""
    if state.has_started_run:
        return
    from evalharness.pytest_plugin.finish import start_run

    config.stash[REPORTING].signals.take()
    start_run(state)
    config.stash[REPORTING].progress = progress = progress_of(config, state)
    progress.start()


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Say what will run."""
    state = config.stash[STATE]
    return announce(state) if state.execution.plan.units else None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close everything that an aborted session has left open."""
    return_mask(config)
    if (reporting := config.stash.get(REPORTING, None)) is not None:
        reporting.signals.give_back()
        reporting.end_progress()
    state = config.stash.get(STATE, None)
    if state is not None:
        state.close()
        if state.lock is not None:
            state.lock.close()
    # Python ends by SIGINT, not with pytest's exit code, where KeyboardInterrupt left a text that was executed (a dataclass being made),
    # even if it was caught then; the next text makes it forget that.
    exec("")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write all results and judge the gates, after the fixtures are torn down."""
    state, reporting = session.config.stash[STATE], session.config.stash[REPORTING]
    try:
        state.close()
    except KeyboardInterrupt:
        session.exitstatus = pytest.ExitCode.INTERRUPTED
        if not state.context.is_worker:
            raise
    if state.context.worker in CONTROLLER_NAMES and state.has_started_run:
        reporting.finish(session, exitstatus)
