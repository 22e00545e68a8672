"""Gates of a run, and gates on a baseline. With pytest around them: tests/pytest_plugin/test_baselines.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.gate_grammar import RegressionGate
from evalharness.analysis.judge import RegressionJudge, find_baseline, judge_gates
from evalharness.api.errors import BaselineError
from evalharness.runs.schema import GateVerdict
from tests.analysis.comparison.runs import ENGINE, cases, run_dir

GATE = RegressionGate("no_regression")
SCORES = [0.0, 1.0] * 20


def verdict(baseline: Path, **engine: Any) -> GateVerdict:
    """Return the verdict on a run that answers as the baseline does."""
    run = {"run_id": "now", "engines": [{**ENGINE, "fingerprint": "f2", **engine}], "versions": {"evalharness": "1"}}
    return RegressionJudge(baseline, run)(GATE, ENGINE["id"], cases(SCORES), None)


def test_a_run_that_answers_as_its_baseline_passes(tmp_path: Path) -> None:
    found = verdict(run_dir(tmp_path / "base", cases(SCORES)))
    assert (found["passed"], found["reason"]) == (True, "")


def test_a_baseline_of_another_chat_template_judges_nothing(tmp_path: Path) -> None:
    found = verdict(run_dir(tmp_path / "base", cases(SCORES)), template_sha256="t2")
    assert (found["passed"], found["asked"]) == (False, True)
    assert found["reason"].startswith("the baseline cannot be compared: chat template differs: t1 in the base, t2 in the candidate")


def test_a_baseline_that_is_not_there_says_how_it_is_made(tmp_path: Path) -> None:
    found = verdict(tmp_path / "gone.json")
    assert (found["passed"], found["reason"].partition("; ")[2]) == (False, "create it with: evalharness bless RUN_DIR gone")


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        pytest.param("nightly", "root/baselines/nightly.json", id="name"),
        pytest.param("kept/a.json", "base/kept/a.json", id="path"),
        pytest.param("latest", "reports/b", id="latest"),
        pytest.param("latest~1", "reports/a", id="the one before"),
    ],
)
def test_a_baseline_is_a_name_a_path_or_a_run_counted_back(tmp_path: Path, asked: str, place: str) -> None:
    for day, name in enumerate("ab", 1):
        run_dir(tmp_path / "reports" / name, cases([1.0]), finished_at=f"2030-01-0{day}T00:00:00.000+00:00")
    found = find_baseline(asked, root=tmp_path / "root", base=tmp_path / "base", report_dir=tmp_path / "reports")
    assert found == tmp_path / place


def test_without_a_complete_run_latest_is_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="^there is no run latest: .* holds 0 complete runs; .*, or run once without --baseline$"):
        find_baseline("latest", root=tmp_path, base=tmp_path, report_dir=tmp_path)


class TestGates:
    EVALS = {"test_a.py": {"name": "a", "tests": {"test_b": ["x >= 0.5"], "test_c": []}}}  # noqa: RUF012

    @staticmethod
    def row(outcome: str = "pass", test: str = "test_b", **more: Any) -> dict[str, Any]:
        scores = {"x": 1.0} if outcome == "pass" else {}
        return {"eval": "a", "engine": "hf:a", "test": test, "outcome": outcome, "scores": scores, "started_at": "now", **more}

    def test_a_whole_run_is_judged(self) -> None:
        (verdict,) = judge_gates(self.EVALS, [self.row(), self.row(test="test_c")], (), interrupted=None)
        names = tuple(verdict[name] for name in ("eval", "test", "engine"))
        assert (names, verdict["passed"], verdict["value"]) == (("a", "test_b", "hf:a"), True, 1)

    def test_an_incomplete_test_or_run_never_passes(self) -> None:
        (verdict,) = judge_gates(self.EVALS, [self.row(), self.row("skip", started_at=None)], (), interrupted="stopped")
        assert (verdict["passed"], verdict["reason"]) == (False, "not judged: 1 of 2 cases were not run (stopped)")
        (verdict,) = judge_gates(self.EVALS, [self.row()], (), interrupted=None, unfinished="killed")
        assert (verdict["passed"], verdict["reason"]) == (False, "not judged: killed")

    def test_an_aggregate_counts_for_its_own_test(self) -> None:
        evals = {"test_a.py": {"name": "a", "tests": {"test_b": ["f >= 0.5"], "test_c": ["f >= 0.5"]}}}
        values = [
            {"eval": "a", "engine": "hf:a", "test": test, "metric": "f", "value": value} for test, value in (("test_b", 1), ("test_c", 0))
        ]
        verdicts = judge_gates(evals, [self.row(), self.row(test="test_c")], values, interrupted=None)
        assert [verdict["passed"] for verdict in verdicts] == [True, False]
