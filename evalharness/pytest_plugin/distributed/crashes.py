"""Decides what happens to the work of a dead worker: another worker continues its unit, and its current test runs once more.

    died while                           then
    a test ran and nothing generated     the test runs again; after its second death it is an error
    one case was generated               it is generated again, alone; after its second death it is an error
    up to 16 cases were generated        each of them is generated alone
    more cases were generated            they run in groups, as many groups as cases in each; the cases of a group that dies, alone
    a test ran while cases generated     both: the test runs again first, before anything is generated
    an engine was opened                 another worker tries; after the second death its tests are errors, unless it runs elsewhere
    its host was lost (--executor ray)   its units go on elsewhere, nothing is suspected; from a unit's third loss on, as above

A dead worker may have begun units after the one whose test it ran: their cases in flight are suspects too. A unit that is taken over runs
alone: no unit after it begins before its last test.

So a test that kills is an error after two deaths, and so is a request if the engine has at most 16 in flight; with more it takes three.
(Halving would take logarithmically many deaths, and each costs the start of an engine.) Nothing is confirmed at the first death, or while
anything else was at work. `takeover.InFlight` knows the cases in flight.

Every death is a problem of the run, so the run's exit code is not 0. Only the controller uses this module.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from evalharness.api.errors import RecordError
from evalharness.pytest_plugin.execution.takeover import CrashIsolation, note_crash, take_in_flight
from evalharness.pytest_plugin.execution.units import UnitKey
from evalharness.pytest_plugin.failures import shorten
from evalharness.pytest_plugin.outcomes import CANNOT_GO_ON
from evalharness.pytest_plugin.reporting import REPORTING
from evalharness.pytest_plugin.session import STATE
from evalharness.runs.schema import CrashLine

_MAX_DEATHS = 2
_MAX_LOSSES = 2
"""So often a unit's workers may be lost with their hosts before its cases are suspected."""


class LastSigns(NamedTuple):
    """The last state of a dead worker, read from its files."""

    opening: str | None
    """The engine that it was opening."""
    exit_reason: str | None
    """Why it ended itself."""
    in_flight: Mapping[UnitKey, tuple[str, ...]] = MappingProxyType({})
    """The cases that were being generated, by unit."""


def last_signs(journal: Path) -> LastSigns:
    """Return the last state of a worker from its journal, if it has one, and the files beside it."""
    opening = exit_reason = None
    try:
        with journal.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                if line.startswith(b'{"kind":"engine_start"'):
                    opening = json.loads(line)["id"]
                elif line.startswith(b'{"kind":"engine"'):
                    opening = None
                elif line.startswith((b'{"kind":"worker_exit"', b'{"kind":"last_words"')):  # the latter in older journals
                    exit_reason = json.loads(line)["problem"]
    except FileNotFoundError:
        pass  # it died before its first test
    return LastSigns(opening, exit_reason, take_in_flight(journal))


@contextlib.contextmanager
def _ending_the_run() -> Iterator[None]:
    """End the session where the notes of a death can be neither read nor written: the run would go on without them."""
    try:
        yield
    except (RecordError, OSError) as error:
        raise pytest.Session.Interrupted(f"{CANNOT_GO_ON}: {error}") from error


class Crashes:
    """Judges the deaths of one run; see `scheduler.CrashJudge`."""

    def __init__(self, config: pytest.Config) -> None:
        state = config.stash[STATE]
        self._context, self._registry = state.context, state.registry
        self._put_back = config.stash[REPORTING].put_back
        self._report: Callable[..., Any] = config.hook.pytest_runtest_logreport
        self._begun: set[str] = set()
        self._running: dict[str, str] = {}
        self._test_deaths: Counter[str] = Counter()
        self._isolations: dict[UnitKey, CrashIsolation] = {}
        self._opening_deaths: Counter[str] = Counter()
        self._how: dict[str, str] = {}
        self.killed: dict[str, str] = {}
        """By worker: why this process killed it."""
        self._ended: dict[str, str] = {}
        self._lost: set[str] = set()
        self._losses: Counter[UnitKey] = Counter()

    def note_end(self, worker: str, how: str, is_lost: bool) -> None:
        """Note how a worker on another host ended, and whether it was lost with it."""
        self._ended[worker] = how
        if is_lost:
            self._lost.add(worker)

    def test_begins(self, nodeid: str) -> None:
        """Note that a worker begins a test."""
        self._begun.add(nodeid)

    def test_runs(self, worker: str, nodeid: str) -> None:
        """Note that a worker has set a test up: its generations are there."""
        self._running[worker] = nodeid

    @_ending_the_run()
    def is_retried(self, worker: str, nodeid: str, unit: UnitKey, left: Mapping[UnitKey, Sequence[str]]) -> bool:
        """Return whether the test runs once more; write a note for each unit that the worker did not finish."""
        signs = self._last_signs(worker)
        if self._is_only_lost(worker, left):
            signs = LastSigns(None, None)
            self._begun.discard(nodeid)
        how = self._how_it_died(worker, signs)
        ran = self._running.get(worker) == nodeid
        retried, is_over = True, False
        if signs.opening is not None:
            doing = f"engine {signs.opening} was opened"
            self._opening_deaths[signs.opening] += 1
            self._how[signs.opening] = how
        elif signs.in_flight:
            doing = self._doing(signs, nodeid if ran and signs.exit_reason is None else None)
            self._test_deaths[nodeid] += ran and signs.exit_reason is None  # suspected, but not blamed until it is certain
            is_over = self._suspect(signs.in_flight, f"worker {worker} {how} while {doing}, and another one had before")
        elif nodeid in self._begun:
            doing = f"{nodeid} {'ran' if ran else 'was set up'}"
            self._test_deaths[nodeid] += 1
            retried = self._test_deaths[nodeid] < _MAX_DEATHS
        else:
            doing = f"it was to run {nodeid}" if worker in self._lost else "it had begun no test"
        problem = f"worker {worker} {how} while {doing}"
        then = "its case is an error" if is_over else "it is tried again" if retried else "this test is an error"
        self._context.journal.write("problem", {"problem": f"{problem}; {then}"})
        self._begun.discard(nodeid)
        self._put_back[nodeid] = problem
        for key, tests in left.items():
            nodeids = [test for test in tests if retried or test != nodeid]
            if nodeids:
                note: CrashLine = {
                    "worker": worker,
                    "engine": key.engine,
                    "path": key.path,
                    "shard": key.shard,
                    "nodeids": nodeids,
                    "isolation": asdict(self._isolations[key]) if key in self._isolations else None,
                    "gave_up": signs.exit_reason is not None,
                }
                note_crash(self._context.run_dir, note, self._context.session_number)
        return retried

    def _is_only_lost(self, worker: str, units: Iterable[UnitKey]) -> bool:
        """Return whether no test or case is to be suspected: hosts come and go, but one that goes again and again may be killed."""
        self._losses.update([*units] if worker in self._lost else ())
        return worker in self._lost and all(self._losses[unit] <= _MAX_LOSSES for unit in units)

    def _doing(self, signs: LastSigns, nodeid: str | None) -> str:
        """Return what a worker did when it died: generating, and perhaps running a test."""
        num_cases = Counter[str]()
        for unit, case_ids in signs.in_flight.items():
            num_cases[unit.path] += len(case_ids)
        engine, first = next((unit.engine, case_ids[0]) for unit, case_ids in signs.in_flight.items())
        is_single = num_cases.total() == 1
        listed = " and ".join(f"{f'case {first}' if is_single else f'{num} cases'} of {path}" for path, num in num_cases.items())
        beside = f"{nodeid} ran and " if nodeid is not None else ""
        return f"{beside}{listed} {'was' if is_single else 'were'} generated with {engine}"

    def _suspect(self, in_flight: Mapping[UnitKey, Sequence[str]], problem: str) -> bool:
        """Note which cases were generated at a death; return whether it confirms that one of them caused it.

        Suspects run again in a unit that runs alone, so if several units are involved, no case is confirmed.
        """
        is_over = False
        for unit, case_ids in in_flight.items():
            known = self._isolations.get(unit, CrashIsolation())
            self._isolations[unit] = known.after(case_ids, problem)
            is_over |= known.confirms(case_ids)
        return is_over

    def _last_signs(self, worker: str) -> LastSigns:
        return last_signs(self._context.run_dir / "journal" / f"{self._context.journal_name(worker)}.jsonl")

    def _how_it_died(self, worker: str, signs: LastSigns) -> str:
        if worker in self.killed:
            return self.killed[worker]
        return self._ended.get(worker, "died") if signs.exit_reason is None else f"ended itself ({shorten(signs.exit_reason)})"

    @_ending_the_run()
    def died_without_work(self, worker: str) -> None:
        """Note the death of a worker that had no tests left."""
        how = self._how_it_died(worker, self._last_signs(worker))
        self._context.journal.write("problem", {"problem": f"worker {worker} {how} while it had no test to run"})

    def is_given_up(self, engine: str) -> bool:
        """Return whether workers died repeatedly while opening the engine."""
        return self._opening_deaths[engine] >= _MAX_DEATHS

    def give_up(self, nodeids: Sequence[str]) -> None:
        """Report tests as crashed that no worker will run."""
        for nodeid in nodeids:
            engine = self._registry.eval_node(nodeid).engine
            problem = f"engine {engine} cannot be opened: {self._opening_deaths[engine]} workers {self._how[engine]} while they opened it"
            self._report(report=_crash_report(nodeid, problem))

    def explain(self, nodeid: str, report: Any) -> None:
        """Add to xdist's report of a crashed test how its worker died, and how often the test was tried."""
        problem = self._put_back.get(nodeid)
        if problem is not None:
            report.longrepr = f"{problem}; it was tried {self._test_deaths[nodeid]} times"


def _crash_report(nodeid: str, problem: str) -> pytest.TestReport:
    path = nodeid.partition("::")[0]
    when: Any = "???"  # as in xdist's own reports of crashes
    return pytest.TestReport(nodeid, (path, None, path), {}, "failed", problem, when)
