"""What compares engines of one run, and what acts on generation: the marker's `across` and `plugins`."""

from __future__ import annotations

import json

import pytest

from tests.pytest_plugin.project import HEADER, Project, Run, eval_module

pytestmark = pytest.mark.slow

ACROSS = eval_module("""
def across(rows, engines):
    assert list(rows) == list(engines)
    texts = {engine: {row["case_id"]: row["generation"]["text"] for row in mine} for engine, mine in rows.items()}
    first = next(iter(texts.values()))
    return {engine: {"same": sum(text == first[case] for case, text in mine.items()) / len(mine)} for engine, mine in texts.items()}

pytestmark = pytest.mark.eval(cases=cases, request=ask, across=across)

@pytest.mark.gate("same >= 1")
def test_same(case, generation, score):
    score(length=len(generation.text))
""")


def with_scripts(project: Project, **scripts: str) -> list[str]:
    """Write scripts that say this text to everything, and return the options that run them."""
    for name, text in scripts.items():
        (project.root / f"{name}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    return [f"--model={project.root / f'{name}.jsonl'}" for name in scripts]


def test_engines_are_compared_when_all_rows_are_there_and_gates_judge_it(project: Project, mode: str) -> None:
    project.write(test_a=ACROSS)
    run = project.run(*with_scripts(project, one="yes", two="yes", three="no"), mode=mode)
    assert run.exit_code == pytest.ExitCode.TESTS_FAILED
    assert {entry["engine"]: entry["value"] for entry in run.facts["aggregates"]} == {"fake:one": 1.0, "fake:two": 1.0, "fake:three": 0.0}
    assert {gate["engine"]: gate["passed"] for gate in run.facts["gates"]} == {"fake:one": True, "fake:two": True, "fake:three": False}


def test_an_engine_that_stands_alone_is_not_asked_and_the_run_says_why(project: Project) -> None:
    project.write(test_a=ACROSS, test_b=HEADER + OTHER)
    run = project.run("-rs")
    assert run.exit_code == pytest.ExitCode.OK
    assert {row["eval"] for row in run.rows} == {"b"}
    assert "nothing to compare: this eval compares engines of one checkpoint" in " ".join(run.output.split())
    assert "4 passed, 1 skipped" in run.summary()


OTHER = "pytestmark = pytest.mark.eval(cases=cases, request=ask)\ndef test_b(case, generation): pass\n"


def test_with_nothing_else_there_is_no_run(project: Project) -> None:
    run = project.write(test_a=ACROSS).run("-rs")
    assert run.exit_code == pytest.ExitCode.OK
    assert run.opened_no_run
    assert "1 skipped" in run.summary()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("return {'fake:three': {'same': 1}}", "gave metrics of 'fake:three', which is not one of these engines; left out"),
        ("raise ZeroDivisionError('none')", "failed: ZeroDivisionError: none"),
        ("return {'fake:one': {'same': float('nan')}}", "gave same=nan, which is not a finite number; left out"),
        ("return {'fake:one': {'pass_rate': 1}}", "gave 'pass_rate', the name of a built-in metric"),
        ("return None", "failed: AttributeError"),
    ],
    ids=["stranger", "raises", "nan", "built-in", "none"],
)
def test_a_comparison_that_fails_is_a_problem_and_no_lost_report(project: Project, body: str, problem: str) -> None:
    head = HEADER + f"def across(rows, engines):\n    {body}\n"
    project.write(
        test_a=head + "pytestmark = pytest.mark.eval(cases=cases, request=ask, across=across)\ndef test_s(case, generation): pass\n"
    )
    run = project.run(*with_scripts(project, one="yes", two="yes"))
    assert run.exit_code != pytest.ExitCode.OK
    assert [line for line in run.facts["problems"] if problem in line], run.facts["problems"]
    assert (run.run_dir / "report.md").exists()


PLUGGED = eval_module("""
from evalharness.generation_plugins import BalancedJsonStop, DuplicateObjectBan
pytestmark = pytest.mark.eval(cases=cases, request=ask, plugins=[PLUGIN])
def test_s(case, generation):
    assert generation.text == '{"a": 1}', generation.text
    assert generation.stop_reason == "balanced-json-stop"
""")


def plugged(project: Project, plugin: str, *options: str) -> Run:
    project.write(test_a=PLUGGED.replace("PLUGIN", plugin))
    return project.run(*with_scripts(project, one='{"a": 1} and so on'), *options)


def test_plugins_of_the_marker_act_on_generation_and_are_recorded(project: Project) -> None:
    run = plugged(project, "BalancedJsonStop()")
    assert run.counts == {"pass": 4}
    (entry,) = run.facts["evals"]
    assert entry["plugins"] == ["BalancedJsonStop(roots='{')"]


def test_a_plugin_that_the_backend_cannot_obey_or_a_class_in_its_place_is_refused_before_anything_is_asked(project: Project) -> None:
    run = plugged(project, "DuplicateObjectBan()")
    assert run.counts == {"error": 4}
    assert "plugin 'duplicate-object-ban' bans tokens while a row is written, which backend 'fake' cannot do" in run.rows[0]["problem"]
    assert "plugins holds the class BalancedJsonStop; make one of it: BalancedJsonStop(…)" in plugged(project, "BalancedJsonStop").output


def test_plugins_act_on_the_question_and_not_on_its_steps(project: Project) -> None:
    steps = """
from evalharness.generation_plugins import BalancedJsonStop

def in_steps(case):
    [step] = yield [ask(case)], GenerationOptions()
    assert step.text.endswith("and so on"), step.text
    return ask(case)

pytestmark = pytest.mark.eval(cases=cases, request=in_steps, plugins=[BalancedJsonStop()])
def test_s(case, generation):
    assert generation.text == '{"a": 1}'
"""
    run = project.write(test_a=HEADER + steps).run(*with_scripts(project, one='{"a": 1} and so on'))
    assert run.counts == {"pass": 4}, run.output


PARITY = eval_module("""
from evalharness.tasks import parity
pytestmark = pytest.mark.eval(cases=cases, request=ask, across=parity.compare_engines)

@pytest.mark.gate("same_tokens >= 1", "same_prompt >= 1", "mean >= 1")
def test_parity(case, generation, score):
    score(mean=0)
""")


def test_a_failed_gate_on_a_comparison_says_in_what_the_engines_differ(project: Project, mode: str) -> None:
    run = project.write(test_a=PARITY).run(*with_scripts(project, one="yes", two="yet"), mode=mode)
    assert run.exit_code == pytest.ExitCode.TESTS_FAILED
    reasons = {gate["expression"]: gate["reason"] for gate in run.facts["gates"] if gate["engine"] == "fake:one"}
    assert reasons == {
        "same_tokens >= 1": "0.000, needs ≥ 1; the engines differ in no setting that is known",
        "same_prompt >= 1": "",
        "mean >= 1": "0.000, needs ≥ 1",
    }
    (table,) = [table for table in run.facts["tables"] if table["engine"] == "fake:one" and table["title"] == "first differences"]
    differences = [(line["case"], line["token"], line["here"], line["there"]) for line in table["rows"]]
    assert differences == [(f"c{i}", 2, "s", "t") for i in range(4)]
    assert "first differences" in (run.run_dir / "report.md").read_text("utf-8")


def test_engines_are_compared_again_when_a_run_is_scored_again(project: Project) -> None:
    live = project.write(test_a=PARITY).run(*with_scripts(project, one="yes", two="yet"), "--run-id", "live")
    rescored = Run(*project.evalharness("rescore", "reports/live", "--run-id", "again"), 0.0, project.root, "again")
    assert rescored.facts["aggregates"] == live.facts["aggregates"]
    assert [gate["reason"] for gate in rescored.facts["gates"]] == [gate["reason"] for gate in live.facts["gates"]]
