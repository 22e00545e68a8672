"""What repeats of cases say, and what gates, comparisons and baselines make of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalharness.analysis.comparison.compare import IMPROVED, REGRESSED, SAME, WITHIN_NOISE, MetricChange, compare
from evalharness.analysis.comparison.sides import read_baseline, read_side, write_baseline
from evalharness.analysis.comparison.timeline import read_tracks, timeline_of
from evalharness.analysis.judge import RegressionJudge, judge_gates, num_regression_gates
from evalharness.analysis.noise import ANSWER, measured_noise, noises_of
from evalharness.runs.measured import NoiseFacts
from evalharness.runs.schema import RunFile
from tests.analysis.comparison.runs import ENGINE, cases, measured, run_dir

GATES = {"test_a.py": {"name": "stage_a", "path": "test_a.py", "tests": {"test_stage_a": ["f1 >= 0.8", "no_regression"]}}}


def entry(variance: object, metric: str = "f1", **changes: Any) -> dict[str, Any]:
    """Return an entry of run.json's noise, of the test whose rows `cases` makes."""
    found = cases([1.0])[0]
    names = {"eval": found["eval"], "test": found["test"], "engine": ENGINE["id"], "metric": metric}
    numbers = {
        "flip_rate": 0.1,
        "low": 0.0,
        "high": 0.2,
        "variance": variance,
        "covariance": 0.0,
        "between": 0.0,
        "freedom": None,
        "num_cases": 64,
        "num_runs": 4,
    }
    return {**names, **numbers, "floor": 0.0, "flips": {}, **changes}


def facts(*entries: dict[str, Any]) -> NoiseFacts:
    return {"repeats": 3, "num_judged": 192, "num_lost": 0, "elsewhere": 0.5, "measured": list(entries)}  # type: ignore[typeddict-item]


def rows(values: dict[str, float], number: int = 0, worker: str = "gw0", **changes: Any) -> list[dict[str, Any]]:
    """Return a row of each case: the case's own, or, with a number, that of its repeat."""
    made = []
    for case_id, value in values.items():
        (row,) = cases([value], worker=worker, **changes)
        suffix = f"{case_id}~again{number}" if number else case_id
        made.append({**row, "case_id": case_id, "nodeid": f"test_a.py::{row['test']}[{ENGINE['id']}-{suffix}]"})
    return made


class TestMeasuring:
    def test_a_run_without_repeats_has_no_noise(self) -> None:
        assert measured_noise(cases([1.0, 0.0]), []) is None

    def test_each_score_and_the_answers_have_their_rate(self) -> None:
        own = rows({"a": 1.0, "b": 1.0, "c": 0.0})
        again = [*rows({"a": 1.0, "b": 0.0}, 1, "gw1"), *rows({"a": 1.0, "b": 1.0}, 2)]
        found = measured_noise(own, again)
        assert found is not None
        assert (found["repeats"], found["num_judged"], found["num_lost"], found["elsewhere"]) == (2, 4, 0, 0.5)
        by_name = {one["metric"]: one for one in found["measured"]}
        assert by_name["f1"]["flips"] == {"b": pytest.approx(2 / 3, abs=1e-5)}
        assert (by_name["f1"]["num_cases"], by_name["f1"]["num_runs"]) == (2, 3)
        assert by_name["f1"]["flip_rate"] == pytest.approx(1 / 3)
        assert by_name["f1"]["floor"] > 0 == by_name["length_rate"]["floor"]
        assert (by_name[ANSWER]["flip_rate"], by_name[ANSWER]["floor"]) == (0.0, 0.0)

    def test_what_has_no_verdict_is_counted_and_left_out(self) -> None:
        own = rows({"a": 1.0, "b": 1.0}) + rows({"c": 1.0}, outcome="error")
        again = rows({"a": 0.0, "c": 1.0}, 1) + rows({"b": 1.0}, 1, outcome="error")
        found = measured_noise(own, again)
        assert found is not None
        assert (found["num_judged"], found["num_lost"]) == (1, 2)
        assert {one["num_cases"] for one in found["measured"]} == {1}

    def test_damaged_entries_are_left_out(self) -> None:
        bad = [entry("x"), entry(0.1, num_cases=None), entry(-1.0), entry(float("inf")), entry(0.1, ANSWER), 3, None]
        assert noises_of([*bad, entry(0.1, "good")], ENGINE["id"]).keys() == {(*key(), "good")}  # type: ignore[list-item]
        assert noises_of("no list") == {}  # type: ignore[arg-type]
        assert noises_of([entry(0.1)], "hf:other") == {}  # type: ignore[list-item]


def key() -> tuple[str, str]:
    found = entry(0.0)
    return found["eval"], found["test"]


class TestGates:
    @pytest.mark.parametrize(
        ("mean", "variance", "passed", "words"),
        [
            (0.795, 0.01, True, "0.795 is 0.005 below the threshold, within noise: runs of one checkpoint vary by up to 0.014"),
            (0.805, 0.01, True, "0.805 is 0.005 above the threshold, within noise: runs of one checkpoint vary by up to 0.014"),
            (0.780, 0.01, False, None),
            (0.795, 0.0, False, None),
            (0.900, 0.01, True, None),
        ],
        ids=["missed within noise", "met within noise", "missed", "no noise", "met"],
    )
    def test_a_threshold_is_missed_by_more_than_noise(self, mean: float, variance: float, passed: bool, words: str | None) -> None:
        evals = {"test_a.py": {"name": key()[0], "path": "test_a.py", "tests": {key()[1]: ["f1 >= 0.8"]}}}
        scores = [1.0] * round(200 * mean) + [0.0] * (200 - round(200 * mean))
        found = [{**row, "started_at": "now"} for row in cases(scores)]
        (verdict,) = judge_gates(evals, found, [], interrupted=None, noise=facts(entry(variance)))  # type: ignore[arg-type]
        assert (verdict["passed"], verdict.get("within_noise")) == (passed, None if words is None else [words])
        (before,) = judge_gates(evals, found, [], interrupted=None)  # type: ignore[arg-type]
        assert (before["passed"], "floor" in before) == (mean >= 0.8, False)

    @pytest.mark.parametrize("mean", [0.78, 0.795, 0.81], ids=str)
    def test_a_gates_flip_rate_is_the_share_of_other_runs_with_the_other_verdict(self, mean: float) -> None:
        """The oracle draws checkpoints of any mean, and two runs of each: those whose first run is like this one."""
        evals = {"test_a.py": {"name": key()[0], "path": "test_a.py", "tests": {key()[1]: ["f1 >= 0.8"]}}}
        found = [{**row, "started_at": "now"} for row in cases([1.0] * round(200 * mean) + [0.0] * (200 - round(200 * mean)))]
        (verdict,) = judge_gates(evals, found, [], interrupted=None, noise=facts(entry(0.01, low=0.05)))  # type: ignore[arg-type]
        draw = np.random.default_rng(0)
        means, spread = draw.uniform(0.7, 0.9, 2_000_000), math.sqrt(0.01 / 200)
        first, second = (means + draw.normal(0, spread, len(means)) for _ in range(2))
        passes = second[abs(first - mean) < 0.0005] >= 0.8 - 1.96 * spread
        assert verdict["flip_rate"] == pytest.approx(float((passes != verdict["passed"]).mean()), abs=0.015)
        assert verdict["flip_interval"] is not None
        assert verdict["flip_interval"][0] < verdict["flip_rate"] < verdict["flip_interval"][1]

    def test_a_strict_threshold_is_not_met_by_a_value_that_equals_it(self) -> None:
        evals = {"test_a.py": {"name": key()[0], "path": "test_a.py", "tests": {key()[1]: ["f1 > 0.8"]}}}
        found = [{**row, "started_at": "now"} for row in cases([1.0] * 159 + [0.0] * 41)]
        (verdict,) = judge_gates(evals, found, [], interrupted=None, noise=facts(entry(0.01)))  # type: ignore[arg-type]
        assert verdict["passed"] is False

    def test_no_regression_is_judged_beyond_the_floor(self, tmp_path: Path) -> None:
        from evalharness.analysis.gate_grammar import RegressionGate

        base = run_dir(tmp_path / "base", cases([1.0] * 200))
        worse = [1.0] * 190 + [0.0] * 10
        run: RunFile = {"run_id": "now", "engines": [{**ENGINE, "fingerprint": "f2"}], "versions": {"evalharness": "1"}}  # type: ignore[typeddict-item]
        gate = RegressionGate("no_regression")
        before = RegressionJudge(base, run)(gate, ENGINE["id"], cases(worse), None)
        assert before["passed"] is False
        assert "floor" not in before
        found = RegressionJudge(base, {**run, "noise": facts(entry(0.1))})(gate, ENGINE["id"], cases(worse), None)
        assert (found["passed"], found["reason"]) == (True, "")
        assert 0 < found["flip_rate"] < 0.5
        (words,) = found["within_noise"]
        assert words.startswith("f1 1.000 → 0.950 is within noise: two runs of one checkpoint differ by up to 0.0")
        far = RegressionJudge(base, {**run, "noise": facts(entry(0.01))})(gate, ENGINE["id"], cases(worse), None)
        assert (far["passed"], far["within_noise"]) == (False, [])
        assert far["flip_rate"] < found["flip_rate"]
        assert far["could_have_shown"] >= (before["could_have_shown"] or 0)

    def test_gates_share_one_chance_of_a_false_alarm(self, tmp_path: Path) -> None:
        assert num_regression_gates(GATES, [{"eval": "stage_a", "test": "test_stage_a", "engine": name} for name in "ab"]) == 2  # type: ignore[arg-type]
        from evalharness.analysis.gate_grammar import RegressionGate

        base = run_dir(tmp_path / "base", cases([1.0] * 200))
        run: RunFile = {"run_id": "now", "engines": [{**ENGINE, "fingerprint": "f2"}], "noise": facts(entry(0.1))}  # type: ignore[typeddict-item]
        floors = [
            RegressionJudge(base, run, num_gates=num)(RegressionGate("no_regression"), ENGINE["id"], cases([1.0] * 200), None)["floor"]
            for num in (1, 8)
        ]
        assert floors[0] < floors[1]


class TestComparisons:
    @staticmethod
    def compared(tmp_path: Path, worse: int, base_noise: float | None, noise: float | None) -> MetricChange:
        made = [{} if one is None else {"noise": facts(entry(one))} for one in (base_noise, noise)]
        base = run_dir(tmp_path / "base", cases([1.0] * 300), **made[0])
        candidate = run_dir(tmp_path / "cand", cases([1.0] * (300 - worse) + [0.0] * worse), {"fingerprint": "f2"}, **made[1])
        found = compare(read_side(str(base)), read_side(str(candidate)))
        return next(change for change in found.metrics if change.metric == "f1")

    @pytest.mark.parametrize(
        ("worse", "base_noise", "noise", "verdict"),
        [
            (9, None, None, REGRESSED),
            (9, 0.1, None, WITHIN_NOISE),
            (9, None, 0.1, WITHIN_NOISE),
            (9, 0.0, 0.0, REGRESSED),
            (30, 0.1, 0.1, REGRESSED),
            (2, 0.1, 0.1, WITHIN_NOISE),
            (2, None, None, SAME),
            (0, 0.1, 0.1, SAME),
        ],
        ids=["unknown", "of the base", "of the candidate", "none", "beyond", "not shown either", "not shown", "no difference"],
    )
    def test_a_difference_within_the_floor_is_none(
        self, tmp_path: Path, worse: int, base_noise: float | None, noise: float | None, verdict: str
    ) -> None:
        assert self.compared(tmp_path, worse, base_noise, noise).verdict == verdict

    def test_a_baseline_keeps_the_noise(self, tmp_path: Path) -> None:
        side = read_side(str(run_dir(tmp_path / "base", cases([1.0] * 300), noise=facts(entry(0.1), entry(0.2, ANSWER)))))
        write_baseline(side, tmp_path / "good.json")
        assert read_baseline(tmp_path / "good.json").noise == side.noise
        assert side.noise.keys() == {(*key(), "f1")}
        write_baseline(read_side(str(run_dir(tmp_path / "quiet", cases([1.0] * 300)))), tmp_path / "quiet.json")
        assert '"noise"' not in (tmp_path / "quiet.json").read_text()

    def test_checkpoints_within_noise_of_the_best_are_alike(self, tmp_path: Path) -> None:
        scores = {"checkpoint-1": [1.0] * 290 + [0.0] * 10, "checkpoint-2": [1.0] * 300, "checkpoint-3": [1.0] * 200 + [0.0] * 100}
        for noise, alike in ((None, ()), (0.1, (0,))):
            more = {} if noise is None else {"noise": facts(*(entry(noise, engine=f"hf:{name}") for name in scores))}
            (track,) = read_tracks([measured(tmp_path / f"run-{noise}", scores, **more)], [])
            curve = next(curve for curve in timeline_of(track).curves if curve.metric == "f1" and not curve.slice_key)
            assert curve.best is not None
            assert (curve.best.point, curve.best.alike, curve.floor == curve.floor) == (1, alike, noise is not None)

    def test_an_improvement_is_held_to_it_as_well(self, tmp_path: Path) -> None:
        base = run_dir(tmp_path / "base", cases([1.0] * 280 + [0.0] * 20), noise=facts(entry(0.1)))
        candidate = run_dir(tmp_path / "cand", cases([1.0] * 290 + [0.0] * 10), {"fingerprint": "f2"})
        better = run_dir(tmp_path / "better", cases([1.0] * 300), {"fingerprint": "f3"})
        found = [compare(read_side(str(base)), read_side(str(other))).metrics for other in (candidate, better)]
        verdicts = [change.verdict for metrics in found for change in metrics if change.metric == "f1"]
        assert verdicts == [WITHIN_NOISE, IMPROVED]
