"""Stopping early and running again: -x, --maxfail, --lf, --sw, -rm, quiet and verbose output."""

from __future__ import annotations

import pytest

from evalharness.api.errors import BROKEN
from tests.pytest_plugin.project import HEADER, MARK, MODES, Project, eval_module

pytestmark = pytest.mark.slow

OUTCOMES = eval_module("""
def cases(data_dir):
    return [Case(id=f"c{i}", invalid="no photo" if i == 2 else None) for i in range(6)]
pytestmark = pytest.mark.eval(cases=cases, request=ask)

@pytest.mark.gate("x >= 1")
def test_s(case, generation, score):
    score(x=1)
    if not os.path.exists("fixed"):
        assert case.id != "c1", "c1 is missed"
        if case.id == "c3":
            raise RuntimeError("c3 is broken")
""")


class TestRunningAgain:
    @pytest.mark.parametrize("mode", MODES[::2])
    def test_lf_runs_misses_invalid_cases_and_errors_again(self, project: Project, mode: str) -> None:
        first = project.write(test_a=OUTCOMES).run("--run-id", "first", mode=mode)
        assert first.counts == {"pass": 3, "miss": 1, "invalid": 1, "error": 1}
        again = project.run_inline("--lf", "--collect-only", "-q")
        assert [line for line in again.output.splitlines() if "::" in line] == [f"test_a.py::test_s[fake:echo-c{i}]" for i in (1, 2, 3)]
        (project.root / "fixed").touch()
        assert "2 passed, 1 invalid" in project.run_inline("--lf", "--run-id", "second").summary()
        assert "1 invalid" in project.run_inline("--lf", "--run-id", "third").summary()

    def test_sw_stops_at_a_miss_and_goes_on_from_it(self, project: Project) -> None:
        project.write(test_a=OUTCOMES)
        first = project.run_inline("--sw", "--run-id", "first")
        assert first.exit_code == pytest.ExitCode.INTERRUPTED
        rows = first.rows
        assert [row["outcome"] for row in rows] == ["pass", "miss", *["skip"] * 4]
        assert rows[2]["problem"] == "not run: Test failed, continuing from this test next run."
        second = project.run_inline("--sw", "--run-id", "second")
        assert [row["case_id"] for row in second.rows] == ["c1", "c2", "c3", "c4", "c5"]
        assert second.rows[1]["outcome"] == "skip"


class TestStoppingEarly:
    @pytest.mark.parametrize("mode", MODES)
    def test_x_leaves_the_rest_as_rows_that_were_not_run(self, project: Project, mode: str) -> None:
        project.write(test_a=OUTCOMES)
        run = project.run("-x", mode=mode)
        assert len(run.rows) == 6
        assert run.row("c3")["outcome"] == "error"
        not_run = [row for row in run.rows if row["started_at"] is None]
        assert {(row["outcome"], row["problem"]) for row in not_run} <= {("skip", "not run: stopping after 1 failures")}
        if mode != "n2":
            assert [row["case_id"] for row in not_run] == ["c4", "c5"]
            assert run.exit_code == BROKEN
            assert run.gate("x >= 1")["reason"] == "not judged: 2 of 6 cases were not run (stopping after 1 failures)"
        assert not run.gate("x >= 1")["passed"]
        assert run.exit_code in (BROKEN, 2)
        assert run.facts["interrupted"] == "stopping after 1 failures"

    def test_misses_do_not_stop_x(self, project: Project) -> None:
        project.write(test_a=MARK + "@pytest.mark.gate('pass_rate <= 0')\ndef test_s(case, generation): assert False\n")
        run = project.run_inline("-x")
        assert (run.exit_code, run.counts) == (0, {"miss": 4})

    def test_maxfail_counts_failures_of_tests_without_gates(self, project: Project) -> None:
        run = project.write(test_a=MARK + "def test_s(case, generation): assert False\n").run_inline("--maxfail=2")
        assert (run.exit_code, run.counts) == (1, {"fail": 2, "skip": 2})

    def test_dist_no_with_n_starts_workers(self, project: Project) -> None:
        """`--dist no` is xdist's default, which -n turns into workers."""
        run = project.write(test_a=MARK + "def test_s(case, generation): pass\n").run("--dist", "no", mode="n2")
        assert (run.counts, run.facts["num_workers"]) == ({"pass": 4}, 2)

    def test_a_skip_of_the_tests_own_is_no_test_that_was_not_run(self, project: Project) -> None:
        skipping = "def test_s(case, generation, score):\n    score(x=1)\n    if case.id == 'c0': pytest.skip('not run')\n"
        run = project.write(test_a=MARK + "@pytest.mark.gate('x >= 1')\n" + skipping).run_inline()
        assert (run.exit_code, run.gate("x >= 1")["passed"]) == (0, True)

    def test_pytest_exit_in_a_test_keeps_what_was_done(self, project: Project) -> None:
        run = project.write(test_a=MARK + "def test_s(case, generation):\n    if case.id == 'c2': pytest.exit('enough', 7)\n").run_inline()
        assert run.exit_code == 7
        assert [row["outcome"] for row in run.rows] == ["pass", "pass", "skip", "skip"]
        assert run.rows[3]["problem"] == "not run: enough"

    @pytest.mark.parametrize("arguments", [("--modle", "x"), ("--modle=x",), ("--maxfall=1",)], ids=" ".join)
    def test_a_misspelt_option_of_ours_says_which_one_was_meant(self, project: Project, arguments: tuple[str, ...]) -> None:
        run = project.write(test_a=OUTCOMES).run(*arguments)
        assert run.exit_code == pytest.ExitCode.USAGE_ERROR
        hint = "--modle: did you mean '--model'? `pytest --help` lists every option"
        assert (hint in run.output, "did you mean" in run.output) == (("modle" in arguments[0],) * 2)

    def test_an_option_of_lm_eval_says_what_to_write_instead(self, project: Project) -> None:
        run = project.write(test_a=OUTCOMES).run("--tasks", "gsm8k", "--num_fewshot=5")
        assert run.exit_code == pytest.ExitCode.USAGE_ERROR
        assert "--num_fewshot: it stands in the eval: few_shot(FILES, k)" in run.output
        assert "--tasks: name the evals' files: pytest evals/public/test_gsm8k.py" in run.output

    @pytest.mark.parametrize(
        "arguments",
        [("--hf-token=Zq81-correct-horse",), ("--hf-token", "Zq81-correct-horse"), ("--modle=https://me:Zq81-correct-horse@host/v1",)],
        ids=["unknown", "unknown-in-two-words", "in-an-address"],
    )
    def test_pytests_own_usage_errors_repeat_no_secret(self, project: Project, arguments: tuple[str, ...]) -> None:
        run = project.write(test_a=OUTCOMES).run(*arguments)
        assert (run.exit_code, "unrecognized arguments" in run.output) == (pytest.ExitCode.USAGE_ERROR, True)
        assert "correct-horse" not in run.output

    @pytest.mark.parametrize("option", ["--setup-plan", "--fixtures", "--fixtures-per-test"])
    def test_options_that_run_nothing_open_no_run(self, project: Project, option: str) -> None:
        run = project.write(test_a=OUTCOMES).run_inline(option)
        assert run.exit_code == 0
        assert run.opened_no_run

    def test_setup_show_runs_as_ever(self, project: Project) -> None:
        assert project.write(test_a=OUTCOMES).run_inline("--setup-show").counts == {"pass": 3, "miss": 1, "invalid": 1, "error": 1}


class TestOutput:
    def test_misses_are_shown_only_when_asked_for(self, project: Project) -> None:
        project.write(test_a=OUTCOMES)
        assert "E   c1 is missed" not in project.run_inline("--run-id", "quiet").output
        assert "E   c1 is missed" in project.run_inline("--run-id", "shown", "-rm").output

    def test_a_thousand_misses_make_no_traceback(self, project: Project) -> None:
        project.write(
            test_a=HEADER
            + """
pytestmark = pytest.mark.eval(cases=lambda d: [Case(id=f"c{i}") for i in range(1000)], request=ask)
@pytest.mark.gate("pass_rate <= 0")
def test_s(case, generation): assert generation.text == "nothing"
"""
        )
        run = project.run_inline()
        assert (run.exit_code, run.counts) == (0, {"miss": 1000})
        assert len(run.output.splitlines()) < 60

    def test_verbose_names_misses_and_invalid_cases_and_quiet_still_says_where_the_report_is(self, project: Project) -> None:
        output = project.write(test_a=OUTCOMES).run_inline("-v", "--run-id", "verbose").output
        assert "test_a.py::test_s[fake:echo-c1] MISS" in output
        assert "test_a.py::test_s[fake:echo-c2] INVALID" in output
        quiet = project.run_inline("-q", "--run-id", "quiet")
        assert f"report: {quiet.run_dir / 'report.md'}" in quiet.output

    def test_an_invalid_case_of_a_test_without_gates_fails_without_traceback(self, project: Project) -> None:
        run = project.write(test_a=OUTCOMES.replace('@pytest.mark.gate("x >= 1")', "")).run_inline("-k", "c2")
        assert (run.exit_code, run.counts) == (1, {"invalid": 1})
        assert "invalid: no photo" in run.output
        assert "fixtures.py" not in run.output
