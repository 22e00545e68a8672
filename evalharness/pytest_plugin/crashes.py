"""What becomes of the work of a worker that died: its unit goes on elsewhere, and the test it died in runs once more.

    died while                          then
    a test ran and nothing else         the test runs again; after its second death it is an error
    cases were generated together       the unit goes on; after the second death its cases are asked one by one, each when
                                        its test runs: then, and only then, it is certain who was to blame
    one case was generated alone        as if its test had run; at once an error where the engine itself gave up
    an engine was opened                another worker tries; after the second death its tests are errors, unless it runs elsewhere

Every death is a problem of the run, so the run's exit code is not 0. Only the controller knows this module.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evalharness.pytest_plugin.outcomes import shorten
from evalharness.pytest_plugin.reporting import REPORTING
from evalharness.pytest_plugin.session import STATE
from evalharness.pytest_plugin.takeover import CrashNote, note_crash
from evalharness.pytest_plugin.units import UnitKey

__all__ = ["Crashes", "LastSigns", "last_signs"]

_MAX_DEATHS = 2


class LastSigns(NamedTuple):
    """What a dead worker's journal says of its end."""

    opening: str | None
    """The engine that it was opening."""
    words: str | None
    """Why it ended itself."""
    generating: bool
    """Whether a unit's generations were still being made."""


def last_signs(journal: Path) -> LastSigns:
    """Return the end of a worker's journal, which may not be there."""
    opening = words = None
    generating = False
    try:
        with journal.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                if line.startswith(b'{"kind":"engine_start"'):
                    opening = json.loads(line)["id"]
                elif line.startswith(b'{"kind":"engine"'):
                    opening = None
                elif line.startswith(b'{"kind":"last_words"'):
                    words = json.loads(line)["problem"]
                elif line.startswith(b'{"kind":"unit'):  # its start or its end
                    generating = line.startswith(b'{"kind":"unit_start"')
    except FileNotFoundError:
        pass  # it died before its first test
    return LastSigns(opening, words, generating)


class Crashes:
    """Judges the deaths of one run; see `scheduler.CrashJudge`."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._state = config.stash[STATE]
        self._running: dict[str, str] = {}
        self._test_deaths: Counter[str] = Counter()
        self._unit_deaths: Counter[UnitKey] = Counter()
        self._opening_deaths: Counter[str] = Counter()
        self._how: dict[str, str] = {}
        self.killed: dict[str, str] = {}
        """By worker: why this process killed it."""

    def test_runs(self, worker: str, nodeid: str) -> None:
        """Note that a worker has set a test up: its generations are there."""
        self._running[worker] = nodeid

    def is_retried(self, worker: str, nodeid: str, unit: UnitKey, left: Sequence[str]) -> bool:
        """Return whether the test runs once more, and note what is left of its unit."""
        signs = self._last_signs(worker)
        how = self._how_it_died(worker, signs)
        one_by_one = self._unit_deaths[unit] >= _MAX_DEATHS
        ran = self._running.get(worker) == nodeid
        retried = True
        if signs.opening is not None:
            doing = f"engine {signs.opening} was opened"
            self._opening_deaths[signs.opening] += 1
            self._how[signs.opening] = how
        elif one_by_one or (ran and not signs.generating):
            doing = f"{nodeid} {'ran' if ran else 'was generated alone'}"
            self._test_deaths[nodeid] += _MAX_DEATHS if one_by_one and signs.words is not None else 1
            retried = self._test_deaths[nodeid] < _MAX_DEATHS
        else:
            doing = f"cases of {unit.path} were generated with {unit.engine}"
            self._unit_deaths[unit] += 1
            self._test_deaths[nodeid] += ran  # suspected, but not blamed until it is certain
        problem = f"worker {worker} {how} while {doing}"
        self._state.journal.write("problem", {"problem": f"{problem}; {'it is tried again' if retried else 'this test is an error'}"})
        self._config.stash[REPORTING].put_back[nodeid] = problem
        nodeids = tuple(one for one in left if retried or one != nodeid)
        one_by_one = self._unit_deaths[unit] >= _MAX_DEATHS
        if nodeids:
            note = CrashNote(worker, unit.engine, unit.path, unit.shard, nodeids, one_by_one, signs.words is not None)
            note_crash(self._state.run_dir, note, self._state.session_number)
        return retried

    def _last_signs(self, worker: str) -> LastSigns:
        return last_signs(self._state.run_dir / "journal" / f"{self._state.journal_name(worker)}.jsonl")

    def _how_it_died(self, worker: str, signs: LastSigns) -> str:
        if worker in self.killed:
            return self.killed[worker]
        return "died" if signs.words is None else f"ended itself ({shorten(signs.words)})"

    def died_without_work(self, worker: str) -> None:
        """Note the death of a worker that had no test any more."""
        how = self._how_it_died(worker, self._last_signs(worker))
        self._state.journal.write("problem", {"problem": f"worker {worker} {how} while it had no test to run"})

    def is_given_up(self, engine: str) -> bool:
        """Return whether workers died again and again as they opened the engine."""
        return self._opening_deaths[engine] >= _MAX_DEATHS

    def give_up(self, nodeids: Sequence[str]) -> None:
        """Report tests that nobody will run as crashed."""
        for nodeid in nodeids:
            engine = self._state.eval_node(nodeid).engine
            problem = f"engine {engine} cannot be opened: {self._opening_deaths[engine]} workers {self._how[engine]} while they opened it"
            self._config.hook.pytest_runtest_logreport(report=_crash_report(nodeid, problem))

    def explain(self, nodeid: str, report: Any) -> None:
        """Say in xdist's report of a test that its worker died in how often, and of what."""
        problem = self._config.stash[REPORTING].put_back.get(nodeid)
        if problem is not None:
            report.longrepr = f"{problem}; it was tried {self._test_deaths[nodeid]} times"


def _crash_report(nodeid: str, problem: str) -> pytest.TestReport:
    path = nodeid.partition("::")[0]
    when: Any = "???"  # as in xdist's own reports of crashes
    return pytest.TestReport(nodeid, (path, None, path), {}, "failed", problem, when)
