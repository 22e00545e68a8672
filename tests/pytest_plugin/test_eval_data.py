"""What evals give besides scores: details of cases, tables for the report, files for other tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evalharness.api.errors import BROKEN
from evalharness.report.writing import rebuild_run
from tests.pytest_plugin.project import HEADER, Project, Run, eval_module

WHOLE = eval_module("""
import json

def tables(rows):
    seen = {row["case_id"]: row.get("details", {"seen": [None]})["seen"][0] for row in rows}
    answers = [{"case": row["case_id"], "raw": row["generation"]["raw_text"], "seen": seen[row["case_id"]]} for row in rows]
    return {"Answers": answers, "Empty": []}

def outputs(rows, target):
    facts = {"spot": target.spot, "seed": target.seed, "engine": target.engine, "data_dir": target.data_dir and target.data_dir.name}
    (target.folder / "sub").mkdir(exist_ok=True)
    (target.folder / "facts.json").write_text(json.dumps(facts))
    (target.folder / "sub" / "rows.txt").write_text(" ".join(f"{row['test']}/{row['case_id']}/{row['outcome']}" for row in rows))

pytestmark = pytest.mark.eval(cases=cases, request=ask, tables=tables, outputs=outputs, data="photos")

@pytest.mark.gate("x >= 0")
def test_s(case, generation, score, details):
    if case.id == "c3":
        pytest.skip("not this one")
    details(seen=[generation.text], parsed={"站点": {"n": 1}, "none": None})
    score(x=1)

def test_plain(case, generation):
    pass
""")


@pytest.fixture(scope="module")
def whole(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    project = Project(tmp_path_factory.mktemp(f"whole-{mode}")).write(test_a=WHOLE)
    return project.run("--spot", "2", "--seed", "7", mode=mode)


class TestInThreeModes:
    def test_details_are_in_the_row_and_rows_without_have_no_such_key(self, whole: Run) -> None:
        assert whole.row("c1", "test_s")["details"] == {"seen": ["ask c1"], "parsed": {"站点": {"n": 1}, "none": None}}
        assert all("details" not in row for row in whole.rows if row["test"] == "test_plain" or row["outcome"] == "skip")

    def test_tables_are_asked_for_the_judged_rows_of_each_test(self, whole: Run) -> None:
        entries = {(entry["test"], entry["title"]): entry for entry in whole.facts["tables"]}
        assert set(entries) == {(test, title) for test in ("test_s", "test_plain") for title in ("Answers", "Empty")}
        lines = entries["test_s", "Answers"]["rows"]
        assert [(line["case"], line["seen"]) for line in lines] == [(f"c{i}", f"ask c{i}") for i in range(3)]
        assert all(line["raw"].startswith(line["seen"]) for line in lines)
        assert len(entries["test_plain", "Answers"]["rows"]) == 4

    def test_tables_are_in_the_report_and_whole_in_a_csv(self, whole: Run) -> None:
        assert "### a · test_s · Answers" in (whole.run_dir / "report.md").read_text("utf-8")
        assert "a,test_s,fake:echo,Answers,1,seen,ask c0" in (whole.run_dir / "tables.csv").read_text("utf-8")

    def test_output_files_are_written_once_per_engine_with_all_rows_and_listed(self, whole: Run) -> None:
        listed = {Path(entry["path"]).name: whole.run_dir / entry["path"] for entry in whole.facts["outputs"]}
        assert json.loads(listed["facts.json"].read_text()) == {"spot": 2, "seed": 7, "engine": "fake:echo", "data_dir": "photos"}
        rows = listed["rows.txt"].read_text().split()
        assert (len(rows), "test_s/c3/skip" in rows, "test_plain/c3/pass" in rows) == (8, True, True)
        assert "sub/rows.txt" in (whole.run_dir / "report.md").read_text("utf-8")
        assert whole.facts["problems"] == []


BAD_DETAILS = {
    "set": ("{1}", "must be plain JSON data, got {1} (set); give dicts, lists, texts, numbers"),
    "nested": ("{'a': [0, {'b': {1}}]}", "['a'][1]['b'] must be plain JSON data, got {1} (set); give dicts, lists, texts, numbers"),
    "key": ("{'a': {1: 2}}", "['a'] has the key 1 (int); keys must be texts"),
    "loop": ("loop()", "[0] contains itself; give plain JSON data"),
    "twice": ("1, again=True", "was recorded already for this case; give each name once"),
}
DETAILS = eval_module("""
import numpy as np

def loop():
    value = []
    value.append(value)
    return value

pytestmark = pytest.mark.eval(cases=cases, request=ask)

def test_s(case, engine, details):
    value = [1, (2,), {"n": np.int64(3), "half": np.float32(0.5)}]
    if case.id == "c0":
        details(x=value, text="\\ud800")
        value.append("changed later")
    else:
        CALL
""")


@pytest.mark.parametrize(("call", "problem"), BAD_DETAILS.values(), ids=BAD_DETAILS)
def test_what_is_no_json_is_an_error_of_the_test(project: Project, call: str, problem: str) -> None:
    body = "details(x=1); details(x=2)" if "again" in call else f"details(x={call})"
    run = project.write(test_a=DETAILS.replace("CALL", body)).run_inline()
    assert run.row("c0")["details"] == {"x": [1, [2], {"n": 3, "half": 0.5}], "text": "\ud800"}
    space = "" if problem.startswith("[") else " "
    assert (run.row("c1")["outcome"], run.row("c1")["problem"]) == ("error", f"ScoreError: detail 'x'{space}{problem}")


def test_a_details_fixture_of_the_evals_own_is_left_alone(project: Project) -> None:
    own = "\n@pytest.fixture\ndef details(): return 'mine'\n\ndef test_s(case, generation, details): assert details == 'mine'\n"
    run = project.write(test_a=HEADER + "pytestmark = pytest.mark.eval(cases=cases, request=ask)\n" + own).run_inline()
    assert run.counts == {"pass": 4}


def with_marker(extra: str) -> str:
    test = "@pytest.mark.gate('pass_rate >= 1')\ndef test_s(case, generation): pass\n"
    return HEADER + f"import sys\npytestmark = pytest.mark.eval(cases=cases, request=ask, {extra})\n{test}"


TABLES, OUTPUTS = "tables for test_s on fake:echo", "outputs for fake:echo"


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("tables=lambda rows: 1 / 0", f"{TABLES} failed: ZeroDivisionError: division by zero"),
        ("tables=lambda rows: sys.exit(0)", f"{TABLES} failed: SystemExit: 0"),
        ("tables=lambda rows: None", f"{TABLES} failed: AttributeError: 'NoneType' object has no attribute 'items'"),
        ("tables=lambda rows: {1: []}", f"{TABLES} gave no tables: the title 1 must be a text"),
        ("tables=lambda rows: {'T': ['x']}", f"{TABLES} gave no tables: a row of 'T' must be a mapping from column to value, got 'x'"),
        ("tables=lambda rows: {'T': [{1: 2}]}", f"{TABLES} gave no tables: a column of 'T' is 1; columns are texts"),
        ("tables=lambda rows: {'T': [{'a': []}]}", f"{TABLES} gave no tables: 'a' in 'T' is [] (list); give a text, a number or None"),
        ("tables=lambda rows: {'T': [{'a': 1e999}]}", f"{TABLES} gave no tables: 'a' in 'T' is inf; give None where there is no number"),
        ("outputs=lambda rows, target: 1 / 0", f"{OUTPUTS} failed: ZeroDivisionError: division by zero"),
        ("outputs=lambda rows, target: sys.exit(3)", f"{OUTPUTS} failed: SystemExit: 3"),
        ("outputs=lambda rows, target: pytest.fail('no')", f"{OUTPUTS} failed: Failed: no"),
        ("outputs=lambda rows: None", f"{OUTPUTS} failed: TypeError: <lambda>() takes 1 positional argument but 2 were given"),
    ],
)
def test_functions_that_fail_are_a_problem_and_the_report_is_there(project: Project, function: str, problem: str) -> None:
    run = project.write(test_a=with_marker(function)).run_inline()
    assert (run.exit_code, run.facts["problems"]) == (BROKEN, [f"test_a.py: {problem}"])
    assert (run.facts["tables"], run.facts["outputs"], (run.run_dir / "outputs").exists()) == ([], [], False)
    assert (run.run_dir / "report.md").exists()


@pytest.mark.parametrize("name", ["aggregate", "tables", "outputs"])
def test_what_is_no_function_is_refused_at_collection(project: Project, name: str) -> None:
    run = project.write(test_a=with_marker(f"{name}=3")).run_inline()
    assert f"test_a.py: the eval marker's {name} must be a function, got 3" in run.output
    assert run.opened_no_run


def test_engines_have_folders_of_their_own(project: Project) -> None:
    write = "outputs=lambda rows, target: (target.folder / 'n.txt').write_text(f'{target.engine} {len(rows)}')"
    project.script({"text": "one"})
    (project.root / "other.jsonl").write_text('{"text": "two"}\n')
    run = project.write(test_a=with_marker(write)).run_inline("--model", "answers.jsonl", "--model", "other.jsonl")
    written = {entry["engine"]: (run.run_dir / entry["path"]).read_text() for entry in run.facts["outputs"]}
    assert written == {engine: f"{engine} 4" for engine in ("fake:answers", "fake:other")}


def test_a_killed_run_keeps_its_details(project: Project) -> None:
    run = project.write(test_a=WHOLE).run_inline()
    before = run.row("c1", "test_s")
    asked = {name: run.facts[name] for name in ("schema_version", "run_id", "command", "started_at", "config")}
    (run.run_dir / "run.json").write_text(json.dumps(asked))
    (run.run_dir / "samples.jsonl").unlink()
    assert rebuild_run(run.run_dir)
    rebuilt = [json.loads(line) for line in (run.run_dir / "samples.jsonl").read_bytes().splitlines()]
    assert [row for row in rebuilt if (row["case_id"], row["test"]) == ("c1", "test_s")] == [before]
    facts = json.loads((run.run_dir / "run.json").read_bytes())
    assert (facts["tables"], facts["outputs"]) == ([], [])
