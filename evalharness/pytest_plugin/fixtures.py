"""The fixtures that evals use: engine, case, generation, generations, steps, score, details, coordinates."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from evalharness.api.cases import Case
from evalharness.api.checks import any_text
from evalharness.api.errors import EvalHarnessError, RecordError
from evalharness.api.requests import GenerationFailure, GenerationResult
from evalharness.config.kinds import PerCheckpoint
from evalharness.pytest_plugin._pytest_internals import Failed, cached_value, fixtures_of, fixtures_of_item, request_of
from evalharness.pytest_plugin.eval_module import is_ours
from evalharness.pytest_plugin.execution.engines import DeferredEngine
from evalharness.pytest_plugin.failures import shorten
from evalharness.pytest_plugin.outcomes import CANNOT_GO_ON, Details, InvalidSample, ItemRecord, Score
from evalharness.pytest_plugin.session import STATE

if TYPE_CHECKING:
    from evalharness.api.requests import Outcome
    from evalharness.engine.engine import Engine
    from evalharness.pytest_plugin.execution.engine_specs import EngineSpec
    from evalharness.pytest_plugin.execution.execution import Execution

_NO_EVAL = "needs a test that takes `case` in a module with pytestmark = pytest.mark.eval(...)"


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The engine of this test: one checkpoint on one backend, kept loaded while tests use it."""
    state = request.config.stash[STATE]
    execution, spec = state.execution, _spec_of(request)
    state.start()
    if execution.engines.may_not_be_needed(spec):
        opened = cast("Engine", DeferredEngine(spec.backend, partial(_open, execution, spec)))
    else:
        opened = _open(execution, spec)
    yield opened
    try:
        execution.close_engine(spec, opened)
    except RecordError as error:
        stop_for(request.session, error)


def _spec_of(request: pytest.FixtureRequest) -> EngineSpec:
    """Return the engine that a test is parametrised with; the run's only one for a test that asked for `engine` as it ran."""
    registry = request.config.stash[STATE].registry
    try:
        engines = registry.engines
    except EvalHarnessError as error:
        raise Failed(f"there is no engine: {error}", pytrace=False) from None
    if not hasattr(request, "param"):
        if len(engines) == 1:
            return engines[0]
        raise Failed(
            f"this run has {len(engines)} engines ({', '.join(spec.id for spec in engines)}), and request.getfixturevalue('engine') cannot "
            "tell which: take `engine` as an argument, or mark the test with @pytest.mark.usefixtures('engine'), and it runs on each",
            pytrace=False,
        )
    if registry.is_absent(request.param):
        pytest.skip(f"this run has no engine on {request.param}: {', '.join(spec.id for spec in engines)}")
    return registry.engine_of(request.param)


def _open(execution: Execution, spec: EngineSpec) -> Engine:
    """Return the open engine; fails the test if it cannot be opened."""
    try:
        return execution.open_engine(spec)
    except Exception as error:
        if not isinstance(error, EvalHarnessError):
            traceback.print_exc()  # captured with the first test that needs the engine
        # Short on purpose: pytest shows this for every test that needs the engine.
        message = str(error) if isinstance(error, EvalHarnessError) else f"{type(error).__name__}: {any_text(error)}"
        raise Failed(f"engine {spec.id} cannot be opened: {message}", pytrace=False) from None


@pytest.fixture
def case() -> Case:
    """The case of this test, from the eval marker's `cases`."""
    # The marker gives it, so this runs only where there is none.
    pytest.fail(f"fixture 'case' {_NO_EVAL}", pytrace=False)


@pytest.fixture
def generations(request: pytest.FixtureRequest, case: Case, engine: Engine) -> list[GenerationResult]:
    """All generations of the case, decode settings × samples, in the marker's order."""
    state = request.config.stash[STATE]
    record = _record(state.current, "generations")
    try:
        outcomes = state.execution.wait_for_outcomes(record, engine)
    except RecordError as error:
        raise stop_for(request.session, error) from None
    return results_of(record, outcomes)


@pytest.fixture
def generation(generations: list[GenerationResult]) -> GenerationResult:
    """The one generation of the case; judge its `answer`."""
    return generations[0]


@pytest.fixture
def steps(request: pytest.FixtureRequest, generations: list[GenerationResult], engine: Engine) -> list[list[GenerationResult]]:
    """The results of earlier turns, a list per turn, where the eval's `request` is a generator that yields them."""
    state = request.config.stash[STATE]
    return state.execution.steps(_record(state.current, "steps"), engine)


def results_of(record: ItemRecord, outcomes: Sequence[Outcome]) -> list[GenerationResult]:
    """Return the generations of the running test's case; note failures, then fail or skip the test."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, GenerationFailure)]
    if failures:
        broken = next((failure for failure in failures if failure.kind == "error"), None)
        if broken is not None:
            record.broken = broken.problem
        else:
            record.invalid, record.cause = failures[0].problem, failures[0].cause
        end_without_verdict(record)
    record.answers = results = [outcome for outcome in outcomes if isinstance(outcome, GenerationResult)]
    return results


def stop_for(session: pytest.Session, error: RecordError) -> BaseException:
    """End the session after this test, here or in the worker's controller, and return the test's failure: going on would lose results."""
    session.shouldstop = f"{CANNOT_GO_ON}: {error}"
    return Failed(str(error), pytrace=False)


def end_without_verdict(record: ItemRecord) -> None:
    """Fail or skip the running test if its case has no generation; otherwise do nothing."""
    if record.broken is not None:
        pytest.fail(shorten(record.broken), pytrace=False)
    if record.invalid is not None:
        message = shorten(f"invalid: {record.invalid}")
        if record.gated:
            pytest.skip(message)
        raise InvalidSample(message, pytrace=False)


@pytest.fixture
def score(request: pytest.FixtureRequest, case: Case, engine: Engine) -> Score:
    """Records scores of this test's case: `score(correct=True, num_words=3)`. Their means are the metrics of gates and reports."""
    return Score(_record(request.config.stash[STATE].current, "score"))


@pytest.fixture
def coordinates(request: pytest.FixtureRequest, case: Case, engine: Engine) -> str | None:
    """The space in which this engine's checkpoint writes coordinates, as --coordinates says; None where it says nothing."""
    state = request.config.stash[STATE]
    return PerCheckpoint.of(state.context.run.coordinates, _record(state.current, "coordinates").engine.checkpoint)


@pytest.fixture
def details(request: pytest.FixtureRequest, case: Case, engine: Engine) -> Details:
    """Records plain data about this test's case, for tables, outputs and the report: `details(parsed=[…])`."""
    return Details(_record(request.config.stash[STATE].current, "details"))


def _record(record: ItemRecord | None, fixture: str) -> ItemRecord:
    if record is None:
        pytest.fail(f"fixture {fixture!r} {_NO_EVAL}", pytrace=False)
    return record


_GENERATED = ("generation", "generations", "steps")
_FILLED = ("engine", "score", "details", *_GENERATED)


class FixturePrefill:
    """Sets the values of an eval test's fixtures before pytest looks for them, which saves most of pytest's time per test.

    Fixtures of these names that an eval defines itself are left alone; which are ours is looked up once per test function.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, frozenset[str]]] = {}

    def _ours(self, item: pytest.Function) -> frozenset[str]:
        info = fixtures_of(item)
        known = self._known.get(id(info))
        if known is None:  # holding the info keeps its id from being given to others
            known = info, frozenset(name for name in _FILLED if is_ours(fixtures_of_item(item, name)))
            self._known[id(info)] = known
        return known[1]

    def prefill(self, item: pytest.Function, record: ItemRecord) -> None:
        """Set `case`, `request`, `score`, `details`, an open engine, and places for the generations."""
        ours, values = self._ours(item), item.funcargs
        values["case"] = record.case if record.original is None else record.original
        values["request"] = request_of(item)
        if "score" in ours:
            values["score"] = Score(record)
        if "details" in ours:
            values["details"] = Details(record)
        for name in _GENERATED:
            if name in ours:
                values[name] = None
        if "engine" in ours:
            engine = cached_value(item, "engine", record.engine.id)
            if engine is not None:
                values["engine"] = engine

    def awaited(self, item: pytest.Function) -> list[str]:
        """Return the fixtures whose place waits for the test's generations."""
        return [name for name in _GENERATED if item.funcargs.get(name, "") is None]

    def fill_generations(self, item: pytest.Function, results: list[GenerationResult], steps: Callable[[], Any]) -> None:
        """Set the generations."""
        for name in self.awaited(item):
            item.funcargs[name] = steps() if name == "steps" else results if name == "generations" else results[0]
