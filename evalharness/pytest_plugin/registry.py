"""The evals and engines of a run, as collection finds them: modules, cases, and the engines that each test is parametrised with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.eval_functions import engines_to_compare
from evalharness.api.cases import Case
from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.backends import known_backends
from evalharness.config.checks import check_combinations
from evalharness.pytest_plugin._pytest_internals import parameters_of
from evalharness.pytest_plugin.eval_code import eval_code
from evalharness.pytest_plugin.eval_module import EvalModule, is_named, parametrize_eval, plugin_names, read_eval, stand_in
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec, engine_specs
from evalharness.pytest_plugin.execution.repeats import repeats_of
from evalharness.pytest_plugin.execution.units import UnitKey, assign_units, is_eval_test
from evalharness.pytest_plugin.execution.until_certain import UntilCertain
from evalharness.pytest_plugin.gate_names import gates_of
from evalharness.pytest_plugin.loading import CasesNotLoaded
from evalharness.pytest_plugin.outcomes import ItemRecord
from evalharness.pytest_plugin.run_context import RunContext
from evalharness.runs.journal import EvalNode, parse_nodeid, test_name
from evalharness.runs.repeats import repeat_id, repeat_number, split_repeat
from evalharness.runs.run_file import utc_now
from evalharness.runs.schema import CaseFacts, EvalLine


class EvalRegistry:
    """The evals of one process by module path, and the engines; `engines` None: discovered at first use."""

    def __init__(self, context: RunContext, engines: Sequence[EngineSpec] | None = None, certain: UntilCertain | None = None) -> None:
        self.context = context
        self.certain = certain or UntilCertain(context)
        self.modules: dict[str, EvalModule] = {}
        self.notices: list[str] = [] if context.resumed is None else list(context.resumed.notices)
        """What is odd about the checkpoints, and which were skipped; shown before the run and in run.json."""
        self.ambiguous_node_ids: set[str] = set()
        """Ids of tests that read like those of evals but are not; a controller hears of them from its workers."""
        self._num_tests = Counter[str]()
        """Tests made of each module's cases and engines, before any is deselected."""
        self._unloaded: dict[str, Exception] = {}
        self._files: dict[str, Path] = {}
        """Of the modules, by what node ids say of them."""
        self._engines = list(engines) if engines is not None else None

    # Engines

    @property
    def engines(self) -> list[EngineSpec]:
        """The engines of the run; their checkpoints are discovered and read at first use."""
        if self._engines is None:
            check_combinations(self.context.run)
            find = engine_specs if self.context.resumed is None else self.context.resumed.engine_specs
            self._engines = find(self.context.run, self.context.root, self.notices.append)
        return self._engines

    @property
    def known_engines(self) -> list[EngineSpec]:
        """The engines, if they were discovered already."""
        return self._engines or []

    @property
    def engine_ids(self) -> list[str]:
        """The ids of the known engines."""
        return [spec.id for spec in self.known_engines]

    def engine_spec(self, engine_id: str) -> EngineSpec:
        """Return the spec of an id."""
        return next(spec for spec in self.engines if spec.id == engine_id)

    def engine_of(self, asked: object) -> EngineSpec:
        """Return the engine that a test's own parametrisation names: by its id, or by a backend or checkpoint that only one has."""
        found = [spec for spec in self.engines if asked == spec.id] or [
            spec for spec in self.engines if asked in (spec.backend, spec.checkpoint)
        ]
        if len(found) != 1:
            known = ", ".join(spec.id for spec in self.engines)
            what = f"could be {' or '.join(spec.id for spec in found)}" if found else "is not in this run"
            hint = "" if found else did_you_mean(str(asked), [spec.id for spec in self.engines])
            raise ConfigError(f"engine {asked!r} {what}{hint or ';'} engines of this run: {known}")
        return found[0]

    def is_absent(self, asked: object) -> bool:
        """Return whether a test asks for a backend that is not in this run: it is skipped then, whereas an unknown name is an error."""
        return asked in known_backends() and all(asked not in (spec.id, spec.backend, spec.checkpoint) for spec in self.engines)

    # Evals

    def module(self, marker: pytest.Mark, path: str, file: Path) -> EvalModule:
        """Return the eval of a module, its cases loaded once per process."""
        if self._files.setdefault(path, file) != file:
            problem = (
                f"{file} and {self._files[path]} are both outside of rootdir {self.context.root}, so pytest gives their tests the same"
            )
            raise ConfigError(f"{problem} ids; give --rootdir with a folder that holds both, or run them apart")
        if path not in self.modules:
            module = read_eval(marker, path, self.context.run, self.context.root, file)
            if self.context.resumed is not None:
                changes = self.context.resumed.check_eval(module, self.context)
                module = replace(module, notices=(*module.notices, *changes))
            for other in self.modules.values():
                if other.name == module.name:  # rows, journals and comparisons go by this name
                    raise ConfigError(
                        f"{path} and {other.path} are both the eval {module.name!r}; rename one of the files, or run them apart"
                    )
            if self.certain.is_on:
                self.certain.know_engines([spec.id for spec in self.engines])
                module = self.certain.in_order(module)
            self.modules[path] = module
        elif self.modules[path].marker != marker.kwargs:
            raise ConfigError(
                f"{path} has several eval markers; give each eval its own module, with one pytestmark = pytest.mark.eval(...)"
            )
        return self.modules[path]

    def parametrize(self, metafunc: pytest.Metafunc, marker: pytest.Mark | None) -> None:
        """Parametrise a test over engines and, in an eval module, over cases."""
        path = metafunc.definition.nodeid.partition("::")[0]
        try:
            of_eval = marker is not None and path not in self._unloaded
            module = self.module(marker, path, metafunc.definition.path) if of_eval and marker is not None else None
        except CasesNotLoaded as failed:
            self._unloaded[path] = failed.error
        if path in self._unloaded:
            stand_in(metafunc, self._unloaded[path])
            return
        if module is not None and module.no_data is not None and is_named(metafunc):
            # Who asks for this eval does not want to see it skipped.
            stand_in(metafunc, ConfigError(f"{path}: {module.no_data}"))
            return
        engine_ids = [spec.id for spec in self.engines]
        if module is not None and module.marker.get("across") is not None:
            engine_ids = [engine for group in engines_to_compare(spec.to_json() for spec in self.engines) for engine in group]
        for asked in parameters_of(metafunc, "engine"):
            if not self.is_absent(asked):
                self.engine_of(asked)  # an engine that the run does not have is an error now, not in the test
        parametrize_eval(metafunc, engine_ids, module)
        if parameters_of(metafunc, "engine"):  # a test of cases alone asks nothing, and has no row
            self._num_tests[path] += sum(isinstance(case, Case) for case in parameters_of(metafunc, "case"))

    # Tests

    def is_wanted(self, item: pytest.Item) -> bool:
        """Return whether a collected test is to run: a resumed run has only the eval tests that it began with."""
        resumed = self.context.resumed
        return resumed is None or not is_eval_test(item) or resumed.is_wanted(item.nodeid)

    def draw_repeats(self, path: str, selected: Collection[str]) -> Mapping[str, Case]:
        """Return the cases of a module that are asked again, by the ids of their repeats: drawn from those that are to run, given by ids.

        A resumed run keeps those that it began with.
        """
        module = self.modules[path]
        self.modules[path] = module = replace(module, repeats=self._repeats_of(module, selected))
        return module.repeats

    def _repeats_of(self, module: EvalModule, selected: Collection[str]) -> Mapping[str, Case]:
        resumed = self.context.resumed
        if resumed is None:
            return repeats_of([case for case in module.cases if case.id in selected], module.name, self.context.run)
        nodes = (parse_nodeid(nodeid, self.engine_ids) for nodeid in resumed.nodeids if repeat_number(nodeid))
        begun = dict.fromkeys(split_repeat(node.case_id) for node in nodes if node is not None and node.path == module.path)
        cases = {name: case for case in module.cases for name in (case.id, case.id.encode("unicode_escape").decode("ascii"))}
        return {repeat_id(cases[name].id, number): cases[name] for name, number in begun if name in cases}

    def eval_node(self, nodeid: str) -> EvalNode:
        """Return the parsed node id of an eval test."""
        node = parse_nodeid(nodeid, self.engine_ids)
        assert node is not None
        return node

    def assign_units(self, nodeids: Iterable[str]) -> dict[str, UnitKey]:
        """Return the unit of every eval test by its id."""
        evals = [nodeid for nodeid in nodeids if nodeid not in self.ambiguous_node_ids]
        return assign_units(evals, self.engine_ids, self.context.num_workers, in_order=self.certain.is_on)

    def record_for(self, item: pytest.Item, unit: UnitKey) -> ItemRecord:
        """Return a new record for an eval test that is about to run."""
        module, case = self.modules[unit.path], item.callspec.params["case"]  # type: ignore[attr-defined]
        return ItemRecord(
            nodeid=item.nodeid,
            eval=module.name,
            test=test_name(item.nodeid, unit.path, unit.engine),
            case=case,
            original=module.original(case) if unit.repeat else None,
            engine=self.engine_spec(unit.engine),
            options=module.variants,
            gated=next(item.iter_markers("gate"), None) is not None,
            started_at=utc_now(),
        )

    def marker_of(self, item: pytest.Item) -> Mapping[str, Any]:
        """Return the keywords of the marker of a test's eval."""
        return self.modules[item.nodeid.partition("::")[0]].marker

    def eval_lines(self, items: Iterable[pytest.Item], units: Mapping[str, UnitKey]) -> Iterator[EvalLine]:
        """Yield the journal's line of each eval of these tests, which lets the controller judge without importing its module."""
        tests: dict[str, dict[str, list[str]]] = {}
        with_coordinates = set()
        for item in items:
            if (unit := units.get(item.nodeid)) is not None:
                if "coordinates" in getattr(item, "fixturenames", ()):
                    with_coordinates.add(unit.path)
                gates = tests.setdefault(unit.path, {})
                test = test_name(item.nodeid, unit.path, unit.engine)
                if test not in gates:
                    gates[test] = [gate.expression for gate in gates_of(item)]
        for path, gates in tests.items():
            module = self.modules[path]
            facts: EvalLine = {
                "name": module.name,
                "path": path,
                "num_cases": len(module.cases),
                "num_all_cases": module.num_loaded,
                "num_all_tests": self._num_tests[path] * module.num_loaded // len(module.cases),
                "plugins": plugin_names(module.plugins),
                "options": [options.to_json() for options in module.variants],
                "code": eval_code(self.context.root, path, gates),
            }
            if path in with_coordinates:
                facts["takes_coordinates"] = True
            if module.notices:
                facts["notices"] = list(module.notices)
            if module.directions:
                facts["directions"] = dict(module.directions)
            cases: dict[str, CaseFacts] = {case.id: {"group": case.group, "tags": dict(case.tags)} for case in module.cases}
            for case_id in module.on_edge:
                cases[case_id]["stratum"] = 1
            yield {**facts, "tests": gates, "cases": cases}
