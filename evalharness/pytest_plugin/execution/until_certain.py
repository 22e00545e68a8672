"""With --until-certain: draws the order of cases, notes how they end, and says which eval is decided on which engine.

The process that reports decides. Workers draw the same order, as they are told which cases are on the edge; they send it the scores of each
test, and it tells them what to leave out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pytest

from evalharness.analysis.gate_grammar import RegressionGate, parse_gate
from evalharness.analysis.gates import BUILT_IN_METRICS
from evalharness.analysis.judge import find_baseline
from evalharness.api.checks import first_names
from evalharness.api.errors import BaselineError, ConfigError, EvalHarnessError
from evalharness.pytest_plugin.execution.units import UnitKey, is_eval_test
from evalharness.runs.journal import encode, parse_nodeid
from evalharness.runs.judging import reference_sha256
from evalharness.runs.partial import stopped_evals
from evalharness.runs.run_file import read_run
from evalharness.runs.schema import JUDGED, EvalLine, Row, mapping

if TYPE_CHECKING:
    from evalharness.analysis.certainty import PairedTest, Place
    from evalharness.analysis.comparison.sheets import Sheet, Side
    from evalharness.pytest_plugin.eval_module import EvalModule
    from evalharness.pytest_plugin.outcomes import ItemRecord
    from evalharness.pytest_plugin.run_context import RunContext

DECIDED = "no_regression was decided before (--until-certain)"
"""Why tests are left out."""
_MOST_SHOWN = 3
_Asked: TypeAlias = "Mapping[tuple[str, str], Mapping[str, Collection[str]]]"
"""The cases of each test, as node ids name them, by engine and path, then by test."""
_FEW_CASES = 8
"""As many are known at the first look; then a look follows every fiftieth part more."""


class Ended(NamedTuple):
    """How a test ended; plain data that a worker can send. `scores` is None for one that was not judged."""

    engine: str
    path: str
    test: str
    case_id: str
    scores: dict[str, float] | None

    @classmethod
    def of(cls, record: ItemRecord, path: str) -> Ended:
        """Return how a running test's record ended, with the rates that every test has."""
        if record.outcome not in JUDGED:
            return cls(record.engine.id, path, record.test, record.case.id, None)
        answers = [{"finish_reason": answer.finish_reason, "text": answer.text} for answer in record.answers]
        row: Any = Row(outcome=record.outcome, generations=answers)  # type: ignore[typeddict-item]
        rates = {name: float(BUILT_IN_METRICS[name].holds(row)) for name in ("pass_rate", "length_rate", "empty_rate")}
        return cls(record.engine.id, path, record.test, record.case.id, {**rates, **record.scores})


class UntilCertain:
    """The order of cases, and what is decided so far; `edges` are the cases of the edge by eval, where another process has found them."""

    def __init__(self, context: RunContext, edges: Mapping[str, Sequence[str]] | None = None) -> None:
        self._context = context
        self._engines: Sequence[str] = ()
        self._side = cache(self._read_side)  # each reads all of a run's rows
        self._problems: dict[str, str] = {}
        """Why the baseline has no side for an engine."""
        if edges is None and context.resumed is not None and self.is_on:
            edges = recorded_edges(context.resumed.recorded.records.evals.values())
        if edges is not None:
            self.edges = edges
        self._decisions: dict[tuple[str, str], _Decision] = {}

    @property
    def is_on(self) -> bool:
        """Whether this run stops when it is certain."""
        return bool(self._context.run.until_certain)

    @cached_property
    def _baseline(self) -> Path | None:
        """The baseline's file or folder, None where there is none, as in a first night with `latest`: then nothing can be proved."""
        context = self._context
        recorded: Mapping[str, Any] = {} if context.resumed is None else mapping(context.resumed.recorded.run.get("baseline"))
        if isinstance(recorded.get("path"), str) and recorded.get("asked") == context.run.baseline:
            return Path(recorded["path"])
        if context.run.baseline is None:
            return None
        base = context.root if context.run.origin("baseline").endswith(".toml") else Path.cwd()
        try:
            path = find_baseline(context.run.baseline, root=context.root, base=base, report_dir=Path(context.run.report_dir))
        except BaselineError:
            return None
        return path if path.exists() else None

    def check_baseline(self) -> None:
        """Raise `ConfigError` for a baseline that itself stopped when it was certain."""
        if self._baseline is not None and self._baseline.is_dir() and (stopped := stopped_evals(read_run(self._baseline))):
            raise ConfigError(
                f"--baseline {self._baseline} stopped when it was certain (--until-certain), before all cases of {', '.join(stopped)}; "
                "name a whole run"
            )

    def _read_side(self, engine: str) -> Side | None:
        if self._baseline is None:
            return None
        try:
            return _read(self._baseline, engine)
        except EvalHarnessError as error:
            self._problems[engine] = str(error)  # the gate says so
            return None

    def know_engines(self, engines: Sequence[str]) -> None:
        """Note the engines of the run, before any case is drawn."""
        self._engines = engines

    @cached_property
    def edges(self) -> Mapping[str, Sequence[str]]:
        """The cases by eval that changed between the baseline and the run before it, where both are here: of them more are drawn first."""
        from evalharness.analysis.certainty import changed_cases
        from evalharness.report.earlier_run import find_earlier

        found: dict[str, set[str]] = {}
        before = find_earlier(self._baseline, read_run(self._baseline)) if self._baseline and self._baseline.is_dir() else None
        sheets = {} if before is None else _sheets_of(before)
        for side in filter(None, map(self._side, self._engines if sheets else ())):
            for key, sheet in side.sheets.items():
                if key in sheets:
                    found.setdefault(key[0], set()).update(changed_cases(sheets[key], sheet))
        return {name: sorted(cases) for name, cases in found.items()}

    # The order

    def places(self, name: str, cases: Iterable[Any]) -> list[Place]:
        """Return an eval's cases in the order in which they are asked."""
        from evalharness.analysis.certainty import drawn_cases

        return drawn_cases([(case.id, case.group) for case in cases], set(self.edges.get(name, ())), self._context.run.seed, name)

    def in_order(self, module: EvalModule) -> EvalModule:
        """Return an eval with its cases in that order."""
        if not self.is_on:
            return module
        cases = {case.id: case for case in module.cases}
        places = self.places(module.name, module.cases)
        return replace(module, cases=[cases[place.case_id] for place in places], on_edge=frozenset(p.case_id for p in places if p.stratum))

    def put_in_order(self, items: list[pytest.Item], modules: Mapping[str, EvalModule]) -> None:
        """Put the tests of each eval and engine together, in the order of drawing, all of a case one after another.

        No other order counts, such as that of --ff: it depends on answers.
        """
        if not self.is_on:
            return
        together: dict[tuple[str, str], list[pytest.Item]] = {}
        for item in items:
            if (key := _key(item)) is not None:
                together.setdefault(key, []).append(item)
        for (_, path), tests in together.items():
            if path in modules:
                place = {case.id: number for number, case in enumerate(modules[path].cases)}
                tests.sort(key=lambda item: place[_case_id(item)])
        ordered: list[pytest.Item] = []
        for item in items:
            key = _key(item)
            ordered += [item] if key is None else together.pop(key, ())
        items[:] = ordered

    # What is decided

    def expect(self, evals: Iterable[Mapping[str, Any]], units: Mapping[str, UnitKey], *, refuses: bool = True) -> None:
        """Prepare to decide on evals, as `shown_evals` gives them, with these tests; in the process that reports.

        Raises `BaselineError` for a baseline that their gates will refuse, unless `refuses` is False: before an engine is opened.
        """
        asked: dict[tuple[str, str], dict[str, set[str]]] = {}
        for nodeid, unit in units.items():
            node = parse_nodeid(nodeid, (unit.engine,))
            if node is not None:
                asked.setdefault((unit.engine, unit.path), {}).setdefault(node.test, set()).add(node.case_id)
        by_path = {line["path"]: line for line in evals}
        if refuses:
            self._refuse_baseline(by_path, asked)
        for (engine, path), tests in asked.items():
            if path in by_path and (engine, path) not in self._decisions:
                self._decisions[engine, path] = _Decision(self._tests(engine, by_path[path], tests))

    def _refuse_baseline(self, by_path: Mapping[str, Mapping[str, Any]], asked: _Asked) -> None:
        from evalharness.analysis.judge_ahead import refusal_ahead

        run = self._context.run
        limits = {name: getattr(run, name) for name in ("min_pixels", "max_pixels") if getattr(run, name) is not None}
        refusals: dict[str, dict[str, None]] = {}
        for (engine, path), tests in asked.items():
            line, side = by_path[path], self._side(engine)
            for test, gate in _regression_gates(line):
                refusal = self._problems.get(engine, "")
                case_ids = _of_nodes(line["cases"], tests.get(test, ()))
                if side is not None and case_ids:
                    refusal = refusal_ahead(gate, side, line, test, case_ids, limits, anyway=run.accept_changes)
                if refusal:
                    refusals.setdefault(refusal, {})[f"{line['name']}::{test} on {engine}"] = None
        if refusals:
            shown = [f"{first_names([*tests], 3)}: {refusal}" for refusal, tests in list(refusals.items())[:_MOST_SHOWN]]
            more = f"; and {len(refusals) - _MOST_SHOWN} more reasons" if len(refusals) > _MOST_SHOWN else ""
            raise BaselineError(f"--baseline {run.baseline} would be refused at the end (--until-certain). {'; '.join(shown)}{more}")

    def _tests(self, engine: str, line: Mapping[str, Any], asked: Mapping[str, set[str]]) -> dict[str, list[PairedTest]]:
        from evalharness.analysis.certainty import PairedTest, Place
        from evalharness.analysis.judge_certain import directions_of

        side = self._side(engine)
        tests: dict[str, list[PairedTest]] = {}
        for test, gate in _regression_gates(line):
            if side is None or (line["name"], test) not in side.sheets:
                continue
            key, run = (line["name"], test), {"evals": [line]}
            asked_here = _of_nodes(line["cases"], asked.get(test, ()))
            places = [Place(case_id, facts.get("group"), facts.get("stratum", 0)) for case_id, facts in asked_here.items()]
            margin = self._context.run.until_certain or 0.0
            directions = directions_of(side, run, key)  # type: ignore[arg-type]
            tests.setdefault(test, []).append(PairedTest(places, side.sheets[key], directions, gate.metrics, margin))
        return tests

    def note(self, ended: Ended) -> bool:
        """Note how a test ended; return True if its eval is now decided on its engine."""
        decision = self._decisions.get((ended.engine, ended.path))
        return decision is not None and decision.note(ended)


class _Decision:
    """Whether the gates `no_regression` of an eval on one engine are decided."""

    def __init__(self, tests: Mapping[str, Sequence[PairedTest]]) -> None:
        self._tests = tests
        self._open = [test for each in tests.values() for test in each]
        self._can_be_made = bool(self._open) and all(test.can_prove for test in self._open)
        self._next_look = _FEW_CASES

    def note(self, ended: Ended) -> bool:
        if not self._can_be_made or not self._open:
            return False
        for test in self._tests.get(ended.test, ()):
            test.note(ended.case_id, ended.scores)
        num = min(test.num_known for test in self._open)
        if num < self._next_look:
            return False
        self._next_look = num + max(1, num // 50)
        self._open = [test for test in self._open if not test.proof().claim]
        return not self._open


def _read(path: Path, engine: str) -> Side:
    from evalharness.analysis.comparison.sides import read_side

    return read_side(str(path), prefer=engine)


def _regression_gates(line: Mapping[str, Any]) -> Iterator[tuple[str, RegressionGate]]:
    """Yield the gates `no_regression` of an eval with their tests."""
    for test, expressions in line["tests"].items():
        yield from ((test, gate) for gate in map(parse_gate, expressions) if isinstance(gate, RegressionGate))


def _of_nodes(cases: Mapping[str, Any], ids: Collection[str]) -> dict[str, Any]:
    """Return the cases that node ids name, which may have pytest's escapes."""
    return {case_id: facts for case_id, facts in cases.items() if case_id in ids or case_id.encode("unicode_escape").decode("ascii") in ids}


def _key(item: pytest.Item) -> tuple[str, str] | None:
    """Return engine and path of an eval's test."""
    return (item.callspec.params["engine"], item.nodeid.partition("::")[0]) if is_eval_test(item) else None  # type: ignore[attr-defined]


def _case_id(item: pytest.Item) -> str:
    return str(item.callspec.params["case"].id)  # type: ignore[attr-defined]


def _sheets_of(path: Path) -> dict[tuple[str, str], Sheet]:
    try:
        return _read(path, "").sheets
    except EvalHarnessError:
        return {}


def recorded_edges(lines: Iterable[EvalLine]) -> dict[str, list[str]]:
    """Return the cases of the edge by eval, as a run's journals have them: by now other runs may be there, which would change them."""
    return {line["name"]: [case_id for case_id, facts in line.get("cases", {}).items() if facts.get("stratum")] for line in lines}


def shown_evals(lines: Iterable[EvalLine], modules: Mapping[str, EvalModule]) -> list[dict[str, Any]]:
    """Return of evals' lines what another process needs to decide on them, and the hashes of their `references`, as plain data."""
    kept = ("name", "path", "tests", "directions", "cases", "code")
    shown: list[dict[str, Any]] = []
    for line in lines:
        # As they stand: a case of a recorded run would load its eval.
        references = {case.id: object.__getattribute__(case, "reference") for case in modules[line["path"]].cases}
        shown.append(
            {
                **{name: line[name] for name in kept if name in line},  # type: ignore[literal-required]
                "options": json.loads(encode(line["options"])),
                "references": {case_id: reference_sha256(reference) for case_id, reference in references.items()},
            }
        )
    return shown
