"""What one process of a run knows: options, engines, eval modules, units, journal. The controller's is the one that reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evalharness.api.errors import ConfigError
from evalharness.config import RunConfig
from evalharness.config.checks import check_combinations
from evalharness.pytest_plugin.distributed.heartbeat import Heartbeat
from evalharness.pytest_plugin.eval_module import (
    CasesNotLoaded,
    EvalModule,
    gates_of,
    is_named,
    parametrize_eval,
    plugin_names,
    read_eval,
    stand_in,
)
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec, engine_specs, engines_by_checkpoint
from evalharness.pytest_plugin.execution.engines import EngineOpening
from evalharness.pytest_plugin.execution.feed import RunningUnits
from evalharness.pytest_plugin.execution.unit_runner import UnitProgress
from evalharness.pytest_plugin.execution.units import EvalNode, UnitPlan, parse_nodeid
from evalharness.pytest_plugin.outcomes import ItemRecord, reference_of
from evalharness.pytest_plugin.replay.resume import Resumption
from evalharness.runs.journal import Journal, journal_name, test_name
from evalharness.runs.schema import EvalLine, RunFile

if TYPE_CHECKING:
    from evalharness.api.requests import GenerationResult
    from evalharness.engine.engine import Engine
    from evalharness.pytest_plugin.execution.case_request import Outcome
    from evalharness.runs.lock import RunLock
    from evalharness.runs.records import CaseRecords, GenerationFacts

__all__ = ["NEW_SESSION", "STATE", "EvalSession", "eval_lines", "utc_now"]


# What a journal says of the evals, so that who reports can judge without importing them


def eval_lines(items: Iterable[tuple[pytest.Item, str, str]], modules: Mapping[str, EvalModule]) -> Iterator[EvalLine]:
    """Yield, for each eval that the tests (with path and name) belong to, its cases, decoding, plugins, and its tests with their gates."""
    tests: dict[str, dict[str, list[str]]] = {}
    for item, path, test in items:
        known = tests.setdefault(path, {})
        if test not in known:
            known[test] = [gate.expression for gate in gates_of(item)]
    for path, gates in tests.items():
        module = modules[path]
        facts: EvalLine = {
            "name": module.name,
            "path": path,
            "num_cases": len(module.cases),
            "plugins": plugin_names(module.plugins),
            "options": [options.to_json() for options in module.variants],
        }
        if module.notices:
            facts["notices"] = list(module.notices)
        if module.directions:
            facts["directions"] = dict(module.directions)
        yield {**facts, "tests": gates, "cases": {case.id: {"group": case.group, "tags": dict(case.tags)} for case in module.cases}}


def utc_now() -> str:
    """Return the current time as ISO 8601, UTC, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


class EvalSession:
    """State of one pytest process; `worker` is "main" without xdist, "gw0"… in a worker, "controller" above them."""

    def __init__(
        self,
        run: RunConfig,
        root: Path,
        worker: str,
        num_workers: int,
        engines: Sequence[EngineSpec] | None = None,
        resumed: Resumption | None = None,
    ) -> None:
        self.run = run
        self.resumed = resumed
        """What the run has, where this session goes on with one."""
        self.lock: RunLock | None = None
        """What keeps other processes from going on with this run."""
        self.root = root
        self.worker = worker
        self.num_workers = num_workers
        self.run_dir = Path(run.report_dir) / run.run_id
        self.started_at = utc_now()
        self.started = time.monotonic()
        self.modules: dict[str, EvalModule] = {}
        self._markers: dict[str, pytest.Mark] = {}
        self._unloaded: dict[str, Exception] = {}
        self.lookalikes: set[str] = set()
        """Tests whose ids read like those of evals and which are none; a controller hears of them from its workers."""
        self.current: ItemRecord | None = None
        self.started_run = False
        self.asked: RunFile = {}
        """What run.json said at the start of the run."""
        self.origin: RunFile = {}
        """What run.json says of where the generations are from, if not from this run."""
        self.generation_facts: GenerationFacts | None = None
        """Those of the run which generated, if not this one."""
        self.why_not_run: str | None = None
        """Why tests were not run, if not for what ended the session."""
        self._evals_noted = False
        self._engines = list(engines) if engines is not None else None
        self._journal: Journal | None = None
        self.plan = UnitPlan()
        self.running = RunningUnits(self, self.plan)
        """The units that are being generated."""
        self.notices: list[str] = []
        """What is odd about the checkpoints, and which were skipped; said before the run and in run.json."""
        if resumed is not None:
            self.notices += resumed.notices
        self.opening = EngineOpening(self)
        """How engines come and go."""
        self.progress = UnitProgress()
        self.cards: tuple[str, ...] | None = None
        """The GPUs that this process was given, as CUDA_VISIBLE_DEVICES names them; None for whatever is visible."""
        self.heartbeat: Heartbeat | None = None
        """What writes this worker's signs of life."""

    @property
    def is_worker(self) -> bool:
        """Whether a controller has started this process, and will start another one should it die."""
        return self.worker not in ("main", "controller")

    # Engines and evals, known at collection

    @property
    def engines(self) -> list[EngineSpec]:
        """The engines of the run; found, and their checkpoints looked at, on first use."""
        if self._engines is None:
            check_combinations(self.run)
            find = engine_specs if self.resumed is None else self.resumed.engine_specs
            self._engines = find(self.run, self.root, self.notices.append)
        return self._engines

    @property
    def known_engines(self) -> list[EngineSpec]:
        """The engines if they were found already, without looking for them."""
        return self._engines or []

    def engine_spec(self, engine_id: str) -> EngineSpec:
        """Return the spec of an id."""
        return next(spec for spec in self.engines if spec.id == engine_id)

    def module(self, marker: pytest.Mark, path: str) -> EvalModule:
        """Return the eval of a module, its cases loaded once per process."""
        if path not in self.modules:
            module = read_eval(marker, path, self.run, self.root)
            if self.resumed is not None:
                self.resumed.check_eval(module)
            for other in self.modules.values():
                if other.name == module.name:  # rows, journals and comparisons go by this name
                    raise ConfigError(
                        f"{path} and {other.path} are both the eval {module.name!r}; rename one of the files, or run them apart"
                    )
            self.modules[path] = module
            self._markers[path] = marker
        elif self._markers[path] != marker:
            raise ConfigError(
                f"{path} has several eval markers; give each eval a module of its own, with one pytestmark = pytest.mark.eval(...)"
            )
        return self.modules[path]

    def marker(self, path: str) -> Mapping[str, Any] | None:
        """Return what the eval marker of a module says, None where another process has imported the module."""
        return self._markers[path].kwargs if path in self._markers else None

    def parametrize(self, metafunc: pytest.Metafunc, marker: pytest.Mark | None) -> None:
        """Parametrise a test over engines and, in an eval module, over cases."""
        path = metafunc.definition.nodeid.partition("::")[0]
        try:
            module = self.module(marker, path) if marker is not None and path not in self._unloaded else None
        except CasesNotLoaded as failed:
            self._unloaded[path] = failed.error
        if path in self._unloaded:
            stand_in(metafunc, self._unloaded[path])
            return
        if module is not None and module.no_data is not None and is_named(metafunc):
            # Who asks for this eval does not want to see it skipped.
            stand_in(metafunc, ConfigError(f"{path}: {module.no_data}"))
            return
        engines = self.engines
        if module is not None and module.compares_engines:
            engines = [spec for group in engines_by_checkpoint(engines).values() if len(group) > 1 for spec in group]
        parametrize_eval(metafunc, [spec.id for spec in engines], module)

    # Units, known once the final collection is

    def plan_nodeids(self, nodeids: Sequence[str]) -> None:
        """Note the unit of every eval test by its id; all that the controller of workers knows."""
        evals = [nodeid for nodeid in nodeids if nodeid not in self.lookalikes]
        self.plan.add_nodeids(evals, [spec.id for spec in self.known_engines], self.num_workers)

    def plan_units(self, items: Sequence[pytest.Item]) -> None:
        """Note which tests share a unit, and which cases each unit has."""
        self.plan.add_items(items, [spec.id for spec in self.known_engines], self.num_workers)

    def eval_node(self, nodeid: str) -> EvalNode:
        """Return what the id of an eval test says."""
        node = parse_nodeid(nodeid, [spec.id for spec in self.known_engines])
        assert node is not None
        return node

    def is_eval(self, nodeid: str) -> bool:
        """Return whether the node id is one of an eval's tests."""
        return nodeid in self.plan.units

    @property
    def eval_nodeids(self) -> list[str]:
        """The node ids of all collected eval tests, in order."""
        return list(self.plan.units)

    def record_for(self, item: pytest.Item) -> ItemRecord | None:
        """Return a new record for an eval test that is about to run, None for any other test."""
        unit = self.plan.units.get(item.nodeid)
        if unit is None:
            return None
        module = self.modules[unit.path]
        return ItemRecord(
            nodeid=item.nodeid,
            eval=module.name,
            test=test_name(item.nodeid, unit.path, unit.engine),
            case=item.callspec.params["case"],  # type: ignore[attr-defined]
            engine=self.engine_spec(unit.engine),
            options=module.variants,
            gated=next(item.iter_markers("gate"), None) is not None,
            started_at=utc_now(),
        )

    # Running

    @property
    def session_number(self) -> int:
        """Which session of the run this is: 0 began it."""
        return 0 if self.resumed is None else self.resumed.session

    def journal_name(self, worker: str) -> str:
        """Return how the journal of one of this session's processes is called, and the process itself in rows."""
        return journal_name(worker, self.session_number)

    @property
    def journal(self) -> Journal:
        """This process's journal, opened on first use."""
        if self._journal is None:
            self._journal = Journal(self.run_dir, self.journal_name(self.worker))
        return self._journal

    def open_engine(self, spec: EngineSpec) -> Engine:
        """Return the opened engine of a spec and note its facts."""
        return self.opening.open(spec)

    def close_engine(self, spec: EngineSpec, engine: Engine) -> None:
        """End what is generated and keep the engine for the next checkpoint, unless its thread hangs."""
        self.running.stop()
        if not self.running.hangs(spec.id):
            self.opening.give_back(spec, engine)

    def outcomes(self, record: ItemRecord, engine: Engine, while_waiting: Callable[[], None]) -> list[Outcome]:
        """Return the generations of a test's case as soon as all are there; `BackendError` where the engine hangs."""

        def wait() -> None:
            self.running.look_ahead(engine)
            while_waiting()

        return self.running.results(self.plan.units[record.nodeid], engine).outcomes(record.case.id, wait)

    def steps(self, record: ItemRecord, engine: Engine) -> list[list[GenerationResult]]:
        """Return the results of the steps that led to the case's question, once `outcomes` has given what became of it."""
        return self.running.results(self.plan.units[record.nodeid], engine).steps(record.case.id)

    def recorded_of(self, engine_id: str, eval_name: str) -> Callable[[str], CaseRecords | None]:
        """Return what earlier sessions of the run have generated."""
        return (lambda case_id: None) if self.resumed is None else self.resumed.made(engine_id, eval_name)

    def test_ended(self, record: ItemRecord, duration_s: float) -> None:
        """Write the test's row and let its case's generations go when no other test needs them."""
        is_last = self.plan.test_ended(record.nodeid, record.case.id)
        if is_last:
            self.running.release(self.plan.units[record.nodeid], record.case.id)
        facts = {**reference_of(record.case), "run_id": self.run.run_id, "worker": self.journal.worker, "duration_s": round(duration_s, 6)}
        self.journal.write("row", {**record.to_json(), **facts})

    def note_evals(self, items: Sequence[pytest.Item]) -> None:
        """Write, once, each eval's cases, tests and gates into the journal, so that the controller can judge without importing them."""
        if self._evals_noted:
            return
        self._evals_noted = True
        units = self.plan.units
        evals = ((item, units[item.nodeid]) for item in items if item.nodeid in units)
        tests = ((item, unit.path, test_name(item.nodeid, unit.path, unit.engine)) for item, unit in evals)
        for line in eval_lines(tests, self.modules):
            self.journal.write("eval", line)

    def close(self) -> None:
        """End what is generated, close the engine that was kept, and close the journal."""
        self.running.stop()
        self.opening.close()
        if self.heartbeat is not None:
            self.heartbeat.stop()
            self.heartbeat = None
        if self._journal is not None:
            self._journal.close()
            self._journal = None


STATE = pytest.StashKey[EvalSession]()
NEW_SESSION = pytest.StashKey[Callable[[Path], EvalSession]]()
"""What makes the session's state from the rootdir, where it is no live run; set before this plugin is configured."""
