"""The time left, by a clock of its own, on engines that are simulated: batches that end together, and rows that come and go."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from evalharness.pytest_plugin.progress.counts import Snapshot
from evalharness.pytest_plugin.progress.gathering import Gathering

STEP_S, PROMPT_S = 0.05, 0.4


@dataclass
class Moment:
    """What a process has counted at one moment of a simulated run."""

    at_s: float
    num_new: int
    num_tokens: int
    num_rows: int
    num_row_tokens: int


def in_batches(lengths: list[int], num_rows: int, pause_s: float = PROMPT_S) -> Iterator[Moment]:
    """An engine that reads the prompts of a batch one by one, then makes a token of each row in every step, until the last has ended."""
    at_s, done, tokens = 0.0, 0, 0
    for start in range(0, len(lengths), num_rows):
        batch = lengths[start : start + num_rows]
        for _ in range(int(len(batch) * pause_s / 0.5)):
            at_s += 0.5
            yield Moment(at_s, done, tokens, len(batch), 0)
        for step in range(1, max(batch) + 1):
            at_s += STEP_S
            ended = [length for length in batch if length <= step]
            going = len(batch) - len(ended)
            if step % 10 == 0 or not going:
                yield Moment(at_s, done + len(ended), tokens + sum(ended), going, going * step)
        done, tokens = done + len(batch), tokens + sum(batch)


def one_by_one(lengths: list[int], num_rows: int) -> Iterator[Moment]:
    """An engine in which each row is followed by the next."""
    running, waiting, at_s, done, tokens = lengths[:num_rows], lengths[num_rows:], 0.0, 0, 0
    left = list(running)
    while left:
        at_s += STEP_S
        for place in reversed(range(len(left))):
            left[place] -= 1
            if left[place] == 0:
                done, tokens = done + 1, tokens + running[place]
                del left[place], running[place]
                if waiting:
                    running.append(waiting.pop(0))
                    left.append(running[-1])
        yield Moment(at_s, done, tokens, len(left), sum(running) - sum(left))


def look_at(moments: Iterator[Moment], num_asked: int) -> list[tuple[float, int, float | None]]:
    """Return time, finished answers and the time left, at every half second of a run."""
    now = [0.0]
    gathering = Gathering(["hf:final"], is_resumed=False, clock=lambda: now[0])
    seen: list[tuple[float, int, float | None]] = []
    for moment in moments:
        if moment.at_s - now[0] < 0.5 and moment.num_rows:
            continue
        now[0] = moment.at_s
        gathering.take("main", snapshot(moment, num_asked))
        seen.append((moment.at_s, moment.num_new, gathering.look().left_s))
    return seen


def snapshot(moment: Moment, num_asked: int, **changes: object) -> Snapshot:
    made: Snapshot = {
        "doing": "generating",
        "engine": "hf:final",
        "eval": "dump",
        "for_s": moment.at_s,
        "busy_s": moment.at_s,
        "num_rows": moment.num_rows,
        "num_row_tokens": moment.num_row_tokens,
        "evals": [["hf:final", "dump", moment.num_new, 0, moment.num_tokens]],
        "asked": [["hf:final", "dump", num_asked]],
    }
    made.update(changes)  # type: ignore[typeddict-item]
    return made


def lengths(num: int, spread: float, seed: int = 3) -> list[int]:
    draw = random.Random(seed)
    return [max(8, min(512, int(100 * draw.lognormvariate(0, spread)))) for _ in range(num)]


RUNS = {
    "batches of equal answers": lambda: in_batches([100] * 160, 16),
    "batches of unequal answers": lambda: in_batches(lengths(160, 0.5), 16),
    "batches with long prompts": lambda: in_batches(lengths(160, 0.3), 16, pause_s=2.0),
    "rows that follow one another": lambda: one_by_one(lengths(900, 0.3), 64),
    "one answer at a time": lambda: one_by_one(lengths(160, 0.2), 1),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_time_left_is_about_right_and_never_grows_much_in_a_run_that_goes_well(name: str) -> None:
    moments = list(RUNS[name]())
    end_s, num_asked = moments[-1].at_s, moments[-1].num_new
    seen = look_at(iter(moments), num_asked)
    told = [(at_s, left_s) for at_s, _, left_s in seen if left_s is not None]
    first_s = told[0][0]
    assert first_s < end_s / 3, "known before a third of the run is over"
    for at_s, left_s in told:
        assert left_s == pytest.approx(end_s - at_s, abs=0.25 * end_s), f"at {at_s:.0f} of {end_s:.0f} s"
    grown = [max(0.0, after - before) for (_, before), (_, after) in itertools.pairwise(told)]
    assert max(grown) <= 0.06 * end_s, "where answers turn out longer than those before, once a batch"
    assert sum(grown) <= 0.25 * end_s


def test_nothing_is_told_of_the_time_left_before_as_many_answers_are_there_as_are_on_their_way_at_once() -> None:
    seen = look_at(in_batches(lengths(120, 0.5), 31), 120)
    assert all(left_s is None for _, num_new, left_s in seen if num_new < 31)
    assert all(left_s is not None for _, num_new, left_s in seen if 31 < num_new < 120)


def test_loading_is_in_no_estimate() -> None:
    now = [0.0]
    gathering = Gathering(["hf:early", "hf:final"], is_resumed=False, clock=lambda: now[0])
    asked = [["hf:early", "dump", 50], ["hf:final", "dump", 50]]
    left: list[float | None] = []
    for second in range(1, 51):  # an answer of 20 tokens a second
        now[0] = 300.0 + second
        moment = Moment(second, second, 20 * second, 1, 10)
        gathering.take("main", snapshot(moment, 0, asked=asked, engine="hf:early", evals=[["hf:early", "dump", second, 0, 20 * second]]))
        left.append(gathering.look().left_s)
    assert left[-1] == pytest.approx(50, rel=0.1), "five minutes of loading are not in it"
    for second in range(1, 200):  # the next engine loads
        now[0] = 350.0 + second
        idle = Moment(50, 50, 1000, 0, 0)
        gathering.take("main", snapshot(idle, 0, asked=asked, doing="loading", evals=[["hf:early", "dump", 50, 0, 1000]]))
        left.append(gathering.look().left_s)
    assert all(one == pytest.approx(50, rel=0.1) for one in left[60:]), "it stands still, as does the work"


def test_a_worker_that_has_ended_in_order_has_not_died() -> None:
    gathering = Gathering(["hf:final"], is_resumed=False, clock=lambda: 0.0)
    for name in ("gw0", "gw1"):
        gathering.take(name, snapshot(Moment(1, 1, 20, 1, 10), 1))
        gathering.ended(name, died=name == "gw1")
    assert [(worker.name, worker.doing) for worker in gathering.look().workers] == [("gw0", "done"), ("gw1", "dead")]


def test_tokens_per_second_are_of_tokens_as_they_are_made_and_not_0_in_a_pause() -> None:
    now = [0.0]
    gathering = Gathering(["hf:final"], is_resumed=False, clock=lambda: now[0])
    rates = []
    for moment in in_batches([200] * 70, 31, pause_s=2.0):  # the last batch is small
        now[0] = moment.at_s
        gathering.take("main", snapshot(moment, 70))
        (engine,) = gathering.look().engines
        rates.append((moment, engine.tokens_per_s))
    first = next(moment for moment, rate in rates if rate)
    assert first.num_new == 0, "before any answer has ended"
    assert all(rate for moment, rate in rates if moment.at_s > first.at_s), "nor while the second batch reads its prompts"
    last = rates[-1][0]
    assert sum(rate or 0 for _, rate in rates) / len(rates) == pytest.approx(70 * 200 / last.at_s, rel=0.6)
