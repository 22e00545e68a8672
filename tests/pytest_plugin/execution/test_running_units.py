"""Units that are generated while the tests of the one before still run: what may go wrong then, in whole runs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest

from evalharness.api.errors import BROKEN
from evalharness.backends.fake import FakeBackend
from evalharness.pytest_plugin.execution import engines as engine_loading
from evalharness.pytest_plugin.execution.execution import RunningUnits
from evalharness.pytest_plugin.execution.units import UnitKey
from tests.pytest_plugin.killing import generations
from tests.pytest_plugin.project import HEADER, MARK as ONE_EVAL, TIMEOUT_S, Project, Run

NUM_CASES = 6
MARK = (
    HEADER
    + f"""
import time
from pathlib import Path
pytestmark = pytest.mark.eval(cases=lambda d: [Case(id=f"NAME{{i}}") for i in range({NUM_CASES})], request=ask)
"""
)
LATER = MARK.replace("NAME", "b") + "def test_t(case, generation): assert generation.text == f'ask {case.id}'\n"
# The first tests go on until the second eval is generated, or would be if it were begun.
EARLIER = (
    MARK.replace("NAME", "a")
    + """
def wait_for(text):
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and not any(text in path.read_text() for path in Path("reports").glob("*/journal/*.jsonl")):
        time.sleep(0.02)

"""
)
ALL_OF_B = f'"case_id":"b{NUM_CASES - 1}"'
MODES = pytest.mark.parametrize("flags", [(), ("-p", "xdist", "-n1")], ids=["no-xdist", "n1"])


def project_with(project: Project, test: str, wait_s: float = TIMEOUT_S, **more: str) -> Project:
    return project.write(test_a=(EARLIER + test).replace("WAIT_S", str(wait_s)), test_b=LATER, **more)


@pytest.mark.slow
@MODES
def test_the_next_eval_is_generated_while_tests_of_the_last_run(project: Project, flags: tuple[str, ...]) -> None:
    test = f"def test_s(case, generation):\n    if case.id == 'a5': wait_for({ALL_OF_B!r})\n"
    run = project_with(project, test).run(*flags, apart=bool(flags))
    assert run.counts == {"pass": 2 * NUM_CASES}
    lines = [(line["kind"], line.get("case_id")) for line in run.journal if line["kind"] in ("generation", "row")]
    assert lines.index(("generation", "b5")) < lines.index(("row", "a5"))
    assert set(generations(run.run_dir).values()) == {1}


def test_what_was_generated_ahead_of_a_run_that_stopped_is_used_when_it_is_resumed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = (
        f"def test_s(case, generation):\n    if case.id == 'a1':\n        wait_for({ALL_OF_B!r})\n        assert os.path.exists('fixed')\n"
    )
    project_with(project, waits).run("-x", "--run-id", "r")
    stopped = Run(1, "", 0.0, project.root, "r")
    assert stopped.counts == {"pass": 1, "fail": 1, "skip": 2 * NUM_CASES - 2}
    made = generations(stopped.run_dir)
    assert {case_id for _, _, _, case_id, *_ in made} >= {f"b{number}" for number in range(NUM_CASES)}
    (project.root / "fixed").touch()
    assert project.run("--resume", "r", backend=None).exit_code == 0
    again = Run(0, "", 0.0, project.root, "r")
    assert again.counts == {"pass": 2 * NUM_CASES}
    assert set(generations(again.run_dir).values()) == {1}, "nothing twice"
    opened: list[Any] = []
    monkeypatch.setattr(engine_loading, "open_engine", lambda *given: opened.append(given))
    assert (project.run("--resume", "r", backend=None).exit_code, opened) == (0, []), "a run that has all opens no engine"


TURNS = "def pytest_collection_modifyitems(items): items.sort(key=lambda item: item.callspec.params['case'].id[1:])"


@pytest.mark.parametrize("more", [{"conftest": TURNS}, {"test_ab": "def test_direct(engine): pass"}], ids=["take turns", "another kind"])
def test_nothing_is_generated_ahead_where_tests_take_turns_or_one_of_another_kind_comes(project: Project, more: dict[str, str]) -> None:
    run = project_with(project, "def test_s(case, generation): pass\n", **more).run()
    assert run.exit_code == 0, run.output
    assert run.counts == {"pass": 2 * NUM_CASES + ("test_ab" in more)}
    assert not any(line.get("ahead") for line in run.journal)


def test_an_eval_whose_tests_are_all_skipped_holds_nobody_up(project: Project) -> None:
    skips = "@pytest.fixture\ndef early(case): pytest.skip('early')\ndef test_s(early, case, generation): pass\n"
    script = project.script(
        {"contains": "ask a5", "text": "x", "delay_s": 1.0}, *({"contains": f"b{n}", "text": f"ask b{n}"} for n in range(6)), {"text": "x"}
    )
    run = project_with(project, "def test_first(case, generation): pass\n" + skips).run("--model", script, "-k", "test_s or test_t")
    assert run.counts == {"pass": NUM_CASES, "skip": NUM_CASES}
    assert run.facts["problems"] == []
    assert {count for key, count in generations(run.run_dir).items() if key[2] == "b"} == {1}


def test_an_eval_between_whose_tests_are_all_skipped_makes_nothing_be_generated_twice(project: Project) -> None:
    all_of_c = ALL_OF_B.replace("b", "c")
    test = f"def test_s(case, generation):\n    if case.id == 'a5': wait_for({all_of_c!r})\n"
    skipped = "@pytest.fixture\ndef early(case): pytest.skip('early')\ndef test_t(early, case, generation): pass\n"
    project_with(project, test)
    run = project.write(test_b=MARK.replace("NAME", "b") + skipped, test_c=LATER.replace('f"b{i}"', 'f"c{i}"')).run()
    assert run.counts == {"pass": 2 * NUM_CASES, "skip": NUM_CASES}
    assert set(generations(run.run_dir).values()) == {1}


DEADLY = """
import os, pathlib
from evalharness.backends.fake import FakeBackend
complete = FakeBackend._complete

def deadly(self, prompt, plugins, *_):
    if "ask b2" in prompt.text: os._exit(9)
    return complete(self, prompt, plugins)

FakeBackend._complete = deadly
"""


# The first answer to b1 takes longer than anybody waits: its worker is dead before.
HELD = DEADLY.replace(
    'if "ask b2" in prompt.text: os._exit(9)',
    """if "ask b1" in prompt.text and not pathlib.Path("at-b1").exists():
        pathlib.Path("at-b1").touch()
        time.sleep(10_000)""",
).replace("import os, pathlib", "import os, pathlib, time")


def problems(run: Run) -> Counter[str]:
    return Counter(row["case_id"] for row in run.rows if row["outcome"] == "error")


@pytest.mark.slow
def test_a_case_that_kills_is_the_only_error_though_it_was_asked_beside_another_unit(project: Project) -> None:
    test = "def test_s(case, generation):\n    if case.id == 'a1': wait_for('never')\n"
    run = project_with(project, test, wait_s=3, conftest=DEADLY).run("-p", "xdist", "-n1", apart=True)
    assert problems(run) == Counter({"b2": 1})
    assert run.counts == {"pass": 2 * NUM_CASES - 1, "error": 1}
    assert run.exit_code == BROKEN


@pytest.mark.slow
def test_a_test_that_kills_is_the_only_error_though_another_unit_was_asked_beside_it(project: Project) -> None:
    test = "def test_s(case, generation):\n    if case.id == 'a1':\n        wait_for_b1()\n        os._exit(9)\n"
    test = "def wait_for_b1():\n    while not os.path.exists('at-b1'): time.sleep(0.01)\n\n" + test
    run = project_with(project, test, conftest=HELD).run("-p", "xdist", "-n1", apart=True)
    assert problems(run) == Counter({"a1": 1})
    assert run.counts == {"pass": 2 * NUM_CASES - 1, "error": 1}
    problems_told = run.facts["problems"]
    assert "test_a.py::test_s[fake:echo-a1] ran and " in problems_told[0]
    assert problems_told[0].endswith("case b1 of test_b.py was generated with fake:echo; it is tried again")
    assert problems_told[-1].endswith("test_a.py::test_s[fake:echo-a1] ran; this test is an error")


def test_what_cannot_be_begun_ahead_is_looked_up_once_and_not_at_every_test(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """All journals are read for it; until the engine is needed, nothing is begun that has to be asked."""
    project_with(project, "def test_s(case, generation): time.sleep(0.1)\n").run("--run-id", "r")
    (journal,) = (project.root / "reports" / "r" / "journal").glob("main.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(line for line in lines if b'"case_id":"b' not in line))
    prepared = Counter[str]()
    prepare = RunningUnits._prepare

    def counted(self: RunningUnits, unit: UnitKey) -> Any:
        prepared[unit.path] += 1
        return prepare(self, unit)

    monkeypatch.setattr(RunningUnits, "_prepare", counted)
    assert project.run("--resume", "r", backend=None).exit_code == 0
    assert prepared == {"test_a.py": 1, "test_b.py": 2}


def test_an_eval_that_could_not_be_asked_does_not_interrupt_the_next_one(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    restarts: list[Any] = []
    monkeypatch.setattr(RunningUnits, "_restart", lambda *given: restarts.append(given))
    refused = MARK.replace("NAME", "a").replace("request=ask", "request=ask, options=GenerationOptions(extra_generation_kwargs={'x': 1})")
    run = project.write(test_a=refused + "def test_s(case, generation): pass\n", test_b=LATER).run()
    assert run.counts == {"error": NUM_CASES, "pass": NUM_CASES}
    assert any(line.get("ahead") for line in run.journal)
    assert restarts == []


@pytest.mark.slow
def test_a_unit_that_failed_leaves_no_sign_that_its_cases_are_still_asked(project: Project) -> None:
    """Else they would be suspected if the worker died later, of whatever."""
    failing = (
        "from evalharness.backends.fake import FakeBackend\ncomplete = FakeBackend._complete\n"
        "def fails(self, prompt, plugins, *_):\n    if 'ask a2' in prompt.text: raise TypeError\n"
        "    return complete(self, prompt, plugins)\n"
        "FakeBackend._complete = fails\n"
    )
    test = "import glob\ndef test_t(case, generation): assert not glob.glob('reports/*/journal/*.1.asked')\n"
    first = MARK.replace("NAME", "a") + "def test_s(case, generation): pass\n"
    run = project.write(conftest=failing, test_a=first, test_b=MARK.replace("NAME", "b") + test).run("-p", "xdist", "-n1", apart=True)
    assert {row["case_id"]: row["outcome"] for row in run.rows if row["case_id"].startswith("b")} == {
        f"b{n}": "pass" for n in range(NUM_CASES)
    }
    assert run.counts["error"] >= 1


def test_ctrl_c_just_as_generating_begins_closes_no_engine_that_is_at_work(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, complete, close = threading.Thread.start, FakeBackend._complete, FakeBackend.close
    at_work: list[bool] = []

    def interrupted(self: threading.Thread) -> None:
        begin(self)
        if self.name == "engine-queue":
            raise KeyboardInterrupt

    def slow(self: FakeBackend, *given: Any) -> Any:
        time.sleep(0.1)
        return complete(self, *given)

    def looked(self: FakeBackend) -> None:
        at_work.append(any(thread.name == "engine-queue" for thread in threading.enumerate()))
        close(self)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    monkeypatch.setattr(FakeBackend, "_complete", slow)
    monkeypatch.setattr(FakeBackend, "close", looked)
    project.write(test_a=ONE_EVAL + "def test_s(case, generation): pass\n")
    assert project.run_inline().exit_code == pytest.ExitCode.INTERRUPTED
    assert at_work == [False]
