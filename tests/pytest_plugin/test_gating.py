"""Gates, aggregates and the exit code of a run."""

from __future__ import annotations

import pytest

from evalharness.analysis.gates import BUILT_IN_METRICS
from evalharness.api.errors import BROKEN
from tests.pytest_plugin.project import HEADER, MARK, MODES, PLAIN, Project, Run

GATED = """
@pytest.mark.gate({gates})
def test_s(case, generation, score):
    score(x=int(case.id[1:]))
    assert case.id != "c3"
"""


def gated(project: Project, *gates: str, mark: str = MARK, mode: str = "inline") -> Run:
    project.write(test_a=mark + GATED.format(gates=", ".join(map(repr, gates))))
    return project.run_inline() if mode == "inline" else project.run(mode=mode)


class TestGates:
    @pytest.mark.parametrize("mode", MODES)
    def test_a_failed_gate_fails_the_run(self, project: Project, mode: str) -> None:
        run = gated(project, "x >= 2", "pass_rate >= 0.75", mode=mode)
        assert run.exit_code == run.facts["exit_code"] == 1
        assert [(gate["value"], gate["passed"], gate["reason"]) for gate in run.facts["gates"]] == [
            (1.5, False, "1.500, needs ≥ 2"),
            (0.75, True, ""),
        ]
        assert "GATE FAILED: x >= 2 (a::test_s on fake:echo): 1.500 [1.000 … 2.000], needs ≥ 2" in run.output

    def test_misses_do_not_fail_a_run_whose_gates_pass(self, project: Project) -> None:
        rates = ("pass_rate >= 0.7", "error_rate == 0", "length_rate <= 0", "empty_rate < .1", "invalid_rate <= 1e-9")
        run = gated(project, "x >= 1", "x<1.6", *rates)
        assert (run.exit_code, run.counts) == (0, {"pass": 3, "miss": 1})
        assert all(gate["passed"] for gate in run.facts["gates"])

    def test_a_metric_that_no_case_recorded_fails_and_names_those_there_are(self, project: Project) -> None:
        unpacked = "@pytest.mark.gate('f1 >= 0')\ndef test_s(case, generation, score): score(**{case.id[:0] + 'x': 1})\n"
        run = project.write(test_a=MARK + unpacked).run_inline()
        assert run.exit_code == 1
        assert run.gate("f1 >= 0")["reason"] == "no case recorded 'f1'; recorded: x"

    def test_a_gate_on_slices_names_the_one_that_failed_in_every_report(self, project: Project) -> None:
        run = gated(project, "x[parity=*] <= 1", "x[parity=even] <= 1", "low(x) >= 1.4")
        assert [(gate["value"], gate["passed"], gate["n"]) for gate in run.facts["gates"][:2]] == [(2.0, False, 2), (1.0, True, 2)]
        reason = "1 of 2 values of parity: odd 2.000, needs ≤ 1 (n=2)"
        assert f"GATE FAILED: x[parity=*] <= 1 (a::test_s on fake:echo): {reason}" in " ".join(run.output.split())
        assert reason in (run.run_dir / "report.md").read_text("utf-8")
        assert run.gate("low(x) >= 1.4")["reason"].endswith("; the mean is 1.500")

    @pytest.mark.parametrize("part", ["--limit=1", "--shard=1/4"])
    def test_a_part_of_an_eval_need_not_have_the_tag_of_a_gate(self, project: Project, part: str) -> None:
        """The refusal of an unknown tag is about the whole eval: here only the last case has it."""
        rare = MARK.replace('tags={"parity": "odd" if i % 2 else "even"}', 'tags={"kind": "hard"} if i == 3 else {}')
        project.write(test_a=rare + GATED.format(gates="'x[kind=hard] <= 3', 'x >= 0'"))
        run = project.run_inline(part, "--run-id", "part")
        assert run.gate("x >= 0")["passed"]
        assert run.gate("x[kind=hard] <= 3")["reason"] == "no case of this run has kind=hard"
        assert project.run_inline("--run-id", "whole").gate("x[kind=hard] <= 3")["passed"]

    def test_nothing_scored_fails_and_errors_fail_the_run_whatever_its_gates_say(self, project: Project) -> None:
        project.write(test_a=MARK + GATED.format(gates="'x >= 0'"))
        run = project.run_inline("--model", project.script({"invalid": "too long"}), "--run-id", "nothing")
        assert (run.exit_code, run.counts) == (1, {"invalid": 4})
        assert run.gate("x >= 0")["reason"] == "no case was judged: all 4 cases could not be run"
        run = project.run_inline("--model", project.script({"contains": "c1", "error": "lost"}, {"text": "x"}), "--run-id", "errors")
        assert run.gate("x >= 0")["passed"]
        assert run.exit_code == run.facts["exit_code"] == BROKEN
        assert project.run_inline("-k", "c0", "--run-id", "deselected").gate("x >= 0")["passed"]

    def test_an_eval_without_gates_fails_by_its_failures(self, project: Project) -> None:
        run = project.write(test_a=MARK + "def test_s(case, generation): assert case.id != 'c3', 'no'\n").run_inline()
        assert (run.exit_code, run.counts, run.facts["gates"]) == (1, {"pass": 3, "fail": 1}, [])

    def test_module_gates_hold_for_all_tests_of_the_module(self, project: Project) -> None:
        mark = HEADER + "pytestmark = [pytest.mark.eval(cases=cases, request=ask), pytest.mark.gate('pass_rate >= 1')]\n"
        run = project.write(
            test_a=mark + "def test_s(case, generation): pass\ndef test_t(case, generation): assert 0\ndef test_u(): pass\n"
        ).run_inline()
        assert [(gate["test"], gate["passed"]) for gate in run.facts["gates"]] == [("test_s", True), ("test_t", False)]
        assert run.exit_code == 1

    def test_each_engine_is_judged_by_itself(self, project: Project) -> None:
        project.write(
            test_a=MARK + "@pytest.mark.gate('right >= 1')\ndef test_s(case, generation, score): score(right=generation.text == 'yes')\n"
        )
        run = project.run_inline("--model", project.script({"text": "yes"}), "--model", "echo")
        assert [(gate["engine"], gate["passed"]) for gate in run.facts["gates"]] == [("fake:answers", True), ("fake:echo", False)]

    def test_classes_with_tests_of_one_name_are_judged_apart(self, project: Project) -> None:
        test = "class Test{}:\n    @pytest.mark.gate('x >= {}')\n    def test_s(self, case, generation, score): score(x={})\n"
        run = project.write(test_a=MARK + test.format("A", 1, 1) + test.format("B", 2, 0)).run_inline()
        assert [(gate["test"], gate["value"], gate["passed"]) for gate in run.facts["gates"]] == [
            ("TestA::test_s", 1.0, True),
            ("TestB::test_s", 0.0, False),
        ]


AGGREGATE = """
import helper_metrics
from collections import Counter

def aggregate(rows):
    assert all("outcome" in row and "scores" in row for row in rows)
    return helper_metrics.metrics(rows)

pytestmark = pytest.mark.eval(cases=cases, request=ask, aggregate=aggregate)

@pytest.mark.gate("total >= 6", "spread >= 3")
def test_s(case, generation, score): score(x=int(case.id[1:]))
"""
METRICS = """
def metrics(rows):
    values = [row["scores"]["x"] for row in rows]
    return {"total": sum(values), "spread": max(values) - min(values)}
"""


class TestNoVerdict:
    """A machine's failure, or a case that cannot be asked, is no verdict, also where a test asks for its generation itself."""

    ENDS = ("pass", "assert False, 'mine'", "pytest.fail('mine')", "pytest.skip('mine')", "raise KeyError('mine')")
    BODIES = (
        "request.getfixturevalue('generation')",
        "request.getfixturevalue('generations')",
        *(f"try: request.getfixturevalue('generation')\n    except BaseException: {end}" for end in ENDS),
    )

    @pytest.mark.parametrize("gated", [True, False], ids=["gated", "ungated"])
    @pytest.mark.parametrize("kind", ["error", "invalid"])
    def test_a_failed_generation_is_never_a_verdict(self, project: Project, kind: str, gated: bool) -> None:
        gate = "@pytest.mark.gate('ok >= 1', 'pass_rate >= 0')\n" if gated else ""
        tests = [f"{gate}def test_{n}(case, score, request):\n    score(ok=1)\n    {body}\n" for n, body in enumerate(self.BODIES)]
        project.write(test_a=MARK.replace("range(4)", "range(1)") + "\n".join(tests))
        run = project.run_inline("--model", project.script({kind: "machine on fire"}))
        assert run.counts == {kind: len(self.BODIES)}
        assert {row["problem"] for row in run.rows} == {"machine on fire"}
        assert run.exit_code == (BROKEN if kind == "error" else 1)
        assert not any(gate["passed"] for gate in run.facts["gates"])


@pytest.mark.slow
class TestAggregates:
    @pytest.mark.parametrize("mode", MODES)
    def test_its_values_are_recorded_and_gated_also_with_workers(self, project: Project, mode: str) -> None:
        run = project.write(test_a=HEADER + AGGREGATE, helper_metrics=METRICS).run(mode=mode)
        assert run.exit_code == 0, run.output
        assert run.facts["aggregates"] == [
            {"eval": "a", "test": "test_s", "engine": "fake:echo", "metric": "total", "value": 6.0},
            {"eval": "a", "test": "test_s", "engine": "fake:echo", "metric": "spread", "value": 3.0},
        ]
        assert [gate["value"] for gate in run.facts["gates"]] == [6.0, 3.0]

    def test_the_marker_of_a_class_counts_too(self, project: Project) -> None:
        test = """
@pytest.mark.eval(cases=cases, request=ask, aggregate=lambda rows: {"n": len(rows)})
class TestA:
    @pytest.mark.gate("n >= 4")
    def test_s(self, case, generation): pass
"""
        assert project.write(test_a=HEADER + test).run().exit_code == 0

    @pytest.mark.parametrize(
        ("body", "problem"),
        [
            ("raise ZeroDivisionError('none left')", "failed: ZeroDivisionError: none left"),
            ("return {'total': float('nan'), 'spread': 3}", "gave total=nan, which is not a finite number; left out"),
            ("return {'total': float('inf'), 'spread': 3}", "gave total=inf, which is not a finite number; left out"),
            ("return None", "failed: AttributeError"),
            ("return {'total': 'many', 'spread': 3}", "gave total='many', which is not a finite number; left out"),
            ("import pytest; pytest.fail('no')", "failed: Failed: no"),
            ("import sys; sys.exit(0)", "failed: SystemExit: 0"),
        ],
    )
    def test_what_it_does_wrong_is_a_problem_of_the_run_and_costs_no_row(self, project: Project, body: str, problem: str) -> None:
        problem = f"test_a.py: aggregate for test_s on fake:echo {problem}"
        run = project.write(test_a=HEADER + AGGREGATE, helper_metrics=f"def metrics(rows): {body}\n").run_inline()
        assert run.exit_code == BROKEN
        assert run.counts == {"pass": 4}
        assert run.facts["problems"][0].startswith(problem)
        assert f"! {problem}" in run.output
        assert "no case recorded 'total'" in run.gate("total >= 6")["reason"]

    @pytest.mark.slow
    def test_a_module_that_cannot_be_imported_again_is_a_problem_of_the_run(self, project: Project) -> None:
        once = "if 'PYTEST_XDIST_WORKER' not in os.environ: raise RuntimeError('only in workers')\n"
        run = project.write(test_a=HEADER + once + AGGREGATE, helper_metrics=METRICS).run(mode="n2")
        assert run.counts == {"pass": 4}
        assert run.facts["problems"] == ["test_a.py: its functions for the end of the run cannot be loaded: RuntimeError: only in workers"]
        assert run.exit_code == BROKEN

    @pytest.mark.parametrize("name", sorted(BUILT_IN_METRICS))
    def test_it_cannot_replace_a_rate(self, project: Project, name: str) -> None:
        marked = PLAIN.replace("request=ask", f"request=ask, aggregate=lambda rows: {{'n': len(rows), '{name}': 0.75}}")
        run = project.write(test_a=marked.replace("def test_s", f"@pytest.mark.gate('{name} == 0.75')\ndef test_s")).run_inline()
        assert run.exit_code == BROKEN
        assert f"gave '{name}', the name of a built-in metric" in run.facts["problems"][0]
        assert [entry["metric"] for entry in run.facts["aggregates"]] == ["n"]
        assert run.facts["gates"][0]["value"] != 0.75

    def test_what_an_aggregate_does_to_its_rows_changes_neither_other_rows_nor_gates(self, project: Project) -> None:
        module = MARK.replace("request=ask", "request=ask, aggregate=aggregate").replace(
            "pytestmark",
            """def aggregate(rows):
    for row in rows:
        row["scores"]["ok"] *= int(row["case_id"][1:])
    return {"total": sum(row["scores"]["ok"] for row in rows)}

pytestmark""",
        )
        gated = "@pytest.mark.gate('ok >= 1')\ndef test_s(case, generation, score): score(ok=True)\n"
        run = project.write(test_a=module + gated).run_inline()
        assert [entry["value"] for entry in run.facts["aggregates"]] == [0 + 1 + 2 + 3]
        assert [gate["value"] for gate in run.facts["gates"]] == [1.0]
        assert {row["scores"]["ok"] for row in run.rows} == {1.0}

    def test_each_test_is_aggregated_apart_and_from_judged_rows_only(self, project: Project) -> None:
        test = """
def aggregate(rows):
    return {"seen": len(rows)}

pytestmark = pytest.mark.eval(cases=cases, request=ask, aggregate=aggregate)

@pytest.mark.gate("seen == 2")
def test_s(case, generation, score):
    assert case.id != "c0"  # a miss is judged
    if case.id == "c1": pytest.skip("not today")
    if case.id == "c2": raise OSError("broken")

@pytest.mark.gate("seen == 4")
def test_t(case, generation): pass

def test_never_judged(case): pytest.skip("never")
"""
        run = project.write(test_a=HEADER + test).run_inline()
        assert [(entry["test"], entry["value"]) for entry in run.facts["aggregates"]] == [("test_s", 2), ("test_t", 4)]
        assert [(gate["value"], gate["passed"]) for gate in run.facts["gates"]] == [(2, True), (4, True)]
        assert run.facts["problems"] == []
