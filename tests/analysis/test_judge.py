"""Gates on a baseline: what is no baseline for a run. With pytest around them: tests/pytest_plugin/test_baselines.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.gates import RegressionGate
from evalharness.analysis.judge import RegressionJudge, find_baseline
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
