"""An engine that nobody asks anything is never loaded."""

from __future__ import annotations

import copy

import pytest

from evalharness.api.cases import Case
from evalharness.api.errors import BackendError
from evalharness.backends.fake import FakeBackend
from evalharness.engine.engine import Engine
from evalharness.pytest_plugin.execution.engines import DeferredEngine, opened_engine
from evalharness.pytest_plugin.execution.unit_runner import needs_engine
from evalharness.runs.records import CaseRecords, Failed


def engine() -> Engine:
    return Engine(FakeBackend.from_answers(["x"]))


def test_it_is_loaded_once_when_anything_is_asked_of_it_and_not_to_be_looked_at() -> None:
    loads = []
    deferred = DeferredEngine("fake", lambda: loads.append(1) or engine())  # type: ignore[func-returns-value]
    assert not hasattr(deferred, "_anything")
    copy.copy(deferred)
    repr(deferred)
    assert (deferred.name, deferred.opened, loads) == ("fake", None, [])
    assert deferred.describe()["backend"] == "fake"
    assert deferred.tokenizer is deferred.open().tokenizer
    assert len(loads) == 1


def test_what_cannot_be_loaded_fails_alike_each_time() -> None:
    tries = []

    def load() -> Engine:
        tries.append(1)
        raise BackendError("no device")

    deferred = DeferredEngine("fake", load)
    for _ in range(2):
        with pytest.raises(BackendError, match="no device"):
            deferred.open()
    assert len(tries) == 1


def test_an_engine_of_any_kind_gives_what_is_open() -> None:
    real = engine()
    assert opened_engine(real) is real
    deferred = DeferredEngine("fake", lambda: real)
    assert opened_engine(deferred) is None  # type: ignore[arg-type]
    assert opened_engine(deferred, wanted=True) is real  # type: ignore[arg-type]
    assert opened_engine(deferred) is real  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("samples", "num_samples", "asks"),
    [((), 1, True), ((0,), 1, False), ((0,), 2, True), ((0, 1), 2, False), ((1,), 2, True)],
    ids=["nothing", "all", "first", "both", "second"],
)
def test_a_case_is_asked_unless_every_sample_is_there(samples: tuple[int, ...], num_samples: int, asks: bool) -> None:
    found = CaseRecords()
    for sample in samples:
        found.add(sample, Failed("error", "x"))
    assert needs_engine([Case(id="c"), Case(id="d", invalid="no photo")], {"c": found}.get, num_samples) is asks
