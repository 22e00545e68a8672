"""Running sums of a backend's steps, at made-up times."""

from __future__ import annotations

import time

import pytest

from evalharness.backends.work import SUMS, WorkSums


@pytest.fixture
def work() -> WorkSums:
    """The sums of a backend that has just got something to do."""
    made = WorkSums()
    made.start()
    return made


def test_steps_are_told_apart_by_whether_rows_are_new(work: WorkSums) -> None:
    start = time.monotonic()
    work.step(4, start + 1.0)  # four prompts are read
    work.step(4, start + 1.2)
    work.leave(1)
    work.step(4, start + 1.7)  # one more, beside three
    work.leave(4)
    sums = work.read()
    assert (sums["num_steps"], sums["step_rows"], sums["new_rows"], sums["shared_steps"]) == (3, 12, 5, 1)
    assert (sums["plain_steps"], sums["plain_rows"], sums["plain_row_squares"]) == (1, 4, 16)
    assert sums["plain_s"] == pytest.approx(0.2)
    assert sums["plain_row_seconds"] == pytest.approx(0.8)
    assert sums["step_s"] == pytest.approx(1.7, abs=0.05)


def test_what_passes_between_two_starts_is_no_step(work: WorkSums) -> None:
    now = time.monotonic()
    work.step(1, now)
    work.stop()
    work.step(1, now + 50)  # news of an aborted request
    assert work.read()["step_s"] < 1
    work.start()
    work.step(1, time.monotonic() + 0.5)
    assert work.read()["step_s"] < 2


def test_the_first_picture_is_timed_once_to_the_first_token_after_it(work: WorkSums) -> None:
    now = time.monotonic()
    work.pictures(now - 2, is_waited_for=True)
    work.step(1, now + 3)
    work.pictures(now, is_waited_for=False)
    work.step(2, now + 4)
    sums = work.read()
    assert sums["num_first_pictures"] == 1
    assert sums["first_picture_s"] == pytest.approx(3, abs=0.1)
    assert sums["picture_wait_s"] == pytest.approx(2, abs=0.1)


def test_pictures_are_counted_by_patches(work: WorkSums) -> None:
    work.patches([(1, 4, 6), (2, 2, 2)])
    work.keep(7)
    work.keep(None)
    sums = work.read()
    assert (sums["num_patches"], sums["sum_patch_squares"], sums["num_kept_tokens"]) == (32, 24**2 + 2 * 16, 7)


def test_every_sum_is_there_from_the_start() -> None:
    assert WorkSums().read() == dict.fromkeys(SUMS, 0.0)
