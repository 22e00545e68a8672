"""Runs that hold only part of an eval say so, and are taken for nothing else."""

from __future__ import annotations

import json

import pytest

from tests.pytest_plugin.project import Project, eval_module

TWO_TESTS = eval_module("""
pytestmark = pytest.mark.eval(cases=cases, request=ask)

def test_s(case, generation):
    assert case.id != "c1" or os.path.exists("fixed")

@pytest.mark.gate("no_regression")
@pytest.mark.parametrize("word", ["a", "b"])
def test_t(case, generation, word): pass

def test_of_cases_alone(case): pass
""")


def part(what: str, num: int, of: int) -> list[dict[str, object]]:
    return [{"eval": "a", "what": what, "num": num, "of": of}]


@pytest.mark.parametrize(
    ("arguments", "partial"),
    [
        pytest.param([], [], id="all"),
        pytest.param(["-k", "test_a"], [], id="whole-module"),
        pytest.param(["--limit", "100"], [], id="limit-above"),
        pytest.param(["-k", "c1 or c2"], part("cases", 2, 4), id="k"),
        pytest.param(["--limit", "3"], part("cases", 3, 4), id="limit"),
        pytest.param(["--shard", "1/2"], part("cases", 2, 4), id="shard"),
        pytest.param(["-k", "test_s"], part("tests", 4, 12), id="one-test"),
        pytest.param(["test_a.py::test_s"], part("tests", 4, 12), id="node-id"),
        pytest.param(["test_a.py::test_s[fake:echo-c1]"], part("cases", 1, 4), id="one-case"),
        pytest.param(["--deselect", "test_a.py::test_t[a-fake:echo-c1]"], part("tests", 11, 12), id="deselect"),
    ],
)
def test_a_run_says_of_which_evals_it_holds_a_part(project: Project, arguments: list[str], partial: list[dict[str, object]]) -> None:
    run = project.write(test_a=TWO_TESTS).run_inline(*arguments, "--run-id", "r")
    assert run.facts["partial"] == partial
    caveat = " ".join(run.output.split())
    for entry in partial:
        assert f"part of an eval was selected, {entry['num']} of {entry['of']} {entry['what']} of a: its scores and gates" in caveat
    assert ("part of an eval" in caveat) == bool(partial)


def test_after_lf_latest_is_still_the_whole_run_for_baselines(project: Project) -> None:
    project.write(test_a=TWO_TESTS).run_inline("--run-id", "whole")
    assert project.run_inline("--lf", "--run-id", "again").facts["partial"] == part("cases", 1, 4)
    (project.root / "fixed").touch()
    later = project.run_inline("--run-id", "later", "--baseline", "latest")
    assert later.facts["baseline"]["path"] == str(project.root / "reports" / "whole")
    named = project.run_inline("--run-id", "named", "--baseline", "reports/again").output
    assert "reports/again, which holds only part of an eval: 1 of 4 cases of a\n" in named


def test_what_is_made_of_a_partial_run_is_partial_and_merged_parts_are_whole(project: Project) -> None:
    project.write(test_a=TWO_TESTS, judge="def test_j(case, generation): pass\n")
    for name, option in (("few", "--limit=3"), ("p1", "--shard=1/2"), ("p2", "--shard=2/2")):
        project.run_inline("--run-id", name, option)
    for name, command in (
        ("again", ["rescore", "few"]),
        ("tests", ["rescore", "few", "--tests", "judge.py"]),
        ("whole", ["merge", "p1", "p2"]),
    ):
        assert project.evalharness(*command, "--run-id", name)[0] in (0, 1)
    made = {
        name: json.loads((project.root / "reports" / name / "run.json").read_bytes())["partial"] for name in ("again", "tests", "whole")
    }
    assert made == {"again": part("cases", 3, 4), "tests": [{**part("cases", 3, 4)[0], "eval": "judge"}], "whole": []}


@pytest.mark.slow
def test_workers_count_what_was_deselected(project: Project) -> None:
    run = project.write(test_a=TWO_TESTS).run("-k", "c1 or c2", mode="n2")
    assert run.facts["partial"] == part("cases", 2, 4)
