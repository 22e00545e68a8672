"""`evalharness rules` on a run of the shipped Stage-B eval, with scripted answers whose gains are known; and the eval of the search."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from evalharness.tasks import stage_b
from evalharness.tasks.stage_b.files import read_guidance
from tests.pytest_plugin.project import Project, Run

ROOT = Path(__file__).parents[3]
SITE = ROOT / "fixtures" / "site_photos"
MISSION = "RRU线缆"
NEW = "若任一尾纤套管保护破损，则判定不通过"
RIGHT = {"pass": "Verdict: 通过\nReason: Image1: 齐全; 总结: 证据齐全", "fail": "Verdict: 不通过\nReason: Image1: 缺少; 总结: 缺少证据"}
PROPOSAL = {"operations": [{"op": "upsert", "text": NEW}, {"op": "upsert", "text": "若证据不足，则待定"}]}


def answers(**changes: Any) -> list[dict[str, Any]]:
    """Return a script that releases every order, and judges all rightly once the new rule is in the prompt."""
    rows = []
    for case in stage_b.load_cases(SITE / MISSION):
        assert isinstance(case, stage_b.StageBCase)
        for rules, label in ((case.rules, "pass"), ({**case.rules, "G3": NEW}, case.label)):
            rows.append({"contains": stage_b.messages(MISSION, case.summaries, rules)[1]["content"], "text": RIGHT[label]})
    said = {
        "decision": {"no_evidence_group_ids": [], "decision_analysis": ""},
        "reflection": {"has_evidence": True, "evidence_analysis": "", "operations": [], "hypotheses": []},
        "proposal": PROPOSAL,
        **changes,
    }
    marks = {"decision": "no_evidence_group_ids", "reflection": '"has_evidence"', "proposal": '"op": "upsert"'}
    return [*rows, *({"contains": mark, "text": json.dumps(said[name], ensure_ascii=False)} for name, mark in marks.items())]


def make_project(root: Path) -> Project:
    """Return Stage-B and the search for rules beside twelve tickets and a script of answers."""
    made = Project(root)
    for name in ("test_stage_b.py", "test_stage_b_rules.py"):
        shutil.copy(ROOT / "evals" / name, made.root)
    (made.root / "tickets").mkdir()
    for name in ("guidance.json", f"{MISSION}_stage_a.jsonl"):
        shutil.copy(SITE / name, made.root / "tickets")
    made.script(*answers())
    return made


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Run]:
    """A project with a run of Stage-B; tests give folders of their own for what they find."""
    made = make_project(tmp_path_factory.mktemp("judged") / "project")
    return made, stage_b_run(made)


def stage_b_run(project: Project, *arguments: str) -> Run:
    return project.run_inline("test_stage_b.py", "--data", "tickets", "--model", "answers.jsonl", "--run-id", "judged", *arguments)


def search(project: Project, *arguments: str, code: int = 0) -> str:
    found, output = project.evalharness("rules", "judged", "--max-changed", "0.5", *arguments)
    assert found == code, output
    return output


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_search_starts_from_the_runs_verdicts_and_tells_what_it_gained(judged: tuple[Project, Run]) -> None:
    project, run = judged
    shown = search(project)
    # Of 12 orders 4 are held out; of 8 train ones 4 were wrongly released, and none is after the new rule.
    folder = run.run_dir / "rules" / "fake-answers" / MISSION
    (row,) = lines(folder / "rule_candidates.jsonl")
    assert (row["decision"], row["n"], row["base_acc"], row["cand_acc"], row["base_false_release"], row["cand_false_release"]) == (
        "promoted", 8, 0.5, 1.0, 0.5, 0.0,
    )  # fmt: skip
    assert (row["eval_n"], row["eval_base_acc"], row["eval_acc"], row["rer"], row["changed_fraction"]) == (4, 0.5, 1.0, 1.0, 0.5)
    assert read_guidance(folder / "guidance.json")[MISSION].experiences["G3"] == NEW
    everything = read_guidance(folder.parent / "guidance.json")
    assert (len(everything), everything[MISSION].experiences["G3"]) == (1, NEW)
    report = (folder / "report.md").read_text("utf-8")
    for text in ("Search for rules", "Which guard refused proposed changes", "third state", "Promoted rules", NEW):
        assert text in shown
        assert text in report


def test_a_second_call_asks_nothing_and_a_later_one_goes_on(project: Project) -> None:
    project.script(*answers(proposal={"operations": []}))
    folder = stage_b_run(project).run_dir / "rules" / "fake-answers" / MISSION
    assert "1 round was asked for" in search(project, "--rounds", "1")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    search(project, "--rounds", "1")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert "2 rounds in a row promoted nothing" in search(project)
    assert [row["round"] for row in lines(folder / "benchmarks.jsonl")] == [0, 1, 2]
    assert "holds a search that started from other settings" in " ".join(search(project, "--hard-cases", "2", code=2).split())


def test_json_gives_one_summary_per_mission(judged: tuple[Project, Run]) -> None:
    project, _ = judged
    output = search(project, "--json", "--mission", "rru-cable", "--out", "found")
    (one,) = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert (one["mission"], one["usable"], one["refused"], one["after"]["acc"]) == (MISSION, 0.5, {"third state": 1}, 1.0)
    assert (project.root / "found" / MISSION / "guidance.json").is_file()


def test_tickets_without_a_verdict_are_left_out_and_listed(project: Project) -> None:
    folder = stage_b_run(project, "--limit", "7").run_dir / "rules" / "fake-answers" / MISSION
    search(project)
    assert len(lines(folder / "dropped.jsonl")) == 5
    assert sum(lines(folder / "benchmarks.jsonl")[0][name] for name in ("n", "eval_n")) == 7


def test_votes_are_asked_as_in_the_run(project: Project) -> None:
    eval_file = project.root / "test_stage_b.py"
    eval_file.write_text(eval_file.read_text("utf-8").replace("options=stage_b.ONE_VOTE", "options=stage_b.THREE_VOTES"), "utf-8")
    run = stage_b_run(project, "--seed", "7")
    search(project)
    answered = lines(run.run_dir / "rules" / "fake-answers" / MISSION / "reflection_cache" / "answers.jsonl")
    assert len(answered) == 3 + 12 * 3
    judged_seeds = {generation["seed"] for row in run.rows for generation in row["generations"]}
    assert {row["generation"]["seed"] for row in answered[3:]} == judged_seeds


REFUSED = {
    "engine": (("--engine", "fake:answer"), "is not an engine of .*did you mean 'fake:answers'"),
    "eval": (("--eval", "other"), "holds verdicts of stage_b only on fake:answers"),
    "mission": (("--mission", "rru-cabel"), "has no verdicts in this run.*did you mean 'rru-cable'"),
    "model": (("--model", "other.jsonl"), "the verdicts are fake:answers's, and fake:other has other weights"),
    "rounds": (("--rounds", "0"), "0 is not in the range"),
    "share": (("--min-gain", "nan"), "limits.min_rer must be finite, got nan"),
    "held out": (("--held-out", "nan"), "held_out must be a share from 0 to below 1, got nan"),
}


@pytest.mark.parametrize("arguments, message", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_searched_is_refused(judged: tuple[Project, Run], arguments: tuple[str, ...], message: str) -> None:
    project, _ = judged
    (project.root / "other.jsonl").write_text('{"text": "x"}\n')
    output = " ".join(search(project, *arguments, "--out", "refused", code=2).split())
    assert re.search(message, output), output
    assert not (project.root / "refused").exists()


def test_verdicts_under_other_rules_or_of_no_ticket_are_refused(project: Project) -> None:
    run = stage_b_run(project)
    path = project.root / "tickets" / "guidance.json"
    path.write_text(path.read_text("utf-8").replace("则判定不通过", "则不通过"), "utf-8")
    assert "12 of 12 verdicts on RRU线缆 were given on other summaries or rules" in " ".join(search(project, code=2).split())
    samples = run.run_dir / "samples.jsonl"
    damaged = samples.read_text("utf-8").replace('"prediction":"pass"', '"prediction":"maybe"', 1)
    samples.write_text(damaged, "utf-8")
    assert "is not a verdict: ContractValueError: label must be pass or fail" in " ".join(search(project, code=2).split())
    for written, other in (('"mission":"', '"mission":5,"was":"'), ('"reasons":[', '"reasons":[5,')):
        samples.write_text(damaged.replace('"maybe"', '"pass"').replace(written, other, 1), "utf-8")
        shown = " ".join(search(project, code=2).split())
        assert "is not a verdict: ContractTypeError: mission, ticket_key and reasons must be texts" in shown
    samples.write_text("")
    assert "holds verdicts of no ticket on fake:answers" in " ".join(search(project, code=2).split())


def test_verdicts_on_which_plugins_acted_are_refused(project: Project) -> None:
    stage_b_run(project, "--plugin", "balanced-json-stop")
    said = " ".join(search(project, code=2).split())
    assert "plugins acted on the verdicts of stage_b: BalancedJsonStop(roots='{'); judge the tickets without them, --plugin none" in said
    assert "No such option" in search(project, "--plugin", "balanced-json-stop", code=2)


def test_an_engine_that_fails_ends_the_search_with_what_it_answered_kept(project: Project) -> None:
    script = answers()
    project.script(*script[:-1], {**script[-1], "error": "the card is gone"})
    run = stage_b_run(project)
    assert "1 of 1 request failed: the card is gone; run the same command again to go on" in search(project, code=10)
    assert len(lines(run.run_dir / "rules" / "fake-answers" / MISSION / "reflection_cache" / "answers.jsonl")) == 2


def test_the_eval_gives_the_same_gains_as_the_command(project: Project) -> None:
    run = project.run_inline("test_stage_b_rules.py", "--data", "tickets", "--model", "answers.jsonl")
    assert run.facts["problems"] == []
    (row,) = run.rows
    assert (row["case_id"], row["outcome"]) == ("rru-cable", "pass")
    assert row["scores"] == {
        "hard_cases": 3.0, "promoted": 1.0, "accuracy": 0.5, "gain": 0.5, "held_out_gain": 0.5, "hardest_right": 1.0, "usable": 0.5,
    }  # fmt: skip
    tables = {entry["title"]: entry["rows"] for entry in run.facts["tables"]}
    assert tables["Which guard refused proposed changes"] == [{"guard": "third state", "changes": 1}]
    (path,) = (run.run_dir / "outputs").rglob("stage_b_rules/*/rule_candidates.jsonl")
    (candidate,) = lines(path)
    assert (candidate["base_acc"], candidate["cand_acc"], candidate["eval_base_acc"], candidate["eval_acc"]) == (0.5, 1.0, 0.5, 1.0)
    assert (path.parent / "guidance.json").is_file()
    assert [gate["passed"] for gate in run.facts["gates"]] == [True, True]
    code, output = project.evalharness("rescore", str(run.run_dir), "--run-id", "again")
    assert code == 0, output
    (again,) = lines(run.run_dir.parent / "again" / "samples.jsonl")
    assert again["scores"] == row["scores"]
