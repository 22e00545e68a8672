"""Every way in which pytest lets a test end, gated or not, is the row that the table in docs/writing_evals.md says: it is made here."""

from __future__ import annotations

import re
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.pytest_plugin.project import MARK, Project, Run, eval_module

DOCS = Path(__file__).parents[2] / "docs" / "writing_evals.md"


class Way(NamedTuple):
    """What a test does, in words for the docs and as source, and its row's outcome without and with a gate."""

    words: str
    source: str
    ungated: str
    gated: str


WAYS = {
    "passes": Way("passes", "pass", "pass", "pass"),
    "asserts": Way("an assertion fails, also one of `pytest.fail`, `pytest.raises`, `pytest.warns`", "assert 0, 'wrong'", "fail", "miss"),
    "group": Way(
        "raises an `ExceptionGroup` of failed assertions",
        "raise pytest_group('g', [AssertionError('a'), AssertionError('b')])",
        "fail",
        "miss",
    ),
    "raises": Way("raises anything else, also `SystemExit` or a warning as an error", "raise KeyError('k')", "error", "error"),
    "warns": Way("", "warnings.simplefilter('error'); warnings.warn('w')", "error", "error"),
    "exits": Way("", "raise SystemExit(0)", "error", "error"),
    "skips": Way("skips, before or after its scores", "pytest.skip('s')", "skip", "skip"),
    "setup": Way("a fixture fails at setup, even with an assertion", "#bad_setup", "error", "error"),
    "teardown": Way("a fixture fails at teardown", "#bad_teardown", "error", "error"),
    "teardown_late": Way("", "#bad_teardown\n assert 0", "error", "error"),
    "late_skip": Way("", "#skip_teardown\n assert 0", "fail", "miss"),
    "sub": Way("assertions of `subtests` fail", "#subtests\n with subtests.test('a'): assert 0, 'wrong'", "fail", "miss"),
    "sub_two": Way("", "#subtests\n for i in (1, 2):\n  with subtests.test(i=i): assert i > 2", "fail", "miss"),
    "sub_pass": Way("", "#subtests\n with subtests.test('a'): pass", "pass", "pass"),
    "sub_raise": Way("a subtest raises anything else", "#subtests\n with subtests.test('a'): raise KeyError('k')", "error", "error"),
    "sub_skip": Way("a subtest is skipped", "#subtests\n with subtests.test('a'): pytest.skip('s')", "pass", "pass"),
    "sub_then_skip": Way("", "#subtests\n with subtests.test('a'): assert 0\n pytest.skip('s')", "fail", "miss"),
    "sub_then_raise": Way("", "#subtests\n with subtests.test('a'): assert 0\n raise KeyError('k')", "error", "error"),
    "sub_teardown": Way("", "#sub_teardown", "fail", "miss"),
    "check": Way("a plugin such as pytest-check collects failed assertions", "#check\n check('wrong')", "fail", "miss"),
    "check_raise": Way("", "#check\n check('wrong')\n raise KeyError('k')", "error", "error"),
    "xfail": Way("`xfail`, and an assertion fails", "@pytest.mark.xfail(reason='r')\nassert 0", "miss", "miss"),
    "xfail_strict": Way("", "@pytest.mark.xfail(strict=True)\nassert 0", "miss", "miss"),
    "xfail_call": Way("calls `pytest.xfail`", "pytest.xfail('not yet')", "miss", "miss"),
    "xfail_check": Way("", "@pytest.mark.xfail\n#check\n check('wrong')", "miss", "miss"),
    "xfail_raises": Way("`xfail`, and it raises anything else", "@pytest.mark.xfail(reason='r')\nraise KeyError('k')", "skip", "skip"),
    "xfail_other": Way("", "@pytest.mark.xfail(raises=KeyError)\nassert 0", "fail", "miss"),
    "xfail_untrue": Way("", "@pytest.mark.xfail(False, reason='r')\nassert 0", "fail", "miss"),
    "xfail_norun": Way("`xfail(run=False)`", "@pytest.mark.xfail(run=False)\nassert 0", "skip", "skip"),
    "xpass": Way("`xfail`, and it passes", "@pytest.mark.xfail\npass", "pass", "pass"),
    "xpass_strict": Way("`xfail(strict=True)`, and it passes: pytest fails it", "@pytest.mark.xfail(strict=True)\npass", "fail", "fail"),
    "timeout": Way("exceeds its time (pytest-timeout)", "@pytest.mark.timeout(0.1)\ntime.sleep(5)", "error", "error"),
}
SCORED = [name for name, way in WAYS.items() if "error" not in way and name not in ("xfail_norun",)]
EXPECTED = ("xfail", "xfail_strict", "xfail_call", "xfail_check")
SHOWN = {name for name, way in WAYS.items() if way.gated == "miss" and name not in (*EXPECTED, "sub_teardown")} | {"teardown_late"}
"""The misses that pytest shows as such. It has shown a test as passed, or as a miss, when its teardown begins."""

HEAD = """
import time, warnings
pytestmark = pytest.mark.eval(cases=lambda d: [Case(id="c")], request=ask)

def pytest_group(*args):
    try:
        return ExceptionGroup(*args)
    except NameError:
        return AssertionError(*args)

@pytest.fixture
def bad_setup(): assert 0, "at setup"
@pytest.fixture
def bad_teardown():
    yield
    assert 0, "at teardown"
@pytest.fixture
def skip_teardown():
    yield
    pytest.skip("late")
@pytest.fixture
def sub_teardown(subtests):
    yield
    with subtests.test("late"): assert 0
"""
CHECKS = """
import pytest
FAILED = []

@pytest.fixture
def check(): return FAILED.append

@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(item, call):  # as pytest-check does it
    report = yield
    failed, FAILED[:] = FAILED[:], []
    if failed and item.get_closest_marker("xfail"):
        report.outcome, report.wasxfail = "skipped", ""
    elif failed:
        report.outcome, report.longrepr = "failed", "\\n".join(failed)
        try:
            raise AssertionError(report.longrepr)
        except AssertionError:
            call.excinfo = pytest.ExceptionInfo.from_current()
    return report
"""


def _module() -> str:
    tests = []
    for name, way in WAYS.items():
        *marks, source = re.split(r"(?<=\))\n|(?<=xfail)\n", way.source) if way.source.startswith("@") else [way.source]
        fixture, _, body = source.removeprefix("#").partition("\n") if source.startswith("#") else ("", "", source)
        lines = [*marks, f"def test_{name}(self, case, generation, score{', ' + fixture if fixture else ''}):", " score(right=1)"]
        lines += [line if line.startswith(" ") else f" {line}" for line in (body or "pass").split("\n")]
        tests += [f"    {line}" for line in lines]
    both = "class Both:\n" + "\n".join(tests)
    return eval_module(f"{HEAD}\n{both}\nclass TestUngated(Both): pass\n@pytest.mark.gate('right >= 0')\nclass TestGated(Both): pass\n")


@pytest.fixture(scope="module", params=["no-xdist", pytest.param("n2", marks=pytest.mark.slow)])
def ways(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    project = Project(tmp_path_factory.mktemp("ways")).write(test_ways=_module(), conftest=CHECKS)
    return project.run("-p", "pytest_timeout", "-rm", "--junitxml=junit.xml", mode=request.param)


def _rows(run: Run) -> dict[str, dict[str, dict[str, object]]]:
    rows: dict[str, dict[str, dict[str, object]]] = {}
    for row in run.rows:
        group, _, test = row["test"].partition("::test_")
        rows.setdefault(test, {})[group] = row
    return rows


class TestRows:
    def test_each_way_is_the_row_that_the_table_says(self, ways: Run) -> None:
        found = {name: (each["TestUngated"]["outcome"], each["TestGated"]["outcome"]) for name, each in _rows(ways).items()}
        assert found == {name: (way.ungated, way.gated) for name, way in WAYS.items()}

    def test_a_right_answer_stays_in_the_mean_however_pytest_ends_its_test(self, ways: Run) -> None:
        judged = {gate["test"].partition("::test_")[2] for gate in ways.facts["gates"] if gate["passed"]}
        assert judged == {name for name in SCORED if "skip" not in WAYS[name][2:]}

    def test_every_row_that_is_no_pass_says_why(self, ways: Run) -> None:
        assert not [row["nodeid"] for row in ways.rows if (row["outcome"] != "pass") != bool(row["problem"])]
        rows = _rows(ways)
        assert rows["sub"]["TestGated"]["problem"] == rows["sub"]["TestUngated"]["problem"] == "wrong"
        assert rows["check_raise"]["TestUngated"]["problem"] == "KeyError: 'k'"
        assert rows["xfail"]["TestUngated"]["problem"] == "assert 0 (xfail: r)"
        assert rows["xpass_strict"]["TestGated"]["problem"] == "[XPASS(strict)]"

    def test_pytest_itself_says_the_same(self, ways: Run) -> None:
        num_missed = len(SHOWN)
        assert f", {num_missed} miss" in ways.summary()
        assert ", 12 xfailed, 2 xpassed" in ways.summary()
        shown = ways.output.partition(" misses =")[2].partition(" evalharness =")[0]
        assert shown.count("MISS ") == num_missed
        assert re.search(r"MISS \S+TestGated::test_sub\[fake:echo-c\] \(test_ways.py:\d+\)\nE   wrong", shown)

    def test_junit_says_miss(self, ways: Run) -> None:
        cases = ElementTree.parse(ways.root / "junit.xml").getroot().findall(".//testcase")
        missed = {
            each.get("name") for each in cases for said in each.iter("property") if said.attrib == {"name": "outcome", "value": "miss"}
        }
        assert missed == {f"test_{name}[fake:echo-c]" for name in {*SHOWN, *EXPECTED}}


PYTEST_HTML = """
import pytest

class Hooks:
    def pytest_html_results_table_row(report, cells): pass
    def pytest_html_results_table_html(report, data): pass

def pytest_addhooks(pluginmanager): pluginmanager.add_hookspecs(Hooks)

def pytest_configure(config): config.pluginmanager.register(Page(config))

class Page:
    def __init__(self, config): self.hook = config.hook

    def pytest_runtest_logreport(self, report):  # as pytest-html does it
        if report.when == "call" or not report.passed:
            cells, data = [f'<td class="col-result">{report.outcome.capitalize()}</td>', report.nodeid], []
            self.hook.pytest_html_results_table_row(report=report, cells=cells)
            self.hook.pytest_html_results_table_html(report=report, data=data)
            with open("page.txt", "a") as file:
                print(cells[0], *data, file=file)
"""


@pytest.mark.parametrize("gate", ["", "@pytest.mark.gate('pass_rate >= 0')\n"], ids=["ungated", "gated"])
def test_an_async_test_that_pytest_cannot_run_is_no_verdict(project: Project, gate: str) -> None:
    run = project.write(test_a=MARK + gate + "async def test_s(case, generation): pass\n").run()
    assert run.counts == {"error": 4}
    assert "async def functions are not natively supported" in run.rows[0]["problem"]


def test_pytest_html_says_miss_and_why(project: Project) -> None:
    test = """
        pytestmark = pytest.mark.eval(cases=lambda d: [Case(id="a"), Case(id="b"), Case(id="c", invalid="no photo")], request=ask)
        @pytest.mark.gate("pass_rate >= 0")
        def test_s(case, generation):
            if case.id == "b":
                pytest.fail("a < b")
    """
    project.write(test_a=eval_module(textwrap.dedent(test)), conftest=PYTEST_HTML).run()
    shown = (project.root / "page.txt").read_text().splitlines()
    assert shown == [f'<td class="col-result">{text}' for text in ("Passed</td>", "Miss</td> a &lt; b", "Invalid</td> no photo")]


def test_what_a_subtest_prints_and_is_called_cannot_break_a_run(project: Project) -> None:
    test = """
def test_s(case, generation, subtests):
    with subtests.test("\\ud800\\x1b[31m", value="\\ud800"):
        print("\\x1b[31m")
        assert 0, "\\ud800\\x1b[31m"
"""
    run = project.write(test_a=MARK + test).run("-k", "c0", "-rA")
    assert run.counts == {"fail": 1}
    assert "\x1b[31m" not in run.output
    assert "SUBFAILED[\\ud800\\x1b[31m]" in run.output


def test_the_documented_table_is_this_one() -> None:
    lines = [f"| {way.words} | {way.ungated} | {way.gated} |" for way in WAYS.values() if way.words]
    table = "\n".join(["| what the test does | row without a gate | row with a gate |", "|---|---|---|", *lines])
    assert table in DOCS.read_text("utf-8"), table
