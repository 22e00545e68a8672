"""Gates on differences to a baseline, and on the speed of engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.comparison.sides import read_side, write_baseline
from evalharness.analysis.gate_grammar import parse_gate
from evalharness.analysis.judge import RegressionJudge, judge_gates
from evalharness.runs.schema import GateVerdict
from tests.analysis.comparison.runs import ENGINE, cases, run_dir

BEFORE = [1.0] * 60 + [0.0] * 40
AFTER = [1.0] * 54 + [0.0] * 46


def verdict(expression: str, base: Path, rows: list[Any], aggregates: dict[str, float] | None = None, run: Any = None) -> GateVerdict:
    now: Any = {"run_id": "now", "engines": [{**ENGINE, "fingerprint": "f2"}], "versions": {"evalharness": "1"}, **(run or {})}
    return RegressionJudge(base, now)(parse_gate(expression), ENGINE["id"], rows, None, aggregates or {})


@pytest.mark.parametrize(
    ("expression", "passed", "value"),
    [
        ("drop(f1) <= 0.06", True, 0.06),
        ("drop(f1) <= 0.05", False, 0.06),
        ("rise(f1) >= 0", False, -0.06),
        ("drop(pass_rate) <= 0", True, 0.0),
        ("high(drop(f1)) <= 0.2", True, None),
        ("high(drop(f1)) <= 0.06", False, None),
        ("low(drop(f1)) <= 0", False, None),
    ],
)
def test_a_drop_is_the_difference_of_paired_cases(tmp_path: Path, expression: str, passed: bool, value: float | None) -> None:
    found = verdict(expression, run_dir(tmp_path / "base", cases(BEFORE)), cases(AFTER))
    assert (found["passed"], found["n"], found["metric"]) == (passed, 100, parse_gate(expression).name)  # type: ignore[union-attr]
    assert value is None or found["value"] == pytest.approx(value)
    assert passed or "0.600 → 0.540" in found["reason"]


def test_a_file_of_a_baseline_judges_as_its_run_does(tmp_path: Path) -> None:
    folder = run_dir(tmp_path / "base", cases(BEFORE))
    write_baseline(read_side(str(folder)), tmp_path / "base.json")
    for expression in ("drop(f1) <= 0.05", "high(drop(f1)) <= 0.06"):
        of_run, of_file = (verdict(expression, place, cases(AFTER)) for place in (folder, tmp_path / "base.json"))
        assert (of_run["value"], of_run["reason"]) == (of_file["value"], of_file["reason"])


def test_the_slice_that_dropped_is_named(tmp_path: Path) -> None:
    rows = [{**row, "tags": {"site": f"s{number % 4}"}} for number, row in enumerate(cases([1.0] * 40))]
    lost = [{**row, "scores": {**row["scores"], "f1": 0.0}} if row["tags"]["site"] == "s2" else row for row in rows]
    found = verdict("drop(f1[site=*]) <= 0.3", run_dir(tmp_path / "base", rows), lost)
    assert found["reason"] == "1 of 4 values of site: s2 1.000, needs ≤ 0.30: 1.000 → 0.000 (n=10)"
    assert (found["failed_slices"], found["tag"]) == ([{"value": "s2", "measured": 1.0, "n": 10}], "site")
    assert verdict("drop(f1[site=*]) <= 0.3", tmp_path / "base", rows)["passed"]
    assert verdict("drop(f1[sit=*]) <= 0.3", tmp_path / "base", rows)["reason"] == "no case of both runs has sit"


def test_what_cannot_be_compared_does_not_pass(tmp_path: Path) -> None:
    base = run_dir(tmp_path / "base", cases(BEFORE))
    assert verdict("drop(f1) <= 1", tmp_path / "gone.json", cases(AFTER))["reason"].startswith("baseline ")
    few = verdict("drop(f1) <= 1", base, cases([1.0] * 300))
    assert few["reason"] == "only 100 of 300 cases could be paired with the baseline"
    unknown = verdict("drop(f2) <= 1", base, cases(AFTER))
    assert unknown["reason"] == "no case has 'f2' on both sides; both have: pass_rate, length_rate, empty_rate, f1"
    other = verdict("drop(f1) <= 1", base, [{**row, "prompt_sha256": "0" * 64} for row in cases(AFTER)])
    assert other["reason"].startswith("base and candidate were not asked the same")
    for found in (few, unknown, other):
        assert (found["passed"], found["value"], found["baseline"]) == (False, None, "base (hf:tiny)")


def test_an_aggregate_is_compared_with_that_of_a_run(tmp_path: Path) -> None:
    place = {"eval": "stage_a", "test": "test_summary", "engine": ENGINE["id"]}
    base = run_dir(tmp_path / "base", cases(BEFORE), aggregates=[{**place, "metric": "macro", "value": 0.9}])
    found = verdict("drop(macro) <= 0.05", base, cases(AFTER), {"macro": 0.8})
    assert (found["passed"], found["reason"]) == (False, "0.100, needs ≤ 0.05: 0.900 → 0.800")
    write_baseline(read_side(str(base)), tmp_path / "b.json")
    assert verdict("drop(macro) <= 0.05", tmp_path / "b.json", cases(AFTER), {"macro": 0.88})["passed"]


def test_its_difference_has_an_interval_where_both_runs_have_draws(tmp_path: Path) -> None:
    place = {"eval": "stage_a", "test": "test_summary", "engine": ENGINE["id"], "metric": "macro", "num_groups": 100}
    drawn = [0.9 + step / 1000 for step in range(-20, 21)]
    base = run_dir(tmp_path / "base", cases(BEFORE), aggregates=[{**place, "value": 0.9, "draws": drawn}])
    now = [{**place, "value": 0.8, "draws": [value * 1.5 - 0.55 for value in drawn]}]
    run = {"run": {"aggregates": now}}
    found = {end: verdict(f"{end}(drop(macro)) <= 0.1", base, cases(AFTER), {"macro": 0.8}, **run) for end in ("low", "high")}
    assert found["low"]["passed"]
    assert found["high"]["reason"].startswith("high end of the interval 0.1")
    alone = verdict("low(drop(macro)) <= 0.1", base, cases(AFTER), {"macro": 0.8})
    assert alone["reason"].startswith("0.900 → 0.800, but the difference has no interval: both need draws=400 in the eval's marker")


def all_verdicts(*gates: str, **known: Any) -> list[GateVerdict]:
    rows: Any = [{**row, **known.pop("row", {})} for row in cases(BEFORE)]
    line: Any = {"name": "stage_a", "path": "a.py", "tests": {"test_summary": list(gates)}}
    return judge_gates({"a.py": line}, rows, (), interrupted=None, **known)


def test_without_a_baseline_a_drop_is_skipped() -> None:
    (found,) = all_verdicts("drop(f1) <= 0.1")
    assert (found["passed"], found["asked"], found["reason"]) == (None, False, "no baseline (use --baseline NAME)")


def test_a_speed_is_that_of_the_whole_run() -> None:
    speed: Any = {"engine": ENGINE["id"], "tokens_per_s": 123.4, "unknown": {"energy": "there is no meter"}}
    slow, energy = all_verdicts("tokens_per_s >= 200", "energy_j <= 1", speeds=[speed])
    assert (slow["passed"], slow["value"], slow["reason"]) == (False, 123.4, "123.4, needs ≥ 200")
    assert energy["reason"] == "energy_j is not known: there is no meter"
    assert all_verdicts("tokens_per_s >= 100", speeds=[speed])[0]["passed"]
    assert all_verdicts("tokens_per_s >= 100")[0]["reason"] == "tokens_per_s is not known: nothing was generated"
    cached = {"generation": {"text": "a", "cached": True}}
    (found,) = all_verdicts("tokens_per_s >= 100", speeds=[speed], row=cached)
    assert (found["passed"], found["judged"], found["reason"]) == (False, False, "not judged: 1 answer came from the cache; ask without it")
