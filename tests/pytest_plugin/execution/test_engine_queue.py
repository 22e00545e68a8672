"""Several units on one engine, without pytest: what goes into one call, and what one unit's trouble is to the others."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness import Case, GenerationOptions, GenerationResult, TextGenerationRequest
from evalharness.api.errors import BackendError, RecordError
from evalharness.api.hooks import GenerationPlugin
from evalharness.api.requests import Outcome
from evalharness.backends.base import BackendOutput, Prompt
from evalharness.backends.fake import FakeBackend
from evalharness.engine.engine import Engine
from evalharness.pytest_plugin.eval_module import EvalModule
from evalharness.pytest_plugin.execution import engine_queue, unit_results
from evalharness.pytest_plugin.execution.engine_queue import EngineQueue
from evalharness.pytest_plugin.execution.takeover import InFlight, Takeover, in_flight_path, take_in_flight
from evalharness.pytest_plugin.execution.unit_runner import UnitRunner, UnitWork
from evalharness.pytest_plugin.execution.units import UnitKey
from evalharness.pytest_plugin.progress.counts import UnitProgress
from evalharness.runs.journal import Journal

CAPACITY = 2
PATIENCE_S = 120
NOTHING_RECORDED = Takeover(None, lambda case_id: None)
ALONE = Takeover(frozenset({"t"}), lambda case_id: None)


class Rows(FakeBackend):
    """Holds two rows at once; `events` is what was pulled and what was answered, in order.

    `gate` stops it before an answer, `at_end` as a call ends.
    """

    def __init__(self) -> None:
        self._start(lambda prompt: prompt.text.partition("ask ")[2].partition("<")[0], None)
        self.events: list[str] = []
        self.gate: Callable[[str], None] = lambda text: None
        self.is_stopped: Callable[[], bool] = lambda: False
        self.at_end: Callable[[], None] = lambda: None

    def generate(
        self, prompts: Iterable[Prompt], *, plugins: Sequence[GenerationPlugin] = (), should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[BackendOutput]:
        self.events.append("call")
        self.is_stopped = should_stop
        source, running = iter(prompts), list[Prompt]()
        while not should_stop():
            while len(running) < CAPACITY and (prompt := next(source, None)) is not None:
                running.append(prompt)
                self.events.append(f"+{self._answers(prompt)}")  # type: ignore[operator]
            if not running:
                self.at_end()
                return
            prompt = running.pop(0)
            text = str(self._answers(prompt))  # type: ignore[operator]
            self.gate(text)
            if should_stop():
                return
            self.events.append(f"-{text}")
            yield self._complete(prompt, plugins)


def ask(case: Case) -> TextGenerationRequest:
    return TextGenerationRequest([{"role": "user", "content": f"ask {case.id}"}])


def in_steps(case: Case) -> Any:
    (first,) = yield [ask(case)], GenerationOptions()
    return TextGenerationRequest([{"role": "user", "content": f"ask {first.text}!"}])


class Bench:
    """An engine, a journal, and units of three cases each."""

    def __init__(self, folder: Path) -> None:
        self.backend = Rows()
        self.engine = Engine(self.backend)
        self.journal = Journal(folder, "main")
        self.progress = UnitProgress()

    def unit(self, name: str, request: Any = ask, takeover: Takeover | None = None, **more: Any) -> UnitRunner:
        cases = [Case(id=f"{name}{number}") for number in range(3)]
        variants = more.pop("variants", (GenerationOptions(),))
        module = EvalModule(name, f"test_{name}.py", cases, request, variants, 1, **more)
        unit = UnitKey("fake:x", module.path, 0)
        work = UnitWork(unit, module, cases, takeover or NOTHING_RECORDED)
        return UnitRunner(work, self.engine, self.journal, self.progress, InFlight(None, unit))

    def feed(self, *runners: UnitRunner) -> EngineQueue:
        feed = EngineQueue(self.engine, self.progress, *runners)
        feed.start()
        return feed

    def lines(self, kind: str) -> list[dict[str, Any]]:
        lines = map(json.loads, self.journal.path.read_bytes().splitlines())
        return [line for line in lines if line["kind"] == kind]

    def stopped_at(self, case: str, *runners: UnitRunner) -> EngineQueue:
        """Return a queue whose engine is at a case, until it is told to stop; once it is, the engine holds nothing up again."""
        at_case = threading.Event()

        def gate(text: str) -> None:
            if text == case and not at_case.is_set():
                at_case.set()
                until = time.monotonic() + PATIENCE_S
                while not self.backend.is_stopped() and time.monotonic() < until:
                    time.sleep(0.01)

        self.backend.gate = gate
        feed = self.feed(*runners)
        assert at_case.wait(PATIENCE_S)
        return feed

    def generated(self) -> Counter[str]:
        return Counter(line["case_id"] for line in self.lines("generation"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def outcome(runner: UnitRunner, case_id: str) -> Outcome:
    (found,) = runner.results.outcomes(case_id, lambda: None)
    return found


def told(runner: UnitRunner, name: str) -> list[str]:
    """Return the texts of a unit's cases, or what was the matter with them."""
    each = [outcome(runner, f"{name}{number}") for number in range(3)]
    return [one.text if isinstance(one, GenerationResult) else one.problem for one in each]


def raising(error: Exception) -> Callable[[str], None]:
    """Return a gate that raises an error at a2, once."""
    left = [error]

    def gate(text: str) -> None:
        if text == "a2" and left:
            raise left.pop()

    return gate


def ended(feed: EngineQueue) -> None:
    feed.join(PATIENCE_S)
    assert not feed.is_generating


def test_the_next_unit_is_asked_as_soon_as_there_is_room_for_it(bench: Bench) -> None:
    first, second = bench.unit("a"), bench.unit("b")
    ended(bench.feed(first, second))
    assert told(first, "a") == ["a0", "a1", "a2"]
    assert told(second, "b") == ["b0", "b1", "b2"]
    assert bench.backend.events == ["call", "+a0", "+a1", "-a0", "+a2", "-a1", "+b0", "-a2", "+b1", "-b0", "+b2", "-b1", "-b2"]


def test_a_unit_that_comes_while_others_run_is_taken_up(bench: Bench) -> None:
    first, second = bench.unit("a"), bench.unit("b")
    at_last, may_go_on = threading.Event(), threading.Event()

    def gate(text: str) -> None:
        if text == "a2":
            at_last.set()
            may_go_on.wait(PATIENCE_S)

    bench.backend.gate = gate
    feed = bench.feed(first)
    assert at_last.wait(PATIENCE_S)
    assert feed.add(second)
    may_go_on.set()
    ended(feed)
    assert bench.backend.events.count("call") == 1
    assert not feed.add(bench.unit("c")), "one that has ended takes no more"


def test_a_unit_that_comes_as_a_call_ends_is_asked_in_the_next_one(bench: Bench) -> None:
    """The call has looked for more and found nothing; the thread has not ended yet."""
    first, second = bench.unit("a"), bench.unit("b")
    feed = EngineQueue(bench.engine, bench.progress, first)
    taken: list[bool] = []
    bench.backend.at_end = lambda: None if taken else taken.append(feed.add(second))
    feed.start()
    ended(feed)
    assert taken == [True]
    assert told(second, "b") == ["b0", "b1", "b2"]
    assert bench.backend.events.count("call") == 2


def test_a_unit_is_not_done_while_its_last_case_works_out_what_to_ask_next(bench: Bench, tmp_path: Path) -> None:
    """Whoever took it for done would close the in-flight file, and a crash in the case's own code would have no suspects."""
    in_step, may_go_on = threading.Event(), threading.Event()

    def request(case: Case) -> Any:
        (first,) = yield [ask(case)], GenerationOptions()
        in_step.set()
        may_go_on.wait(PATIENCE_S)
        return TextGenerationRequest([{"role": "user", "content": f"ask {first.text}!"}])

    in_flight = InFlight(in_flight_path(bench.journal.path, 1), UnitKey("fake:x", "test_a.py", 0), ["a0"])
    module = EvalModule("a", "test_a.py", [Case(id="a0")], request, (GenerationOptions(),), 1)
    work = UnitWork(UnitKey("fake:x", module.path, 0), module, module.cases, NOTHING_RECORDED)
    runner = UnitRunner(work, bench.engine, bench.journal, bench.progress, in_flight)
    feed = bench.feed(runner)
    assert in_step.wait(PATIENCE_S)
    is_done = runner.is_done
    suspects = take_in_flight(bench.journal.path)
    may_go_on.set()
    ended(feed)
    assert not is_done
    assert list(suspects.values()) == [("a0",)]
    assert runner.is_done
    assert runner.results.outcomes("a0", lambda: None)[0].text == "a0!"  # type: ignore[union-attr]


def test_one_that_is_stopped_before_its_thread_has_begun_asks_nothing_and_keeps_nobody_waiting(bench: Bench) -> None:
    first = bench.unit("a")
    feed = EngineQueue(bench.engine, bench.progress, first)
    assert feed.stop()
    feed.start()
    ended(feed)
    assert set(told(first, "a")) == {"the engine was stopped before this generation"}
    assert bench.backend.events == []


def test_what_a_step_leads_to_goes_into_the_running_call(bench: Bench) -> None:
    first, second = bench.unit("a", in_steps), bench.unit("b")
    ended(bench.feed(first, second))
    assert told(first, "a") == ["a0!", "a1!", "a2!"]
    assert [len(step) for step in first.results.steps("a0")] == [1]
    assert bench.backend.events.count("call") == 1


@pytest.mark.parametrize("place", [0, 1], ids=["before", "after"])
def test_nothing_runs_beside_a_unit_that_is_taken_over(bench: Bench, place: int) -> None:
    runners = [bench.unit(name, takeover=ALONE if number == place else None) for number, name in enumerate("ab")]
    ended(bench.feed(*runners))
    assert [told(runner, name) for runner, name in zip(runners, "ab", strict=True)] == [["a0", "a1", "a2"], ["b0", "b1", "b2"]]
    assert bench.backend.events.index("+b0") > bench.backend.events.index("-a2")


class Shouts:
    """A plugin that changes texts."""

    name = "shouts"

    def postprocess_text(self, text: str) -> str:
        return text.upper()


@pytest.mark.parametrize("place", [0, 1], ids=["first", "second"])
def test_plugins_act_on_their_own_unit_alone(bench: Bench, place: int) -> None:
    runners = [bench.unit(name, **({"plugins": (Shouts(),)} if number == place else {})) for number, name in enumerate("ab")]
    ended(bench.feed(*runners))
    expected = [["a0", "a1", "a2"], ["b0", "b1", "b2"]]
    expected[place] = [text.upper() for text in expected[place]]
    assert [told(runner, name) for runner, name in zip(runners, "ab", strict=True)] == expected
    assert bench.backend.events.count("call") == 2


def test_a_unit_whose_options_are_refused_is_the_only_one_without_answers(bench: Bench) -> None:
    refused = (GenerationOptions(extra_generation_kwargs={"best_of": 2}),)
    for request in (ask, in_steps):
        bench.backend.events.clear()
        first, second, third = bench.unit("a"), bench.unit("b", request, variants=refused), bench.unit("c")
        ended(bench.feed(first, second, third))
        assert told(first, "a") == ["a0", "a1", "a2"]
        assert all("cannot honour: best_of=2" in problem for problem in told(second, "b"))
        assert told(third, "c") == ["c0", "c1", "c2"]


def test_an_engine_that_breaks_takes_those_along_that_it_was_at_and_no_others(bench: Bench) -> None:
    bench.backend.gate = raising(BackendError("no device"))
    first, second, third = bench.unit("a"), bench.unit("b"), bench.unit("c", takeover=ALONE)
    ended(bench.feed(first, second, third))
    assert told(first, "a") == ["a0", "a1", "no device"]
    assert told(second, "b") == ["no device"] * 3
    assert told(third, "c") == ["c0", "c1", "c2"]
    assert (first.results.engine_failure, third.results.engine_failure) == ("no device", None)


def test_a_fault_of_a_backends_own_is_told_to_whoever_waits_with_its_place(bench: Bench) -> None:
    bench.backend.gate = raising(ZeroDivisionError("no row"))
    first, second, third = bench.unit("a"), bench.unit("b"), bench.unit("c", takeover=ALONE)
    ended(bench.feed(first, second, third))
    said = [re.sub(r"line \d+", "line N", text) for text in told(first, "a") + told(second, "b")]
    assert said == ["a0", "a1", *["ZeroDivisionError: no row (at gate, line N)"] * 4]
    assert told(third, "c") == ["c0", "c1", "c2"]
    assert first.results.engine_failure is None, "it is not said that the engine is beyond repair"


def test_units_that_are_kept_go_on_in_another_feed_where_they_were(bench: Bench) -> None:
    first, second, third = bench.unit("a"), bench.unit("b"), bench.unit("c")
    feed = bench.stopped_at("b1", first, second, third)
    assert feed.stop(keep=[second, third])
    assert bench.generated() == Counter(["a0", "a1", "a2", "b0"])
    ended(bench.feed(second, third))
    assert told(second, "b") + told(third, "c") == ["b0", "b1", "b2", "c0", "c1", "c2"]
    assert set(bench.generated().values()) == {1}, "nothing twice"


def test_what_was_stopped_says_so_to_whoever_waits(bench: Bench) -> None:
    first, second = bench.unit("a"), bench.unit("b", takeover=ALONE)
    feed = bench.stopped_at("a1", first, second)
    assert feed.stop()
    stopped = "the engine was stopped before this generation"
    assert told(first, "a") == ["a0", stopped, stopped]
    assert told(second, "b") == [stopped] * 3


def test_a_journal_that_cannot_be_written_ends_all(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise RecordError("the disk is full")

    monkeypatch.setattr(bench.journal, "write", full)
    first, second, third = bench.unit("a"), bench.unit("b"), bench.unit("c", takeover=ALONE)
    ended(bench.feed(first, second, third))
    for runner, name in ((first, "a"), (third, "c")):
        with pytest.raises(RecordError, match="the disk is full"):
            outcome(runner, f"{name}0")


def test_a_journal_that_is_full_when_a_unit_joins_ends_the_call_that_others_are_in(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    write = bench.journal.write

    def nearly_full(kind: str, values: dict[str, Any]) -> None:
        if values["eval"] == "b":
            raise RecordError("the disk is full")
        write(kind, values)

    def refused(case: Case) -> Any:
        raise LookupError("no such case")

    monkeypatch.setattr(bench.journal, "write", nearly_full)
    first, second, third = bench.unit("a"), bench.unit("b", refused), bench.unit("c")
    ended(bench.feed(first, second, third))
    for runner, case_id in ((first, "a2"), (second, "b0"), (third, "c0")):
        with pytest.raises(RecordError, match="the disk is full"):
            outcome(runner, case_id)
    assert "+c0" not in bench.backend.events


def test_the_seconds_of_units_that_overlap_add_up_to_the_time_of_the_engine(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    def gate(text: str) -> None:
        nonlocal now
        now += 0.5

    clock = SimpleNamespace(monotonic=lambda: now, time=lambda: now)
    monkeypatch.setattr(engine_queue, "time", clock)
    monkeypatch.setattr(unit_results, "time", clock)
    bench.backend.gate = gate
    ended(bench.feed(bench.unit("a"), bench.unit("b"), bench.unit("c")))
    lines = bench.lines("unit")
    assert [(line["eval"], line["num_outcomes"]) for line in lines] == [("a", 3), ("b", 3), ("c", 3)]
    assert sum(line["generation_s"] for line in lines) == 9 * 0.5
    for before, after in itertools.pairwise(lines):
        assert after["ended_s"] - before["ended_s"] == after["generation_s"]
