"""Options of the command line that concern nothing in a run are named by its reports; those that concern something are not."""

from __future__ import annotations

import pytest

from tests.pytest_plugin.project import HEADER, MARK, Project

PLAIN = MARK + "def test_s(case, generation): pass\n"
WITH_SPOTS = (
    HEADER
    + """
def outputs(rows, target):
    if target.spot: (target.folder / "spots.txt").write_text(str(target.spot))
pytestmark = pytest.mark.eval(cases=cases, request=ask, outputs=outputs)
def test_s(case, generation, coordinates): assert coordinates in (None, "unit")
@pytest.mark.gate("no_regression")
def test_t(case, generation, score): score(x=1)
"""
)
IDLE = {
    "spot": (("--spot=2",), "--spot changed nothing: no eval in this run has spot checks"),
    "coordinates": (("--coordinates=unit",), "--coordinates changed nothing: no test in this run takes `coordinates`"),
    "hang timeout": (("--hang-timeout=5",), "--hang-timeout changed nothing: it concerns workers (-n), and there are none"),
    "executor": (("--executor=ray", "-p", "xdist", "-n0"), "--executor changed nothing: it concerns workers (-n), and there are none"),
    "ray address": (("--ray-address=local",), "--ray-address changed nothing: it concerns --executor ray"),
    "accept changes": (
        ("--accept-changes",),
        "--accept-changes changed nothing: it concerns resumed runs and baselines, and this run has neither",
    ),
    "baseline": (("--baseline=latest",), "--baseline changed nothing: no test in this run has a gate that compares with it"),
    "nothing": ((), None),
}


@pytest.mark.parametrize(("arguments", "sentence"), IDLE.values(), ids=IDLE)
def test_an_option_that_concerns_nothing_is_named_by_run_json_and_reports(
    project: Project, arguments: tuple[str, ...], sentence: str | None
) -> None:
    run = project.write(test_a=PLAIN).run_inline("--run-id", "r", *arguments)
    assert [idle[: len(sentence or "")] for idle in run.facts["idle_options"]] == ([sentence] if sentence is not None else [])
    assert sentence is None or sentence.partition(":")[0] in run.output
    assert sentence is None or sentence.partition(":")[0] in (run.run_dir / "report.md").read_text("utf-8")
    assert ("changed nothing" in run.output) == (sentence is not None)


def test_options_that_concern_an_eval_are_not_named(project: Project) -> None:
    project.write(test_a=WITH_SPOTS).run_inline("--run-id", "before")
    run = project.run_inline("--run-id", "r", "--spot=2", "--coordinates=unit", "--baseline=latest", "--accept-changes")
    assert run.facts["idle_options"] == []
    assert {path.name: path.read_text() for path in run.run_dir.rglob("spots.txt")} == {"spots.txt": "2"}


def test_options_of_evals_are_named_where_tests_ask_the_engine_themselves(project: Project) -> None:
    project.write(test_a="def test_s(engine): pass\n")
    given = ("--temperature=0", "--seed=0", "--num-samples=1", "--plugin=balanced-json-stop", "--limit=1", "--data=.")
    idle = project.run_inline(*given).facts["idle_options"]
    assert {sentence.partition(" ")[0] for sentence in idle} == {option.partition("=")[0] for option in given}
    assert {sentence.partition(" ")[2] for sentence in idle} == {"changed nothing: it concerns evals, and this run has none"}


def test_options_of_questions_are_named_where_responses_are_only_scored(project: Project) -> None:
    scored = PLAIN.replace("import Case,", "import Case, ScoringRequest,").replace("request=ask", "request=score_given")
    scored = scored.replace("pytestmark", "def score_given(case): return ScoringRequest('a', 'b')\npytestmark", 1)
    script = project.script({"contains": "a", "logprobs": -0.5, "text": "x"})
    given = ("--model", script, "--temperature=0.5", "--seed=3", "--plugin=balanced-json-stop", "--limit-first=2")
    idle = project.write(test_a=scored).run_inline("--run-id", "one", *given).facts["idle_options"]
    changed_nothing = "changed nothing: this run only scored given responses"
    assert sorted(idle) == [f"--plugin {changed_nothing}", f"--seed {changed_nothing}", f"--temperature {changed_nothing}"]
    project.write(test_b=PLAIN)
    assert project.run_inline("--run-id", "two", *given).facts["idle_options"] == []


def test_an_option_of_a_settings_file_may_be_meant_for_other_runs(project: Project) -> None:
    (project.root / "evalharness.toml").write_text("spot = 2\nhang_timeout = 5\n")
    assert project.write(test_a=PLAIN).run_inline().facts["idle_options"] == []


def test_coordinates_without_overlay_are_refused_by_generate(project: Project) -> None:
    code, said = project.evalharness("generate", "--backend", "fake", "--prompt", "x", "--coordinates", "unit")
    assert (code, "--coordinates says how --overlay draws boxes; give --overlay PICTURE" in said) == (2, True)
