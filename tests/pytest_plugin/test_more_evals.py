"""The evals of parity, degeneration and JSON answers, as they are shipped, on scripted answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pytest_plugin.project import Project, Run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DATA = (f"--data={ROOT / 'fixtures' / 'site_photos'}",)


def run_eval(project: Project, name: str, *options: str, **scripts: str) -> Run:
    """Run a shipped eval on fakes that each say one text."""
    project.write(**{f"test_{name}": (ROOT / "evals" / f"test_{name}.py").read_text("utf-8")})
    for engine, text in scripts.items():
        (project.root / f"{engine}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    return project.run(*(f"--model={engine}.jsonl" for engine in scripts), *options)


def passed(run: Run) -> dict[str, bool]:
    return {f"{gate['engine']} {gate['expression']}": gate["passed"] for gate in run.facts["gates"]}


def test_parity_of_engines_passes_if_they_agree_and_fails_if_they_share_no_token(project: Project) -> None:
    run = run_eval(project, "parity", *DATA, "--run-id", "agree", one="不通过", two="不通过")
    assert run.exit_code == pytest.ExitCode.OK, run.output
    assert set(passed(run).values()) == {True}
    assert run.counts == {"pass": 2 * 24}
    run = run_eval(project, "parity", *DATA, "--run-id", "differ", one="不通过", two="通过")
    assert run.exit_code == pytest.ExitCode.TESTS_FAILED
    assert passed(run)["fake:one same_prompt >= 1"]
    assert not passed(run)["fake:one prefix_gap_mean <= 0.02"]


def test_degeneration_flags_a_loop_and_passes_what_is_sound(project: Project) -> None:
    run = run_eval(project, "degeneration", *DATA, loops="合格，" * 100, sound="照片中的支架安装正确，标签清晰。")
    gates = [f"fake:{engine} {rate} <= 0.02" for engine in ("loops", "sound") for rate in ("degenerate", "cap_hit", "invalid_rate")]
    assert passed(run) == {gate: gate != "fake:loops degenerate <= 0.02" for gate in gates}
    assert "repetition: a piece" in run.rows[0]["problem"]


def test_json_answers_takes_a_file_of_ones_own(project: Project) -> None:
    folder = project.root / "mine"
    folder.mkdir()
    rows = [{"id": f"q{i}", "prompt": "Total as JSON?", "expected": {"total": {"$number": i}, "unit": {"$text": "eur"}}} for i in (1, 2)]
    (folder / "json_answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = run_eval(project, "json_answers", "--data", str(folder), answers='Here: {"total": 1.0, "unit": "EUR"}')
    assert run.row("q1")["scores"]["all_right"] == 1.0
    assert run.row("q2")["details"]["fields"] == {"total": "wrong", "unit": "right"}
    (table,) = run.facts["tables"]
    assert table["rows"][0] == {"field": "total", "cases": 2, "accuracy": 0.5, "wrong": 1, "missing": 0}
    assert not passed(run)["fake:answers fields_right >= 0.95"]


def test_tools_judges_calls_of_the_shipped_rows(project: Project) -> None:
    answer = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "ulm", "days": 1}}\n</tool_call>'
    run = run_eval(project, "tools", f"--data={ROOT / 'fixtures' / 'tool_calls'}", calls=answer)
    assert run.row("weather-tomorrow")["scores"] == {"all_right": 1.0, "right_tool": 1.0, "right_arguments": 1.0, "executable": 1.0}
    assert run.row("weather-today")["problem"].startswith("wrong arguments")
    assert run.row("timer-plain")["problem"].startswith("get_weather cannot be executed: 'get_weather' is not offered")
    assert run.row("no-greeting")["scores"]["no_call"] == 0.0
    assert '"name": "get_weather"' in run.row("weather-tomorrow")["generation"]["prompt_text"]  # echo's template knows no tools
    assert {table["title"] for table in run.facts["tables"]} == {"by tool", "calls that cannot be executed"}


def test_marks_that_are_special_tokens_are_not_lost_on_the_way_to_the_parser(project: Project) -> None:
    run = run_eval(project, "tools", f"--data={ROOT / 'fixtures' / 'tool_calls'}", "--limit=1", calls="<|image_pad|>none")
    assert "no call in '<|image_pad|>none'" in run.rows[0]["problem"]


def test_an_optional_eval_without_data_is_skipped_beside_others(project: Project) -> None:
    project.write(test_json_answers=(ROOT / "evals" / "test_json_answers.py").read_text("utf-8"))
    run = run_eval(project, "tools", *DATA, "-rs", "--limit=2", answers="no")
    assert "this eval is optional, and has no data" in run.output
    assert run.counts == {"miss": 2}


@pytest.mark.parametrize("mode", ["no-xdist", "n2"])
def test_an_optional_eval_that_is_named_must_have_data(project: Project, mode: str) -> None:
    project.write(test_tools=(ROOT / "evals" / "test_tools.py").read_text("utf-8"))
    run = project.run(*DATA, "test_tools.py", mode=mode)
    assert run.exit_code != pytest.ExitCode.OK
    assert "this eval is optional, and has no data" in run.output
    assert run.opened_no_run


def test_optional_is_true_or_false(project: Project) -> None:
    module = (ROOT / "evals" / "test_tools.py").read_text("utf-8").replace("optional=True", 'optional="yes"')
    run = project.write(test_tools=module).run(*DATA)
    assert "optional must be True or False, got 'yes'" in run.output
