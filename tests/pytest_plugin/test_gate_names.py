"""A gate on a score that its test never records is refused before anything is generated, where the code leaves no doubt."""

from __future__ import annotations

import re

import pytest

from tests.pytest_plugin.project import MARK, Project, eval_module

AGGREGATED = eval_module(
    "pytestmark = pytest.mark.eval(cases=cases, request=ask, aggregate=lambda rows: {'total': 1.0})\n"
    "@pytest.mark.gate('total >= 1')\n"
    "def test_s(case, generation, score): score(correct=1)\n"
)


def test_a_misspelt_metric_is_refused_with_what_was_meant(project: Project) -> None:
    body = "@pytest.mark.gate('corect >= 0.9')\ndef test_s(case, generation, score):\n    if case.id:\n        score(correct=1, f1=0)\n"
    run = project.write(test_a=MARK + body).run_inline()
    assert run.exit_code == pytest.ExitCode.INTERRUPTED
    assert run.opened_no_run
    known = "It can be on: correct, f1, pass_rate, invalid_rate, error_rate, length_rate, empty_rate"
    told = f"test_s: the gate 'corect >= 0.9' is on a score that the test never records; did you mean 'correct'? {known}"
    assert told in " ".join(run.output.split())


def test_a_gate_of_a_test_without_scores_is_refused(project: Project) -> None:
    run = project.write(test_a=MARK + "@pytest.mark.gate('f1 >= 0.9')\ndef test_s(case, generation): pass\n").run_inline()
    assert "is on a score that the test never records. It can be on: pass_rate" in run.output


ADDS = "pytestmark = pytest.mark.eval(cases=cases, request=ask, suite='math', aggregate=lambda rows: {'total': 1.0, 'f1_macro': 1.0})\n"
TOLD = {
    "totl >= 1": "is on a metric that neither the test nor its eval gives; did you mean 'total'? It can be on: right, f1_macro, math.",
    "low(f1_marco) >= 1": "did you mean 'f1_macro'?",
    "p95(total) <= 1": "is about single cases, and total is one number over all cases",
    "rihgt[parity=*] >= 1": "is on a score that the test never records; did you mean 'right'? It can be on: right, pass_rate",
    "drop(rihgt) <= 1": "did you mean 'right'?",
    "no_regression(right, rihgt)": "did you mean 'right'? It can be on: right, pass_rate, length_rate, empty_rate",
    "no_regression(total)": "is about single cases",
    "picked >= 1": "; details() has it, but gates are on what score() records.",
}


def test_names_are_known_through_functions_and_of_what_evals_add(project: Project) -> None:
    right = "'low(right) >= 1', 'total >= 1', 'math.right_micro >= 1', 'no_regression(right, parity, category)'"
    body = "    judged = dict(right=1)\n    score(**judged)\n    details(picked=judged)\n"
    tests = [f"@pytest.mark.gate('{gate}', {right})\ndef test_s(case, generation, score, details):\n{body}" for gate in TOLD]
    run = project.write(**{f"test_{place}": eval_module(ADDS + test) for place, test in enumerate(tests)}).run_inline()
    assert run.opened_no_run
    output = " ".join(run.output.split())
    for gate, told in TOLD.items():
        assert re.search(rf"the gate '{re.escape(gate)}' [^!]*{re.escape(told)}", output), gate


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(AGGREGATED, id="aggregate"),
        pytest.param(
            AGGREGATED.replace("{'total': 1.0}", "dict([('total', 1.0)])").replace("aggregate", "suite='s', aggregate"), id="suite"
        ),
        pytest.param(MARK + "@pytest.mark.gate('x >= 1')\ndef test_s(case, generation, score): score(**{'x': 1})\n", id="unpacked"),
        pytest.param(MARK + "@pytest.mark.gate('x >= 1')\ndef test_s(case, generation, score): (lambda s: s(x=1))(score)\n", id="passed"),
        pytest.param(
            MARK + "@pytest.fixture\ndef note(score): return score\n"
            "@pytest.mark.gate('x >= 1')\ndef test_s(case, generation, note): note(x=1)\n",
            id="fixture",
        ),
        pytest.param(
            MARK + "@pytest.mark.gate('x >= 1')\ndef test_s(case, generation, request): request.getfixturevalue('score')(x=1)\n",
            id="request",
        ),
        pytest.param(MARK + "@pytest.mark.gate('pass_rate >= 1')\ndef test_s(case, generation): pass\n", id="built-in"),
    ],
)
def test_what_the_code_does_not_tell_is_left_to_the_run(project: Project, text: str) -> None:
    assert project.write(test_a=text).run_inline().exit_code == pytest.ExitCode.OK


@pytest.mark.parametrize("mode", ["no-xdist", pytest.param("n2", marks=pytest.mark.slow)])
def test_else_the_first_case_tells(project: Project, mode: str) -> None:
    scored = "def test_s(case, generation, score): score(**dict.fromkeys(map(str, ('correct', 'x')), 1))\n"
    body = f"@pytest.mark.gate('corect >= 0.9', 'x >= 0')\n{scored}@pytest.mark.gate('ax_micro >= 0')\n{scored.replace('_s', '_t')}"
    adds = "pytestmark = pytest.mark.eval(cases=cases, request=ask, aggregate=lambda rows: {str(len(rows)): 1})\n"
    run = project.write(test_a=eval_module(adds + body)).run(mode=mode)
    told = (
        "evalharness: no score yet for the gate 'corect >= 0.9' of a::test_s; did you mean 'correct'? its first case recorded: correct, x\n"
    )
    assert run.output.count("no score yet for") == run.output.count(told) == 1  # what nothing is near to, the aggregate may give
    assert run.output.index(told) < run.output.index("= evalharness =")


def test_the_first_case_tells_of_an_average_of_a_suite_that_is_nearly_one_of_its_scores(project: Project) -> None:
    mark = "pytestmark = pytest.mark.eval(cases=cases, request=ask, suite='s')\n"
    gates = "@pytest.mark.gate('s.corect_macro >= 0', 's.correct_micro >= 0', 's.f1_macro >= 0')\n"
    test = f"{mark}{gates}def test_s(case, generation, score): score(correct=1)\n"
    told = "no score yet for the gate 's.corect_macro >= 0' of a::test_s; did you mean 's.correct_macro'? its first case recorded: correct"
    assert f"{told}\n" in project.write(test_a=eval_module(test)).run_inline().output
