"""What a gate on a baseline will refuse, known before anything is asked: no more and no less than what it refuses at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.comparison.sides import read_side
from evalharness.analysis.gate_grammar import RegressionGate
from evalharness.analysis.judge import RegressionJudge
from evalharness.analysis.judge_ahead import refusal_ahead
from evalharness.runs.judging import reference_sha256
from tests.analysis.comparison.runs import ENGINE, cases, run_dir

OPTIONS = {"max_new_tokens": 8, "seed": 1}
CODE = {"test_b": {"test_a.py::test_b": "01234567"}}


def line(num_cases: int, **changes: Any) -> dict[str, Any]:
    names = [f"c{number:03}" for number in range(num_cases)]
    facts = {"name": "a", "options": [OPTIONS], "code": CODE, "cases": {name: {"group": None, "tags": {}} for name in names}}
    return {**facts, "references": {name: reference_sha256("yes") for name in names}, **changes}


@pytest.mark.parametrize(
    ("changes", "metric", "reason", "can_accept"),
    [
        ({}, "", "", True),
        ({"options": [{**OPTIONS, "seed": 5}]}, "f1", "", True),
        ({"options": [{**OPTIONS, "max_new_tokens": 9}]}, "", "option max_new_tokens differs", True),
        ({"code": {"test_b": {"test_a.py::test_b": "76543210"}}}, "", "the eval's code differs in a::test_b: test_a.py::test_b", True),
        (
            {"references": {"c003": reference_sha256("no")}},
            "",
            "the references differ in a::test_b for 1 of 40 cases, first for c003",
            True,
        ),
        ({}, "other", "no case has 'other' on both sides", False),
        (line(90), "", "only 40 of 90 cases could be paired", False),
        (line(3), "", "3 groups of cases cannot show any difference", False),
        ({"name": "z"}, "", "it has no test z::test_b", False),
    ],
    ids=["same", "seed", "options", "code", "references", "metric", "half", "groups", "test"],
)
def test_it_is_what_the_gate_refuses_at_the_end(tmp_path: Path, changes: Any, metric: str, reason: str, can_accept: bool) -> None:
    rows = cases([0.0, 1.0] * 20, options=OPTIONS, reference="yes", eval="a", test="test_b")
    base = run_dir(tmp_path / "base", rows, evals=[{"name": "a", "tests": {"test_b": []}, "code": CODE}])
    entry, gate = line(40) | changes, RegressionGate("no_regression", (metric,) if metric else ())
    side = read_side(str(base))
    ahead = [refusal_ahead(gate, side, entry, "test_b", set(entry["cases"]), {}, anyway=anyway) for anyway in (False, True)]
    assert (reason in ahead[0], bool(ahead[0]), not ahead[1]) == (True, bool(reason), can_accept)
    assert not reason or "name another baseline" in ahead[0]
    # As the run would have ended:
    given = cases(
        [0.0, 1.0] * (len(entry["cases"]) // 2 + 1), options=entry["options"][0], reference="yes", eval=entry["name"], test="test_b"
    )
    ended = [row | ({"reference": "no"} if entry["references"].get(row["case_id"]) == reference_sha256("no") else {}) for row in given]
    run = {"run_id": "now", "engines": [{**ENGINE, "fingerprint": "f2"}], "versions": {"evalharness": "1"}}
    run["evals"] = [{"name": entry["name"], "code": entry["code"]}]
    verdict = RegressionJudge(base, run)(gate, ENGINE["id"], ended[: len(entry["cases"])], None)
    assert (bool(verdict["passed"]), verdict["reason"] != "") == (not reason, bool(reason))
