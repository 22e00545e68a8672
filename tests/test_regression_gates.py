"""Gates on a baseline: what is no baseline for a run. With pytest around them: tests/pytest_plugin/test_baselines.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evalharness.gates import RegressionGate
from evalharness.regression_gates import LATEST, RegressionJudge, find_baseline
from tests.comparison.runs import ENGINE, cases, run_dir

GATE = RegressionGate("no_regression")
SCORES = [0.0, 1.0] * 20


def verdict(baseline: Path, **engine: Any) -> dict[str, Any]:
    """Return the verdict on a run that answers as the baseline does."""
    run = {"run_id": "now", "engines": [{**ENGINE, "fingerprint": "f2", **engine}], "versions": {"evalharness": "1"}}
    return RegressionJudge(baseline, run)(GATE, ENGINE["id"], cases(SCORES), None)


def test_a_run_that_answers_as_its_baseline_passes(tmp_path: Path) -> None:
    found = verdict(run_dir(tmp_path / "base", cases(SCORES)))
    assert (found["passed"], found["reason"]) == (True, "")


def test_a_baseline_of_another_chat_template_judges_nothing(tmp_path: Path) -> None:
    found = verdict(run_dir(tmp_path / "base", cases(SCORES)), template_sha256="t2")
    assert (found["passed"], found["asked"]) == (False, True)
    assert found["reason"].startswith("the baseline is of another kind: chat template differs: t1 in the base, t2 in the candidate")


def test_a_baseline_that_is_not_there_says_how_it_is_made(tmp_path: Path) -> None:
    found = verdict(tmp_path / "gone.json")
    assert (found["passed"], found["reason"].partition("; ")[2]) == (False, "make it with: evalharness bless RUN_DIR gone")


def test_the_latest_run_is_the_last_one_that_came_to_its_end_by_itself(tmp_path: Path) -> None:
    for day, (name, more) in enumerate({"a": {}, "b": {}, "cut": {"interrupted": "Ctrl-C"}, "killed": {"rebuilt": True}}.items(), 1):
        run_dir(tmp_path / name, cases([1.0]), finished_at=f"2030-01-0{day}T00:00:00+00:00", **more)
    run_dir(tmp_path / "running", cases([1.0]), finished_at=None)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    assert find_baseline(LATEST, root=tmp_path, base=tmp_path, report_dir=tmp_path) == tmp_path / "b"
