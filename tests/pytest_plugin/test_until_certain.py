"""`--until-certain`: without xdist, with -n0 and with workers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from evalharness.config import resolve
from evalharness.pytest_plugin.execution.until_certain import UntilCertain, recorded_edges
from evalharness.pytest_plugin.run_context import RunContext
from tests.pytest_plugin.project import HEADER, MODES, Project, Run

pytestmark = pytest.mark.slow

NUM_CASES = 240
EVAL = (
    HEADER.replace("range(4)", f"range({NUM_CASES})").replace("i % 2}", "i // 2}").replace("ask {case.id}", "ask {case.id}.")
    + """
pytestmark = pytest.mark.eval(cases=cases, request=ask)

@pytest.mark.gate("no_regression(right)", "right >= 0.6", "right >= 0.9", "high(right) >= 0.1")
def test_s(case, generation, score):
    right = "wrong" not in generation.text
    score(right=right)
    assert right
"""
)
RIGHT: tuple[dict[str, Any], ...] = ({"text": "right"},)


def wrong(numbers: range) -> tuple[dict[str, Any], ...]:
    return (*({"contains": f"ask c{number}.", "text": "wrong"} for number in numbers), *RIGHT)


def run(project: Project, answers: tuple[dict[str, Any], ...], name: str, *options: str, mode: str = "no-xdist") -> Run:
    script = project.script(*answers)
    (project.root / script).rename(project.root / f"{name}.jsonl")
    return project.run("--model", f"{name}.jsonl", "--run-id", name, *options, mode=mode)


def asked(run: Run) -> list[str]:
    return [row["case_id"] for row in run.rows if row["outcome"] != "skip"]


@pytest.fixture(scope="module")
def based(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run `base`, in which the first ten cases are wrong."""
    project = Project(tmp_path_factory.mktemp("based"))
    return run(project.write(test_a=EVAL), wrong(range(10)), "base").run_dir


@pytest.fixture
def project(project: Project, based: Path) -> Project:
    """A project with that run."""
    shutil.copytree(based, project.root / "reports" / "base")
    return project.write(test_a=EVAL)


HALT = """
import pytest
ended = []

def pytest_runtest_logfinish(nodeid):
    ended.append(nodeid)
    if len(ended) == 30:
        pytest.exit("enough")
"""
SURE = ("--baseline", "reports/base", "--until-certain")


class TestVerdict:
    @pytest.mark.parametrize("mode", MODES)
    def test_the_same_answers_are_harmless_before_all_are_asked(self, project: Project, mode: str) -> None:
        same = run(project, wrong(range(10)), "same", *SURE, mode=mode)
        gate, num = same.gate("no_regression(right)"), len(asked(same))
        assert (same.exit_code, gate["passed"]) == (0, True)
        assert 70 < num < (230 if mode == "n2" else 130)  # a worker may be late, and what the other asks meanwhile is in vain
        facts = gate["certain"]
        assert (facts["claim"], facts["margin"], facts["of_cases"]) == ("harmless", 0.03, NUM_CASES)
        assert facts["num_cases"] <= num  # of workers, those in flight are known later
        assert facts["metrics"][0]["low"] >= -0.03
        assert f"certain after {facts['num_cases']} of {NUM_CASES} cases" in same.output
        assert same.facts["partial"] == [{"eval": "a", "what": "cases", "num": num, "of": NUM_CASES, "until_certain": True}]
        assert {row["problem"] for row in same.rows if row["outcome"] == "skip"} == {
            "not asked: no_regression was decided before (--until-certain)"
        }
        assert len(same.rows) == NUM_CASES
        assert f"{NUM_CASES - num} not asked" in same.summary()
        assert f"! stopped when it was certain, after {num} of {NUM_CASES} cases of a, drawn at random" in same.output
        report = (same.run_dir / "report.md").read_text("utf-8")
        assert "differences to base (fake:base) after" in report
        assert "the session ended" not in report

    @pytest.mark.parametrize("mode", MODES)
    def test_a_loss_is_a_regression_soon(self, project: Project, mode: str) -> None:
        worse = run(project, wrong(range(120)), "worse", *SURE, mode=mode)
        gate = worse.gate("no_regression(right)")
        assert (worse.exit_code, gate["passed"], gate["certain"]["claim"]) == (1, False, "regressed")
        assert len(asked(worse)) < (230 if mode == "n2" else 80)
        assert gate["reason"].startswith("regressed against base (fake:base): right 0.958 → about 0.")
        assert "GATE FAILED: no_regression(right)" in worse.output

    def test_other_gates_are_judged_by_limits_or_not_at_all(self, project: Project) -> None:
        same = run(project, wrong(range(10)), "same", *SURE)
        states = {name: (same.gate(name)["passed"], same.gate(name).get("judged")) for name in ("right >= 0.6", "high(right) >= 0.1")}
        assert states == {"right >= 0.6": (True, None), "high(right) >= 0.1": (None, False)}
        assert "right of all cases is within 0.9" in same.gate("right >= 0.6")["notes"][0]
        assert "not asked (--until-certain), and this gate needs all" in same.gate("high(right) >= 0.1")["reason"]
        worse = run(project, wrong(range(230)), "worse", *SURE)
        assert worse.gate("right >= 0.9")["passed"] is False

    def test_what_cannot_be_proved_is_asked_whole_and_judged_as_a_whole_run(self, project: Project) -> None:
        near = run(project, wrong(range(20)), "near", *SURE)  # more than the margin, and too little for a regression
        gate = near.gate("no_regression(right)")
        assert len(asked(near)) == NUM_CASES
        assert (near.exit_code, gate["passed"], gate["certain"]["claim"], near.facts["partial"]) == (0, True, "", [])
        assert "no regression shown against base" in near.output

    def test_the_margin_may_be_given_and_0_is_off(self, project: Project) -> None:
        wide = run(project, wrong(range(10)), "wide", *SURE, "0.1")
        assert len(asked(wide)) < 80
        off = run(project, wrong(range(10)), "off", *SURE, "0")
        assert (len(asked(off)), "certain" in off.gate("no_regression(right)")) == (NUM_CASES, False)

    def test_the_engine_stops_soon_after(self, project: Project) -> None:
        slow = tuple({**answer, "delay_s": 0.003} for answer in wrong(range(120)))
        worse = run(project, slow, "worse", *SURE)
        num_made = sum(line["kind"] == "generation" for line in worse.journal)
        assert len(asked(worse)) <= num_made < NUM_CASES / 2


class TestOrder:
    def test_the_order_is_drawn_by_the_seed(self, project: Project) -> None:
        first, again = (run(project, wrong(range(10)), name, *SURE) for name in ("one", "two"))
        other = run(project, wrong(range(10)), "three", *SURE, "--seed", "5")
        assert asked(first) == asked(again)
        assert asked(first)[:20] != asked(other)[:20]
        assert sorted(row["case_id"] for row in first.rows) == sorted(f"c{number}" for number in range(NUM_CASES))

    def test_an_order_that_depends_on_answers_does_not_count(self, project: Project) -> None:
        same = run(project, wrong(range(10)), "same", *SURE)
        first = project.run("--model", "same.jsonl", "--run-id", "first", *SURE, "--ff")
        assert "rerun previous" in first.output
        assert asked(first) == asked(same)

    def test_all_tests_of_a_case_run_before_the_next_case(self, project: Project) -> None:
        second = "@pytest.mark.gate('no_regression')\ndef test_two(case, generation, score): score(short=True)\n"
        project.write(test_a=EVAL + second)
        run(project, wrong(range(10)), "both")
        certain = run(project, wrong(range(10)), "certain", "--baseline", "reports/both", "--until-certain")
        tests = [row["test"] for row in certain.rows if row["outcome"] != "skip"]
        assert tests == ["test_s", "test_two"] * (len(tests) // 2)
        assert 140 < len(tests) < 400
        assert {gate["certain"]["claim"] for gate in certain.facts["gates"] if gate["metric"] == "no_regression"} == {"harmless"}


class TestWhatComesAfter:
    def test_it_is_neither_blessed_nor_compared_nor_the_latest(self, project: Project) -> None:
        run(project, wrong(range(10)), "same", *SURE)
        for options in ((), ("--partial",)):
            code, output = project.evalharness("bless", "reports/same", "good", *options)
            assert (code != 0, "it stopped when it was certain" in output) == (True, True)
        code, output = project.evalharness("compare", "base", "same")
        assert "stopped when it was certain, after " in output
        assert "a weighted draw" in output
        code, output = project.evalharness("timeline", "reports/*")
        assert "same is left out: it stopped when it was certain" in output
        latest = run(project, RIGHT, "next", "--baseline", "latest")
        assert latest.gate("no_regression(right)")["baseline"] == "base (fake:base)"
        refused = run(project, RIGHT, "more", "--baseline", "reports/same", "--until-certain")
        assert (refused.exit_code, "stopped when it was certain (--until-certain), before all cases of a" in refused.output) == (4, True)

    def test_a_resumed_run_ends_where_it_would_have(self, project: Project) -> None:
        whole = run(project, wrong(range(10)), "same", *SURE)
        project.write(conftest=HALT)
        halted = run(project, wrong(range(10)), "halted", *SURE)
        assert halted.facts["interrupted"] == "enough"
        assert not halted.gate("no_regression(right)").get("judged", True)
        (project.root / "conftest.py").unlink()
        resumed = project.run("--resume", "halted", backend=None)
        assert asked(resumed) == asked(whole)
        assert resumed.gate("no_regression(right)")["certain"] == {**whole.gate("no_regression(right)")["certain"]}

    def test_a_rescored_run_has_the_same_verdict(self, project: Project) -> None:
        same = run(project, wrong(range(10)), "same", *SURE)
        project.evalharness("rescore", "reports/same", "--run-id", "rescored")
        again = Run(0, "", 0.0, Path(same.root), "rescored")
        assert again.gate("no_regression(right)")["certain"] == same.gate("no_regression(right)")["certain"]
        assert again.facts["partial"] == same.facts["partial"]


class TestWrongUse:
    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            (("--until-certain",), "--until-certain 0.03 compares with a baseline; name one with --baseline"),
            ((*SURE, "--shard", "1/2"), "--until-certain 0.03 needs all cases to draw from; leave --shard 1/2 out"),
            ((*SURE, "--noise", "2"), "--until-certain 0.03 leaves cases out; measure noise in a whole run"),
            ((*SURE, "test_a.py"), "got 'test_a.py'; before a path write --until-certain=0.03"),
            ((*SURE, "0.7"), "--until-certain must be a number of at least 0 and at most 0.5, got '0.7'"),
        ],
        ids=["no baseline", "shard", "noise", "path", "margin"],
    )
    def test_is_refused_before_anything_runs(self, project: Project, options: tuple[str, ...], problem: str) -> None:
        refused = run(project, RIGHT, "refused", *options)
        assert (refused.exit_code, problem in refused.output) == (4, True), refused.output

    @pytest.mark.parametrize("mode", MODES)
    def test_a_baseline_that_the_gates_will_refuse_is_refused_before_an_engine_starts(self, project: Project, mode: str) -> None:
        other = EVAL.replace('right = "wrong"', 'right = "false"').replace("request=ask", "request=ask, options=GenerationOptions(8)")
        project.write(test_a=other)
        refused = run(project, RIGHT, "refused", *SURE, mode=mode)
        said = " ".join(refused.output.split())
        assert (refused.exit_code, refused.run_dir.exists()) == (4, False), refused.output
        assert (
            "--baseline reports/base would be refused at the end (--until-certain). a::test_s on fake:refused: base and candidate" in said
        )
        assert "option max_new_tokens differs in a::test_s" in said
        assert "the eval's code differs in a::test_s: test_a.py::pytestmark, test_a.py::test_s" in said
        assert "or name another baseline, or accept it anyway with --accept-changes" in said
        if mode == "no-xdist":
            assert run(project, RIGHT, "accepted", *SURE, "--accept-changes").gate("no_regression(right)")["certain"]["claim"] == "harmless"


def test_the_edge_of_a_recorded_run_is_what_it_was(tmp_path: Path) -> None:
    lines: Any = [{"name": "a", "cases": {"x": {"stratum": 1}, "y": {"group": None}}}, {"name": "damaged"}]
    run_config = resolve({"until_certain": 0.1, "baseline": "none-there"}, {}, tmp_path)
    certain = UntilCertain(RunContext(run_config, tmp_path, "main"), recorded_edges(lines))
    assert certain.edges == {"a": ["x"], "damaged": []}
