"""Behaviour 13: steps in the background, one behind; a checkpoint never waits; nothing that fails there is lost."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from evalharness.api.errors import ConfigError
from evalharness.training.delayed import DelayedTraining


class Trainer:
    """Steps that begin when they are asked for and end when they are let."""

    def __init__(self) -> None:
        self.weights = 0
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.threads: list[int] = []

    def step(self, loss: Any) -> float:
        self.threads.append(threading.get_ident())
        self.begun.release()
        assert self.go_on.acquire(timeout=300)
        if isinstance(loss, Exception):
            raise loss
        self.weights += 1
        return loss

    def training(self) -> DelayedTraining[Any, int]:
        return DelayedTraining(self.step, lambda: self.weights)


def test_the_first_step_gives_nothing_and_the_second_the_loss_of_the_first() -> None:
    trainer = Trainer()
    with trainer.training() as training:
        assert training.train_step(1.25) == 0.0
        trainer.go_on.release()
        assert training.train_step(7.5) == 1.25
        trainer.go_on.release()
        assert training.finish() == 7.5
        assert training.finish() is None
    assert set(trainer.threads) - {threading.get_ident()} == set(trainer.threads)
    assert len(set(trainer.threads)) == 1


def test_a_checkpoint_with_unfinished_work_waits_not_once() -> None:
    trainer = Trainer()
    saved = []
    with trainer.training() as training:
        training.train_step(1.0)
        trainer.go_on.release()
        training.train_step(2.0)
        assert trainer.begun.acquire(timeout=300)
        assert trainer.begun.acquire(timeout=300)  # the second runs, and nobody lets it end
        assert training.checkpoint(lambda step, weights: saved.append((step, weights)) or "path") == "path"
        assert (saved, training.snapshot, training.num_steps) == ([(1, 1)], 1, 1)
        trainer.go_on.release()
        training.finish()
        assert (training.snapshot, training.num_steps) == (2, 2)


def test_before_any_step_there_are_the_weights_of_the_start_and_after_the_end_nothing_is_begun() -> None:
    with Trainer().training() as training:
        assert training.checkpoint(lambda step, weights: (step, weights)) == (0, 0)
    training = Trainer().training()
    training.close()
    with pytest.raises(ConfigError, match="this training is over"):
        training.train_step(1.0)


@pytest.mark.parametrize("look", ["train_step", "finish", "checkpoint", "close"])
def test_what_a_step_raised_comes_out_where_it_is_looked_at_next(look: str) -> None:
    trainer = Trainer()
    training = trainer.training()
    training.train_step(ZeroDivisionError("loss is not finite"))
    assert trainer.begun.acquire(timeout=300)
    trainer.go_on.release()
    running = training._running
    assert running is not None
    assert isinstance(running.exception(timeout=300), ZeroDivisionError)
    arguments: dict[str, tuple[Any, ...]] = {"train_step": (1.0,), "checkpoint": (lambda *_: None,)}
    with pytest.raises(ZeroDivisionError, match="loss is not finite"):
        getattr(training, look)(*arguments.get(look, ()))
    assert len(trainer.threads) == 1  # no step was begun after the one that failed
    assert training.num_steps == 0
    training._executor.shutdown()


def test_leaving_the_block_raises_what_the_last_step_raised_unless_the_loop_failed() -> None:
    trainer = Trainer()
    with pytest.raises(ZeroDivisionError, match="the last"), trainer.training() as training:
        training.train_step(ZeroDivisionError("the last"))
        trainer.go_on.release()
    trainer = Trainer()

    def loop() -> None:
        with trainer.training() as training:
            training.train_step(ZeroDivisionError("the step"))
            trainer.go_on.release()
            raise KeyError("the loop")

    with pytest.raises(KeyError, match="the loop"):
        loop()
