"""The units of one process that are generated: the one whose tests run, and those after it, while its tests still run.

All here happens in the thread of the tests. What comes next is told by the order of the tests, or, in a worker, by what the
controller has sent so far. Only units of the engine that is at work are begun ahead, and none beside a unit that runs alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalharness.api.errors import BackendError
from evalharness.pytest_plugin.execution.deferred_engine import asks_anything, opened_engine
from evalharness.pytest_plugin.execution.feed import EngineFeed
from evalharness.pytest_plugin.execution.in_flight import InFlight, in_flight_path
from evalharness.pytest_plugin.execution.takeover import Takeover, takeover_of
from evalharness.pytest_plugin.execution.unit_plan import UnitPlan
from evalharness.pytest_plugin.execution.unit_results import UnitResults
from evalharness.pytest_plugin.execution.unit_runner import UnitRunner
from evalharness.pytest_plugin.execution.units import UnitKey, num_cases_ahead

if TYPE_CHECKING:
    from evalharness.api.cases import Case
    from evalharness.engine.engine import Engine
    from evalharness.pytest_plugin.session import EvalSession

__all__ = ["RunningUnits"]

_LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class _Prepared:
    """A unit that can begin; `asks`: whether anything of it is not recorded yet."""

    unit: UnitKey
    cases: list[Case]
    takeover: Takeover
    asks: bool


class RunningUnits:
    """What a session generates. `units_ahead`, where a worker has it: the units of the tests that it was sent, in order."""

    def __init__(self, session: EvalSession, plan: UnitPlan) -> None:
        self._session = session
        self._plan = plan
        self._feed: EngineFeed | None = None
        self._current: tuple[UnitKey, UnitRunner] | None = None
        self._ahead: deque[tuple[UnitKey, UnitRunner]] = deque()
        self._hanging: dict[str, str] = {}
        self._next: _Prepared | None = None
        """What comes after those that were begun, as far as it was looked at."""
        self._num_begun = 0
        self._look_at_s = 0.0
        self.units_ahead: Callable[[], Sequence[UnitKey]] | None = None

    @property
    def is_generating(self) -> bool:
        """Whether an engine is at work."""
        return self._feed is not None and self._feed.is_generating

    def engine_failure(self) -> tuple[str, str] | None:
        """Return the engine of the unit whose tests run, and of what it broke; None where it did not."""
        if self._current is None or self._current[1].results.engine_failure is None:
            return None
        return self._current[0].engine, self._current[1].results.engine_failure

    def hangs(self, engine_id: str) -> bool:
        """Return whether an engine goes on generating though it was told to stop."""
        return engine_id in self._hanging

    def results(self, unit: UnitKey, engine: Engine) -> UnitResults:
        """Return what a unit's tests wait for; its first test begins it, if nothing did. `BackendError` where the engine hangs."""
        if self._current is None or self._current[0] != unit:
            self._go_to(unit, engine)
        self.look_ahead(engine)
        assert self._current is not None
        return self._current[1].results

    def release(self, unit: UnitKey, case_id: str) -> None:
        """Let the generations of a unit's case go."""
        if self._current is not None and self._current[0] == unit:
            self._current[1].results.release(case_id)
            return
        for begun, runner in self._ahead:  # its tests are skipped before they want anything
            if begun == unit:
                runner.results.release(case_id)

    def look_ahead(self, engine: Engine) -> None:
        """Begin what comes next on the same engine, as far as it is known and may be held; may be called as often as one likes."""
        now = time.monotonic()
        if now < self._look_at_s:
            return
        self._look_at_s = now + _LOOK_EVERY_S
        if self._current is None or self._current[1].is_alone or self._current[1].results.engine_failure is not None:
            return
        unit = self._current[0]
        num_ahead = sum(runner.num_cases for _, runner in self._ahead)
        following = self._units_after(unit)
        if list(following[: len(self._ahead)]) != [begun for begun, _ in self._ahead]:
            return  # tests were put in another order meanwhile
        for after in following[len(self._ahead) :]:
            if after.engine != unit.engine or num_ahead >= num_cases_ahead(unit.engine):
                return
            if self._next is None or self._next.unit != after:
                self._next = self._prepare(after)  # kept where it cannot begin yet: of a crash or an earlier session all journals are read
            prepared = self._next
            if prepared.takeover.is_alone or (prepared.asks and opened_engine(engine) is None):
                return  # an engine is opened by the test that needs it: should that fail, it is the one to say so
            runner = self._runner(prepared, engine, is_ahead=True)
            self._ahead.append((after, runner))
            if self._feed is None or not self._feed.add(runner):
                self._start_feed(engine, [runner])
            num_ahead += len(prepared.cases)

    def _units_after(self, unit: UnitKey) -> Sequence[UnitKey]:
        if self.units_ahead is None:
            return self._plan.units_after(unit)
        listed = self.units_ahead()
        return listed[listed.index(unit) + 1 :] if unit in listed else listed

    def _go_to(self, unit: UnitKey, engine: Engine) -> None:
        begun = [key for key, _ in self._ahead]
        if self._current is not None and unit in begun:
            over = [self._current[1], *(self._ahead.popleft()[1] for _ in range(begun.index(unit)))]
            if not all(runner.is_done for runner in over):
                self._restart(engine, over)  # their tests were skipped: nobody waits for the rest, but whoever comes next
            for runner in over:
                runner.close()  # one that failed still names its cases as being asked
            self._current = self._ahead.popleft()
        else:  # it runs alone, or the tests come in another order than was to be seen
            self.stop()
            if unit.engine in self._hanging:
                raise BackendError(self._hanging[unit.engine])
            prepared = self._prepare(unit)
            if prepared.asks:
                opened_engine(engine, wanted=True)  # here, not in the thread that generates: libraries start in the main thread only
            self._current = (unit, self._runner(prepared, engine))
            self._start_feed(engine, [self._current[1]])
        self._look_at_s = 0.0
        self._next = None

    def _prepare(self, unit: UnitKey) -> _Prepared:
        session = self._session
        module = session.modules[unit.path]
        takeover = takeover_of(session.run_dir, unit, module.name, session.session_number) if session.is_worker else None
        if takeover is None:
            takeover = Takeover(None, session.recorded_of(unit.engine, module.name))
        cases = self._plan.cases_left(unit, takeover.nodeids)
        return _Prepared(unit, cases, takeover, asks_anything(cases, takeover.recorded, len(module.variants)))

    def _runner(self, prepared: _Prepared, engine: Engine, *, is_ahead: bool = False) -> UnitRunner:
        session, unit, cases = self._session, prepared.unit, prepared.cases
        module = session.modules[unit.path]
        self._num_begun += 1
        path = in_flight_path(session.journal.path, self._num_begun) if session.is_worker else None
        in_flight = InFlight(path, unit, [case.id for case in cases])
        session.journal.write("unit_start", {"engine": unit.engine, "eval": module.name, **({"ahead": True} if is_ahead else {})})
        return UnitRunner(unit.engine, engine, module, cases, session.journal, session.progress, prepared.takeover, in_flight)

    def _start_feed(self, engine: Engine, runners: Sequence[UnitRunner]) -> None:
        """Have units asked that `stop` knows of already: were one interrupted here, an engine would be closed while it generates."""
        self._feed = EngineFeed(engine, self._session.progress, *runners)
        self._feed.start()

    def stop(self) -> None:
        """End what is generated, if anything: that of the current unit, and what was begun ahead, which stays in the journal."""
        if self._current is None:
            return
        unit, feed = self._current[0], self._feed
        runners = [self._current[1], *(runner for _, runner in self._ahead)]
        self._current, self._feed = None, None
        self._ahead.clear()
        if feed is not None and not feed.stop():
            self._note_hanging(unit)
        for runner in runners:
            runner.close()

    def _restart(self, engine: Engine, over: Sequence[UnitRunner]) -> None:
        """Give up some units and go on with those begun ahead. `BackendError` where the engine does not stop."""
        assert self._current is not None
        assert self._feed is not None
        unit, kept = self._current[0], [runner for _, runner in self._ahead]
        has_ended = self._feed.stop(kept)
        if not has_ended:
            for runner in (*over, *kept):
                runner.close()
            self._current, self._feed = None, None
            self._ahead.clear()
            self._note_hanging(unit)
            raise BackendError(self._hanging[unit.engine])
        self._start_feed(engine, kept)

    def _note_hanging(self, unit: UnitKey) -> None:
        problem = f"engine {unit.engine} still generates for {unit.path}, though told to stop: it is left open until the process ends"
        self._hanging[unit.engine] = problem
        self._session.journal.write("problem", {"problem": problem})
