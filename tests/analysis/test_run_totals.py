from __future__ import annotations

from typing import Any

import pytest

from evalharness.analysis.judge import engine_entries, judge_gates
from evalharness.runs.workers import EngineTotals

TOKENS = {"num_prompt_tokens": 10, "num_completion_tokens": 5}


class TestThroughput:
    def test_tokens_and_seconds_of_units_are_summed_by_engine(self) -> None:
        speed = EngineTotals()
        for engine, num in (("hf:a", 2), ("vllm:a", 1), ("hf:a", 1)):
            speed.start_unit("main")
            for _ in range(num):
                speed.add_generation("main", engine, TOKENS)
            speed.end_unit("main", engine, 1.5)
        hf, vllm = speed.entries()
        assert hf == {
            "engine": "hf:a", "generation_s": 3.0, "num_generations": 3, "num_prompt_tokens": 30, "num_completion_tokens": 15,
            "num_untimed_generations": 0, "num_workers": 1,
        }  # fmt: skip
        assert (vllm["engine"], vllm["num_generations"]) == ("vllm:a", 1)

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


class TestGates:
    EVALS = {"test_a.py": {"name": "a", "tests": {"test_b": ["x >= 0.5"], "test_c": []}}}  # noqa: RUF012

    @staticmethod
    def row(outcome: str = "pass", test: str = "test_b", **more: Any) -> dict[str, Any]:
        scores = {"x": 1.0} if outcome == "pass" else {}
        return {"eval": "a", "engine": "hf:a", "test": test, "outcome": outcome, "scores": scores, "started_at": "now", **more}

    def test_a_whole_run_is_judged(self) -> None:
        (verdict,) = judge_gates(self.EVALS, [self.row(), self.row(test="test_c")], (), interrupted=None)
        assert (verdict["eval"], verdict["test"], verdict["engine"], verdict["passed"], verdict["value"]) == (
            "a",
            "test_b",
            "hf:a",
            True,
            1,
        )

    def test_an_incomplete_test_never_passes(self) -> None:
        rows = [self.row(), self.row("skip", started_at=None)]
        (verdict,) = judge_gates(self.EVALS, rows, (), interrupted="stopped")
        assert (verdict["passed"], verdict["reason"]) == (False, "not judged: 1 of 2 cases were not run (stopped)")

    def test_an_unfinished_run_never_passes(self) -> None:
        (verdict,) = judge_gates(self.EVALS, [self.row()], (), interrupted=None, unfinished="killed")
        assert (verdict["passed"], verdict["reason"]) == (False, "not judged: killed")

    def test_an_aggregate_counts_for_its_own_test(self) -> None:
        evals = {"test_a.py": {"name": "a", "tests": {"test_b": ["f >= 0.5"], "test_c": ["f >= 0.5"]}}}
        values = [
            {"eval": "a", "engine": "hf:a", "test": test, "metric": "f", "value": value} for test, value in (("test_b", 1), ("test_c", 0))
        ]
        verdicts = judge_gates(evals, [self.row(), self.row(test="test_c")], values, interrupted=None)
        assert [verdict["passed"] for verdict in verdicts] == [True, False]
