"""What workers and engines did with their time, from made-up journal lines."""

from __future__ import annotations

from typing import Any

import pytest

from evalharness.runs.workers import EngineTotals, WorkerTimes, engine_costs, engine_entries


def opened(load_s: float, ended_s: float, how: str = "load") -> dict[str, object]:
    return {"id": "hf:x", "load_s": load_s, "ended_s": ended_s, "how": how, "devices": ["0"]}


def ran(times: WorkerTimes, worker: str, num: int, generation_s: float, ended_s: float, engine: str = "hf:x") -> None:
    unit = {"engine": engine, "eval": "a", "generation_s": generation_s, "ended_s": ended_s, "num_outcomes": num}
    times.end_unit(worker, unit)


@pytest.fixture
def times() -> WorkerTimes:
    """Two workers over 100 s: one loads 10 s, swaps 2 s and generates 70 s; the other loads 10 s and generates 40 s."""
    made = WorkerTimes()
    made.add_engine("gw10", opened(10, 1010))
    ran(made, "gw10", 4, 40, 1050)
    made.add_engine("gw2", opened(10, 1010))
    ran(made, "gw2", 3, 30, 1040)
    made.add_engine("gw2", opened(2, 1060, "swap"))
    ran(made, "gw2", 2, 40, 1100, "hf:y")
    return made


def test_loads_swaps_units_and_seconds_are_counted_by_worker_in_natural_order(times: WorkerTimes) -> None:
    second, tenth = times.entries()
    assert (second["worker"], tenth["worker"]) == ("gw2", "gw10")
    assert (second["num_loads"], second["num_swaps"], second["num_units"]) == (1, 1, 2)
    assert (second["load_s"], second["generation_s"], second["devices"]) == (12.0, 70.0, ["0"])


def test_idle_is_what_is_left_of_the_time_that_all_worked_in(times: WorkerTimes) -> None:
    assert [entry["idle_share"] for entry in times.entries()] == [0.18, 0.5]


def test_durations_are_by_engine_and_eval(times: WorkerTimes) -> None:
    assert times.durations() == [
        {"engine": "hf:x", "eval": "a", "num_outcomes": 7, "generation_s": 70.0},
        {"engine": "hf:y", "eval": "a", "num_outcomes": 2, "generation_s": 40.0},
    ]


def test_lines_of_older_journals_and_of_closing_engines_are_passed_over() -> None:
    times = WorkerTimes()
    times.add_engine("gw0", {"id": "hf:x", "settings": {}})
    times.add_engine("gw0", {"id": "hf:x", "load_s": 3.0})
    times.end_unit("gw0", {"engine": "hf:x", "eval": "a", "generation_s": 1.0})
    assert times.entries() == []
    times.end_unit("gw0", {"engine": "hf:x", "eval": "a", "generation_s": 1.0, "ended_s": 2.0})  # not yet with a number of cases
    assert [(entry["num_units"], entry["generation_s"]) for entry in times.entries()] == [(1, 1.0)]
    assert times.durations() == []


def test_the_time_before_a_run_was_resumed_is_nobodys() -> None:
    times = WorkerTimes()
    for worker, start in (("gw0", 0), ("resumed-001-gw0", 100_000)):
        times.add_engine(worker, opened(10, start + 10))
        ran(times, worker, 1, 10, start + 20)
    assert [entry["idle_share"] for entry in times.entries()] == [0.0, 0.0]


def closed(ended_s: float, engine: str = "hf:x") -> Any:
    return {"id": engine, "settings": {}, "closed_s": ended_s}


def test_an_engine_that_is_open_and_has_nothing_to_generate_waits_for_tests() -> None:
    times = WorkerTimes()
    times.add_engine("gw0", opened(10, 1010))
    ran(times, "gw0", 4, 40, 1055)
    times.add_engine("gw0", closed(1080))  # 5 s before the unit, 25 s after it
    times.add_engine("gw1", opened(20, 1020))
    ran(times, "gw1", 4, 20, 1040)
    times.add_engine("gw1", closed(1040))  # and nothing to do for 40 s
    assert times.seconds() == {"hf:x": {"load_s": 30.0, "tests_s": 30.0, "idle_s": 40.0}}


def test_a_worker_that_died_held_its_engine_until_its_last_result() -> None:
    times = WorkerTimes()
    times.add_engine("gw0", opened(10, 1010))
    ran(times, "gw0", 4, 40, 1055)
    assert times.seconds() == {"hf:x": {"load_s": 10.0, "tests_s": 5.0, "idle_s": 0.0}}


@pytest.mark.parametrize(
    "names", [("part1-main", "part2-main"), ("resumed-001-part1-main", "resumed-001-part2-main"), ("main", "resumed-001-main")]
)
def test_parts_of_a_merged_run_and_sessions_do_not_wait_for_each_other(names: tuple[str, str]) -> None:
    times = WorkerTimes()
    for worker, start in zip(names, (0, 5000), strict=True):
        times.add_engine(worker, opened(10, start + 10))
        ran(times, worker, 4, 40, start + 50)
        times.add_engine(worker, closed(start + 50))
    assert times.seconds() == {"hf:x": {"load_s": 20.0, "tests_s": 0.0, "idle_s": 0.0}}


def test_workers_on_different_cards_have_no_card_in_common() -> None:
    lines: list[Any] = [{"id": "hf:x", "settings": {}, "cost": {"card": card, "num_cards": 1}} for card in ("H100", "H200")]
    assert engine_costs(lines[:1]) == {"hf:x": {"card": "H100", "num_cards": 1}}
    assert engine_costs(lines) == {"hf:x": {"num_cards": 1, "card_unknown": "its workers had different GPUs"}}
    assert engine_costs([{"id": "hf:x", "settings": {}}]) == {}


TOKENS: Any = {"num_prompt_tokens": 10, "num_completion_tokens": 5}


class TestThroughput:
    def test_tokens_and_seconds_of_units_are_summed_by_engine(self) -> None:
        speed = EngineTotals()
        for engine, num in (("hf:a", 2), ("vllm:a", 1), ("hf:a", 1)):
            speed.start_unit("main")
            for _ in range(num):
                speed.add_generation("main", engine, TOKENS)
            speed.end_unit("main", engine, 1.5)
        hf, vllm = speed.entries()
        assert hf.pop("work") == {}
        assert hf.pop("answers")["num_prompt_tokens"] == 30
        assert hf == {
            "engine": "hf:a", "generation_s": 3.0, "num_generations": 3, "num_prompt_tokens": 30, "num_completion_tokens": 15,
            "num_untimed_generations": 0, "num_workers": 1,
        }  # fmt: skip
        assert (vllm["engine"], vllm["num_generations"]) == ("vllm:a", 1)

    def test_work_is_summed_over_units_and_workers(self) -> None:
        speed = EngineTotals()
        for worker, longest in (("gw0", 5), ("gw1", 9)):
            speed.start_unit(worker)
            pictured: Any = {**TOKENS, "num_completion_tokens": longest, "images": [{}, {}]}
            cached: Any = {**TOKENS, "cached": True}
            given: Any = {**TOKENS, "finish_reason": "scored"}  # all of it is read, none made
            for made in (pictured, cached, given):
                speed.add_generation(worker, "hf:a", made)
            speed.end_unit(worker, "hf:a", 2.0, {"num_steps": 3.0})
        (entry,) = speed.entries()
        answers = entry["answers"]
        assert (answers["num_prompts"], answers["num_prompt_tokens"], answers["num_made_tokens"]) == (4, 50, 14)
        assert (answers["sum_prompt_squares"], answers["longest"], answers["num_pictures"]) == (2 * (100 + 225), 9, 4)
        assert answers["sum_context"] == 5 * 12.5 + 9 * 14.5
        assert entry["work"] == {"num_steps": 6.0}

    def test_a_worker_of_a_resumed_run_is_the_one_of_before(self) -> None:
        speed = EngineTotals()
        for worker in ("main", "resumed-001-main", "resumed-002-main"):
            speed.end_unit(worker, "hf:a", 1.0)
        assert [entry["num_workers"] for entry in speed.entries()] == [1]

    @pytest.mark.parametrize("goes_on", [True, False], ids=["then-another-unit", "last-unit"])
    def test_tokens_of_a_unit_without_seconds_count_for_no_rate(self, goes_on: bool) -> None:
        speed = EngineTotals()
        speed.start_unit("main")
        speed.add_generation("main", "hf:a", TOKENS)  # and then the engine broke
        if goes_on:
            speed.start_unit("main")
            speed.add_generation("main", "hf:a", TOKENS)
            speed.end_unit("main", "hf:a", 1.0)
        (entry,) = speed.entries()
        assert (entry["num_untimed_generations"], entry["num_generations"], entry["num_completion_tokens"]) == (1, goes_on, 5 * goes_on)
        assert entry["generation_s"] == float(goes_on)

    def test_workers_are_counted_as_their_seconds_overlap(self) -> None:
        speed = EngineTotals()
        for worker in ("gw0", "gw1"):
            speed.start_unit(worker)
            speed.add_generation(worker, "hf:a", TOKENS)
        for worker in ("gw0", "gw1"):
            speed.end_unit(worker, "hf:a", 2.0)
        (entry,) = speed.entries()
        assert (entry["num_workers"], entry["generation_s"], entry["num_generations"]) == (2, 4.0, 2)

    def test_counts_that_are_not_known_are_none_of_the_sum(self) -> None:
        speed = EngineTotals()
        speed.add_generation("main", "hf:a", {"num_prompt_tokens": None, "num_completion_tokens": 3})
        speed.end_unit("main", "hf:a", 1.0)
        assert (speed.entries()[0]["num_prompt_tokens"], speed.entries()[0]["num_completion_tokens"]) == (0, 3)


class TestEngines:
    SPEC = {"id": "hf:a", "backend": "hf"}  # noqa: RUF012

    @staticmethod
    def line(worker: str, halved: int, **more: Any) -> dict[str, Any]:
        return {"id": "hf:a", "worker": worker, "settings": {"num_batches_halved": halved, "template_sha256": "t"}, **more}

    def test_settings_are_those_of_the_closing_and_loads_are_counted_once(self) -> None:
        (entry,) = engine_entries([self.SPEC], [self.line("main", 0, load_s=2.0), self.line("main", 3)])
        loaded = {"num_loads": 1, "load_s": 2.0, "num_swaps": 0, "swap_s": None, "cold_because": []}
        assert entry == {**self.SPEC, "template_sha256": "t", "settings": {"num_batches_halved": 3}, **loaded}

    def test_swaps_are_counted_apart_from_loads(self) -> None:
        lines = [self.line("gw0", 0, load_s=2.0, how="load", cold_because="of another kind"), self.line("gw0", 3)]
        lines += [self.line("gw0", 0, load_s=0.5, how="swap"), self.line("gw0", 1), self.line("gw0", 0, how="kept"), self.line("gw0", 2)]
        (entry,) = engine_entries([self.SPEC], lines)
        loaded = {name: entry[name] for name in ("num_loads", "load_s", "num_swaps", "swap_s", "cold_because")}
        assert loaded == {"num_loads": 1, "load_s": 2.0, "num_swaps": 1, "swap_s": 0.5, "cold_because": ["of another kind"]}
        assert entry["settings"]["num_batches_halved"] == 5

    def test_what_each_worker_and_each_loading_counted_is_summed(self) -> None:
        lines = [self.line("gw0", 0, load_s=2.0), self.line("gw0", 3), self.line("gw0", 0, load_s=1.0), self.line("gw0", 1)]
        lines += [self.line("gw1", 0, load_s=3.0), self.line("gw1", 2)]
        (entry,) = engine_entries([self.SPEC], lines)
        assert (entry["settings"]["num_batches_halved"], entry["num_loads"], entry["load_s"]) == (6, 3, 2.0)

    def test_an_engine_that_was_never_opened_has_no_settings(self) -> None:
        (entry,) = engine_entries([self.SPEC], [])
        assert (entry["settings"], entry["num_loads"], entry["load_s"]) == ({}, 0, None)
