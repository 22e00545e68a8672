"""Parameters of tests are shown with their letters, where pytest escapes all but ASCII."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tests.pytest_plugin.project import MARK, Project

BODY = """
@pytest.mark.gate("pass_rate >= 0.5")
@pytest.mark.parametrize("key", ["统计", "é"])
def test_s(case, generation, key): assert case.id != "c1"

@pytest.mark.parametrize("word", ["Wörter"])
def test_plain(engine, word): assert engine.generate_text_batch([ask(Case(id="x"))], GenerationOptions())
"""


def test_rows_gates_reports_and_junit_show_letters(project: Project) -> None:
    run = project.write(test_a=MARK + BODY).run_inline("--junitxml", "junit.xml", "--run-id", "r")
    assert {row["test"] for row in run.rows} == {"test_s[统计]", "test_s[é]", "test_plain"}
    assert {row["case_id"] for row in run.rows if row["test"] == "test_plain"} == {"test_plain[Wörter]"}
    assert {gate["test"] for gate in run.facts["gates"]} == {"test_s[统计]", "test_s[é]"}
    assert all(gate["n"] == 4 for gate in run.facts["gates"])
    assert "a::test_s[统计]" in run.output
    assert "test_s\\[统计\\]" in (run.run_dir / "report.md").read_text("utf-8")
    names = [case.get("name") for case in ET.parse(project.root / "junit.xml").getroot().iter("testcase")]
    assert "test_s[统计-fake:echo-c0]" in names
    assert "\\u" not in " ".join(map(str, names))


def test_a_node_id_stays_as_pytest_takes_it_and_resume_finds_its_tests(project: Project) -> None:
    project.write(test_a=MARK + BODY)
    one = project.run_inline(r"test_a.py::test_s[\u7edf\u8ba1-fake:echo-c0]", "--run-id", "one")
    assert [(row["nodeid"], row["test"]) for row in one.rows] == [(r"test_a.py::test_s[\u7edf\u8ba1-fake:echo-c0]", "test_s[统计]")]
    assert project.run_inline("--resume", "one").rows[0]["outcome"] == "pass"
    code, output = project.evalharness("rescore", "one", "--run-id", "again")
    assert code == 0
    assert "a::test_s[统计]" in output


def test_k_takes_letters_and_escapes(project: Project) -> None:
    project.write(test_a=MARK + BODY)
    for number, word in enumerate(("统计", r"u7edf", "统")):
        rows = project.run_inline("-k", word, "--run-id", f"r{number}").rows
        assert [row["test"] for row in rows] == ["test_s[统计]"] * 4
