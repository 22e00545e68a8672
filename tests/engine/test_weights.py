"""The engine's side of live weights: what is refused before anything is touched, versions, and a sync that failed."""

from __future__ import annotations

from typing import Any

import pytest

from evalharness import Engine, GenerationOptions, TextGenerationRequest
from evalharness.api.errors import CapabilityError, CheckpointError, ContractTypeError, ContractValueError
from evalharness.backends.base import WeightReport
from evalharness.backends.fake import FakeBackend
from evalharness.engine.weights import WeightSync
from tests.engine.watched import WatchedWeights


@pytest.fixture
def fake() -> Engine:
    return Engine(FakeBackend.from_answers(["answer"]))


def test_every_result_says_which_weights_made_it(fake: Engine) -> None:
    [result] = fake.generate_text_batch([TextGenerationRequest([{"role": "user", "content": "Hi"}])], GenerationOptions())
    assert result.weight_version == fake.weights.version == "0"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda weights: weights.reload("x"), id="checkpoint"),
        pytest.param(lambda weights: weights.load_adapter("x"), id="adapter"),
        pytest.param(lambda weights: weights.unload_adapter(), id="no adapter"),
        pytest.param(lambda weights: weights.sync_from_state_dict({"x": 1}), id="tensors"),
        pytest.param(lambda weights: weights.sleep(), id="sleep"),
        pytest.param(lambda weights: weights.wake(), id="wake"),
    ],
)
def test_a_backend_without_weights_refuses_to_change_them(fake: Engine, change: Any) -> None:
    with pytest.raises(CapabilityError, match="backend 'fake' cannot do this to its weights .*; here it can: nothing"):
        change(fake.weights)
    assert fake.weights.version == "0"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        pytest.param(lambda weights: weights.load_adapter(None), ContractTypeError, "path must be the path of a folder", id="path"),
        pytest.param(lambda weights: weights.sync_from_state_dict([1]), ContractTypeError, "tensors must be a mapping", id="a list"),
        pytest.param(lambda weights: weights.sync_from_state_dict({}), ContractValueError, "tensors is empty", id="nothing"),
        pytest.param(lambda weights: weights.wake("all"), ContractValueError, "'all' cannot be woken", id="tag"),
        pytest.param(lambda weights: weights.mark_changed(), CapabilityError, "the weights of backend 'fake' are its own", id="own"),
        pytest.param(lambda weights: weights.load_adapter("x", weight_version=""), ContractValueError, "weight_version must be", id="name"),
        pytest.param(
            lambda weights: weights.load_adapter("x", weight_version=3), ContractValueError, "weight_version must be", id="number"
        ),
    ],
)
def test_wrong_arguments_are_named(fake: Engine, change: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        change(fake.weights)


def test_a_sync_that_failed_raises_stays_dirty_and_is_tried_again() -> None:
    outcomes: list[WeightReport | Exception] = [CheckpointError("no such folder"), WeightReport("x", 3)]

    def push() -> WeightReport:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    sync = WeightSync(push)
    with pytest.raises(CheckpointError, match="no such folder"):
        sync()
    assert sync.dirty
    assert sync.last is None
    assert sync() == sync.last == WeightReport("x", 3)
    assert not sync.dirty
    assert sync() is None  # and nothing was pushed

    def push_while_the_trainer_steps() -> WeightReport:
        marked.mark_dirty()
        return WeightReport("x", 1)

    marked = WeightSync(push_while_the_trainer_steps)
    marked()
    assert marked.dirty, "a mark that is made while a sync runs is not lost"


def test_closing_an_engine_changes_no_weights() -> None:
    weights = WatchedWeights()
    engine = Engine(weights.of(FakeBackend.from_answers(["answer"])))
    weights.number = None  # as of a backend that is closed
    assert (engine.weights.version, engine.weights.were_changed) == ("0", False)
