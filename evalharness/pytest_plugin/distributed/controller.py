"""The controller's hooks when a run is spread over workers; registered only with xdist."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import EvalHarnessError, RecordError
from evalharness.api.redaction import redactor
from evalharness.hardware.devices import MASK
from evalharness.pytest_plugin.distributed._xdist_internals import kill_worker, on_events, start_again_what_dies_starting, stop_reason
from evalharness.pytest_plugin.distributed.crashes import Crashes
from evalharness.pytest_plugin.distributed.gpus import give_cards_to_workers, refuse_unplanned
from evalharness.pytest_plugin.distributed.heartbeat import Watch, WatchedWorker
from evalharness.pytest_plugin.distributed.ray_workers import RayWorkers, close_cluster
from evalharness.pytest_plugin.distributed.scheduler import DeferredScheduler, UnitScheduler
from evalharness.pytest_plugin.distributed.worker import AMBIGUOUS, LEAVE_OUT, ORDER, PROGRESS, SIGNS
from evalharness.pytest_plugin.execution.units import UnitKey, num_cases_ahead
from evalharness.pytest_plugin.execution.until_certain import Ended
from evalharness.pytest_plugin.finish import start_run
from evalharness.pytest_plugin.progress.showing import progress_of
from evalharness.pytest_plugin.reporting import REPORTING, announce, cannot_begin
from evalharness.pytest_plugin.session import STATE
from evalharness.runs.journal import parse_plain
from evalharness.runs.workers import CaseSeconds


class Controller:
    """The controller's plugin. It judges crashes where work units are handed out, and watches workers where there is a timeout."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._state = config.stash[STATE]
        self._crashes: Crashes | None = None
        self._scheduler: DeferredScheduler | None = None
        self._watch: Watch | None = None
        self._problems_at_start: list[str] = []
        """Of workers that died before there was a run."""
        self._ray: RayWorkers | None = None
        """The workers, where they are in a Ray cluster."""
        self._early: dict[str, Any] = {}
        """What workers said of their progress before the run had begun."""
        self._order: Any = None
        """What the first worker said of the order of cases, with --until-certain: all say the same."""
        self._decided: list[dict[str, str]] = []
        """Evals, each on an engine, that need no more cases."""

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: list[Any]) -> None:
        """Give each worker its GPUs, and replace those that die before they have begun."""
        self._config.stash[REPORTING].signals.take()  # or a signal while workers start would leave them, or a cluster, behind
        if self._state.context.run.executor == "ray":
            self._ray = RayWorkers(config, self._died_starting)
            self._ray.begin(specs)
            return
        give_cards_to_workers(config, specs)
        start_again_what_dies_starting(config, self._died_starting)

    def _died_starting(self, problem: str) -> None:
        self._problems_at_start.append(problem)
        if self._state.has_started_run:
            self._note_problems_at_start()

    def _note_problems_at_start(self) -> None:
        for problem in self._problems_at_start:
            self._state.context.journal.write("problem", {"problem": problem})
        self._problems_at_start.clear()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give each worker the resolved options and the engines, so that all workers run the same."""
        context, name = self._state.context, node.gateway.id
        take_ambiguous = lambda values: self._state.registry.ambiguous_node_ids.update(values["nodeids"])  # noqa: E731
        elsewhere: dict[str, Any] = {} if self._ray is None else self._ray.configure(node)
        on_events(
            node,
            {
                AMBIGUOUS: take_ambiguous,
                ORDER: lambda values: self._take_order(values["evals"]),
                PROGRESS: lambda values: self._take(name, values),
                SIGNS: lambda values: None if self._watch is None else self._watch.note(name, **values),
            },
        )
        try:
            engines = [spec.to_json() for spec in self._state.registry.engines]
        except EvalHarnessError:
            engines = None  # perhaps no evals are run at all; a worker that collects one reports the error
        certain = self._state.registry.certain
        if certain.is_on and engines is not None:
            certain.know_engines(self._state.registry.engine_ids)
        mask = node.gateway.spec.env.get(MASK)
        node.workerinput["evalharness"] = {
            "run": context.run.to_json(),
            "engines": engines,
            "num_workers": context.num_workers,
            "session": context.session_number,
            "edges": dict(certain.edges) if certain.is_on and engines is not None else None,
            "cards": None if mask is None else [name for name in mask.split(",") if name],
            **elsewhere,
            "has_heartbeat": bool(node.gateway.spec.popen and context.run.hang_timeout),
        }

    def _take_order(self, evals: Any) -> None:
        if self._order is None:
            self._order = evals

    def _take(self, name: str, values: Any) -> None:
        progress = self._config.stash[REPORTING].progress
        if progress is not None:
            progress.gathering.take(name, values)
        else:
            self._early[name] = {**values, "asked": values["asked"] or self._early.get(name, values)["asked"]}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> DeferredScheduler | None:
        """Distribute work units if evals are collected; other ways of distribution stay as they are."""
        if config.getoption("dist") != "load":
            return None
        context, registry = self._state.context, self._state.registry
        known = functools.cache(lambda: CaseSeconds(Path(context.run.report_dir)))  # only where there are evals

        def estimate(unit: UnitKey, nodeids: Sequence[str]) -> float:
            cases = {registry.eval_node(nodeid).case_id for nodeid in nodeids}
            return len(cases) * known().expected(unit.engine, Path(unit.path).stem.removeprefix("test_"))

        self._crashes = Crashes(config)
        schedule = functools.partial(UnitScheduler, assign=registry.assign_units, estimate=estimate, judge=self._crashes)
        if registry.certain.is_on:  # what a worker has far ahead of the others counts only once they have caught up
            schedule = functools.partial(schedule, num_ahead=lambda engine: num_cases_ahead(engine) // 4, in_turns=True)
        units = functools.partial(schedule, context.num_workers)
        if (ray := self._ray) is not None:  # the first worker begins
            units = functools.partial(schedule, 1, num_expected=lambda: ray.num_expected, hand_over=ray.hand_over)
        self._scheduler = DeferredScheduler(config, log, registry.assign_units, units)
        if context.run.hang_timeout:
            self._watch = Watch(context.run.hang_timeout, self._crashes.killed.__setitem__)
        return self._scheduler

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: Any) -> None:
        """Watch a worker; replacements are watched too."""
        scheduler = self._scheduler
        if self._watch is not None and scheduler is not None and node.gateway.spec.popen:
            worker = WatchedWorker(
                kill=lambda: kill_worker(node),
                is_busy=lambda: scheduler.has_work(node) or node.shutting_down or not scheduler.has_collected(node),
                is_ready=lambda: scheduler.has_collected(node),
            )
            self._watch.add(node.gateway.id, worker)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Note that a worker ended; a death after its work was done is still a problem of the run."""
        self.pytest_runtest_logfinish()
        died = error is not None and not hasattr(node, "workeroutput")
        if (progress := self._config.stash[REPORTING].progress) is not None:
            progress.gathering.ended(node.gateway.id, died=died)
        if self._watch is not None:
            self._watch.remove(node.gateway.id)
        if self._ray is not None:
            self._ray.ended(node)
        if not died or self._crashes is None:
            return
        if self._ray is not None:
            how, is_lost = self._ray.how_it_ended(node)
            self._crashes.note_end(node.gateway.id, how, is_lost)
            if not self._state.has_started_run:
                self._ray.say(f"evalharness: worker {node.gateway.id} {how}")  # what it printed is in Ray's logs alone
        assert self._scheduler is not None
        if not self._state.has_started_run:
            self._problems_at_start.append(f"worker {node.gateway.id} died before any had collected its tests; another one takes its place")
        elif not self._scheduler.has_work(node):
            self._crashes.died_without_work(node.gateway.id)

    def pytest_unconfigure(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.stop()
        if self._ray is not None:
            self._ray.close()
        close_cluster(self._config)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a worker begins a test."""
        if self._crashes is not None:
            self._crashes.test_begins(nodeid)

    def pytest_runtest_logfinish(self) -> None:
        """End all workers if -x, --maxfail, Ctrl-C or `pytest.exit` in one of them ends the run; xdist has no hook for that."""
        reason = stop_reason(self._config)
        if reason is not None and self._scheduler is not None:
            self._scheduler.stop(reason)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note which test a worker runs: if the worker dies, this decides what is suspected."""
        if report.when == "setup" and report.passed and self._crashes is not None:
            self._crashes.test_runs(report.node.gateway.id, report.nodeid)
        if (ended := getattr(report, "evalharness_ended", None)) is not None:
            self._note_ended(Ended(*ended))
        elif report.when == "???" and self._state.registry.certain.is_on and (unit := self._state.execution.plan.units.get(report.nodeid)):
            node = self._state.registry.eval_node(report.nodeid)
            self._note_ended(Ended(unit.engine, unit.path, node.test, node.case_id, None))
        if getattr(report, "evalharness_row", False) and not self._state.has_started_run:
            self._start(is_late=True)  # no id told that a test would ask for an engine

    def _note_ended(self, ended: Ended) -> None:
        """Note for --until-certain how a test ended, and tell all workers if its eval is now decided."""
        if self._state.registry.certain.note(ended):
            self._decided.append({"engine": ended.engine, "path": ended.path})
            assert self._scheduler is not None
            self._scheduler.tell(LEAVE_OUT, **self._decided[-1])

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """Add to the report how the worker died and how often the test was tried."""
        if self._crashes is not None:
            self._crashes.explain(crashitem, report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Begin the run when the first worker has collected."""
        config, state = self._config, self._state
        with suppress(OSError):  # it has just died
            for decided in self._decided:  # a replacement has not heard of it
                node.sendcommand(LEAVE_OUT, **decided)
        plan = state.execution.plan
        plan.units = state.registry.assign_units(ids)
        if state.context.resumed is not None:
            try:
                state.context.resumed.check_collected(ids)
            except EvalHarnessError as error:
                raise pytest.UsageError(redactor().text(str(error))) from error
        plan.plain = [nodeid for nodeid in ids if nodeid not in plan.units and parse_plain(nodeid, state.registry.engine_ids) is not None]
        if state.has_started_run:
            return
        if not plan.units:
            if plan.plain:
                self._start()
            else:  # a session without evals ends as it would without evalharness
                config.stash[REPORTING].signals.give_back()
            return
        if config.getoption("dist") != "load":
            raise pytest.UsageError(
                f"--dist {config.getoption('dist')} cannot run evals: they are handed out in work units; leave --dist out, -n alone does it"
            )
        refuse_unplanned(config, state.context.run, state.context.num_workers)
        if self._order:
            try:
                state.registry.certain.expect(self._order, plan.units)
            except EvalHarnessError as error:
                raise pytest.UsageError(redactor().text(str(error))) from error
            self._order = ()
        self._start()
        if self._watch is not None:
            self._watch.start()
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            if reporter.isatty:
                reporter.rewrite("", erase=True)  # what xdist's status line left
                reporter.rewrite("")
            reporter.ensure_newline()
            reporter.write_line(announce(state))
        config.stash[REPORTING].progress = progress = progress_of(config, state)
        for name, taken in list(self._early.items()):
            progress.gathering.take(name, taken)
        progress.start()

    def _start(self, *, is_late: bool = False) -> None:
        self._config.stash[REPORTING].signals.take()
        try:
            start_run(self._state, is_late=is_late)
            self._note_problems_at_start()
        except RecordError as error:
            raise pytest.UsageError(redactor().text(str(error))) from error
        except OSError as error:
            raise cannot_begin(error) from error
