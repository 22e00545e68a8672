"""Templates and worked examples as evals use them, from collection to the row. Run: pytest tests/prompts/test_in_a_run.py"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pytest_plugin.project import Project

pytestmark = pytest.mark.slow
MODULE = """
import pytest
from evalharness.data import cases_from
from evalharness.prompts import few_shot, template

ask = template("{{q}}", target="a", choices="{{[a, 'none']}}", shots=few_shot("POOL", k=2))
pytestmark = pytest.mark.eval(cases=cases_from("test.jsonl", id="q", tags=["kind"]), request=REQUEST)

def test_s(case, generation): pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    rows = [{"q": f"q{n}", "a": f"a{n}", "kind": "odd" if n % 2 else "even"} for n in range(6)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return project


def module(pool: str = "test.jsonl", request: str = "ask") -> str:
    return MODULE.replace("POOL", pool).replace("REQUEST", request)


def test_rows_name_their_shots_the_same_for_all_cases_a_sample_and_one_alone(project: Project) -> None:
    project.write(test_a=module())
    whole, sampled, alone = (
        project.run_inline("--data", ".", "--run-id", name, *more)
        for name, more in (("whole", []), ("sampled", ["--limit", "2"]), ("alone", ["-k", "q3"]))
    )
    shots = {row["case_id"]: row["generation"]["shots"] for row in whole.rows}
    assert {len(each) for each in shots.values()} == {2}
    for part in (sampled, alone):
        assert {row["case_id"]: row["generation"]["shots"] for row in part.rows}.items() <= shots.items()
    assert [len(sampled.rows), len(alone.rows)] == [2, 1]


@pytest.mark.parametrize("request_of", ["ask", "ask.ask_choices"])
def test_a_pool_that_is_not_there_is_named_before_anything_runs(project: Project, request_of: str) -> None:
    run = project.write(test_a=module("trian.jsonl", request_of)).run_inline("--data", ".")
    assert run.exit_code == 2
    assert "holds no trian.jsonl; it has" in run.output


def test_as_chat_asks_templates_as_chats_and_says_which_requests_no_template_makes(project: Project) -> None:
    project.write(test_a=module(), test_b=module(request="lambda case: ask(case)"))
    chats = project.run_inline("--data", ".", "--as-chat", "--run-id", "chats")
    prompts = {row["eval"]: row["generation"]["prompt_text"] for row in chats.rows if row["case_id"] == "q1"}
    assert prompts["a"].count("<|im_start|>user") == 3, "two shots and the question"
    assert "<|im_start|>" not in prompts["b"]
    notices = {entry["name"]: entry.get("notices", []) for entry in chats.facts["evals"]}
    assert notices["a"] == []
    assert "--as-chat left its requests as they are, which no template makes" in notices["b"]
    code, printed = project.evalharness("rescore", "chats", "--run-id", "again")
    assert code == 0
    assert "changed" not in printed
