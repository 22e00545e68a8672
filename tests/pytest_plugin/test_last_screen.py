"""The end of a session on the terminal: equal failures once, the verdict in colour, and how to go on."""

from __future__ import annotations

import os
import re
import signal
import xml.etree.ElementTree as ET
from collections.abc import Mapping

import pytest

from evalharness.pytest_plugin.last_screen import knows_links
from tests.pytest_plugin.execution.test_early_end import module
from tests.pytest_plugin.project import HEADER, MARK, PLAIN, Project, wait_until

GATED = MARK + '@pytest.mark.gate("x >= 2")\ndef test_s(case, generation, score): score(x=int(case.id[1:]))\n'


def after_dots(output: str) -> list[str]:
    """Return the lines after those with a letter per test, but for empty ones."""
    lines = output.splitlines()
    last = max(number for number, line in enumerate(lines) if line.endswith("%]"))
    return [line for line in lines[last + 1 :] if line.strip()]


@pytest.mark.slow
class TestEqualFailures:
    @pytest.mark.parametrize(
        ("mode", "more"),
        [
            ("no-xdist", {"body": "score(x='yes')"}),
            ("n2", {"body": "score(x='yes')"}),
            ("no-xdist", {"ask": "return 'text'"}),
            ("n2", {"ask": "raise OSError(f'no {case.id}')"}),
        ],
        ids=["in the test", "in the test, n2", "wrong request", "no request, n2"],
    )
    def test_three_hundred_take_a_screen(self, project: Project, mode: str, more: Mapping[str, str]) -> None:
        text = module(**{"body": "pass", **more}, num=300).replace("def test_s(case, generation)", "def test_s(case, generation, score)")
        output = project.write(test_a=text[: text.index("def test_t")]).run(mode=mode).output
        lines = after_dots(output)
        assert len(lines) <= 15, output
        assert " ".join(" ".join(lines).split()).count("c0, c1, c2, …") == 1

    def test_they_are_as_few_where_all_cases_are_asked_and_all_are_there_with_vv(self, project: Project) -> None:
        text = module("raise ValueError('bad')", num=30)
        project.write(test_a=text[: text.index("def test_t")])
        short = project.run("--keep-going").output
        assert len(after_dots(short)) <= 15, short
        assert "test_s[fake:echo-c0] and 29 more" in short
        assert "30 failed" in short.splitlines()[-1]
        assert "what all have in common" not in short
        assert project.run("--keep-going", "-vv").output.count("ValueError: bad") > 30

    def test_what_only_the_first_said_is_not_said_of_all(self, project: Project) -> None:
        text = module("raise ValueError(f'{int(case.id[1:])} is bad')", num=3)
        project.write(test_a=text[: text.index("def test_t")])
        lines = after_dots(project.run().output)
        at = lines.index("E   ValueError: 0 is bad")
        assert lines[at + 1] == "E   (of the first one; what all have in common: ValueError: … is bad)"

    def test_different_ones_are_all_shown(self, project: Project) -> None:
        test = "def test_s(case, generation): raise [ValueError, TypeError, KeyError, OSError][int(case.id[1:])]('bad')\n"
        output = project.write(test_a=MARK + test).run().output
        assert len(re.findall("^FAILED test_a", output, re.MULTILINE)) == 4
        assert " and 3 more" not in output

    def test_tests_without_an_eval_are_left_to_pytest(self, project: Project) -> None:
        plain = "import pytest\n@pytest.mark.parametrize('n', range(5))\ndef test_p(n): assert False\n"
        output = project.write(test_a=PLAIN, test_p=plain).run().output
        assert len(re.findall("^FAILED test_p", output, re.MULTILINE)) == 5


class TestColours:
    @pytest.mark.parametrize(("limit", "style", "bar"), [(2, "31", "31"), (1, "32", "32")], ids=["failed", "passed"])
    def test_the_verdict_and_the_last_line_agree(self, project: Project, limit: int, style: str, bar: str) -> None:
        output = project.write(test_a=GATED.replace("2", str(limit))).run("--color=yes").output
        (verdict,) = (line for line in output.splitlines() if re.match(r"(\x1b\[\d+m)+(FAILED|PASSED):", line))
        assert f"\x1b[{style}m" in verdict
        assert output.splitlines()[-1].startswith(f"\x1b[{bar}m===")
        assert ("1 gate failed" in output.splitlines()[-1]) == (limit == 2)

    def test_without_colours_there_is_no_escape(self, project: Project) -> None:
        assert "\x1b" not in project.write(test_a=GATED).run().output

    @pytest.mark.parametrize(
        ("env", "knows"),
        [
            ({"TERM": "xterm-kitty"}, True),
            ({"VTE_VERSION": "7600"}, True),
            ({"TERM_PROGRAM": "vscode"}, True),
            ({"TERM": "xterm-256color"}, False),
            ({"TERM_PROGRAM": "vscode", "NO_COLOR": "1"}, False),
            ({"WT_SESSION": "x", "CI": "true"}, False),
        ],
    )
    def test_links_are_for_terminals_that_show_them(self, env: dict[str, str], knows: bool) -> None:
        assert knows_links(env) == knows


def test_the_page_comes_before_the_report_and_qq_says_the_verdict_alone(project: Project) -> None:
    run = project.write(test_a=GATED).run()
    assert run.output.index("page: ") < run.output.index("report: ")
    quiet = project.run("-qq").output.splitlines()
    assert [line.partition(":")[0] for line in quiet if ":" in line] == ["evalharness", "FAILED", "page", "report"]


@pytest.mark.parametrize(("stop", "reason"), [("pytest.exit('enough')", "enough"), ("raise KeyboardInterrupt", "interrupted by the user")])
def test_gates_of_what_did_not_run_are_not_judged_in_any_report(project: Project, stop: str, reason: str) -> None:
    test = f"def test_s(case, generation, score):\n    if case.id == 'c2': {stop}\n    score(x=1)\n"
    gated = MARK + '@pytest.mark.gate("x >= 1", "pass_rate >= 0.5")\n' + test
    run = project.write(test_a=gated, test_b=gated).run("--junitxml=j.xml", "--run-id", "r")
    assert [(gate["passed"], gate["judged"]) for gate in run.facts["gates"]] == [(False, False)] * 4
    assert f"INTERRUPTED: {reason}; 2 of 8 samples ran; 4 gates not judged" in run.output
    assert "4 gates not judged: not all cases ran" in run.output
    assert "FAILED" not in run.output
    assert run.summary().startswith("4 gates not judged, ")
    go_on = re.search("go on: (.* --resume r)$", run.output, re.MULTILINE)
    assert go_on
    for name in ("r/report.md", "r/report.html", "index.html"):
        text = (project.root / "reports" / name).read_text("utf-8")
        assert "--resume r" in text, name
    suite = next(ET.parse(project.root / "j.xml").getroot().iter("testsuite"))
    of_gates = [case for case in suite if case.get("classname") == "evalharness.analysis.gates"]
    assert [case.find("skipped") is not None for case in of_gates] == [True] * 4 + [False]
    assert go_on[1] in of_gates[-1].find("error").get("message")  # type: ignore[union-attr]


def test_equal_problems_have_one_reason_in_junit_and_reports(project: Project) -> None:
    test = "def test_s(case, generation): assert False, f'{case.id}: expected {len(case.id)}'\n"
    run = project.write(test_a=MARK + '@pytest.mark.gate("pass_rate >= 1")\n' + test).run("--junitxml=j.xml")
    properties = ET.parse(project.root / "j.xml").getroot().iter("property")
    assert {entry.get("value") for entry in properties if entry.get("name") == "reason"} == {"…: expected …"}
    assert "4 miss: …: expected …; such as: c0: expected 2 (a on fake:echo: c0, c1, c2, …)" in run.output
    assert (run.run_dir / "report.md").read_text("utf-8").count("expected 2") == 1


def test_no_part_of_a_secret_is_in_any_text_of_a_failure(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "very-secret-value-12345")
    key = "os.environ['MY_API_KEY']"
    cut_in_two = [f"assert 'x' * 2 == 'y' * 275 + {key}", f"assert False, 'y' * 1990 + {key}"]
    bodies = [f"assert False, {key}", f"raise ValueError({key})", *cut_in_two]
    tests = "".join(f"def test_{number}(case, generation): {body}\n" for number, body in enumerate(bodies))
    run = project.write(test_a=MARK + tests).run("--junitxml=j.xml", "-vv")
    texts = [run.output, *(path.read_text("utf-8") for path in [project.root / "j.xml", *run.run_dir.rglob("*.*")] if path.is_file())]
    assert "MY_API_KEY hidden" in run.output
    assert not [text for text in texts if "very-sec" in text]


SLOW = (
    HEADER
    + """
pytestmark = pytest.mark.eval(cases=cases, request=ask)

@pytest.mark.gate("pass_rate >= 1")
def test_s(case, generation):
    import time
    from pathlib import Path
    Path("started").touch()
    time.sleep(1 if case.id == "c0" else 600)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["no-xdist", "n2"])
def test_ctrl_c_is_answered_at_once_and_the_run_can_go_on(project: Project, mode: str) -> None:
    with project.write(test_a=SLOW).start("--run-id", "r", mode=mode) as process:
        wait_until((project.root / "started").exists)
        os.killpg(process.pid, signal.SIGINT)
        run = project.wait(process, run_id="r")
    assert run.exit_code == pytest.ExitCode.INTERRUPTED
    what = "2 workers" if mode == "n2" else "the engine"
    answer = f"\nevalharness: interrupted; stopping {what} and writing the report (Ctrl-C again to stop now)\n"
    assert run.output.count(answer) == 1
    assert run.output.index(answer) < run.output.index("INTERRUPTED: interrupted by the user")
    assert "1 gate not judged" in run.output
    assert "go on: " in run.output


def test_ids_that_xdist_cannot_carry_cost_nothing(project: Project, mode: str) -> None:
    odd = MARK.replace('group=f"g{i % 2}"', 'group="\\udc80" * 3') + "def test_s(case, generation): raise ValueError(f'{case.group} x')\n"
    run = project.write(test_a=odd).run(mode=mode)
    assert run.counts == {"error": 4}
    assert "4 errors: " in run.output
