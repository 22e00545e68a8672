"""`--noise K`: repeats of cases, each case still one row; what they measure, and that they decide nothing by themselves."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.cases import Case
from evalharness.config import RunConfig
from evalharness.pytest_plugin.execution.repeats import repeats_of, sample_of
from evalharness.runs.repeats import repeat_id, repeat_number, split_repeat
from tests.pytest_plugin.project import HEADER, MODES, Project, Run

NOISE = ("--noise", "2", "--noise-cases", "3")
# Of c0 and c1 the first answer is right and the second wrong, in whichever process; of the others all are.
FLIPS = (
    HEADER.replace("range(4)", "range(8)")
    + """
asked = {}

def asking(case):
    assert "~" not in case.id
    return ask(case)

pytestmark = pytest.mark.eval(cases=cases, request=asking)

@pytest.mark.gate("right >= 0.9")
def test_s(case, generation, score, request):
    assert "~" not in case.id
    number = asked[case.id] = asked.get(case.id, 0) + 1
    right = case.id not in ("c0", "c1") or number % 2 == 1
    score(right=right)
    assert right

def test_t(case, generation):
    assert generation.text == f"ask {case.id}"
"""
)


def measured(run: Run, metric: str, test: str = "test_s") -> dict[str, Any]:
    (found,) = [entry for entry in run.facts["noise"]["measured"] if (entry["test"], entry["metric"]) == (test, metric)]
    return found


def repeats(run: Run) -> list[dict[str, Any]]:
    return [line for line in run.journal if line["kind"] == "repeat"]


class TestIds:
    @pytest.mark.parametrize("case_id", ["a", "a~again", "~again1", "a~again0", "a~again1x"])
    def test_other_ids_are_no_repeats(self, case_id: str) -> None:
        assert split_repeat(case_id) == (case_id, 0)
        assert split_repeat(repeat_id(case_id, 12)) == (case_id, 12)
        assert repeat_number(f"test_a.py::test_b[hf:a-{repeat_id(case_id, 3)}]") == 3

    def test_a_case_may_not_be_called_like_a_repeat(self, project: Project) -> None:
        run = project.write(test_a=FLIPS.replace('f"c{i}"', 'f"c{i}~again{i + 1}"')).run(*NOISE)
        assert run.exit_code == 2
        assert "such an end names a repeat (--noise)" in run.output


class TestSample:
    CASES = tuple(Case(id=f"c{number}", group=f"g{number // 5}" if number < 50 else None) for number in range(60))

    def test_two_of_every_group_are_taken_before_a_third(self) -> None:
        sizes = Counter(case.group or case.id for case in sample_of(self.CASES, 30, "0"))
        assert sorted(sizes.values()) == [1] * 10 + [2] * 10
        assert max(Counter(case.group for case in sample_of(self.CASES, 12, "0") if case.group).values()) == 2
        assert len(sample_of(self.CASES, 100, "0")) == 60

    def test_it_is_drawn_by_the_seed(self) -> None:
        drawn = [[case.id for case in sample_of(self.CASES, 20, seed)] for seed in ("0", "0", "1")]
        assert drawn[0] == drawn[1] != drawn[2]

    def test_invalid_cases_are_left_out(self) -> None:
        assert [case.id for case in sample_of([Case(id="a", invalid="no image"), Case(id="b")], 5, "0")] == ["b"]

    def test_each_repeat_has_an_order_of_its_own(self) -> None:
        made = list(repeats_of(self.CASES, "e", RunConfig(noise=3, noise_cases=40)).values())
        orders = [tuple(case.id for case in made[start : start + 40]) for start in (0, 40, 80)]
        assert len(set(orders)) == 3
        assert len({frozenset(order) for order in orders}) == 1


class TestRuns:
    @pytest.mark.parametrize("mode", MODES)
    def test_every_case_ends_as_one_row_whatever_its_repeats_say(self, project: Project, mode: str) -> None:
        run = project.write(test_a=FLIPS).run("--noise", "2", "--noise-cases", "8", mode=mode)
        assert run.exit_code == 0, run.output
        assert set(run.outcomes) == {f"{test}/c{number}" for test in ("test_s", "test_t") for number in range(8)}
        assert "16 passed, 32 repeated" in run.summary()
        assert "16 eval tests and 32 repeats (--noise)" in run.output
        assert len(repeats(run)) == 32
        made = [line for line in run.journal if line["kind"] == "generation"]
        assert len(made) == len({line["case_id"] for line in made}) == 24
        facts = run.facts["noise"]
        assert (facts["repeats"], facts["num_judged"], facts["num_lost"]) == (2, 32, 0)
        assert measured(run, "answer")["flip_rate"] == measured(run, "answer", "test_t")["flip_rate"] == 0
        if mode != "n2":  # there each process counts for itself
            assert measured(run, "right")["flips"] == {"c0": 0.666667, "c1": 0.666667}
            assert "noise: up to 16.7% of scores flip from run to run (32 judged repeats)" in run.output
        assert run.facts["partial"] == []
        assert (run.run_dir / "report.md").read_text().count("\n## Noise\n") == 1

    def test_options_that_change_nothing_are_named(self, project: Project) -> None:
        project.write(test_a=FLIPS)
        assert "--noise-cases changed nothing: it concerns --noise, which is not on" in project.run("--noise-cases", "3").output
        project.write(test_a=FLIPS.replace("cases=cases", "cases=lambda _: [Case(id='a', invalid='no image')]"))
        none = project.run("--noise", "2", "--run-id", "none")
        assert none.facts["idle_options"] == ["--noise changed nothing: no case was asked again"]

    @pytest.mark.parametrize(
        ("selected", "outcomes", "num_repeats"),
        [
            (("-k", "test_t and (c2 or c5)"), {"test_t/c2", "test_t/c5"}, 4),
            (("test_a.py::test_s[fake:echo-c4]",), {"test_s/c4"}, 2),
            (("-m", "few"), {"test_t/c6", "test_t/c7"}, 4),
        ],
        ids=["k", "id", "m"],
    )
    def test_the_sample_is_drawn_from_the_selected_tests(
        self, project: Project, selected: tuple[str, ...], outcomes: set[str], num_repeats: int
    ) -> None:
        marks = "import pytest\ndef pytest_collection_modifyitems(items):\n    for item in items: 'test_t' in item.nodeid and "
        marks += "item.nodeid[-2] in '67' and item.add_marker('few')\n"
        run = project.write(test_a=FLIPS, conftest=marks).run(*NOISE, *selected)
        assert (run.exit_code, set(run.outcomes)) == (0, outcomes), run.output
        assert {f"{line['test']}/{split_repeat(line['case_id'])[0]}" for line in repeats(run)} == outcomes
        assert len(repeats(run)) == num_repeats
        assert f", {num_repeats} repeated" in run.summary()
        assert f"{len(outcomes) + num_repeats} {'selected' if 'deselected' in run.output else 'items'}" in run.output

    def test_the_file_for_ci_has_no_repeats(self, project: Project) -> None:
        project.write(test_a=FLIPS).run(*NOISE, "--junitxml", "junit.xml", mode="n0")
        (suite,) = ET.parse(project.root / "junit.xml").getroot().iter("testsuite")
        assert (len(suite.findall("testcase")), suite.get("tests")) == (17, "17")  # with the gate
        assert "~again" not in (project.root / "junit.xml").read_text()

    def test_without_the_option_nothing_is_asked_again(self, project: Project) -> None:
        run = project.write(test_a=FLIPS).run()
        assert (run.exit_code, repeats(run), "noise" in run.facts) == (0, [], False)
        assert "oise" not in run.output + (run.run_dir / "report.md").read_text()

    def test_a_repeat_fails_nothing_and_is_no_problem(self, project: Project) -> None:
        broken = FLIPS.replace('@pytest.mark.gate("right >= 0.9")\n', "").replace(
            "    score(right=right)\n", "    score(right=right)\n    if number == 3: raise RuntimeError('broken')\n"
        )
        run = project.write(test_a=broken).run("--noise", "2", "--noise-cases", "8")
        assert (run.exit_code, run.counts) == (0, {"pass": 16})
        assert (run.facts["noise"]["num_judged"], run.facts["noise"]["num_lost"]) == (24, 8)
        assert "8 without a verdict" in run.output
        assert {line["outcome"] for line in repeats(run)} == {"pass", "fail", "error"}

    def test_a_repeat_whose_setup_fails_does_not_run(self, project: Project) -> None:
        conftest = """
            import pytest
            begun = []
            @pytest.fixture(autouse=True)
            def first_only(request):
                begun.append(request.node.name)
                assert len(begun) <= 16
        """
        run = project.write(test_a=FLIPS, conftest=conftest).run(*NOISE)
        assert (run.exit_code, run.counts) == (0, {"pass": 16})
        assert run.facts["noise"]["num_lost"] == 12

    def test_cases_that_are_asked_in_steps_are_asked_in_steps_again(self, project: Project) -> None:
        steps = """
def in_steps(case):
    (first,) = yield [ask(case)], GenerationOptions()
    return TextGenerationRequest([{"role": "user", "content": f"{first.text} again"}])

pytestmark = pytest.mark.eval(cases=cases, request=in_steps)

def test_s(case, steps, generation):
    assert steps[0][0].text == f"ask {case.id}"
    assert generation.text == f"ask {case.id} again"
"""
        run = project.write(test_a=HEADER + steps).run(*NOISE)
        assert (run.exit_code, run.counts, run.facts["noise"]["num_judged"]) == (0, {"pass": 4}, 6)
        assert {line["outcome"] for line in repeats(run)} == {"pass"}

    def test_sampled_answers_are_drawn_with_the_same_seed(self, project: Project) -> None:
        sampled = FLIPS.replace("request=asking", "request=asking, options=GenerationOptions(temperature=1.0)")
        run = project.write(test_a=sampled).run(*NOISE)
        seeds: dict[str, set[int]] = {}
        for line in run.journal:
            if line["kind"] == "generation":
                seeds.setdefault(split_repeat(line["case_id"])[0], set()).add(line["generation"]["seed"])
        assert len(seeds) == 8
        assert all(len(of_case) == 1 for of_case in seeds.values())

    def test_a_cache_would_answer_the_repeats(self, project: Project) -> None:
        project.write(test_a=FLIPS)
        refused = project.run(*NOISE, "--cache-dir", "kept")
        assert refused.exit_code == 4
        assert "--noise 2 asks cases again, and a cache would answer; leave the cache out, or give --no-cache" in refused.output
        (project.root / "evalharness.toml").write_text('cache_dir = "kept"\n')
        assert project.run(*NOISE).exit_code == 4
        assert project.run(*NOISE, "--no-cache").exit_code == 0

    def test_a_gate_within_noise_of_its_threshold_passes_and_says_so(self, project: Project) -> None:
        first_wrong = FLIPS.replace("number % 2 == 1", "number % 2 == 0")
        run = project.write(test_a=first_wrong).run("--noise", "3", "--noise-cases", "8")
        gate = run.gate("right >= 0.9")
        assert (run.exit_code, gate["value"], gate["passed"]) == (0, 0.75, True)
        assert "0.750 is 0.150 below the threshold, within noise: runs of one checkpoint vary by up to" in run.output
        assert "within noise" in (run.run_dir / "report.md").read_text()
        assert project.run("--run-id", "without").gate("right >= 0.9")["passed"] is False


class TestStoredRuns:
    def test_a_run_that_broke_off_among_its_repeats_goes_on(self, project: Project) -> None:
        stops = FLIPS.replace("    score(right", '    if number == 2 and os.path.exists("stop"): pytest.exit("stop")\n    score(right')
        project.write(test_a=stops)
        (project.root / "stop").touch()
        broken = project.run("--noise", "2", "--noise-cases", "8", "--run-id", "night")
        assert (broken.exit_code, len(broken.rows)) == (2, 16)
        (project.root / "stop").unlink()
        whole = project.run("--resume", "night")
        assert (whole.exit_code, whole.counts) == (0, {"pass": 16}), whole.output
        assert whole.facts["noise"]["num_judged"] == 32
        new = [line for line in whole.journal if line["kind"] == "generation" and "copied" not in line]
        assert len(new) == 24

    def test_a_resumed_run_keeps_its_sample_whatever_is_selected(self, project: Project) -> None:
        stops = FLIPS.replace("    score(right", '    if number == 2 and os.path.exists("stop"): pytest.exit("stop")\n    score(right')
        project.write(test_a=stops)
        (project.root / "stop").touch()
        broken = project.run(*NOISE, "-k", "c0 or c2 or c3 or c7", "--run-id", "night")
        (project.root / "stop").unlink()
        whole = project.run("--resume", "night")
        assert (broken.exit_code, whole.exit_code, whole.counts) == (2, 0, {"pass": 8}), whole.output
        begun = next(line["nodeids"] for line in broken.journal if line["kind"] == "collected")
        assert {line["nodeid"] for line in repeats(whole)} == {nodeid for nodeid in begun if repeat_number(nodeid)}
        assert whole.facts["noise"]["num_judged"] == 12

    def test_rescoring_judges_repeats_again(self, project: Project) -> None:
        run = project.write(test_a=FLIPS).run(*NOISE, "--run-id", "night")
        project.write(test_a=FLIPS.replace("score(right=right)", "score(right=right, other=number)"))
        code, output = project.evalharness("rescore", str(run.run_dir), "--run-id", "again")
        again = Run(code, output, 0.0, project.root, "again")
        assert (again.exit_code, len(again.rows)) == (0, 16), output
        assert again.facts["noise"]["num_judged"] == 12
        assert measured(again, "other")["flip_rate"] == 1.0

    def test_parts_are_merged_with_their_repeats(self, project: Project) -> None:
        project.write(test_a=FLIPS)
        parts = [project.run(*NOISE, "--shard", f"{part}/2", "--run-id", f"part-{part}") for part in (1, 2)]
        assert all(part.exit_code == 0 for part in parts)
        code, output = project.evalharness("merge", *(str(part.run_dir) for part in parts), "--run-id", "whole")
        whole = Run(code, output, 0.0, project.root, "whole")
        assert (code, len(whole.rows)) == (0, 16), output
        assert whole.facts["noise"]["num_judged"] == 24
        assert measured(whole, "right")["num_cases"] == 6

    def test_tests_of_other_modules_judge_no_repeats(self, project: Project) -> None:
        run = project.write(test_a=FLIPS).run(*NOISE, "--run-id", "night")
        project.write(test_other="def test_any(case, generation):\n    assert '~' not in case.id\n")
        code, output = project.evalharness("rescore", str(run.run_dir), "--tests", "test_other.py", "--run-id", "other")
        assert code == 0, output
        assert len(Run(code, output, 0.0, project.root, "other").rows) == 8

    def test_a_killed_runs_report_has_its_noise(self, project: Project) -> None:
        run = project.write(test_a=FLIPS).run(*NOISE)
        before = run.facts["noise"]
        for name in ("samples.jsonl", "report.md"):
            Path(run.run_dir / name).unlink()
        started = {name: value for name, value in run.facts.items() if name not in ("finished_at", "noise")}
        (run.run_dir / "run.json").write_text(json.dumps(started))
        code, output = project.evalharness("report", str(run.run_dir))
        rebuilt = Run(code, output, 0.0, project.root)
        assert (rebuilt.facts["rebuilt"], len(rebuilt.rows)) == (True, 16), output
        assert rebuilt.facts["noise"] == before
