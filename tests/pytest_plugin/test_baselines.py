"""`--baseline` and the gate `no_regression`, without xdist, with -n0 and with workers."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import BROKEN
from evalharness.cli import main
from tests.pytest_plugin.project import HEADER, MODES, PLAIN, Project, Run

pytestmark = pytest.mark.slow

EVAL = (
    HEADER.replace("range(4)", "range(int(os.environ.get('NUM_CASES', '40')))").replace("i % 2}", "i // 2}")
    + """
pytestmark = pytest.mark.eval(cases=cases, request=ask)

@pytest.mark.gate({gates})
def test_s(case, generation, score):
    right = "wrong" not in generation.text
    score(right=right, other=1)
    assert right
"""
)
ALL_RIGHT = ({"text": "right"},)
# c1, c11, c21, c31 and their like: 13 of 40 cases, in 13 groups of two.
MANY_WRONG = ({"contains": "1", "text": "wrong"}, {"text": "right"})


def write(project: Project, gates: str = "'no_regression'") -> Project:
    return project.write(test_a=EVAL.replace("{gates}", gates))


def run(project: Project, answers: tuple[dict[str, Any], ...], name: str, *options: str, mode: str = "no-xdist") -> Run:
    script = project.script(*answers)
    (project.root / script).rename(project.root / f"{name}.jsonl")
    return project.run("--model", f"{name}.jsonl", "--run-id", name, *options, mode=mode)


def bless(project: Project, name: str, baseline: str) -> Path:
    folder = project.root / "baselines"
    assert main(["bless", str(project.root / "reports" / name), baseline, "--to", str(folder)]) == 0
    return folder / f"{baseline}.json"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Project:
    good = write(Project(tmp_path_factory.mktemp("good")))
    run(good, ALL_RIGHT, "good")
    bless(good, "good", "good")
    return good


@pytest.fixture
def blessed(project: Project, good: Project) -> Project:
    """A project whose baseline `good` has every case right."""
    return project.take(good)


class TestVerdict:
    @pytest.mark.parametrize("mode", MODES)
    def test_a_regression_fails_the_gate_and_says_what_fell(self, blessed: Project, mode: str) -> None:
        worse = run(blessed, MANY_WRONG, "worse", "--baseline", "good", mode=mode)
        gate = worse.gate("no_regression")
        assert (worse.exit_code, gate["passed"], gate["n"]) == (1, False, 40)
        assert gate["reason"].startswith("regressed against baseline good (fake:good): ")
        assert "right 1.000 → 0.675" in gate["reason"]
        assert "GATE FAILED: no_regression (a::test_s on fake:worse): regressed against baseline good" in worse.output
        assert f"evalharness: baseline {blessed.root / 'baselines' / 'good.json'}" in worse.output

    def test_the_same_answers_pass(self, blessed: Project) -> None:
        same = run(blessed, ALL_RIGHT, "same", "--baseline", "good")
        assert (same.exit_code, same.gate("no_regression")["passed"]) == (0, True)
        assert run(blessed, ALL_RIGHT, "some", "--limit", "30", "--baseline", "good").gate("no_regression")["passed"]  # none is missed
        assert "gate passed: no_regression (a::test_s on fake:same): no regression shown against baseline good" in same.output
        assert "could have gone unseen" in same.output

    def test_without_a_baseline_it_is_not_asked(self, blessed: Project) -> None:
        quiet = run(blessed, MANY_WRONG, "quiet")
        gate = quiet.gate("no_regression")
        assert (quiet.exit_code, gate["passed"], gate["asked"]) == (0, None, False)
        assert "gate skipped: no_regression (a::test_s on fake:quiet): no baseline (use --baseline NAME)" in quiet.output
        assert "FINISHED: 1 gate skipped, as no baseline was given" in quiet.output
        assert "| no_regression | skipped |" in (quiet.run_dir / "report.md").read_text("utf-8").replace("  ", " ")


class TestWhatIsCompared:
    def test_a_path_a_run_and_the_latest_run_are_baselines_too(self, blessed: Project) -> None:
        for number, baseline in enumerate(("baselines/good.json", "reports/good", "latest")):
            same = run(blessed, ALL_RIGHT, f"same{number}", "--baseline", baseline)
            assert same.gate("no_regression")["passed"], same.gate("no_regression")
        assert same.gate("no_regression")["baseline"] == "same1 (fake:same1)"
        assert same.facts["baseline"] == {"asked": "latest", "path": str(blessed.root / "reports" / "same1"), "problem": None}

    def test_a_path_in_a_settings_file_is_relative_to_it(self, blessed: Project) -> None:
        (blessed.root / "evalharness.toml").write_text('baseline = "baselines/good.json"\n')
        same = run(blessed, ALL_RIGHT, "same")
        assert same.facts["baseline"]["path"] == str(blessed.root / "baselines" / "good.json")
        assert same.gate("no_regression")["passed"]

    def test_a_metric_can_be_named(self, project: Project) -> None:
        write(project, "'no_regression(right)', 'no_regression(other)', 'no_regression(f1)'")
        source = (project.root / "test_a.py").read_text().replace("other=1)", "other=1)\n    if case.id == 'none': score(f1=1)")
        run(project.write(test_a=source), ALL_RIGHT, "good")
        worse = run(project, MANY_WRONG, "worse", "--baseline", "reports/good")
        assert not worse.gate("no_regression(right)")["passed"]
        assert worse.gate("no_regression(right)")["value"] == pytest.approx(-13 / 40)
        assert worse.gate("no_regression(other)")["passed"]
        assert worse.gate("no_regression(f1)")["reason"] == "no case has 'f1' on both sides"

    def test_each_engine_is_judged_by_itself(self, blessed: Project) -> None:
        for name, answers in (("one", ALL_RIGHT), ("two", MANY_WRONG)):
            (blessed.root / blessed.script(*answers)).rename(blessed.root / f"{name}.jsonl")
        both = blessed.run("--model", "one.jsonl", "--model", "two.jsonl", "--run-id", "both", "--baseline", "good")
        assert [(gate["engine"], gate["passed"]) for gate in both.facts["gates"]] == [("fake:one", True), ("fake:two", False)]

    def test_errors_are_no_regression_and_no_pass_where_too_little_is_left(self, blessed: Project) -> None:
        answers = ({"contains": "1", "error": "lost"}, {"contains": "2", "error": "lost"}, {"text": "right"})
        broken = run(blessed, answers, "broken", "--baseline", "good")
        assert broken.gate("no_regression")["reason"].startswith("only 1")
        assert broken.exit_code == 10


class TestDirections:
    def test_the_eval_says_which_way_its_scores_are_better(self, project: Project) -> None:
        source = EVAL.replace("request=ask)", "request=ask, directions={'right': 'none'})").replace("{gates}", "'no_regression(right)'")
        run(project.write(test_a=source), ALL_RIGHT, "good")
        worse = run(project, MANY_WRONG, "worse", "--baseline", "reports/good")
        assert worse.facts["evals"][0]["directions"] == {"right": "none"}
        assert worse.gate("no_regression(right)")["passed"]

    @pytest.mark.parametrize("wrong", ["{'right': 'up'}", "{1: 'lower'}", "['right']", "'lower'"])
    def test_a_direction_that_is_none_is_refused(self, project: Project, wrong: str) -> None:
        source = EVAL.replace("request=ask)", f"request=ask, directions={wrong})").replace("{gates}", "'no_regression'")
        refused = project.write(test_a=source).run_inline()
        assert refused.exit_code == pytest.ExitCode.INTERRUPTED
        assert "the eval marker's directions must be scores by name, each one of higher, lower, none; got" in refused.output


class TestRefusals:
    @pytest.mark.parametrize(
        ("baseline", "reason"),
        [
            ("nightly", "baselines/nightly.json does not exist; there are: good; create it with: evalharness bless RUN_DIR nightly"),
            ("goood", "baselines/goood.json does not exist; did you mean 'good'; there are: good; create it with: evalharness bless"),
            ("torn.json", "torn.json is not JSON"),
            ("reports", "is not a run directory"),
        ],
        ids=["absent", "misspelt", "unreadable", "no run"],
    )
    def test_a_baseline_that_cannot_be_used_is_refused_before_anything_is_generated(
        self, blessed: Project, baseline: str, reason: str
    ) -> None:
        (blessed.root / "torn.json").write_text("{")
        same = blessed.run_inline("--run-id", "same", "--baseline", baseline if baseline != "reports" else str(blessed.root / "reports"))
        assert same.exit_code == pytest.ExitCode.USAGE_ERROR
        assert reason in same.output
        assert not same.run_dir.exists()

    def test_one_of_the_settings_that_is_not_there_yet_fails_the_gate_and_is_announced(self, blessed: Project) -> None:
        (blessed.root / "evalharness.toml").write_text('baseline = "nightly"\n')
        first = run(blessed, ALL_RIGHT, "first")
        assert (first.exit_code, first.gate("no_regression")["passed"]) == (1, False)
        assert "nightly.json does not exist" in first.gate("no_regression")["reason"]
        assert "cannot be used, gates on it will fail" in first.output

    def test_without_a_gate_on_it_that_is_said_at_the_start(self, blessed: Project) -> None:
        write(blessed, "'pass_rate >= 0'")
        idle = blessed.run_inline("--run-id", "idle", "--baseline", "good")
        assert (
            "evalharness: --baseline changes nothing: no test of this run has a gate that compares with it"
            in idle.output.partition("test_a.py")[0]
        )

    def test_there_is_no_latest_run_before_the_first(self, project: Project) -> None:
        first = run(write(project), ALL_RIGHT, "first", "--baseline", "latest")
        assert (first.exit_code, first.facts["baseline"]["path"]) == (1, None)
        assert "there is no run latest: " in first.gate("no_regression")["reason"]

    @pytest.mark.parametrize(
        ("change", "options", "reason"),
        [
            ((), ("--max-new-tokens", "7"), "option max_new_tokens differs in a::test_s: 256 in the base, 7 in the candidate"),
            (("ask {case.id}", "asked {case.id}"), (), "the prompts differ in a::test_s for 40 of 40 cases"),
            (('id=f"c{i}"', 'id=f"d{i}"'), (), "base and candidate share no case in a::test_s"),
            (("def test_s", "def test_t"), (), "the two runs have no test in common: the base has a::test_s, the candidate a::test_t"),
        ],
        ids=["options", "prompts", "cases", "test"],
    )
    def test_a_baseline_of_another_kind_fails_the_gate(
        self, blessed: Project, change: tuple[str, str] | tuple[()], options: tuple[str, ...], reason: str
    ) -> None:
        source = EVAL.replace("{gates}", "'no_regression'")
        blessed.write(test_a=source.replace(*change) if change else source)
        other = run(blessed, ALL_RIGHT, "other", "--baseline", "good", *options)
        gate = other.gate("no_regression")
        assert (other.exit_code, gate["passed"]) == (1, False)
        assert reason in gate["reason"]

    def test_too_few_cases_show_nothing_and_pass_nothing(self, project: Project) -> None:
        run(write(project), ALL_RIGHT, "good", "--limit-first", "4")
        few = run(project, ALL_RIGHT, "few", "--limit-first", "4", "--baseline", "reports/good")
        assert few.gate("no_regression")["reason"].startswith("2 groups of cases cannot show any difference")
        assert few.exit_code == 1

    def test_an_interrupted_run_is_not_judged(self, blessed: Project) -> None:
        source = EVAL.replace("{gates}", "'no_regression'") + "    if case.id == 'c9': pytest.exit('stop')\n"
        cut = run(blessed.write(test_a=source), ALL_RIGHT, "cut", "--baseline", "good")
        assert cut.gate("no_regression")["reason"].startswith("not judged: ")


class TestJunit:
    @staticmethod
    def gates(path: Path) -> tuple[dict[str, str], dict[str, str]]:
        """Return the first suite's counts, and how each gate ended."""
        suite = next(ET.parse(path).getroot().iter("testsuite"))
        cases = [case for case in suite.iter("testcase") if case.get("classname") == "evalharness.analysis.gates"]
        return dict(suite.attrib), {str(case.get("name")): next((child.tag for child in case), "passed") for case in cases}

    @pytest.mark.parametrize("mode", MODES)
    def test_gates_are_test_cases_of_the_junit_file(self, project: Project, mode: str) -> None:
        write(project, "'right >= 0.9', 'other >= 1', 'no_regression'")
        worse = run(project, MANY_WRONG, "worse", "--junitxml", "out/junit.xml", mode=mode)
        counts, gates = self.gates(project.root / "out" / "junit.xml")
        assert worse.exit_code == 1
        where = "(a::test_s on fake:worse)"
        assert gates == {f"right >= 0.9 {where}": "failure", f"other >= 1 {where}": "passed", f"no_regression {where}": "skipped"}
        assert (counts["tests"], counts["failures"], counts["errors"], counts["skipped"]) == ("43", "1", "0", "1")

    def test_a_gate_that_could_not_be_judged_is_skipped_in_it_beside_the_errors_that_kept_it_from_that(self, project: Project) -> None:
        script = write(project, "'right >= 0.9'").script({"error": "lost"})
        project.run_inline("--model", script, "--junitxml", "junit.xml")
        counts, gates = self.gates(project.root / "junit.xml")
        assert list(gates.values()) == ["skipped"]
        assert (counts["failures"], int(counts["errors"]) > 0) == ("0", True)

    def test_problems_of_the_run_are_errors_in_it_and_their_hostile_texts_legal_xml(self, project: Project) -> None:
        broken = "def aggregate(rows): raise ValueError('\\x00\\x1b[31m \\ud800 <b> & \\uffff')\n"
        source = PLAIN.replace("request=ask", "request=ask, aggregate=aggregate").replace("pytestmark", f"{broken}\npytestmark")
        project.write(test_a=source).run_inline("--junitxml", "junit.xml")
        counts, gates = self.gates(project.root / "junit.xml")
        assert (gates, counts["errors"]) == ({"problem 1 of the run": "error"}, "1")


class TestGithubSummary:
    def test_it_is_appended_where_github_asks_for_it(self, project: Project) -> None:
        path = project.root / "summary.md"
        path.write_text("before\n")
        script = write(project, "'right >= 0.9'").script(*MANY_WRONG)
        project.run_inline("--model", script, "--run-id", "worse", env={"GITHUB_STEP_SUMMARY": str(path)})
        written = path.read_text("utf-8")
        assert written.startswith("before\n## Run worse\n\n**FAILED**: the gate failed")
        assert "| right >= 0.9 " in written

    def test_where_it_cannot_be_written_the_run_says_so(self, project: Project) -> None:
        done = write(project).run_inline(env={"GITHUB_STEP_SUMMARY": str(project.root / "no" / "file")})
        assert done.exit_code == BROKEN
        assert "(GITHUB_STEP_SUMMARY): No such file or directory" in done.output


def test_a_killed_run_passes_no_gate_on_a_baseline(blessed: Project) -> None:
    same = run(blessed, ALL_RIGHT, "same", "--baseline", "good")
    (same.run_dir / "run.json").write_text(json.dumps({name: value for name, value in same.facts.items() if name != "finished_at"}))
    (same.run_dir / "samples.jsonl").unlink()
    assert main(["report", str(same.run_dir)]) == 0
    (gate,) = json.loads((same.run_dir / "run.json").read_bytes())["gates"]
    assert gate["passed"] is False
