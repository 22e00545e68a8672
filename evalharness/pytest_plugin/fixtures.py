"""The fixtures that evals use: engine, case, generation, generations, steps, score, details, coordinates."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from _pytest.outcomes import Failed

from evalharness.api.cases import Case
from evalharness.api.errors import BackendError, EvalHarnessError, RecordError
from evalharness.api.requests import GenerationFailure, GenerationResult
from evalharness.config.kinds import PerCheckpoint
from evalharness.pytest_plugin.distributed.worker import exit_worker_if_engine_failed
from evalharness.pytest_plugin.eval_module import is_ours
from evalharness.pytest_plugin.execution.engines import DeferredEngine
from evalharness.pytest_plugin.outcomes import Details, InvalidSample, ItemRecord, NotRecorded, Score, shorten
from evalharness.pytest_plugin.session import STATE, EvalSession

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine
    from evalharness.pytest_plugin.execution.engine_specs import EngineSpec

__all__ = ["FixturePrefill", "case", "coordinates", "details", "engine", "generation", "generations", "score", "steps"]

_NO_EVAL = "needs a test that takes `case` in a module with pytestmark = pytest.mark.eval(...)"


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The engine of this test: one checkpoint on one backend, kept loaded while tests use it."""
    state = request.config.stash[STATE]
    spec = state.engine_spec(request.param)
    if state.opening.may_not_be_needed(spec):
        opened = cast("Engine", DeferredEngine(spec.backend, partial(_open, state, spec)))
    else:
        opened = _open(state, spec)
    yield opened
    try:
        state.close_engine(spec, opened)
    except RecordError as error:
        stop_for(request.session, error)


def _open(state: EvalSession, spec: EngineSpec) -> Engine:
    """Return the engine, loaded; fails the test where that does not work."""
    try:
        return state.open_engine(spec)
    except Exception as error:
        if not isinstance(error, EvalHarnessError):
            traceback.print_exc()  # captured with the first test that needs the engine
        # Short on purpose: pytest shows this for every test that needs the engine.
        message = str(error) if isinstance(error, EvalHarnessError) else f"{type(error).__name__}: {error}"
        raise Failed(f"engine {spec.id} cannot be opened: {message}", pytrace=False) from None


@pytest.fixture
def case() -> Case:
    """The case of this test; given by the eval marker, so this body runs only where there is none."""
    pytest.fail(f"fixture 'case' {_NO_EVAL}", pytrace=False)


@pytest.fixture
def generations(request: pytest.FixtureRequest, case: Case, engine: Engine) -> list[GenerationResult]:
    """All generations of the case, decode settings × samples, in the marker's order."""
    return wait_for_generations(request.session, _record(request.config.stash[STATE].current, "generations"), engine)


@pytest.fixture
def generation(generations: list[GenerationResult]) -> GenerationResult:
    """The case's one generation."""
    return generations[0]


@pytest.fixture
def steps(request: pytest.FixtureRequest, generations: list[GenerationResult], engine: Engine) -> list[list[GenerationResult]]:
    """The results of the steps that led to the case's question, step by step; see `execution/case_request.py`."""
    return steps_of(request.session, _record(request.config.stash[STATE].current, "steps"), engine)


def wait_for_generations(session: pytest.Session, record: ItemRecord, engine: Engine) -> list[GenerationResult]:
    """Return the generations of the running test's case; fails or skips the test where there are none."""
    state = session.config.stash[STATE]
    try:
        outcomes = state.outcomes(record, engine, session.config.stash[WAITING])
    except RecordError as error:
        stop_for(session, error)
        raise Failed(str(error), pytrace=False) from None
    except NotRecorded as error:
        record.started_at = None  # as for every test that was not run
        pytest.skip(f"not run: {error}")
    except BackendError as error:
        outcomes = [GenerationFailure("error", str(error), error)]
    state.opening.warn_of_notices()
    results = [outcome for outcome in outcomes if isinstance(outcome, GenerationResult)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, GenerationFailure)]
    if failures:
        exit_worker_if_engine_failed(state)
        broken = next((failure for failure in failures if failure.kind == "error"), None)
        if broken is not None:
            record.broken = broken.problem
        else:
            record.invalid, record.cause = failures[0].problem, failures[0].cause
        end_without_verdict(record)
    return results


def steps_of(session: pytest.Session, record: ItemRecord, engine: Engine) -> list[list[GenerationResult]]:
    """Return the results of the running test's steps; its generations are there already."""
    return session.config.stash[STATE].steps(record, engine)


def stop_for(session: pytest.Session, error: RecordError) -> None:
    """End the session after this test, here or in the worker's controller: going on would lose results."""
    session.shouldstop = f"the run cannot go on: {error}"


def end_without_verdict(record: ItemRecord) -> None:
    """Fail or skip the running test where its case could not be asked or answered; otherwise do nothing."""
    if record.broken is not None:
        pytest.fail(shorten(record.broken), pytrace=False)
    if record.invalid is not None:
        message = shorten(f"invalid: {record.invalid}")
        if record.gated:
            pytest.skip(message)
        raise InvalidSample(message, pytrace=False)


@pytest.fixture
def score(request: pytest.FixtureRequest, case: Case, engine: Engine) -> Score:
    """Records scores of this test's case."""
    return Score(_record(request.config.stash[STATE].current, "score"))


@pytest.fixture
def coordinates(request: pytest.FixtureRequest, case: Case, engine: Engine) -> str | None:
    """The space in which this engine's checkpoint writes coordinates, as --coordinates says; None where it says nothing."""
    state = request.config.stash[STATE]
    return PerCheckpoint.of(state.run.coordinates, _record(state.current, "coordinates").engine.checkpoint)


@pytest.fixture
def details(request: pytest.FixtureRequest, case: Case, engine: Engine) -> Details:
    """Records plain data about this test's case."""
    return Details(_record(request.config.stash[STATE].current, "details"))


def _record(record: ItemRecord | None, fixture: str) -> ItemRecord:
    if record is None:
        pytest.fail(f"fixture {fixture!r} {_NO_EVAL}", pytrace=False)
    return record


WAITING = pytest.StashKey[Any]()
"""What to call while a test waits for its generation (shows progress)."""


# The values of an eval test's fixtures, put in place before pytest looks for them

_GENERATED = ("generation", "generations", "steps")
_FILLED = ("engine", "score", "details", *_GENERATED)


class FixturePrefill:
    """Puts values in place, but not over an eval's own fixtures of these names. Which are ours is looked up once per test function."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, frozenset[str]]] = {}

    def _ours(self, item: pytest.Function) -> frozenset[str]:
        info = item._fixtureinfo
        known = self._known.get(id(info))
        if known is None:  # holding the info keeps its id from being given to others
            known = info, frozenset(name for name in _FILLED if is_ours(info.name2fixturedefs.get(name)))
            self._known[id(info)] = known
        return known[1]

    def prefill(self, item: pytest.Function, record: ItemRecord) -> None:
        """Put `case`, `request`, `score`, `details` and an engine that is open in place, and places for the generations."""
        ours, values = self._ours(item), item.funcargs
        values["case"] = record.case
        values["request"] = item._request  # what pytest would put there, by way of a fixture made anew for each test
        if "score" in ours:
            values["score"] = Score(record)
        if "details" in ours:
            values["details"] = Details(record)
        for name in _GENERATED:
            if name in ours:
                values[name] = None
        if "engine" in ours:
            kept = item._fixtureinfo.name2fixturedefs["engine"][-1].cached_result
            if kept is not None and kept[2] is None and kept[1] == record.engine.id:
                values["engine"] = kept[0]

    def fill_generations(self, item: pytest.Function, record: ItemRecord) -> None:
        """Put the generations in place, now that the engine is there."""
        values = item.funcargs
        wanted = [name for name in _GENERATED if name in values and values[name] is None]
        if not wanted:
            return
        engine: Any = values["engine"]
        results = wait_for_generations(item.session, record, engine)
        if "generations" in wanted:
            values["generations"] = results
        if "generation" in wanted:
            values["generation"] = results[0]
        if "steps" in wanted:
            values["steps"] = steps_of(item.session, record, engine)
