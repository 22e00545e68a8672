"""Every way in which a test can end is exactly one row, the same without xdist, with -n0 and with workers."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from evalharness.api.errors import BROKEN
from evalharness.report.html.run_before import HEAD
from evalharness.runs.run_file import sample_lines
from tests.pytest_plugin.hostile_text import TEXTS
from tests.pytest_plugin.project import MARK, Project, Run, eval_module

EVERY_OUTCOME = eval_module("""
NAMES = "passes misses misses_by_fail raises raises_score skips unaskable refused broken bad_request no_request".split()
NAMES += "bad_fixture bad_teardown exits last".split()

def cases(data_dir):
    return [Case(id=name, group="g", tags={"kind": name}, invalid="no photo" if name == "unaskable" else None) for name in NAMES]

def ask(case):
    if case.id == "bad_request":
        raise RuntimeError("request is broken")
    if case.id == "no_request":
        return None
    return TextGenerationRequest([{"role": "user", "content": case.id}])

pytestmark = pytest.mark.eval(cases=cases, request=ask)

@pytest.fixture
def guarded(case):
    if case.id == "bad_fixture":
        raise OSError("no disk")
    yield
    if case.id == "bad_teardown":
        raise OSError("late")

def judge(case, generation, score):
    score(length=len(generation.text))
    if case.id == "misses":
        assert generation.text == "something else"
    if case.id == "misses_by_fail":
        pytest.fail("not good enough")
    if case.id == "raises":
        raise KeyError("missing")
    if case.id == "raises_score":
        score(broken=float("nan"))
    if case.id == "skips":
        pytest.skip("not today")
    if case.id == "exits" and os.environ.get("PYTEST_XDIST_WORKER"):
        os._exit(7)

@pytest.mark.gate("length >= 1")
def test_gated(case, generation, score, guarded):
    judge(case, generation, score)

def test_ungated(case, generation, score, guarded):
    if case.id != "exits":
        judge(case, generation, score)

def test_plain():
    assert True

class TestClass:
    @pytest.mark.parametrize("extra", ["x", "y"])
    def test_method(self, extra, case, generation):
        assert generation.text == case.id
""")
ANSWERED = ("misses_by_fail", "misses", "passes", "raises_score", "raises", "skips", "exits", "last")
SCRIPT = [
    {"contains": "refused", "invalid": "prompt refused"},
    {"contains": "broken", "error": "machine on fire"},
    *({"contains": name, "text": name} for name in ANSWERED),
    {"text": "bad_teardown"},
]


@pytest.fixture(scope="session")
def every_outcome(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    project = Project(tmp_path_factory.mktemp(f"outcomes-{mode}")).write(test_every=EVERY_OUTCOME, test_other=OTHER)
    model = ("--model", project.script(*SCRIPT))
    return project.run(*model, "-rfm", "--junitxml=junit.xml", "-o", "xfail_strict=true", mode=mode, apart=True)


OTHER = """
import pytest
def test_unrelated(): pass
def test_unrelated_failure(): assert 1 == 2, "unrelated"
@pytest.mark.xfail
def test_unrelated_xfail(): assert False
@pytest.fixture
def case(): return "a fixture of somebody else"
def test_of_their_own(case): assert case == "a fixture of somebody else"
"""


@pytest.mark.slow
class TestEveryOutcome:
    @pytest.mark.parametrize(
        ("case_id", "gated", "ungated", "problem"),
        [
            ("passes", "pass", "pass", None),
            ("misses", "miss", "fail", "something else"),
            ("misses_by_fail", "miss", "fail", "not good enough"),
            ("raises", "error", "error", "KeyError: 'missing'"),
            ("raises_score", "error", "error", "ScoreError: score 'broken' must be finite, got nan"),
            ("skips", "skip", "skip", "not today"),
            ("unaskable", "invalid", "invalid", "no photo"),
            ("refused", "invalid", "invalid", "prompt refused"),
            ("broken", "error", "error", "machine on fire"),
            ("bad_request", "error", "error", "RuntimeError: request is broken"),
            ("no_request", "error", "error", "gave None"),
            ("bad_fixture", "error", "error", "setup: OSError: no disk"),
            ("bad_teardown", "error", "error", "teardown: OSError: late"),
            ("last", "pass", "pass", None),
        ],
    )
    def test_a_case_ends_as_its_row_says(self, every_outcome: Run, case_id: str, gated: str, ungated: str, problem: str | None) -> None:
        for test, outcome in (("test_gated", gated), ("test_ungated", ungated)):
            row = every_outcome.row(case_id, test)
            assert (row["outcome"], row["case_id"], row["group"], row["tags"]) == (outcome, case_id, "g", {"kind": case_id})
            if problem is None:
                assert row["problem"] is None
            else:
                assert problem in row["problem"]

    def test_a_test_that_ends_its_worker_is_an_error_row_and_the_rest_goes_on(self, every_outcome: Run, mode: str) -> None:
        row = every_outcome.row("exits", "test_gated")
        assert (row["outcome"], "died while" in (row["problem"] or "")) == (("error", True) if mode == "n2" else ("pass", False))
        assert every_outcome.row("exits", "test_ungated")["outcome"] == "pass"

    def test_every_collected_test_is_one_row(self, every_outcome: Run) -> None:
        assert len(every_outcome.rows) == len({row["nodeid"] for row in every_outcome.rows}) == 15 * 4
        assert sum(every_outcome.facts["counts"].values()) == 15 * 4

    def test_what_came_back_is_in_the_row_also_where_the_test_did_not_pass(self, every_outcome: Run) -> None:
        for case_id in ("passes", "misses", "raises", "skips", "bad_teardown"):
            assert every_outcome.row(case_id, "test_gated")["generation"]["text"] == case_id
        for case_id in ("unaskable", "refused", "broken", "bad_request"):
            assert every_outcome.row(case_id, "test_gated")["generation"] is None
        for case_id in ("unaskable", "refused", "broken", "bad_request", "no_request", "bad_fixture"):  # these never score
            assert every_outcome.row(case_id, "test_gated")["scores"] == {}

    def test_parameters_beside_ours_and_classes_are_rows_of_their_test(self, every_outcome: Run) -> None:
        rows = [every_outcome.row("passes", f"TestClass::test_method[{extra}]") for extra in "xy"]
        assert [row["nodeid"] for row in rows] == [f"test_every.py::TestClass::test_method[{extra}-fake:answers-passes]" for extra in "xy"]
        assert [row["outcome"] for row in rows] == ["pass", "pass"]

    def test_each_case_was_generated_once_for_all_its_tests_by_a_worker_that_is_named(self, every_outcome: Run, mode: str) -> None:
        made = [line["case_id"] for line in every_outcome.journal if line["kind"] == "generation"]
        assert mode == "n2" or len(made) == len(set(made)), "only a replaced worker asks again"
        workers = {row["worker"] for row in every_outcome.rows} - {None}
        if mode == "n2":  # one of them dies, and may have judged nothing before
            assert len(workers) > 1
            assert all(re.fullmatch(r"gw\d+", worker) for worker in workers)
        else:
            assert workers == {"main"}

    def test_the_run_is_broken_because_some_cases_ended_in_errors(self, every_outcome: Run) -> None:
        assert every_outcome.exit_code == every_outcome.facts["exit_code"] == BROKEN
        assert every_outcome.facts["interrupted"] is None

    def test_misses_are_shown_in_a_line_or_two_and_without_traceback(self, every_outcome: Run) -> None:
        shown = every_outcome.output.partition(" misses =")[2].partition(" evalharness =")[0]
        assert "MISS test_every.py::test_gated[fake:answers-misses] (test_every.py:" in shown
        assert "E   assert 'misses' == 'something else'" in shown
        assert "E   not good enough" in shown
        assert "def judge" not in shown
        assert re.search(r", 2 miss(,| in )", every_outcome.summary())  # workers decide in which order pytest lists what it does not know

    def test_tests_that_are_no_evals_are_unaffected(self, every_outcome: Run) -> None:
        assert "test_other.py::test_unrelated_failure - AssertionError: unrelated" in every_outcome.output
        assert ", 1 xfailed" in every_outcome.summary()
        assert not [row for row in every_outcome.rows if row["eval"] != "every"]

    def test_junit_has_every_test_and_what_a_miss_was(self, every_outcome: Run) -> None:
        cases = ElementTree.parse(every_outcome.root / "junit.xml").getroot().findall(".//testcase")
        assert len({(case.get("classname"), case.get("name")) for case in cases}) >= 15 * 4 + 5
        (missed,) = [case for case in cases if case.get("name") == "test_gated[fake:answers-misses_by_fail]"]
        properties = {p.get("name"): p.get("value") for p in missed.iter("property")}
        assert properties == {"outcome": "miss", "problem": "not good enough", "reason": "not good enough"}

    def test_all_reports_exist_and_the_project_folder_holds_nothing_that_was_not_asked_for(self, every_outcome: Run) -> None:
        names = {path.name for path in every_outcome.root.iterdir()} - {"__pycache__", ".pytest_cache"}
        assert names == {"pytest.ini", "test_every.py", "test_other.py", "answers.jsonl", "junit.xml", "reports"}
        names = {path.name for path in every_outcome.run_dir.iterdir()}
        assert names == {"run.json", "journal", "samples.jsonl", "report.md", "report.csv", "samples.csv", "report.html"}
        assert f"report: {every_outcome.run_dir / 'report.md'}" in every_outcome.output

    def test_the_first_keys_of_every_row_are_those_that_the_next_run_looks_for(self, every_outcome: Run) -> None:
        lines = list(sample_lines(every_outcome.run_dir))
        assert lines
        assert all(map(HEAD.match, lines))

    def test_a_gate_on_the_minority_that_could_be_judged_does_not_pass(self, every_outcome: Run) -> None:
        gate = every_outcome.gate("length >= 1")
        assert (gate["passed"], gate["eval"], gate["test"], gate["engine"]) == (False, "every", "test_gated", "fake:answers")
        assert gate["value"] >= 1
        assert gate["reason"].startswith("only ")


HOSTILE = eval_module("""
import json
from evalharness import DecodeOptions
TEXTS = json.loads(open("texts.json").read())

def cases(data_dir):
    return [Case(id=name) for name in TEXTS]

def ask(case):
    return TextGenerationRequest([{"role": "user", "content": f"<{case.id}>"}])

pytestmark = pytest.mark.eval(cases=cases, request=ask,
    options=GenerationOptions(max_new_tokens=2_000_000, decode=DecodeOptions(strip_whitespace=False)))

@pytest.mark.gate("right >= 1")
def test_pass(case, generation, score, record_property):
    score(right=generation.text == TEXTS[case.id])
    print(generation.text)
    record_property("text", generation.text)
    record_property("result", generation)

@pytest.mark.gate("pass_rate <= 0")
def test_miss(case, generation):
    assert False, generation.text + "!"

@pytest.mark.gate("pass_rate <= 0")
def test_miss_compared(case, generation):
    assert generation.text == "other"

def test_fail(case, generation):
    print(generation.text)
    assert False, generation.text

def test_fail_compared(case, generation):
    assert generation.text + "x" == "other" + generation.text

def test_raise(case, generation):
    raise RuntimeError(generation.text)

def test_skip(case, generation):
    pytest.skip(generation.text)
""")
NUM_TESTS = 7


@pytest.fixture(scope="session", params=["no-xdist", "n2"])
def hostile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    project = Project(tmp_path_factory.mktemp(f"hostile-{request.param}")).write(test_hostile=HOSTILE)
    (project.root / "texts.json").write_text(json.dumps(TEXTS), "ascii")
    script = project.script(*({"contains": f"<{name}>", "text": text} for name, text in TEXTS.items()))
    return project.run("--model", script, "-rA", "-rm", "--junitxml=junit.xml", "--tb=short", mode=request.param, apart=True)


@pytest.mark.slow
class TestHostileText:
    def test_every_test_ends_as_meant(self, hostile: Run) -> None:
        each = {"pass": 1, "miss": 2, "fail": 2, "error": 1, "skip": 1}
        assert hostile.counts == {outcome: count * len(TEXTS) for outcome, count in each.items()}
        assert hostile.exit_code == BROKEN

    def test_rows_keep_the_exact_text(self, hostile: Run) -> None:
        for row in hostile.rows:
            assert (row["case_id"], row["generation"]["text"]) == (row["case_id"], TEXTS[row["case_id"]])
            assert row["test"] != "test_pass" or row["scores"] == {"right": 1.0}, row["case_id"]

    def test_the_terminal_gets_no_escape_or_control_character_and_is_not_flooded(self, hostile: Run) -> None:
        assert {c for c in hostile.output if not c.isprintable()} <= {"\n", "\u202e", "\u202c", "\u2066", "\u2069", "\t"}
        assert len(hostile.output) < 400_000

    def test_junit_is_well_formed(self, hostile: Run) -> None:
        cases = ElementTree.parse(hostile.root / "junit.xml").getroot().findall(".//testcase")
        gates = [case for case in cases if case.get("classname") == "evalharness.analysis.gates"]
        assert len(cases) == len(TEXTS) * NUM_TESTS + len(gates)
        assert len(gates) == len(hostile.facts["gates"])

    def test_reports_exist_and_are_utf_8(self, hostile: Run) -> None:
        for name in ("report.md", "report.csv", "samples.csv", "run.json", "samples.jsonl"):
            assert (hostile.run_dir / name).read_text("utf-8")
        assert "<script>" not in (hostile.run_dir / "report.md").read_text("utf-8").replace("`", "")

    def test_problems_are_short_and_can_be_carried_anywhere_and_gates_judge_as_ever(self, hostile: Run) -> None:
        for row in hostile.rows:
            (row["problem"] or "").encode("utf-8")
            assert len(row["problem"] or "") < 2_100
        assert [gate["passed"] for gate in hostile.facts["gates"]] == [True] * 3


def test_pytests_summary_says_which_assertion_failed(project: Project) -> None:
    test = "def helper(): assert 1 == 2, 'the reason'\ndef test_s(case, generation):\n    local = 'x' * 3000\n    helper()\n"
    run = project.write(test_a=MARK + test).run("-k", "c0", "--showlocals")
    assert "test_s[fake:echo-c0] - the reason" in run.output


def test_pytests_summary_says_why_a_case_is_invalid(project: Project) -> None:
    marked = MARK.replace("cases=cases", "cases=lambda d: [Case(id='c0', invalid='no photo')]")
    run = project.write(test_a=marked + "def test_s(case, generation): pass\n").run()
    assert "test_s[fake:echo-c0] - invalid: no photo" in run.output
